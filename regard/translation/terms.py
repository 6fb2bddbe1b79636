"""Finds given terms in a text as whole words. Terms may come from strangers (`regard serve`), so each is found by plain search: a
regular expression of all of them would try each at every position, holding the interpreter lock all the while."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import heapify, heappop, heapreplace
from itertools import accumulate

# A letter or digit of a script with spaces between words; in the others (Thai, Japanese, Chinese) words have no visible end.
_LETTER = r"[^\W\u0e00-\u0e7f\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]"
_IN_WORD = re.compile(_LETTER)
_WORD_START = re.compile(f"(?<!{_LETTER}){_LETTER}")


Span = tuple[int, int]  # of characters in a text: the first, and one past the last


def overlaps(span: Span, others: Iterable[Span]) -> bool:
    """Whether a span shares a character with one of the others."""
    return any(begin < span[1] and span[0] < end for begin, end in others)


def overlap_with(others: Iterable[Span]) -> Callable[[Span], bool]:
    """`overlaps` with these others as a function, for many spans: it looks a span up instead of trying all others.

    >>> list(map(overlap_with([(6, 9), (0, 4)]), [(3, 5), (4, 6), (8, 20)]))
    [True, False, True]
    """
    ordered = sorted(others)
    begins = [begin for begin, _ in ordered]
    ends = list(accumulate((end for _, end in ordered), max))  # the last end of all spans up to this one

    def overlaps_one(span: Span) -> bool:
        before = bisect_left(begins, span[1])  # spans that begin before this one ends
        return before > 0 and ends[before - 1] > span[0]

    return overlaps_one


def find_terms(text: str, terms: Sequence[str]) -> list[Span]:
    """The places of terms in a text, from left to right: whole words in the same case; where terms overlap, the longest."""
    there = [(term, text) for term in terms if term in text]
    return [place for place, _ in locate_terms(there)]


def locate_terms(terms: Sequence[tuple[str, str]]) -> Iterator[tuple[Span, int]]:
    """The places of (term, text) pairs with the number of the pair, left to right. The texts are one text in different case, of
    equal length. Places do not overlap: the first one wins, then the longest, then the one of the first pair."""
    waiting = []  # the next place of each term: (begin, minus its length, number)
    for number, (term, text) in enumerate(terms):
        if term and (begin := _next(term, text, 0)) >= 0:
            waiting.append((begin, -len(term), number))
    heapify(waiting)
    done = 0  # the end of the last place
    while waiting:
        begin, less, number = waiting[0]
        if begin >= done:
            done = begin - less
            yield (begin, done), number
        begin = _next(*terms[number], done)
        if begin < 0:
            heappop(waiting)
        else:
            heapreplace(waiting, (begin, less, number))


def _next(term: str, text: str, start: int) -> int:
    """The next position of a term as a whole word, from `start`; -1 if there is none."""
    has_beginning, has_end = _IN_WORD.match(term[0]), _IN_WORD.match(term[-1])
    while (begin := text.find(term, start)) >= 0:
        end = begin + len(term)
        is_whole = not (has_beginning and begin and _IN_WORD.match(text, begin - 1))
        if is_whole and not (has_end and _IN_WORD.match(text, end)):
            return begin
        start = begin + 1
        if has_beginning:  # it can only match where a word begins, so skip the rest of this one
            word = _WORD_START.search(text, start)
            if word is None:
                return -1
            start = word.start()
    return -1
