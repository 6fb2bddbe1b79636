"""Plain text: the whole file is one text."""

from __future__ import annotations

from regard.translation.documents.document import Document, from_pieces, read_text


def open_text(data: bytes) -> Document:
    text, bom = read_text(data)
    return from_pieces([text], [0], bom)
