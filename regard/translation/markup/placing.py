"""Where inline elements belong in the translation of their sentence: around the words that are aligned with theirs; without an
alignment, around the translation of their words if that is found, otherwise at the same relative position."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from regard.translation.alignment import TextAlignment
from regard.translation.markup.backslashes import escape_again, with_backslashes
from regard.translation.markup.elements import Inline
from regard.translation.terms import overlaps

# A phrase of at most _MAX_WORDS may be found by one of its words, if that has at least _MIN_LETTERS.
_MAX_WORDS, _MIN_LETTERS = 10, 4
_BETWEEN = (" ", "\xa0", "-")  # between two words of one phrase
_WORD = re.compile(r"\w+|[^\w\s]", re.UNICODE)


class MarkedSentence(NamedTuple):
    """A sentence of a run with its inline elements."""

    text: str
    inlines: list[Inline]
    first: int  # its index in `MarkedText.sentences`; the words of its elements follow it there
    escaped: frozenset[int]  # positions of characters that had a backslash


def tagged(
    sentence: MarkedSentence,
    target: str,
    inner: Sequence[str],
    escape: Callable[[str], str],
    aligned: TextAlignment | None = None,
) -> str:
    """`target`, the translation of a sentence, with the elements put in; `inner` has the translations of their words alone, and
    `aligned` is the alignment of the two sentences, if it is known."""
    spans: dict[Inline | None, tuple[int, int]] = {None: (0, len(target))}
    children: dict[Inline | None, list[Inline]] = {}
    for inline, words in zip(sentence.inlines, inner, strict=True):
        beside = children.setdefault(inline.parent, [])
        if target == sentence.text:
            spans[inline] = inline.start, inline.end
        else:
            parent = inline.parent
            source_span = (parent.start, parent.end) if parent else (0, len(sentence.text))
            taken = [spans[one] for one in beside]
            is_whole = (inline.start, inline.end) == source_span
            span = aligned_span(inline, aligned, spans[parent], taken) if aligned is not None and not is_whole else None
            spans[inline] = span or _place(inline, words, target, spans[parent], source_span, taken)
        beside.append(inline)

    escaped = escape_again(sentence.text, sentence.escaped, target)

    def written(start: int, end: int) -> str:
        return escape(with_backslashes(target, escaped, start, end))

    def render(parent: Inline | None) -> str:
        position, end = spans[parent]
        text = []
        for one in sorted(children.get(parent, []), key=lambda child: spans[child]):
            text += [written(position, spans[one][0]), one.opening, render(one), one.closing]
            position = spans[one][1]
        return "".join([*text, written(position, end)])

    return render(None)


def aligned_span(
    inline: Inline, aligned: TextAlignment, span: tuple[int, int], taken: Sequence[tuple[int, int]]
) -> tuple[int, int] | None:
    """The words of the translation, side by side, that belong most to the words of an element and least to others. They lie inside
    `span`, its parent's, and outside `taken`, those of its siblings. None if no word belongs to it."""
    inside = {n for n, word in enumerate(aligned.source) if overlaps(word, [(inline.start, inline.end)])}
    best, most = None, 0.0
    begin, total = 0, 0.0
    for number, (row, word) in enumerate(zip(aligned.belonging, aligned.target, strict=False)):
        if total <= 0:
            begin, total = number, 0.0
        total += sum(weight if n in inside else -weight for n, weight in enumerate(row))
        if word[0] < span[0] or word[1] > span[1] or overlaps(word, taken):
            total = 0.0
        if total > most:
            best, most = (aligned.target[begin][0], word[1]), total
    return best


def _place(
    inline: Inline,
    inner: str,
    target: str,
    span: tuple[int, int],
    source_span: tuple[int, int],
    taken: Sequence[tuple[int, int]],
) -> tuple[int, int]:
    """The span in `target` where an element belongs: inside its parent's `span`, and outside `taken`, those of its siblings."""
    low, high = span
    if (inline.start, inline.end) == source_span and not overlaps(span, taken):
        return low, high
    length = max(1, source_span[1] - source_span[0])
    share = ((inline.start + inline.end) / 2 - source_span[0]) / length
    free = [(a, b) for a, b in _free(low, high, taken) if b > a]
    bare = inner.strip().rstrip(".,;:!?…").strip()
    if inline.end > inline.start and bare:
        found = [
            (match.start() + a, match.end() + a)
            for a, b in free
            for match in re.finditer(rf"(?<!\w){re.escape(bare)}(?!\w)", target[a:b], re.IGNORECASE)
        ]
        found = found or _with_longest_word(bare, target, free)
        if found:  # of several matches, the one nearest to the relative position in the source
            return min(found, key=lambda place: abs((sum(place) / 2 - low) / max(1, high - low) - share))
    words = [(m.start() + a, m.end() + a) for a, b in free for m in _WORD.finditer(target[a:b])]
    if not words:
        edge = free[0][0] if free else high
        return edge, edge
    middle = low + share * (high - low)
    if inline.start == inline.end:
        edge = min((place for word in words for place in word), key=lambda place: abs(place - middle))
        return edge, edge
    # A proportional number of words around the same relative position.
    a, b = min(
        (region for region in free if any(region[0] <= w[0] < region[1] for w in words)),
        key=lambda region: max(region[0] - middle, middle - region[1], 0.0),
    )
    near = [word for word in words if a <= word[0] < b]
    wanted = (inline.end - inline.start) / length * (high - low)
    first = min(near, key=lambda word: abs(word[0] - (middle - wanted / 2)))
    last = min(near, key=lambda word: abs(word[1] - (middle + wanted / 2)))
    return (first[0], last[1]) if first[0] < last[1] else first


def _with_longest_word(phrase: str, target: str, free: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Candidate spans for a phrase whose small words are inflected differently in the sentence ("der Laden" alone, "den Laden"
    there): around its longest word that is found, with as many words before and after as in the phrase.

    >>> _with_longest_word("der Laden", "Geh in den Laden, und zwar jetzt.", [(0, 33)])
    [(7, 16)]
    """
    words = re.findall(r"\w+", phrase.lower())
    if len(words) > _MAX_WORDS:
        return []
    for word in sorted(words, key=len, reverse=True):
        if len(word) < _MIN_LETTERS:
            break
        before = words.index(word)
        found = [
            place for a, b in free for place in _phrases_around(word, before, len(words) - before - 1, target[a:b], a)
        ]
        if found:
            return found
    return []


def _phrases_around(word: str, before: int, after: int, text: str, start: int) -> Iterator[tuple[int, int]]:
    """Each occurrence of a word with up to `before` and `after` words around it; `start` is the offset of the text."""
    words = [match.span() for match in re.finditer(r"\w+", text)]
    for number, (begin, end) in enumerate(words):
        if text[begin:end].lower() != word:
            continue
        first = last = number
        while number - first < before and first and text[words[first - 1][1] : words[first][0]] in _BETWEEN:
            first -= 1
        while last - number < after and last + 1 < len(words) and text[words[last][1] : words[last + 1][0]] in _BETWEEN:
            last += 1
        yield start + words[first][0], start + words[last][1]


def _free(low: int, high: int, taken: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The spans between `low` and `high` that are not taken."""
    free, position = [], low
    for a, b in sorted(taken):
        if b > low and a < high:
            free.append((position, a))
            position = max(position, b)
    return [*free, (position, high)]
