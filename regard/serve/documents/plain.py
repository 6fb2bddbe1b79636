"""Text, Markdown, subtitles and pages: files that are text themselves."""

from __future__ import annotations

import re
from collections.abc import Sequence

from regard.serve.documents.document import Document, from_pieces, read_text

# --- text and HTML ---


def open_text(data: bytes) -> Document:
    text, mark = read_text(data)
    return from_pieces([text], [0], mark)


def open_html(data: bytes) -> Document:
    text, mark = read_text(data)
    return Document([text], lambda translations: mark + translations[0].encode(), is_html=True)


# --- Markdown ---

# What opens a line and is not text: quotes, headings, list items, tables' bars.
_OPENING = re.compile(r"[ \t]*(?:(?:>|#{1,6}|[-*+]|\d{1,9}[.)])[ \t]+|\[[ xX]\][ \t]+)*")
_NO_TEXT = re.compile(r"(?:[-*_=] ?){3,}|\|?(?: {0,9}:?-+:? {0,9}\|)+ {0,9}:?-*:?|\[[^\]]{1,300}\]:\s.*|<[^<>]{1,999}>")
_FENCE = re.compile(r"[ \t]*(```+|~~~+)")


def open_markdown(data: bytes) -> Document:
    text, mark = read_text(data)
    pieces: list[str] = []
    places: list[int] = []
    fence = ""
    is_front_matter = text.startswith("---\n")
    for number, line in enumerate(text.splitlines(keepends=True)):
        opened = _FENCE.match(line)
        if is_front_matter:
            is_front_matter = number == 0 or line.rstrip() != "---"
            pieces.append(line)
        elif opened and (not fence or opened[1].startswith(fence)):
            fence = "" if fence else opened[1]
            pieces.append(line)
        elif fence or line.startswith(("    ", "\t")) or _NO_TEXT.fullmatch(line.strip()):
            pieces.append(line)
        else:
            start = _OPENING.match(line)
            assert start is not None
            places.append(len(pieces) + 1)
            pieces += [start[0], line[start.end() :]]
    return from_pieces(pieces, places, mark, is_markdown=True)


# --- subtitles ---

_TIMES = re.compile(r"\s*\d+:\d\d:\d\d[,.]\d+\s*-->")


def open_subtitles(data: bytes) -> Document:
    """SubRip: blocks of a number, two times and lines of text. A sentence may go over the lines of a block, so they are joined
    for the model and cut again to as many lines."""
    text, mark = read_text(data)
    newline = "\r\n" if "\r\n" in text else "\n"
    blocks: list[tuple[list[str], list[str]]] = []  # lines that stay, lines of text
    current: tuple[list[str], list[str]] = ([], [])
    is_speech = False  # whether the times of a block have come
    for line in text.split(newline):
        if is_speech and line.strip():
            current[1].append(line)
            continue
        if current[1]:
            blocks.append(current)
            current = ([], [])
        current[0].append(line)
        is_speech = bool(_TIMES.match(line))
    blocks.append(current)

    def save(translations: Sequence[str]) -> bytes:
        rest = iter(translations)
        lines: list[str] = []
        for kept, spoken in blocks:
            lines += kept
            if spoken:
                lines += _wrap(next(rest), len(spoken))
        return mark + newline.join(lines).encode()

    return Document([" ".join(map(str.strip, spoken)) for _, spoken in blocks if spoken], save)


def _wrap(text: str, count: int) -> list[str]:
    """A text in so many lines of about one length, or fewer if it has fewer words.

    >>> _wrap("one two three four", 2)
    ['one two', 'three four']
    """
    words = text.split()
    lines: list[str] = []
    while words and len(lines) < count - 1:
        goal = len(" ".join(words)) / (count - len(lines))
        line = words.pop(0)
        while words and len(line) + (1 + len(words[0])) / 2 <= goal:
            line += " " + words.pop(0)
        lines.append(line)
    return [*lines, " ".join(words)] if words else lines
