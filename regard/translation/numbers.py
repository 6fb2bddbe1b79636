"""Numbers that a translation must not change. A model writes them piece by piece and sometimes loses a digit or the whole number;
with `decode.guard`, such a text is searched again with its numbers as reserved pieces (`text_side.py`).

Checked are numbers of three to seven digits, with decimals, or with thousands separators. Longer ones, dates and amounts with a
currency sign are protected anyway (`protect.py`); shorter ones may become words.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from regard.translation.notation import AFTER, BEFORE, SPACES, decimal_mark
from regard.translation.terms import Span

# With thousands separators, or with decimals only.
_MARKED = r"[1-9][0-9]{0,2}(?:(?:\.[0-9]{3}){1,4}(?:,[0-9]+)?|(?:,[0-9]{3}){1,4}(?:\.[0-9]+)?)|[0-9]{1,7}[.,][0-9]{1,7}"
# With spaces between groups, or plain digits; not if it may be part of a longer such number.
_SPACED = (
    rf"(?<![0-9][{SPACES}])(?:[1-9][0-9]{{0,2}}(?:[{SPACES}][0-9]{{3}}){{1,4}}(?:[.,][0-9]+)?|[0-9]{{3,7}})"
    rf"(?![{SPACES}][0-9]{{3}}(?![0-9]))"
)
_NUMBER = re.compile(f"{BEFORE}(?:{_MARKED}|{_SPACED}){AFTER}")
_DAY = re.compile(r"(?:[0-2]?[0-9]|3[01])\.(?:0?[1-9]|1[0-2])\Z")  # 24.12. if a point follows
_ANY = re.compile(r"[0-9]+(?:[.,:'’\u00a0\u202f][0-9]+| [0-9]{3}(?![0-9]))*")  # the numbers of a translation
_MANY = 3  # significant digits: such a number is not written in words
# Words that stand for zeros, in the languages for which they are known.
_ZEROS = {
    "de": re.compile(r"tausend|hundert|dutzend|milli|billi|\b(?:tsd|mio|mill?|mrd|mia)\b", re.IGNORECASE),
    "fr": re.compile(
        r"\bmill(?:e|ier)s?\b|\bcents?\b|centaine|dizaine|douzaine|milli|billi|(?<![^\W\d_])(?:(?:mds?|mio)\b|[mk]€)",
        re.IGNORECASE,
    ),
    "en": re.compile(r"thousand|hundred|dozen|milli|billi|trilli|[0-9][ \u00a0]?(?:[kmb]|mn|bn|mln)\b", re.IGNORECASE),
}


def numbers_of(text: str, language: str = "") -> list[Span]:
    """The places of the numbers in a source of this language.

    >>> text = "From 1984 to 2022 Tom won 147 games, 5,277 votes, 1 000 books, 4.5 % and 42 at 17:30 on 9/11 in the 1970's."
    >>> [text[slice(*place)] for place in numbers_of(text)]
    ['1984', '2022', '147', '5,277', '1 000', '4.5']
    """
    return [
        match.span()
        for match in _NUMBER.finditer(text)
        if not (_DAY.match(match[0]) and text.startswith(".", match.end()) and decimal_mark(language) != ".")
    ]


def has_numbers(translation: str, numbers: Sequence[str], source: str, language: str = "", target: str = "") -> bool:
    """Whether a translation into `target` has these numbers of its source in `language`, each as often as it is listed, with any
    thousands separators. A round number may be written differently (2.5 million) or, below a million, in words, but not as
    another number.

    >>> has_numbers("1 984 Seiten von 2022", ["1984", "2022"], "1984 of 2022"), has_numbers("202", ["2022"], "2022")
    (True, False)
    >>> [has_numbers(f"{said} Leute", ["57,000"], "57,000") for said in ("57.000", "57 Tausend", "Viele", "5 000")]
    [True, True, False, False]
    >>> [has_numbers(f"{said} Leute", ["57,000"], "57,000", "en", "de") for said in ("57", "57 Tsd.", "57 000")]
    [False, True, True]
    >>> [has_numbers(f"{said} Leute", ["2,000"], "2,000") for said in ("2000", "Zweitausend", "200")]
    [True, True, False]
    >>> [has_numbers(f"EUR {said}", ["91,50"], "91,50") for said in ("91.50", "91.5", "9.50", "9150")]
    [True, True, False, False]
    """
    lost = [number for number, count in Counter(numbers).items() if not _is_there(number, count, translation, language)]
    if not lost:
        return True
    least = min(1 if re.search("[.,][0-9]{1,2}$", number) else _MANY for number in lost)
    may_be_words = all(_may_be_words(number, translation, source, language, target) for number in lost)
    return may_be_words and not _has_another(translation, source, least)


def _is_there(number: str, count: int, translation: str, language: str) -> bool:
    """Whether a translation has a number this many times; one with spaces may be several numbers side by side."""
    found = max(len(re.findall(_pattern(*reading), translation)) for reading in _readings(number, language))
    pieces = re.split(f"[{SPACES}]", number)
    is_several = len(pieces) > 1 and not any(piece.startswith("0") for piece in pieces)
    return found >= count or (is_several and set(pieces) <= set(re.findall("[0-9]+", translation)))


def _readings(number: str, language: str) -> list[tuple[str, str]]:
    """The possible readings of a number: its integer part and its decimals."""
    number = re.sub(f"[{SPACES}]", "", number)
    marks = re.findall("[.,]", number)
    if not marks:
        return [(number, "")]
    *groups, last = re.split("[.,]", number)
    whole = ("".join([*groups, last]), "")
    decimals = ("".join(groups), last)
    if len(set(marks)) == 2 or len(last) != 3 or len(groups[0]) > 3 or groups[0].startswith("0"):
        return [decimals]
    if len(marks) > 1:
        return [whole]
    return {"": [whole, decimals], marks[0]: [decimals]}.get(decimal_mark(language), [whole])


def _pattern(whole: str, decimals: str) -> str:
    """A pattern of a number in a translation: any thousands separators or none; trailing zeros of decimals are optional."""
    head = len(whole) % 3 or 3
    groups = [whole[:head], *(whole[begin : begin + 3] for begin in range(head, len(whole), 3))]
    end = f"[.,:]{decimals.rstrip('0')}0*" if decimals.strip("0") else "(?:[.,:]0+)?"
    grouped = f"[.,'’{SPACES}]".join(groups)
    return rf"(?<![0-9])(?<![0-9][.,:'’])(?:{whole}|{grouped}){end}(?![0-9]|[.,:'’][0-9]|[{SPACES}]000(?![0-9]))"


def _may_be_words(number: str, translation: str, source: str, language: str, target: str) -> bool:
    """Whether a number that is missing in digits may be there in words: a round one, with a word for its zeros or all in words. If
    the words of the language are known, its digits without such a word are another number, unless the source has that too."""
    [(whole, decimals), *_] = _readings(number, language)
    significant = (whole + decimals).rstrip("0")
    if len(significant) >= _MANY:
        return False
    if decimals.strip("0"):
        return True  # one and a half
    short = {
        _value(found)
        for found in _ANY.findall(translation)
        if re.sub("[^0-9]", "", found).rstrip("0") == significant and not re.search("000|[.,:][0-9]*0$", found)
    }
    zeros = _ZEROS.get(target)
    if zeros is not None and not zeros.search(translation) and short - set(map(_value, _ANY.findall(source))):
        return False
    return bool(short) or len(whole) <= 3 or (len(significant) == 1 and len(whole) <= 6)


def _has_another(translation: str, source: str, least: int) -> bool:
    """Whether a translation has a number of `least` digits or more that its source lacks; two side by side are not one."""
    known = {*map(_value, _ANY.findall(source)), *re.findall("[0-9]+", source)}
    for found in _ANY.findall(translation):
        pieces = list(map(_value, found.split(" ")))
        is_known = _value(found) in known or all(piece in known and not piece.startswith("00") for piece in pieces)
        if len(_value(found).replace(".", "")) >= least and not is_known:
            return True
    return False


def _value(number: str) -> str:
    """The digits of a number, with a point before decimals; a last group of three digits is read as thousands.

    >>> _value("1.234"), _value("1,5"), _value("12 345,60"), _value("3,0")
    ('1234', '1.5', '12345.6', '3')
    """
    *groups, last = re.split("[.,:]", re.sub(f"['’{SPACES}]", "", number))
    if not groups or len(last) == 3:
        return "".join([*groups, last])
    return f"{''.join(groups)}.{last}".rstrip("0").rstrip(".")
