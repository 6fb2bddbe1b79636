"""`regard classify`: labels of texts, by a model that was trained on a table."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.cli.common import add_engine, load_model, print_result, read_texts, verb
from regard.errors import UserError
from regard.escaping import escape

if TYPE_CHECKING:
    from regard.understanding.answers import Classified

_MODEL = "a model with labels: a bundle, a run folder or the name of a cached model"


def add(verbs: Any) -> None:
    parser = verb(
        verbs,
        "classify",
        run,
        "label texts with a model trained on a table",
        "Print the label of each text and its probability, or the number that the model gives it. Without TEXT and -i, each line "
        "of standard input is a text. For a model of pairs, a tab separates the two texts of a pair.",
    )
    add_texts(parser)
    parser.add_argument("--top", type=int, default=1, metavar="N", help="labels to print for each text (default: 1)")
    parser.add_argument(
        "--threshold", type=float, metavar="P", help="with several labels: print those with at least this probability"
    )


def add_texts(parser: argparse.ArgumentParser) -> None:
    """The arguments of the verbs that label texts."""
    parser.add_argument("texts", nargs="*", metavar="TEXT", help="a text")
    parser.add_argument("-m", "--model", required=True, metavar="MODEL", help=_MODEL)
    parser.add_argument("-i", "--input", type=Path, metavar="FILE", help="a text on each line, also .gz, .xz and .zst")
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_engine(parser)


def say_windows(windows: Sequence[int], length: int) -> None:
    """Note texts that were read in several windows."""
    several = [number for number in windows if number > 1]
    if several:
        what = "1 text is" if len(several) == 1 else f"{len(several):,} texts are"
        sys.stderr.write(f"note: {what} longer than {length} tokens, read in up to {max(several)} windows\n")


def run(arguments: argparse.Namespace) -> None:
    if arguments.top < 1:
        raise UserError(f"--top must be at least 1, but is {arguments.top}")
    texts = read_texts(arguments)
    model = load_model(arguments, task="classify")
    if arguments.top > 1 and model.bundle.config.head_settings.answer == "number":
        raise UserError("--top is for labels, but this model gives a number; leave it out")
    from regard.progress import counted, progress_if

    split = model.classifier.split_lines(texts)
    if with_tabs := sum("\t" in text for text in split if isinstance(text, str)):
        sys.stderr.write(
            f"note: tabs in {counted(with_tabs, 'text')} are read as spaces; regard evaluate scores a table with labels\n"
        )
    with progress_if(len(texts) > 1000, "classifying", None, "windows") as done:
        found = model.classifier.classify(split, arguments.threshold, done)
    say_windows([one.windows for one in found], model.classifier.max_length)
    print_result(
        arguments, [document(one, arguments.top) for one in found], [line(one, arguments.top) for one in found]
    )


def document(one: Classified, top: int) -> dict[str, Any]:
    """The answer as JSON."""
    if one.number is not None:
        return {"text": one.text, "number": one.number, "windows": one.windows}
    likeliest = dict(list(one.probabilities.items())[: max(top, len(one.labels))])
    return {"text": one.text, "labels": list(one.labels), "probabilities": likeliest, "windows": one.windows}


def line(one: Classified, top: int) -> str:
    """Labels with their probabilities, and the text."""
    text = escape(one.text, keep="\t")
    if one.number is not None:
        return f"{one.number:.4f}\t{text}"
    shown = (
        list(one.probabilities.items())[:top] if top > 1 else [(name, one.probabilities[name]) for name in one.labels]
    )
    return f"{', '.join(f'{label} {probability:.3f}' for label, probability in shown) or '-'}\t{text}"
