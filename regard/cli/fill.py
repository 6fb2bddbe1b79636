"""`regard fill`: fills blanks in texts."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.cli.common import add_engine, checked_batch, find_models, load_model, print_result, read_texts, verb
from regard.errors import UserError

if TYPE_CHECKING:
    from regard.understanding.filler import Filled


def add(verbs: Any) -> None:
    parser = verb(
        verbs,
        "fill",
        run,
        "fill blanks in texts with a masked language model",
        "Print the likeliest tokens for each blank of a text. A blank is written as the model's own mask token, such as [MASK] or "
        "<mask>, or as ___.",
    )
    parser.add_argument(
        "texts", nargs="*", metavar="TEXT", help="texts with blanks (default: the lines of -i or standard input)"
    )
    parser.add_argument(
        "-m", "--model", metavar="MODEL", help="a masked language model: a bundle, a run folder or a cached model"
    )
    add_engine(parser)
    parser.add_argument("-i", "--input", type=Path, metavar="FILE", help="a file with a text on each line")
    parser.add_argument("-k", type=int, default=5, metavar="N", help="tokens for each blank (default: 5)")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> None:
    """Fill the blanks of all texts."""
    if arguments.model is None:
        raise UserError("fill needs -m MODEL, a masked language model: regard train makes one, regard import reads one")
    find_models(arguments)  # before anything is read
    checked_batch(arguments)
    from regard.bounds import check_whole
    from regard.understanding.filler import MAX_CANDIDATES

    check_whole("-k", arguments.k, 1, MAX_CANDIDATES)
    texts = read_texts(arguments)
    model = load_model(arguments, task="fill")
    filled = model.filler.fill(texts, arguments.k)
    print_result(arguments, [asdict(one) for one in filled], [line for one in filled for line in _lines(one)])


def _lines(filled: Filled) -> list[str]:
    lines = [filled.filled]
    for number, candidates in enumerate(filled.blanks, 1):
        where = f"blank {number}  " if len(filled.blanks) > 1 else ""
        lines += [f"  {where}{one.probability:6.1%}  {one.text}" for one in candidates]
    return lines
