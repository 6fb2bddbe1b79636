"""Detects translations that loop, as models produce on input unlike their training data."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence

_LONGEST_PHRASE = 16  # tokens or words of a repeated phrase
_TIMES = 4  # repetitions in a row that make a loop
_LOOP = 8  # shortest loop in tokens: "ha ha ha ha" is none


def loops(units: Sequence[Hashable]) -> Iterator[tuple[int, int]]:
    """Phrases of up to 16 units that occur four times or more in a row: the length of the phrase and of the loop, in units.

    >>> sorted(set(loops("xababababz")))
    [(2, 8)]
    """
    for size in range(1, min(_LONGEST_PHRASE, len(units) // _TIMES) + 1):
        run = 0  # units in a row that equal the one `size` before
        for unit, before in zip(units[size:], units, strict=False):
            run = run + 1 if unit == before else 0
            if run + size >= _TIMES * size:
                yield size, run + size


def looped_tokens(ids: Sequence[int]) -> int:
    """The length in tokens of the longest loop; 0 if there is none.

    >>> looped_tokens([5, 1, 2, 1, 2, 1, 2, 1, 2, 9]), looped_tokens([1, 2, 1, 2, 1, 2, 3, 4, 5, 6])
    (8, 0)
    """
    if len(ids) - len(set(ids)) < _LOOP - _LOOP // _TIMES:
        return 0  # too many distinct tokens for a loop, as in nearly every sentence
    return max((tokens for _, tokens in loops(ids) if tokens >= _LOOP), default=0)


def is_loop(src_ids: Sequence[int], tgt_ids: Sequence[int]) -> bool:
    """Whether a translation loops far longer than its source does."""
    looped = looped_tokens(tgt_ids)
    return looped > 0 and looped > 2 * looped_tokens(src_ids)
