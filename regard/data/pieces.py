"""Groups pieces into words, as text to show. Punctuation is a word of its own, and so is each piece in scripts without spaces.
No torch here."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

_SPACE = "\u2581"
_BYTE = re.compile(r"<0x([0-9A-F]{2})>")
_PUNCTUATION = re.compile(
    r"[.,;:!?…()\[\]{}\"“”„«»¿¡。，、；：！？]+"
)  # no apostrophe, no hyphen: they occur inside words
_NO_SPACES = re.compile(r"[\u0e00-\u0e7f\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]")  # Thai, Japanese, Chinese


@dataclass(frozen=True)
class Piece:
    """A token as text."""

    id: int
    text: str  # without the marker of a space before it
    word: int  # the index of its word


@dataclass(frozen=True)
class TokenizedSide:
    """The tokens of a source or a target, including `<s>` and `</s>`, and its words."""

    pieces: list[Piece]
    words: list[str]

    def pieces_of(self, word: int) -> list[int]:
        """The indices of a word's pieces."""
        return [place for place, piece in enumerate(self.pieces) if piece.word == word]


def group_words(ids: Sequence[int], pieces: Sequence[str], special: Sequence[int]) -> TokenizedSide:
    """Group pieces, as sentencepiece writes them, into words; each of the `special` ids is a word of its own.

    >>> group_words([5, 6, 7, 2], ["▁die", "▁Kat", "ze", "</s>"], [2]).words
    ['die', 'Katze', '</s>']
    """
    numbered: list[int] = []
    raw: list[list[str]] = []  # the pieces of each word
    before, after_alone = "", False
    for i, piece in zip(ids, pieces, strict=True):
        alone = i in special
        if not raw or alone or after_alone or begins_word(before, piece):
            raw.append([])
        raw[-1].append(piece)
        numbered.append(len(raw) - 1)
        before, after_alone = piece, alone
    shown = [
        Piece(i, piece if i in special else _text([piece]) or piece, word)
        for i, piece, word in zip(ids, pieces, numbered, strict=True)
    ]
    return TokenizedSide(shown, [_text(parts) or "".join(parts) for parts in raw])


def is_punctuation(text: str) -> bool:
    """Whether the text is punctuation that stands as a word of its own."""
    return _PUNCTUATION.fullmatch(text) is not None


def is_without_spaces(text: str) -> bool:
    """Whether the text has a character of a script that puts no spaces between words."""
    return _NO_SPACES.search(text) is not None


def begins_word(before: str, piece: str) -> bool:
    """Whether `piece` begins a new word after the piece `before`."""
    if piece.startswith(_SPACE):
        return True
    bare = before.lstrip(_SPACE)
    if not bare:  # the space was a piece of its own
        return False
    if is_punctuation(piece) != is_punctuation(bare):
        return True
    return is_without_spaces(piece) or is_without_spaces(bare)


def _text(parts: Sequence[str]) -> str:
    """Pieces joined and bytes decoded; an incomplete character becomes U+FFFD."""
    out = bytearray()
    for part in parts:
        if byte := _BYTE.fullmatch(part):
            out.append(int(byte[1], 16))
        else:
            out += part.replace(_SPACE, " ").replace("<u2581>", _SPACE).encode("utf-8", "replace")
    return out.decode("utf-8", "replace").strip()
