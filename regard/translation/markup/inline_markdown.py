"""Markup inside a line of Markdown. Emphasis and links follow their words, like inline tags of HTML; code, images and bare
addresses are literal; a footnote mark is an element without words; an escaped character is text. Headings, items and other blocks
are left to `documents/markdown.py`."""

from __future__ import annotations

import re

from regard.translation.markup.backslashes import Escaped
from regard.translation.markup.elements import TextRun
from regard.translation.markup.run_builder import RunBuilder

# Every repetition is bounded, so that a line of opening brackets takes linear time.
_SPAN = re.compile(
    r"\\(?P<escaped>[!-/:-@\[-`{-~])|"
    r"(?P<kept>\\(?=[\r\n])|`{1,9}[^`]{0,300}`{1,9}|!\[[^\]]{0,300}\](?:\([^)]{0,999}\)|\[[^\]]{0,300}\])|<[^<>\s]{1,999}>|\|)|"
    r"(?P<note>\[\^[^\]\s]{1,300}\])|(?P<link>\[)|(?P<linked>\]\([^)]{0,999}\)|\]\[[^\]]{0,300}\])|"
    r"(?P<mark>\*\*|__|(?<!\w)[*_](?=\S)|(?<=\S)[*_](?!\w))"
)


def parse_inline_markdown(text: str) -> list[str | TextRun]:
    """Parse a line into literal markup and runs."""
    builder, position = RunBuilder(), 0
    for span in _SPAN.finditer(text):
        builder.text(text[position : span.start()])
        position = span.end()
        mark = span[0]
        if span["escaped"]:
            builder.text(Escaped(span["escaped"]))
        elif span["note"]:
            builder.empty(mark)
        elif builder.innermost and (builder.innermost == (mark if span["mark"] else "[" if span["linked"] else "")):
            builder.close(mark)
        elif span["mark"] or span["link"]:
            builder.open(mark)
        else:
            builder.separator(mark)
    builder.text(text[position:])
    return builder.parts()
