"""`regard search`: the passages of an index that are nearest to a query."""

from __future__ import annotations

import argparse
import textwrap
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.cli.common import add_engine, checked_batch, print_result, verb

if TYPE_CHECKING:
    from regard.understanding.index import Hit

_WIDTH = 100  # characters of a printed line


def add(verbs: Any) -> None:
    parser = verb(
        verbs,
        "search",
        run,
        "search an index that `regard embed FOLDER` made",
        "Print the passages of an index that are nearest in meaning to a query: score (cosine), file, place in it, and text. The "
        "search is exact, and needs no server.",
    )
    parser.add_argument("index", type=Path, metavar="INDEX", help="an index that `regard embed FOLDER` made")
    parser.add_argument("query", metavar="QUERY", help="what to look for")
    parser.add_argument("-k", type=int, default=5, metavar="N", help="passages to print (default: 5)")
    parser.add_argument(
        "-m", "--model", metavar="MODEL", help="the model that made the index (default: where it was then)"
    )
    add_engine(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> None:
    """Search, and print what is found."""
    checked_batch(arguments)
    from regard.api import load_index
    from regard.bounds import check_whole
    from regard.understanding.index import MAX_HITS

    check_whole("-k", arguments.k, 1, MAX_HITS)

    index = load_index(arguments.index, arguments.model, device=arguments.device, engine=arguments.engine)
    hits = index.search(arguments.query, arguments.k)
    print_result(arguments, [asdict(hit) for hit in hits], [line for hit in hits for line in _lines(hit)])


def _lines(hit: Hit) -> list[str]:
    wrapped = [line for part in hit.text.split("\n") for line in textwrap.wrap(part, _WIDTH - 4)]
    return [f"{hit.score:.3f}  {hit.path}, {hit.place}", *(f"    {line}" for line in wrapped)]
