"""What a document is to the server: texts to translate, and a way to put their translations back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from regard.errors import InputError
from regard.translation.markup.elements import MarkupParser


@dataclass(frozen=True)
class Document:
    """The texts of a file in reading order, which may be HTML or have a markup that `parse_markup` reads; `save` makes the file of
    their translations."""

    texts: Sequence[str]
    save: Callable[[Sequence[str]], bytes]
    is_html: bool = False
    parse_markup: MarkupParser | None = None
    by_sentence: bool = True


def read_text(data: bytes) -> tuple[str, bytes]:
    """The text of a file and the mark that it begins with."""
    mark = b"\xef\xbb\xbf" if data.startswith(b"\xef\xbb\xbf") else b""
    try:
        return data[len(mark) :].decode("utf-8"), mark
    except UnicodeDecodeError:
        raise InputError("file must be text in UTF-8; convert it and send it again") from None


def from_pieces(
    pieces: list[str], places: Sequence[int], mark: bytes = b"", *, parse_markup: MarkupParser | None = None
) -> Document:
    """A document that is pieces of text, of which those at `places` are to be translated."""

    def save(translations: Sequence[str]) -> bytes:
        filled = list(pieces)
        for place, translation in zip(places, translations, strict=True):
            filled[place] = translation
        return mark + "".join(filled).encode()

    return Document([pieces[place] for place in places], save, parse_markup=parse_markup)
