"""`regard completion`: completion of verbs, options, models and recipe fields in the shell, by argcomplete."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from regard.builtin import builtin_models
from regard.cli.common import verb
from regard.cli.parsing import Parser

VARIABLE = "_ARGCOMPLETE"  # set by the shell when it asks for completions


def add(verbs: Any) -> None:
    parser = verb(
        verbs,
        "completion",
        run,
        "print the script that makes a shell complete verbs, options and models",
        'Print a script for the shell. bash and zsh: add eval "$(regard completion bash)" to ~/.bashrc, or with zsh to ~/.zshrc, '
        "after compinit. fish: regard completion fish > ~/.config/fish/completions/regard.fish",
    )
    parser.add_argument("shell", choices=("bash", "zsh", "fish"), help="your shell")


def run(arguments: argparse.Namespace) -> None:
    """Print the script."""
    from argcomplete.shell_integration import shellcode

    sys.stdout.write(shellcode(["regard"], shell=arguments.shell))


def complete(parser: Parser) -> None:
    """Answer the shell, and end the process."""
    from argcomplete import autocomplete

    for one in parser.verbs.values():
        for action in one._actions:
            if action.metavar == "MODEL":
                action.completer = _models  # type: ignore[attr-defined]
            elif action.metavar == "SECTION.KEY=VALUE":
                action.completer = _fields  # type: ignore[attr-defined]
    autocomplete(parser, always_complete_options="long")


def _models(prefix: str, **_: Any) -> list[str]:
    """Built-in models, and folders on the way to a run or a bundle."""
    typed = Path(prefix)
    folder = typed if prefix.endswith("/") else typed.parent
    try:
        folders = [str(path) for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")]
    except OSError:
        folders = []
    return [*builtin_models(), *(f"{path}{'' if _is_model(Path(path)) else '/'}" for path in folders)]


def _is_model(folder: Path) -> bool:
    return (folder / "config.json").is_file() or (folder / "recipe.toml").is_file()


def _fields(prefix: str, **_: Any) -> list[str]:
    """The fields of a recipe."""
    from regard.recipe import field_names

    return [f"{name}=" for name in field_names()]
