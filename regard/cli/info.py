"""`regard info`: a model's card."""

from __future__ import annotations

import argparse
import re
import shlex
import sys
from typing import Any

from regard.cli.common import MODEL, print_result, verb
from regard.errors import UserError
from regard.escaping import escape

_USE = re.compile(
    r"^(Use: `regard [a-z]+ -m )(?:FOLDER|MODEL)\b", re.MULTILINE
)  # of a card, which does not know its place


def add(verbs: Any) -> None:
    parser = verb(verbs, "info", run, "show languages, parameters, vocabulary, training data and scores of a model")
    parser.add_argument("model", nargs="?", metavar="MODEL", help=MODEL)
    parser.add_argument("-m", "--model", dest="named", metavar="MODEL", help="the same")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> None:
    """Print the model card, formatted on a terminal; with --json the facts behind it."""
    import dataclasses

    from regard.builtin import shown_name
    from regard.bundle import find_bundle, load_bundle

    if arguments.model is not None and arguments.named is not None:
        raise UserError("info shows one model; leave out MODEL or -m")
    bundle = load_bundle(find_bundle(arguments.model if arguments.named is None else arguments.named))
    document = {
        "folder": str(bundle.folder),
        "task": bundle.task,
        "source": bundle.source,
        "target": bundle.target,
        "model": bundle.config.to_dict(),
        "decode": dataclasses.asdict(bundle.decode),
        "max_length": bundle.max_length,
        "stored": bundle.stored,
    }
    if bundle.directions:
        document["directions"] = [list(pair) for pair in bundle.directions]
    if bundle.takes_pairs is not None:
        document["takes_pairs"] = bundle.takes_pairs
    if bundle.prompts:
        document["prompts"] = dict(bundle.prompts)
    document |= {name: fact for name, fact in bundle.facts.items() if name not in document}
    named = shlex.quote(arguments.named or arguments.model or shown_name(bundle.folder))
    card = escape(_USE.sub(lambda found: found[1] + named, bundle.card), keep="\n\t")
    if sys.stdout.isatty() and not arguments.json:
        from rich.console import Console
        from rich.markdown import Markdown

        Console().print(Markdown(card))
    else:
        print_result(arguments, document, card.splitlines())
