"""Numbers that a translation must not change. A model spells them out of pieces and now and then loses a digit, or the number;
where `decode.guard` is on, such a text is searched again with its numbers as reserved pieces (`text.py`).

Only numbers that every language writes alike are looked for: three to seven digits without marks between them, such as years.
Longer ones and sums of money are spans in any case (`data/protect.py`), shorter and round ones may become words, and 77,000 is
77.000 elsewhere.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

_NUMBER = re.compile(
    r"(?<![\w.,:/'’$€£¥])(?<!\d[ \u00a0\u202f])[0-9]{3,7}(?![\w'’]|[.,:/]\d|[ \u00a0\u202f]\d{3}(?!\d))"
)
_GROUPED = re.compile(r"(?<=\d)[.,'’\u00a0\u202f ](?=\d{3}(?!\d))")  # what stands between thousands, in any language
_DIGITS = re.compile("[0-9]+")
_SIGNIFICANT = 3  # digits before the zeros at the end: a number with fewer may be written out


def numbers_of(text: str, taken: Sequence[tuple[int, int]] = ()) -> list[str]:
    """The numbers of a source, as they are written there; `taken` are places that do not count.

    >>> numbers_of("From 1984 to 2022 Tom won 147 games, 5,277 votes, 1000 books and 42 at 17:30 on 9/11 in the 1970's.")
    ['1984', '2022', '147']
    """
    return [
        match[0]
        for match in _NUMBER.finditer(text)
        if len(match[0].rstrip("0")) >= _SIGNIFICANT
        and not any(begin < match.end() and match.start() < end for begin, end in taken)
    ]


def has_numbers(translation: str, numbers: Sequence[str]) -> bool:
    """Whether a translation has these numbers, each as often as it is given here; it may group their digits.

    >>> has_numbers("1 984 Seiten von 2022", ["1984", "2022"]), has_numbers("Im Jahr 202", ["2022"])
    (True, False)
    """
    if not numbers:
        return True  # nearly every sentence
    plain, together = (Counter(_DIGITS.findall(text)) for text in (translation, _GROUPED.sub("", translation)))
    return all(max(plain[number], together[number]) >= count for number, count in Counter(numbers).items())
