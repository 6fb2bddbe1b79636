"""Translations that repeat themselves without end, as models do on input unlike anything they were trained on."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence

_LONGEST_UNIT = 16  # tokens or words that may make up what a translation repeats
_TIMES = 4  # in a row: from here on it is a loop
_LOOP = 8  # tokens that a loop has at least, so that "ha ha ha ha" is none


def loops(units: Sequence[Hashable]) -> Iterator[tuple[int, int]]:
    """What stands four times or more in a row, of up to 16 units: how many units it has, and how many are in the loop.

    >>> sorted(set(loops("xababababz")))
    [(2, 8)]
    """
    for size in range(1, min(_LONGEST_UNIT, len(units) // _TIMES) + 1):
        run = 0  # units up to here that equal the one so many before
        for unit, before in zip(units[size:], units, strict=False):
            run = run + 1 if unit == before else 0
            if run + size >= _TIMES * size:
                yield size, run + size


def looped_tokens(ids: Sequence[int]) -> int:
    """How many tokens lie in the longest loop: up to 16 tokens that come four times or more in a row.

    >>> looped_tokens([5, 1, 2, 1, 2, 1, 2, 1, 2, 9]), looped_tokens([1, 2, 1, 2, 1, 2, 3, 4, 5, 6])
    (8, 0)
    """
    if len(ids) - len(set(ids)) < _LOOP - _LOOP // _TIMES:
        return 0  # too many different tokens for any loop: nearly every sentence
    return max((tokens for _, tokens in loops(ids) if tokens >= _LOOP), default=0)


def is_loop(src_ids: Sequence[int], tgt_ids: Sequence[int]) -> bool:
    """Whether a translation repeats itself without end, as models do on input that they do not know; what the source
    repeats, its translation may repeat."""
    looped = looped_tokens(tgt_ids)
    return looped > 0 and looped > 2 * looped_tokens(src_ids)
