"""Text with markup whose sentences are translated and whose markup is kept.

Elements inside a sentence (bold, links) are taken out, the sentence is translated whole, and they are put back around the
translation of the words that they enclosed (`placing.py`). HTML and XML are read by `tags.py`, other markups where they come in.
"""

from __future__ import annotations

import html
import re
import sys
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate

from regard.translation.markup.backslashes import places_of_escaped, with_backslashes
from regard.translation.markup.elements import Inline, MarkupParser, TextRun, measure, separate
from regard.translation.markup.placing import MarkedSentence, tagged
from regard.translation.markup.tags import TagReader, Xml
from regard.translation.sentences import Split, split_text

_BREAK = re.compile(r"[\r\n\v\f\x1c-\x1e\x85\u2028\u2029]")  # what `split_text` cuts at


class MarkedText:
    """A text with markup whose `sentences` are to be translated; `join` makes the page of their translations."""

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
        """`joins_lines`: a line break is a space like others, and ends no sentence. `parse_markup` is for another markup, in which
        nothing is escaped but by a backslash."""
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
        # Of one length, so that all places stay what they are.
        split = split_text(_BREAK.sub(" ", text) if self._joins_lines else text, language, by_sentence=by_sentence)
        bounds = _bounds(split)
        inlines = measure(run)
        escaped = places_of_escaped(token for token in run.tokens if isinstance(token, str))
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
            for one in inlines:  # what is empty at the edge of two sentences belongs where its parent does
                if a <= one.start and one.end <= b and (one.parent is None or one.parent in mine):
                    mine.append(one)
            inlines = [one for one in inlines if one not in mine]
            for one in mine:
                one.start, one.end = one.start - a, one.end - a
            whole = text[a:b]
            marked = frozenset(place - a for place in escaped[bisect_left(escaped, a) : bisect_left(escaped, b)])
            sentences.append(MarkedSentence(whole, mine, len(self.sentences), marked))
            # What encloses the whole sentence finds its place without a translation of its own.
            inner = [whole[one.start : one.end] for one in mine]
            self.sentences += map(self._shown, [whole, *("" if words == whole else words for words in inner)])
        ends, every = accumulate(map(len, split.pieces)), frozenset(escaped)
        pieces = tuple(
            with_backslashes(text, every, end - len(piece), end) for piece, end in zip(split.pieces, ends, strict=True)
        )
        self._parts.append((Split(pieces, split.places), sentences))

    def _shown(self, text: str) -> str:
        """A sentence as the model sees it."""
        return " ".join(text.split()) if self._joins_lines and _BREAK.search(text) else text

    def join(self, translations: Sequence[str]) -> str:
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
                pieces[place] = tagged(sentence, target, inner, self._escape)
            page.append("".join(pieces))
        return "".join(page)


def parse_plain(text: str) -> list[str | TextRun]:
    """A text without markup, for `MarkedText`."""
    return [TextRun([text])] if text else []


def _inside(inline: Inline, bounds: Sequence[tuple[int, int]]) -> bool:
    """Whether an element lies in one sentence; one without text may also stand at its edges."""
    last = bisect_right(bounds, (inline.start, sys.maxsize))  # the first sentence that begins after it does
    return any(a <= inline.start and inline.end <= b for a, b in bounds[max(0, last - 2) : last])


def _escape(text: str) -> str:
    return html.escape(text, quote=False).replace("\xa0", "&nbsp;")


def _escape_xml(text: str) -> str:
    return html.escape(text, quote=False)  # XML knows no &nbsp;


def _bounds(split: Split) -> list[tuple[int, int]]:
    """From where to where each sentence goes in the text."""
    bounds, position, places = [], 0, set(split.places)
    for number, piece in enumerate(split.pieces):
        if number in places:
            bounds.append((position, position + len(piece)))
        position += len(piece)
    return bounds
