"""Number notation: 1,234.5 in English, 1.234,5 in German, 1 234,5 in French. A model copies the separators of the source or invents
some; if both languages' conventions are known, rules correct them (`number_guard.py`, with `decode.guard`)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from regard.translation.languages import first_subtag
from regard.translation.terms import Span, overlap_with

_POINT = frozenset("ak am cy en fil ga ha he hi ig ja ko ms mt si so sw th tl tw yo zh".split())
_COMMA = frozenset("ca da de el es eu gl hr id is it nl pt ro sl sr tr vi".split())
_OTHERS = frozenset(  # regions whose conventions differ from their language's
    "de-ch de-li en-za es-cr es-do es-gt es-hn es-mx es-ni es-pa es-pe es-pr es-sv es-us it-ch pt-pt".split()
)
_THIN_GROUPS = frozenset(["fr"])  # with a decimal comma, and narrow spaces between thousands
_THIN = "\u202f"
SPACES = r" \u00a0\u202f"
# Next to one of these, a number is part of something else.
BEFORE, AFTER = r"(?<![\w.,:/=&?#%@'’$€£¥])", r"(?![\w'’$€£¥]|[.,:/][0-9]|\.[\w*])"
_IN_CODE = re.compile(r"(?:\w\( ?|[\[{])$")  # before a number in source code
# Before a number that is a name, where a point does not separate thousands; and after one that is a rate.
_NAMED = re.compile(
    r"\b(?:version|release|perl|python|kernel|chapter|section|figure|table|kapitel|abschnitt|abbildung|tabelle|number|\w*nummer"
    rf"|chapitre|tableau|num[ée]ro|article|nr\.?|no\.|n[°º]|(?-i:TS|PE|IP|ISO|RFC|DIN))[{SPACES}]$",
    re.IGNORECASE,
)
_RATED = re.compile(rf"[{SPACES}]?(?:fps|[kKMGT]?Hz)\b")
# Before a number in brackets: after a word it is a quantity, "the stadium (39,625)", but not after one that places a point.
_QUANTIFIES = re.compile(
    rf"(?<!\w)(?!(?:at|to|from|by|in|is|and|or|between|through|near|points?|pixels?|positions?|coordinates?|pairs?|tuples?|cells?"
    rf"|vectors?|an?|bei|zu|von|nach|und|oder|ist|zwischen|durch|Punkte?|Pixel|Koordinaten?|Paare?|Tupel|Zellen?|Vektor)\b)"
    rf"[^\W\d_]{{2,}}[{SPACES}]\($",
    re.IGNORECASE,
)
# After a decimal number that is not a version, a chapter or a time of day.
_MEASURED = re.compile(
    rf"[{SPACES}-]?(?:[%‰°]|(?:per[{SPACES}]?cent|[mbt]r?illion|euro|dollar|pound|cent|degree|(?:kilo|centi|milli)?met(?:er|re)"
    r"|(?:kilo)?gram|tonne|ton|mile|inch|feet|foot|second|minute|hour|day|week|month|year|point|time)(?:s|es)?\b|[kcm]?m[²³]?\b"
    r"|[km]?g\b|m?l\b|[kMGT]?Wh?\b|[kMGT]B\b)"
)


def decimal_mark(language: str) -> str:
    """The decimal separator of a language, point or comma. Empty if unknown.

    >>> decimal_mark("en"), decimal_mark("de_AT"), decimal_mark("de-CH"), decimal_mark("fr")
    ('.', ',', '', ',')
    """
    code = language.lower().replace("_", "-")
    first = first_subtag(code)
    return "" if code in _OTHERS else "." if first in _POINT else "," if first in _COMMA | _THIN_GROUPS else ""


def separators(language: str) -> tuple[str, str] | None:
    """What separates decimals and thousands in a language; None if unknown.

    >>> separators("en"), separators("de"), separators("fr-CA")
    (('.', ','), (',', '.'), (',', '\\u202f'))
    """
    point = decimal_mark(language)
    if not point:
        return None
    return point, _THIN if first_subtag(language) in _THIN_GROUPS else _other(point)


def _other(point: str) -> str:
    return "," if point == "." else "."


def _rewriting(languages: tuple[str, str]) -> dict[int, str]:
    """For str.translate: the separators of a number of one language as another writes them."""
    source, target = map(separators, languages)
    if source is None or target is None:
        return {}
    groups = "\u00a0\u202f " if source[1] == _THIN else source[1]
    return {ord(source[0]): target[0], **{ord(mark): target[1] for mark in groups}}


def other_marks(
    text: str, places: Sequence[Span], languages: tuple[str, str], with_decimals: bool = False
) -> dict[str, str]:
    """The numbers at these places of a source that the target language writes with other separators, with their new form. A plain
    decimal with a point may be a version, a chapter or a time of day: it counts only before a unit, or with `with_decimals`.

    >>> text = "1984, 5,277, 1,299.5, 12.345, 3.12 and 3.5 km"
    >>> places = [match.span() for match in re.finditer("[0-9][0-9.,]*[0-9]", text)]
    >>> other_marks(text, places, ("en", "de"))
    {'5,277': '5.277', '1,299.5': '1.299,5', '3.5': '3,5'}
    >>> other_marks("1 234,5 et 3,5", [(0, 7), (11, 14)], ("fr", "en"))
    {'1 234,5': '1,234.5', '3,5': '3.5'}
    >>> other_marks(text, places, ("en", "de"), with_decimals=True)
    {'5,277': '5.277', '1,299.5': '1.299,5', '12.345': '12,345', '3.12': '3,12', '3.5': '3,5'}
    """
    marks = marks_of(languages)
    if marks is None:
        return {}
    point, mark = marks
    grouped, decimal = _shapes(point, mark)
    rewriting = _rewriting(languages)
    numbers = [text[slice(*place)] for place in places]
    # If a text in a decimal-comma language has 0.001 or 29.97, its 1.234 is a decimal too.
    _, wrong = _shapes(_other(point), point)
    is_mixed = any(wrong.fullmatch(number) and not grouped.fullmatch(number) for number in numbers)
    swapped: dict[str, str] = {}
    left = set()
    for number, place in zip(numbers, places, strict=True):
        is_one_group = mark != _THIN and grouped.fullmatch(number) and len(re.findall("[.,]", number)) == 1
        is_doubtful = is_one_group and (is_mixed or _RATED.match(text, place[1]))
        takes_decimals = with_decimals or point == "," or _MEASURED.match(text, place[1])
        is_number = grouped.fullmatch(number) or (takes_decimals and decimal.fullmatch(number))
        if is_number and not _is_name(text, place) and not is_doubtful:
            swapped[number] = number.translate(rewriting)
        else:
            left.add(number)
    # If 1,234 and 1.234 are different numbers in the source, the one in a translation is ambiguous.
    taken = left | swapped.keys()
    return {number: other for number, other in swapped.items() if number not in left and other not in taken}


def marks_of(languages: tuple[str, str]) -> tuple[str, str] | None:
    """The decimal and thousands separators of the source language, if the target language has others; else None."""
    source, target = map(separators, languages)
    return source if source and target and source != target else None


def _shapes(point: str, mark: str) -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Patterns of numbers with thousands separators, and of those with decimals only."""
    decimals = rf"{re.escape(point)}[0-9]+"
    between = f"[{SPACES}]" if mark == _THIN else re.escape(mark)
    return (
        re.compile(rf"[1-9][0-9]{{0,2}}(?:{between}[0-9]{{3}})+(?:{decimals})?"),
        re.compile(f"[0-9]+{decimals}"),
    )


def _is_name(text: str, place: Span) -> bool:
    """Whether the number at this place is a name, a time of day, an IP address (192.168.100.200) or part of source code."""
    begin, end = place
    groups = text[begin:end].split(".")
    is_address = len(groups) == 4 and all(group.isdecimal() and int(group) < 256 for group in groups)
    is_address |= groups[:2] == ["192", "168"]
    is_time = re.fullmatch(r"[0-2]?[0-9]\.[0-5][0-9]", text[begin:end]) and (
        re.match(rf"[{SPACES}]?[ap]\.?m\b", text[end : end + 5])
        or (
            re.search(rf"\b(?:at|by|from|until|till)[{SPACES}]$", text[max(0, begin - 8) : begin])
            and not _MEASURED.match(text, end)
        )
    )
    is_pair = bool(
        text[begin - 1 : begin] == "(" and text[end : end + 1] == ")" and re.fullmatch("[0-9]+,[0-9]+", text[begin:end])
    )
    if is_pair and re.fullmatch("[1-9][0-9]{0,2},[0-9]{3}", text[begin:end]):
        is_pair = not _QUANTIFIES.search(text, max(0, begin - 60), begin)
    is_named = "." in text[begin:end] and _NAMED.search(text, max(0, begin - 30), begin)
    return bool(is_address or is_time or is_pair or is_named or _IN_CODE.search(text, max(0, begin - 3), begin))


def other_sums(spans: Sequence[str], languages: tuple[str, str]) -> dict[str, str]:
    """As `other_marks`, for amounts with a currency sign, whose decimals are certain.

    >>> other_sums(["$1,299.99", "£5m", "$2.5bn", "1.300 €"], ("en", "de"))
    {'$1,299.99': '$1.299,99', '$2.5bn': '$2,5bn'}
    >>> other_sums(["$1,299.99"], ("en", "fr"))
    {'$1,299.99': '$1\\u202f299,99'}
    """
    marks = marks_of(languages)
    if marks is None:
        return {}
    number = rf"{_shapes(*marks)[0].pattern}|[0-9]+{re.escape(marks[0])}[0-9]{{1,2}}"
    shape = re.compile(rf"[A-Z]*[$€£¥](?:{number})[A-Za-z]*|(?:{number})[{SPACES}]?[$€£¥]")
    rewriting = _rewriting(languages)
    return {span: _rewritten(span, rewriting) for span in spans if shape.fullmatch(span)}


def _rewritten(amount: str, rewriting: Mapping[int, str]) -> str:
    """An amount with other separators between its digits."""
    return re.sub(f"(?<=[0-9])[.,{SPACES}](?=[0-9])", lambda match: match[0].translate(rewriting), amount)


def put_marks(text: str, marks: Mapping[str, str], kept: Sequence[Span] = ()) -> str:
    """The translation with these numbers replaced by their new form of equal length, whatever separates their groups now, unless it
    is only spaces that the source does not have. `kept` are places that stay unchanged.

    >>> put_marks("5,277 oder 1.234 567.5, 5 277 und $5,277", {"5,277": "5.277", "1,234,567.5": "1.234.567,5"})
    '5.277 oder 1.234.567,5, 5 277 und $5,277'
    """
    is_kept = overlap_with(kept)
    for number, other in marks.items():
        groups = re.split(f"[.,{SPACES}]", number)
        is_spaced = re.search(f"[{SPACES}]", number) is not None
        pattern = re.compile(rf"{BEFORE}{f'[.,{SPACES}]'.join(groups)}{AFTER}")
        for match in pattern.finditer(text):  # replacements keep the length, so places stay valid
            if (is_spaced or re.search("[.,]", match[0])) and not is_kept(match.span()):
                text = text[: match.start()] + other + text[match.end() :]
    return text


def put_sums(text: str, sums: Mapping[str, str], kept: Sequence[Span] = ()) -> str:
    """As `put_marks`, for amounts of money, which a translation copies from its source.

    >>> put_sums("Es kostet $1,299.99 (US$1,299.99).", {"$1,299.99": "$1.299,99"})
    'Es kostet $1.299,99 (US$1,299.99).'
    >>> put_sums("von $1,000 auf $1,000,000", {"$1,000": "$1.000", "$1,000,000": "$1.000.000"})
    'von $1.000 auf $1.000.000'
    """
    if not sums:
        return text
    spans = "|".join(map(re.escape, sorted(sums, key=len, reverse=True)))  # one may be a prefix of another
    pattern = re.compile(rf"(?<!\w)(?<![0-9][.,])(?:{spans})(?!\w|[.,][0-9])")
    is_kept = overlap_with(kept)
    return pattern.sub(lambda match: match[0] if is_kept(match.span()) else sums[match[0]], text)
