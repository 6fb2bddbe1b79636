"""Plain text and HTML: the whole file is one text. HTML is parsed by `markup/tags.py`."""

from __future__ import annotations

from regard.translation.documents.document import Document, from_pieces, read_text


def open_text(data: bytes) -> Document:
    text, bom = read_text(data)
    return from_pieces([text], [0], bom)


def open_html(data: bytes) -> Document:
    text, bom = read_text(data)
    return Document([text], lambda translations: bom + translations[0].encode(), is_html=True)
