"""`regard train`: from a recipe, or from two parallel text files with everything else chosen."""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.cli.common import verb
from regard.errors import UserError
from regard.parallel.processes import first_reports, process_info

if TYPE_CHECKING:
    from regard.recipe import Recipe


def add(verbs: Any) -> None:
    parser = verb(
        verbs,
        "train",
        run,
        "train a model from a recipe, or from two parallel files",
        "Train a model from a recipe (a .toml file), or from two parallel text files; Regard then chooses the settings. "
        "docs/recipe.md lists every field of a recipe.",
    )
    parser.add_argument(
        "inputs", nargs="+", metavar="RECIPE.toml | SRC TGT", help="a recipe, or a source and a target file"
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="run folder (default: runs/NAME)")
    parser.add_argument(
        "--set", action="append", default=[], metavar="SECTION.KEY=VALUE", help="change a recipe field; repeatable"
    )
    parser.add_argument(
        "--resume", action="store_true", help="continue from the newest intact checkpoint, if there is one"
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="print what would be trained and how long it would take, and exit"
    )
    parser.add_argument("--dump-recipe", action="store_true", help="print the resolved recipe and exit")


def run(arguments: argparse.Namespace) -> None:
    """Choose or read the recipe and train; --dry-run and --dump-recipe stop before."""
    is_first = process_info().is_first  # under torchrun only the first process prints
    with first_reports():
        recipe, name, lines = chosen_recipe(arguments, is_first)
    if is_first:
        sys.stderr.write("".join(f"{line}\n" for line in lines))
        if arguments.dump_recipe:
            sys.stdout.write(recipe.to_toml())
    if arguments.dump_recipe or arguments.dry_run:
        return
    from regard.training.run import train

    train(recipe, _out(arguments, name), resume=arguments.resume)


def _out(arguments: argparse.Namespace, name: str) -> Path:
    return arguments.out or Path("runs") / name


def chosen_recipe(arguments: argparse.Namespace, is_first: bool) -> tuple[Recipe, str, list[str]]:
    """The recipe, given or chosen for two text files; the name of the run; lines that describe the choice."""
    from regard.recipe import load_recipe

    inputs: list[str] = arguments.inputs
    silent = arguments.dump_recipe or not is_first
    if len(inputs) == 1:
        if not inputs[0].endswith(".toml"):
            raise UserError(
                f"{inputs[0]}: a single argument must be a recipe ending in .toml; for plain text give SRC and TGT"
            )
        recipe = load_recipe(Path(inputs[0]), arguments.set)
        lines = []
        if arguments.dry_run and not silent:
            from regard.training.auto import describe_run

            lines = describe_run(recipe)
        return recipe, Path(inputs[0]).stem, lines
    if len(inputs) == 2:
        from regard.training.auto import choose_recipe, measure_speed

        choice = choose_recipe(Path(inputs[0]), Path(inputs[1]), arguments.set, partial(_check, arguments))
        name = _name(choice.recipe)
        return choice.recipe, name, [] if silent else choice.describe(measure_speed(choice.recipe))
    raise UserError(f"train takes one recipe or two text files, but got {len(inputs)} arguments")


def _check(arguments: argparse.Namespace, recipe: Recipe) -> None:
    """Fail before the two files are read, if the run would be refused whatever they contain."""
    from regard.training.auto import own_process_device
    from regard.training.check import check_machine
    from regard.training.fine_tuning import check_init, resolve_recipe
    from regard.training.folder import RunFolder, check_folder

    recipe = resolve_recipe(recipe)
    if not arguments.resume:
        check_init(recipe)
    check_machine(recipe, own_process_device(recipe.train.device), process_info().size)
    if not (arguments.resume or arguments.dry_run or arguments.dump_recipe):
        check_folder(RunFolder(_out(arguments, _name(recipe))), recipe, resume=False)


def _name(recipe: Recipe) -> str:
    return f"{recipe.data.source}-{recipe.data.target}"
