"""Splits text into sentences and joins it again. Everything between sentences (white space, line breaks, rows of dots) is kept, so
joining unchanged sentences gives the same text, character for character. `reading.py` cuts sentences too long for a model."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from regard.errors import UserError
from regard.translation.languages import first_subtag
from regard.translation.long_words import split_long_words

_LINE = re.compile(r"[^\r\n\v\f\x1c-\x1e\x85\u2028\u2029]+|[\r\n\v\f\x1c-\x1e\x85\u2028\u2029]+")
_WINDOW = 2_000  # characters
_SURROGATES = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True)
class Split:
    """A text in pieces, of which those numbered in `places` are sentences. Joined, the pieces are the text."""

    pieces: tuple[str, ...]
    places: tuple[int, ...]

    @property
    def sentences(self) -> list[str]:
        """The pieces to translate."""
        return [self.pieces[place] for place in self.places]

    def join(self, translations: Sequence[str]) -> str:
        """The text with each sentence replaced by its translation."""
        pieces = list(self.pieces)
        for place, translation in zip(self.places, translations, strict=True):
            pieces[place] = translation
        return "".join(pieces)


def split_text(text: str, language: str, *, by_sentence: bool = True) -> Split:
    """Split a text at line breaks, around words too long to translate and, if `by_sentence`, between sentences.

    >>> split_text("Dr. Smith left.  Why?\\n\\n--\\n", "en").pieces
    ('Dr. Smith left.', '  ', 'Why?', '\\n\\n', '--', '\\n')
    """
    pieces: list[str] = []
    places: list[int] = []
    for part, is_long in (one for line in _LINE.findall(text) for one in split_long_words(line)):
        if is_long:
            pieces.append(part)
            continue
        for sentence in _sentences(part, language) if by_sentence and not part.isspace() else [part]:
            inner = sentence.strip()
            before = sentence[: len(sentence) - len(sentence.lstrip())]
            after = sentence[len(before) + len(inner) :]
            if inner and any(map(str.isalnum, inner)):
                places.append(len(pieces) + bool(before))
            pieces += [piece for piece in (before, inner, after) if piece]
    return Split(tuple(pieces), tuple(places))


def _sentences(line: str, language: str) -> list[str]:
    """The sentences of a line, each with the white space after it."""
    try:
        from sentencex import segment
    except ImportError:
        raise UserError(
            "splitting text into sentences needs one more package; run: pip install 'regard[documents]'"
        ) from None
    code = first_subtag(language)
    sentences: list[str] = []
    position = 0
    while position < len(line):
        # The splitter takes quadratic time, so a long line is split window by window.
        window = line[position : position + _WINDOW]
        shown = _SURROGATES.sub("\ufffd", window)  # the splitter takes only text that UTF-8 can express
        found = list(segment(code, shown))
        if "".join(found) != shown:  # nothing may be lost, whatever the splitter does
            found = [shown]
        if shown != window:
            ends = list(accumulate(map(len, found), initial=0))
            found = [window[begin:end] for begin, end in pairwise(ends)]
        if position + _WINDOW < len(line) and len(found) > 1:
            found.pop()  # it may continue in the next window
        sentences += found
        position += sum(map(len, found))
    return sentences
