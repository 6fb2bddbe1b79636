"""Text and pages: files that are text themselves, without more."""

from __future__ import annotations

from regard.translation.documents.document import Document, from_pieces, read_text


def open_text(data: bytes) -> Document:
    text, mark = read_text(data)
    return from_pieces([text], [0], mark)


def open_html(data: bytes) -> Document:
    text, mark = read_text(data)
    return Document([text], lambda translations: mark + translations[0].encode(), is_html=True)
