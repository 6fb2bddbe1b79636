"""What the verbs share: the arguments about models and search, loading, printing."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.builtin import DEFAULT
from regard.errors import UserError

if TYPE_CHECKING:
    from regard.api import Model
    from regard.translation.constraints import Ask

_NAMED = "a bundle, a run folder or a built-in model"
MODEL = f"{_NAMED} (default: {DEFAULT})"
TOGETHER = f"{MODEL}; several of one vocabulary translate together"
ALL = f"{_NAMED}; may come several times (default: all built-in ones)"


def verb(verbs: Any, name: str, run: Any, help: str, description: str = "") -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = verbs.add_parser(name, help=help, description=description or help)
    parser.set_defaults(run=run)
    return parser


def add_model(parser: argparse.ArgumentParser, *, several: str = "") -> None:
    """`several` is the help where several models may be named, and says what for."""
    parser.add_argument(
        "-m", "--model", action="append" if several else "store", metavar="MODEL", help=several or MODEL
    )
    parser.add_argument(
        "--engine",
        default="auto",
        choices=("auto", "torch", "ctranslate2"),
        help="auto: ctranslate2 on CPUs where it is installed and knows the model, else torch (default: auto)",
    )
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:N or mps (default: auto)")
    parser.add_argument(
        "--batch", type=int, default=0, metavar="N", help="sentences computed together (default: by device)"
    )


def add_search(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--beam", type=int, metavar="N", help="beam width; 1 is greedy (default: the model's, as a rule 4)"
    )
    parser.add_argument(
        "--alpha", type=float, metavar="A", help="length penalty ((5 + |Y|) / 6)^A (default: the model's, 0.6)"
    )


def add_all_search(parser: argparse.ArgumentParser) -> None:
    add_search(parser)
    wishes = parser.add_argument_group("what a translation must hold")
    wishes.add_argument("--glossary", type=Path, metavar="FILE", help="source term, tab, target term on each line")
    wishes.add_argument("--keep", action="append", metavar="TEXT", help="is not translated; may come several times")
    wishes.add_argument("--prefix", metavar="TEXT", help="what every translation begins with")
    wishes.add_argument(
        "--phrase", action="append", dest="phrases", metavar="TEXT", help="must appear; may come several times"
    )
    how = parser.add_argument_group("how it is searched for")
    how.add_argument("--mbr", choices=("bleu", "chrf"), help="of the whole beam take what is most like the others")
    how.add_argument(
        "--coverage", type=float, metavar="B", help="what source words that were left out cost, such as 0.2"
    )
    how.add_argument("--no-repeat", type=int, metavar="N", help="no N tokens in a row come twice")
    how.add_argument("--max-repeat", type=int, metavar="N", help="the same tokens follow each other at most N times")
    how.add_argument("--groups", type=int, metavar="N", help="groups of the beam that shun each other's tokens")
    how.add_argument("--diversity", type=float, metavar="D", help="how much they do (default: 0.5)")
    how.add_argument(
        "--sample", action="store_const", const=True, help="draw at random; --beam N draws N, and the best is taken"
    )
    how.add_argument(
        "--temperature", type=float, metavar="T", help="with --sample: below 1 the likely is drawn more often"
    )
    how.add_argument("--top-k", type=int, metavar="K", help="with --sample: draw among the K likeliest tokens")
    how.add_argument(
        "--top-p", type=float, metavar="P", help="with --sample: draw among the likeliest that have P together"
    )
    how.add_argument(
        "--seed", type=int, metavar="S", help="with --sample: other seeds give other translations (default: 0)"
    )


def given_search(arguments: argparse.Namespace) -> dict[str, Any]:
    """What the command says of the search, beside beam and alpha, by the names of SearchOptions."""
    names = (
        "glossary", "keep", "mbr", "coverage", "no_repeat", "max_repeat", "groups", "diversity", "sample", "temperature", "top_k",
        "top_p", "seed",
    )  # fmt: skip
    return {name: value for name in names if (value := getattr(arguments, name)) is not None}


def given_ask(arguments: argparse.Namespace) -> Ask | None:
    """What the command wants of every translation."""
    from regard.translation.constraints import Ask

    if arguments.prefix is None and not arguments.phrases:
        return None
    return Ask(arguments.prefix or "", tuple(arguments.phrases or ()))


def load_model(arguments: argparse.Namespace, device: str | None = None) -> Model:
    """The model that the arguments name; on `device`, where this is one of several processes that each have their own."""
    folders = find_models(arguments)  # before anything slow is imported: a wrong name is said at once
    batch = checked_batch(arguments)
    from regard.api import load

    return load(folders, device=device or arguments.device, batch=batch, engine=arguments.engine)


def find_models(arguments: argparse.Namespace) -> list[Path]:
    from regard.bundle import find_bundle

    names = arguments.model if isinstance(arguments.model, list) else [arguments.model]
    return [find_bundle(name) for name in names]


def checked_batch(arguments: argparse.Namespace) -> int:
    batch: int = arguments.batch
    if batch < 0:
        raise UserError(f"--batch must be at least 1, but is {batch}")
    return batch


def print_result(arguments: argparse.Namespace, document: Any, lines: Sequence[str]) -> None:
    text = json.dumps(document, ensure_ascii=False, indent=2) if arguments.json else "\n".join(lines)
    sys.stdout.write(text + "\n")
