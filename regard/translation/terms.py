"""Where words stand in a text: those that a person names, as whole words. Terms may come from strangers (`regard serve`), so they
are looked for by plain search, one by one: a pattern of all of them would try each at every place, and Python would do nothing
else meanwhile."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from heapq import heapify, heappop, heapreplace

# A letter or digit of a script that puts spaces between words; in the others (Thai, Japanese, Chinese) a word has no visible end.
_LETTER = r"[^\W\u0e00-\u0e7f\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]"
_IN_WORD = re.compile(_LETTER)
_BEGINNING = re.compile(f"(?<!{_LETTER}){_LETTER}")  # of a word


Span = tuple[int, int]  # of characters in a text, from the first to after the last


def overlaps(place: Span, others: Iterable[Span]) -> bool:
    """Whether a place shares a character with another."""
    return any(begin < place[1] and place[0] < end for begin, end in others)


def find_terms(text: str, terms: Sequence[str]) -> list[tuple[int, int]]:
    """Where these words stand in a text, as they are written and not inside other words; the longest where they overlap."""
    there = [(term, text) for term in terms if term in text]
    return [place for place, _ in places_of(there)]


def places_of(terms: Sequence[tuple[str, str]]) -> Iterator[tuple[tuple[int, int], int]]:
    """Where each term stands in its text, and the number of the term. The texts are one, written in several ways that are equally
    long, and no two places overlap: the first one stays, of several that begin together the longest, of those the first term's."""
    waiting = []  # of each term the next place: where it begins, less its length, the term's number
    for number, (term, text) in enumerate(terms):
        if term and (begin := _next(term, text, 0)) >= 0:
            waiting.append((begin, -len(term), number))
    heapify(waiting)
    done = 0  # characters that are taken
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
    """Where a term stands next as a whole word; -1 where it does not."""
    has_beginning, has_end = _IN_WORD.match(term[0]), _IN_WORD.match(term[-1])
    while (begin := text.find(term, start)) >= 0:
        end = begin + len(term)
        is_whole = not (has_beginning and begin and _IN_WORD.match(text, begin - 1))
        if is_whole and not (has_end and _IN_WORD.match(text, end)):
            return begin
        start = begin + 1
        if has_beginning:  # it can only stand where a word begins: a run of letters is passed in one go
            word = _BEGINNING.search(text, start)
            if word is None:
                return -1
            start = word.start()
    return -1
