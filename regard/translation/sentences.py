"""Text into sentences and back: what is not to be translated (white space, line breaks, rows of dots) is kept as it is, so that
a text whose sentences are put back unchanged is the same, character for character. Which of them a model can take at once is for
`reading.py`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from regard.errors import UserError

_LINE = re.compile(r"[^\r\n\v\f\x1c-\x1e\x85\u2028\u2029]+|[\r\n\v\f\x1c-\x1e\x85\u2028\u2029]+")
_WINDOW = 2_000  # characters


@dataclass(frozen=True)
class Split:
    """A text in pieces that join to it; those whose numbers are in `places` are sentences."""

    pieces: tuple[str, ...]
    places: tuple[int, ...]

    @property
    def sentences(self) -> list[str]:
        return [self.pieces[place] for place in self.places]

    def join(self, translations: Sequence[str]) -> str:
        """The text with each sentence replaced by its translation."""
        pieces = list(self.pieces)
        for place, translation in zip(self.places, translations, strict=True):
            pieces[place] = translation
        return "".join(pieces)


def split_text(text: str, language: str, *, by_sentence: bool = True) -> Split:
    """Cut a text at line breaks and, unless told otherwise, between sentences.

    >>> split_text("Dr. Smith left.  Why?\\n\\n--\\n", "en").pieces
    ('Dr. Smith left.', '  ', 'Why?', '\\n\\n', '--', '\\n')
    """
    pieces: list[str] = []
    places: list[int] = []
    for line in _LINE.findall(text):
        for sentence in _sentences(line, language) if by_sentence and not line.isspace() else [line]:
            inner = sentence.strip()
            before = sentence[: len(sentence) - len(sentence.lstrip())]
            after = sentence[len(before) + len(inner) :]
            if inner and any(map(str.isalnum, inner)):
                places.append(len(pieces) + bool(before))
            pieces += [piece for piece in (before, inner, after) if piece]
    return Split(tuple(pieces), tuple(places))


def _sentences(line: str, language: str) -> list[str]:
    """The sentences of a line, each with the space that follows it."""
    try:
        from sentencex import segment
    except ImportError:
        raise UserError(
            "splitting text into sentences needs one more package; run: pip install 'regard[serve]'"
        ) from None
    code = re.split(r"[-_]", language)[0].lower()
    sentences: list[str] = []
    position = 0
    while position < len(line):
        # The splitter's time grows with the square of a line's length, so a long line is shown to it piece by piece.
        window = line[position : position + _WINDOW]
        found = list(segment(code, window))
        if "".join(found) != window:  # the text must come out whole, whatever the splitter does with it
            found = [window]
        if position + _WINDOW < len(line) and len(found) > 1:
            found.pop()  # it may go on
        sentences += found
        position += sum(map(len, found))
    return sentences
