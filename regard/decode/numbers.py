"""Numbers that a translation must not change. A model spells them out of pieces and now and then loses a digit, or the number, and
leaves the marks between thousands as its source has them. Where `decode.guard` is on, a text that has lost a number is searched
again with its numbers as reserved pieces (`text.py`), and marks are those of the target's language.

Looked for are numbers of three to seven digits and those with marks between thousands. Longer ones, dates and sums of money with a
sign are spans in any case (`data/protect.py`); shorter ones may become words.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence

_SPACES = r" \u00a0\u202f"
_BEFORE, _AFTER = r"(?<![\w.,:/=&?#%@'’$€£¥])", r"(?![\w'’$€£¥]|[.,:/][0-9])"
# With spaces, or with nothing, between its digits; not where it may be a part of such a number.
_SPACED = (
    rf"(?<![0-9][{_SPACES}])(?:[1-9][0-9]{{0,2}}(?:[{_SPACES}][0-9]{{3}}){{1,4}}(?:[.,][0-9]+)?|[0-9]{{3,7}})"
    rf"(?![{_SPACES}][0-9]{{3}}(?![0-9]))"
)
_MARKED = r"[1-9][0-9]{0,2}(?:(?:\.[0-9]{3}){1,4}(?:,[0-9]+)?|(?:,[0-9]{3}){1,4}(?:\.[0-9]+)?)"
_NUMBER = re.compile(f"{_BEFORE}(?:{_MARKED}|{_SPACED}){_AFTER}")
_ANY_MARKS = re.compile(f"{_BEFORE}[0-9]{{1,3}}(?:[.,][0-9]{{3}})+(?:[.,][0-9]+)?{_AFTER}")
# The numbers of any text: what may stand between digits is not the same everywhere, and a space may be one between two numbers.
_MARKS = r"[.,'’\u00a0\u202f]"
_WRITTEN = [
    re.compile(pattern)
    for pattern in ("[0-9]+", f"[0-9]+(?:{_MARKS}[0-9]+)*", f"[0-9]+(?:{_MARKS}[0-9]+| [0-9]{{3}}(?![0-9]))*")
]
_MANY = 3  # digits before the zeros at the end: nobody writes such a number out

# Languages with 1,234.5 and with 1.234,5; others are left as they are.
_POINT = frozenset("ak am cy en fil ga ha he hi ig ja ko ms mt si so sw th tl tw yo zh".split())
_COMMA = frozenset("ca da de el es eu gl hr id is it nl pt ro sl sr tr vi".split())
_SWAPPED = str.maketrans(".,", ",.")


def numbers_of(text: str, taken: Sequence[tuple[int, int]] = ()) -> list[str]:
    """The numbers of a source, as they are written there; `taken` are places that do not count.

    >>> numbers_of("From 1984 to 2022 Tom won 147 games, 5,277 votes, 1 000 books and 42 at 17:30 on 9/11 in the 1970's.")
    ['1984', '2022', '147', '5,277', '1 000']
    """
    return [
        match[0]
        for match in _NUMBER.finditer(text)
        if not any(begin < match.end() and match.start() < end for begin, end in taken)
    ]


def has_numbers(translation: str, numbers: Sequence[str], source: str) -> bool:
    """Whether a translation has these numbers of its source, each as often as it is given here, whatever stands between their
    digits. A round number may be written in another way (2.5 million) or in words, but not as another number.

    >>> has_numbers("1 984 Seiten von 2022", ["1984", "2022"], "1984 of 2022"), has_numbers("202", ["2022"], "2022")
    (True, False)
    >>> [has_numbers(f"{said} Leute", ["57,000"], "57,000") for said in ("57.000", "57 Tausend", "Viele", "5 000")]
    [True, True, False, False]
    >>> [has_numbers(f"{said} Leute", ["2,000"], "2,000") for said in ("2000", "Zweitausend", "200")]
    [True, True, False]
    """
    if not numbers:
        return True  # nearly every sentence
    written = [_written(pattern, translation) for pattern in _WRITTEN]
    wanted = Counter(map(_digits, numbers))
    lost = [digits for digits, count in wanted.items() if max(some[digits] for some in written) < count]
    if not lost:
        return True
    significant = [digits.rstrip("0") for digits in lost]
    if any(len(digits) >= _MANY for digits in significant):
        return False
    begun = {digits.rstrip("0") for some in written for digits in some}
    is_said = all(len(digits) == 1 or digits in begun for digits in significant)
    return is_said and not _has_another(translation, source)


def _has_another(translation: str, source: str) -> bool:
    """Whether a translation has a number of three digits or more that its source has not; two side by side are not one."""
    known = {digits for pattern in _WRITTEN[1:] for digits in _written(pattern, source)}
    return any(
        len(_digits(number)) >= _MANY
        and not known.issuperset(map(_digits, number.split(" ")))
        and _digits(number) not in known
        for number in _WRITTEN[-1].findall(translation)
    )


def _written(pattern: re.Pattern[str], text: str) -> Counter[str]:
    return Counter(map(_digits, pattern.findall(text)))


def _digits(number: str) -> str:
    return re.sub("[^0-9]", "", number)


def other_marks(numbers: Sequence[str], source: str, target: str) -> dict[str, str]:
    """How the target's language writes those of these numbers that the source's language writes with other marks.

    >>> other_marks(["1984", "5,277", "1,299.5", "12.345"], "en", "de")
    {'5,277': '5.277', '1,299.5': '1.299,5'}
    """
    source, target = (re.split("[-_]", code.lower())[0] for code in (source, target))
    if source in _POINT and target in _COMMA:
        mark = ","
    elif source in _COMMA and target in _POINT:
        mark = "."
    else:
        return {}
    grouped = re.compile(rf"[0-9]{{1,3}}(?:{re.escape(mark)}[0-9]{{3}})+(?:[.,][0-9]+)?")
    swapped = {
        number: number.translate(_SWAPPED)
        for number in numbers
        if grouped.fullmatch(number) and not _is_address(number)
    }
    # Where 1,234 and 1.234 are two numbers, nobody knows which one a translation means.
    return {number: other for number, other in swapped.items() if other not in numbers}


def _is_address(number: str) -> bool:
    """Whether it may be one of a computer: 192.168.100.200."""
    groups = number.split(".")
    return len(groups) == 4 and all(int(group) < 256 for group in groups if group.isdecimal())


def put_marks(text: str, marks: Mapping[str, str]) -> str:
    """A translation with numbers in another way of writing them, which is as long. Which marks it has now does not matter, if they
    are where they should be.

    >>> put_marks("Es gibt 5,277 oder 1.234.5 und $5,277.", {"5,277": "5.277", "1,234.5": "1.234,5"})
    'Es gibt 5.277 oder 1.234,5 und $5,277.'
    """
    there = {_bare(number): other for number, other in marks.items()}
    return _ANY_MARKS.sub(lambda match: there.get(_bare(match[0]), match[0]), text) if marks else text


def put_marks_in_words(words: Sequence[str], marks: Mapping[str, str]) -> list[str]:
    """The same for the words of a translation, of which a number may be several.

    >>> put_marks_in_words(["Es", "gibt", "5", ",", "277", ",", "nicht", "5,277", "."], {"5,277": "5.277"})
    ['Es', 'gibt', '5', '.', '277', ',', 'nicht', '5.277', '.']
    """
    put = list(words)
    there = {_bare(number): other for number, other in marks.items()}
    for first, word in enumerate(words):
        for number, other in there.items():
            last, found = first, _bare(word)
            while len(found) < len(number) and number.startswith(found) and last + 1 < len(words):
                last += 1
                found += _bare(words[last])
            if found == number:
                begin = 0
                for place in range(first, last + 1):
                    put[place] = other[begin : begin + len(words[place])]
                    begin += len(words[place])
    return put


def _bare(number: str) -> str:
    return number.replace(",", ".")
