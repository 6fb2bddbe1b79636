"""Texts inside the links and images of Markdown: the alternative text of an image, and titles. They are taken out of their line,
which keeps a mark in their place, and translated on their own."""

from __future__ import annotations

import re
from collections.abc import Sequence

_MARK = "\x01"
_MARKED = re.compile(f"{_MARK}([0-9]+){_MARK}")
_DESTINATION = r"\((?:<[^<>]{0,999}>|[^\s()\"']{1,999})"
# Escapes and code, in which nothing is a link; then images, and titles of links.
_PLACE = re.compile(
    r"\\.|(?<!`)(`{1,9})(?!`).{0,300}?(?<!`)\1(?!`)|"
    rf"!\[(?P<alt>[^\[\]]{{1,300}})\](?:{_DESTINATION}(?:\s+(?P<quote>[\"'])(?P<title>[^\"']{{1,300}})(?P=quote))?\s*\)|\[[^\[\]]{{0,300}}\])|"
    rf"\]{_DESTINATION}\s+(?P<quote_2>[\"'])(?P<title_2>[^\"']{{1,300}})(?P=quote_2)\s*\)"
)


def take_out_titles(line: str, first: int) -> tuple[str, list[str]]:
    r"""The line with marks, numbered from `first`, and the texts that they stand for.

    >>> line, titles = take_out_titles("see ![a cat](x.png 'Tom') and [b](y \"c d\")", 0)
    >>> line.replace("\x01", "#"), titles
    ('see ![#0#](x.png \'#1#\') and [b](y "#2#")', ['a cat', 'Tom', 'c d'])
    """
    if ("](" not in line and "![" not in line) or _MARK in line:
        return line, []
    pieces, titles, position = [], list[str](), 0
    for place in _PLACE.finditer(line):
        for name in ("alt", "title", "title_2"):
            start, end = place.span(name)
            if start >= 0 and any(map(str.isalpha, line[start:end])):
                pieces += [line[position:start], f"{_MARK}{first + len(titles)}{_MARK}"]
                titles.append(line[start:end])
                position = end
    return "".join([*pieces, line[position:]]), titles


def put_back_titles(line: str, translations: Sequence[str], titles: Sequence[str]) -> str:
    """The line with its marks replaced by translations, without the characters that would end a title."""

    def written(mark: re.Match[str]) -> str:
        number = int(mark[1])
        if number >= len(titles) or translations[number] == titles[number]:
            return titles[number] if number < len(titles) else mark[0]
        return re.sub(r"[\"\[\]\\\n]", "", translations[number]).replace("'", "’")

    return _MARKED.sub(written, line) if _MARK in line else line
