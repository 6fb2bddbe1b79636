"""`regard score`: log-probabilities of given translations."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from regard.cli.common import ENSEMBLE, add_model, load_model, print_result, verb


def add(verbs: Any) -> None:
    parser = verb(verbs, "score", run, "print the log-probability of given translations, one per line")
    add_model(parser, several=ENSEMBLE)
    parser.add_argument("--source", type=Path, required=True, metavar="FILE", help="source sentences, one per line")
    parser.add_argument("--target", type=Path, required=True, metavar="FILE", help="their translations, one per line")
    parser.add_argument("--json", action="store_true", help="print JSON, with the log-probability of every token")


def run(arguments: argparse.Namespace) -> None:
    """Print a log-probability for each pair of lines."""
    from regard.data.corpus import Corpus

    pairs = list(Corpus("", arguments.source, arguments.target).pairs())
    model = load_model(arguments)
    scored = model.token_scores([source for source, _ in pairs], [target for _, target in pairs])
    document = [
        {"source": source, "target": target, "log_prob": sum(tokens), "token_log_probs": tokens}
        for (source, target), tokens in zip(pairs, scored, strict=True)
    ]
    print_result(arguments, document, [f"{sum(tokens):.6f}" for tokens in scored])
