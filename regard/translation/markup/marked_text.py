"""Text with markup: its sentences are translated and its markup is kept.

Inline elements (bold, links) are taken out, the sentence is translated as a whole, and `placing.py` puts them back around the
translation of their words. HTML and XML are parsed by `tags.py`; other formats bring a parser of their own.
"""

from __future__ import annotations

import html
import re
import sys
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate

from regard.translation.alignment import TextAlignment
from regard.translation.markup.backslashes import escaped_positions, with_backslashes
from regard.translation.markup.elements import Inline, MarkupParser, TextRun, measure, separate
from regard.translation.markup.placing import MarkedSentence, tagged
from regard.translation.markup.tags import TagReader, Xml
from regard.translation.sentences import Split, split_text

_BREAK = re.compile(r"[\r\n\v\f\x1c-\x1e\x85\u2028\u2029]")  # what `split_text` cuts at


class MarkedText:
    """A text with markup. Translate its `sentences`, then `join` puts the translations into the markup."""

    def __init__(
        self,
        text: str,
        language: str,
        *,
        by_sentence: bool = True,
        joins_lines: bool = False,
        xml: Xml | None = None,
        parse_markup: MarkupParser | None = None,
    ) -> None:
        """`joins_lines`: a line break counts as a space and ends no sentence. `parse_markup` is for markup other than HTML and
        XML, in which only a backslash escapes."""
        self.sentences: list[str] = []
        self._joins_lines = joins_lines
        self._escape: Callable[[str], str] = str if parse_markup else _escape_xml if xml is not None else _escape
        self._parts: list[str | tuple[Split, list[MarkedSentence]]] = []
        for part in parse_markup(text) if parse_markup else TagReader(xml).parse(text):
            if isinstance(part, str):
                self._parts.append(part)
            else:
                self._add_run(part, language, by_sentence)

    def _add_run(self, run: TextRun, language: str, by_sentence: bool) -> None:
        text = run.text
        # Replaced one for one, so that positions stay valid.
        split = split_text(_BREAK.sub(" ", text) if self._joins_lines else text, language, by_sentence=by_sentence)
        bounds = _bounds(split)
        inlines = measure(run)
        escaped = escaped_positions(token for token in run.tokens if isinstance(token, str))
        crossing = [one for one in inlines if not _inside(one, bounds)]
        if crossing:
            for part in separate(run, crossing):
                if isinstance(part, str):
                    self._parts.append(part)
                else:
                    self._add_run(part, language, by_sentence)
            return
        sentences = []
        for a, b in bounds:
            mine: list[Inline] = []
            for one in inlines:  # an empty element between two sentences belongs where its parent does
                if a <= one.start and one.end <= b and (one.parent is None or one.parent in mine):
                    mine.append(one)
            inlines = [one for one in inlines if one not in mine]
            for one in mine:
                one.start, one.end = one.start - a, one.end - a
            whole = text[a:b]
            marked = frozenset(position - a for position in escaped[bisect_left(escaped, a) : bisect_left(escaped, b)])
            sentences.append(MarkedSentence(whole, mine, len(self.sentences), marked))
            # An element around the whole sentence needs no translation of its words to find its place.
            inner = [whole[one.start : one.end] for one in mine]
            self.sentences += map(self._shown, [whole, *("" if words == whole else words for words in inner)])
        ends, every = accumulate(map(len, split.pieces)), frozenset(escaped)
        pieces = tuple(
            with_backslashes(text, every, end - len(piece), end) for piece, end in zip(split.pieces, ends, strict=True)
        )
        self._parts.append((Split(pieces, split.places), sentences))

    def _shown(self, text: str) -> str:
        """A sentence as the model gets it."""
        return " ".join(text.split()) if self._joins_lines and _BREAK.search(text) else text

    @property
    def whole_sentences(self) -> list[str]:
        """The sentences alone; `sentences` has the words of elements inside them once more."""
        return [self._shown(one.text) for part in self._parts if not isinstance(part, str) for one in part[1]]

    def to_align(self, translations: Sequence[str]) -> list[tuple[str, str]]:
        """The sentences that have elements in them, each with its translation: what `join` wants aligned."""
        return [
            (_BREAK.sub(" ", sentence.text), translations[sentence.first])
            for sentence in self._marked
            if translations[sentence.first] != self._shown(sentence.text)
        ]

    @property
    def _marked(self) -> Iterator[MarkedSentence]:
        for part in self._parts:
            if not isinstance(part, str):
                yield from (one for one in part[1] if any(0 < i.end - i.start < len(one.text) for i in one.inlines))

    def join(self, translations: Sequence[str], alignments: Sequence[TextAlignment] = ()) -> str:
        """The text with one translation for each of `sentences`. `alignments` are one for each pair of `to_align`, or none."""
        aligned = {}
        if alignments:
            marked = (one for one in self._marked if translations[one.first] != self._shown(one.text))
            aligned = {one.first: found for one, found in zip(marked, alignments, strict=True)}
        page = []
        for part in self._parts:
            if isinstance(part, str):
                page.append(part)
                continue
            split, sentences = part
            pieces = [self._escape(piece) for piece in split.pieces]
            for place, sentence in zip(split.places, sentences, strict=True):
                inner = translations[sentence.first + 1 : sentence.first + 1 + len(sentence.inlines)]
                target = translations[sentence.first]
                if target == self._shown(sentence.text):
                    target = sentence.text
                pieces[place] = tagged(sentence, target, inner, self._escape, aligned.get(sentence.first))
            page.append("".join(pieces))
        return "".join(page)


def parse_plain(text: str) -> list[str | TextRun]:
    """A `MarkupParser` for text without markup."""
    return [TextRun([text])] if text else []


def _inside(inline: Inline, bounds: Sequence[tuple[int, int]]) -> bool:
    """Whether an element lies within one sentence; an empty element may also stand at its edge."""
    last = bisect_right(bounds, (inline.start, sys.maxsize))  # the first sentence that begins after the element
    return any(a <= inline.start and inline.end <= b for a, b in bounds[max(0, last - 2) : last])


def _escape(text: str) -> str:
    return html.escape(text, quote=False).replace("\xa0", "&nbsp;")


def _escape_xml(text: str) -> str:
    return html.escape(text, quote=False)  # XML has no &nbsp;


def _bounds(split: Split) -> list[tuple[int, int]]:
    """The span of each sentence in the text."""
    bounds, position, places = [], 0, set(split.places)
    for number, piece in enumerate(split.pieces):
        if number in places:
            bounds.append((position, position + len(piece)))
        position += len(piece)
    return bounds
