"""`regard tag`: tags of words, such as parts of speech or names."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from regard.cli.classify import add_texts, say_windows
from regard.cli.common import load_model, print_result, read_texts, verb

if TYPE_CHECKING:
    from regard.understanding.answers import Tagged


def add(verbs: Any) -> None:
    parser = verb(
        verbs,
        "tag",
        run,
        "tag the words of texts: parts of speech, names",
        "Print a word, a tab and its tag on each line, and a blank line after each text. Without TEXT and -i, each line of "
        "standard input is a text.",
    )
    add_texts(parser)
    parser.add_argument("--spans", action="store_true", help="print only the spans of B- and I- tags: name, tab, words")


def run(arguments: argparse.Namespace) -> None:
    texts = read_texts(arguments)
    model = load_model(arguments, task="tag")
    from regard.errors import UserError
    from regard.progress import progress_if
    from regard.understanding.answers import has_spans

    if arguments.spans and not has_spans(model.bundle.config.head_settings.labels):
        raise UserError("--spans needs a model with B- and I- tags, but this one has none; leave it out")
    with progress_if(len(texts) > 1000, "tagging", None, "windows") as done:
        found = model.tagger.tag(texts, done)
    say_windows([one.windows for one in found], model.tagger.max_length)
    print_result(arguments, [document(one) for one in found], lines(found, arguments.spans))


def document(one: Tagged) -> dict[str, Any]:
    """The answer as JSON."""
    words = [
        {"word": word, "tag": tag, "probability": probability}
        for word, tag, probability in zip(one.words, one.tags, one.probabilities, strict=True)
    ]
    return {"text": one.text, "words": words, "spans": [vars(span) for span in one.spans], "windows": one.windows}


def lines(found: list[Tagged], only_spans: bool) -> list[str]:
    shown: list[str] = []
    for number, one in enumerate(found):
        if number:
            shown.append("")
        if only_spans:
            shown += [f"{span.name}\t{span.text}" for span in one.spans]
        else:
            shown += [f"{word}\t{tag}" for word, tag in zip(one.words, one.tags, strict=True)]
    return shown
