"""The markup inside a line of Markdown: emphasis and links go around the translation of their words, as the tags of HTML do (see
`markup.py`); code, images and bare addresses stay as they are and separate. What makes a line a heading or an item is not seen
here."""

from __future__ import annotations

import re

from regard.serve.markup import DEEPEST, MOST, Inline, Run, Tag, separate

# All of bounded length: a line of opening brackets must not take for ever.
_SPAN = re.compile(
    r"(?P<kept>`{1,9}[^`]{0,300}`{1,9}|!\[[^\]]{0,300}\]\([^)]{0,999}\)|<[^<>\s]{1,999}>|\|)|"
    r"(?P<link>\[)|(?P<linked>\]\([^)]{0,999}\)|\]\[[^\]]{0,300}\])|"
    r"(?P<mark>\*\*|__|(?<!\w)[*_](?=\S)|(?<=\S)[*_](?!\w))"
)


def cut_markdown(text: str) -> list[str | Run]:
    """A line as what stays and runs of text with elements in them."""
    parts: list[str | Run] = []
    run, position = Run(), 0
    around: list[Inline] = []  # elements that are open
    count = 0

    def end_run() -> None:
        nonlocal run, count
        parts.extend(separate(run, around))  # what is open here reaches over what separates, so it separates, too
        around.clear()
        run, count = Run(), 0

    for span in _SPAN.finditer(text):
        if span.start() > position:
            run.tokens.append(text[position : span.start()])
        position = span.end()
        mark = span[0]
        opening = around[-1].opening if around else ""
        if opening and (opening == mark if span["mark"] else span["linked"] and opening == "["):
            around[-1].closing = mark
            run.tokens.append(Tag(around.pop(), True))
        elif (span["mark"] or span["link"]) and len(around) < DEEPEST and count < MOST:
            count += 1
            around.append(Inline(mark))
            run.tokens.append(Tag(around[-1], False))
        else:
            end_run()
            parts.append(mark)
    if position < len(text):
        run.tokens.append(text[position:])
    end_run()
    return parts
