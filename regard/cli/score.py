"""`regard score`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from regard.cli.common import add_model, load_model, print_result, verb


def add(verbs: Any) -> None:
    parser = verb(verbs, "score", run, "log-probability of given translations, a line each")
    add_model(parser)
    parser.add_argument("--source", type=Path, required=True, metavar="FILE")
    parser.add_argument("--target", type=Path, required=True, metavar="FILE")
    parser.add_argument("--json", action="store_true", help="one JSON document")


def run(arguments: argparse.Namespace) -> None:
    from regard.data.corpus import Corpus

    pairs = list(Corpus("", arguments.source, arguments.target).pairs())
    scores = load_model(arguments).score([source for source, _ in pairs], [target for _, target in pairs])
    print_result(arguments, scores, [f"{score:.6f}" for score in scores])
