"""Text, Markdown and pages: files that are text themselves."""

from __future__ import annotations

import re

from regard.serve.documents.document import Document, from_pieces, read_text
from regard.serve.markdown import cut_markdown

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
    return from_pieces(pieces, places, mark, cut=cut_markdown)
