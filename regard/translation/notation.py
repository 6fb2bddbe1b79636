"""How languages write numbers: 1,234.5 in English, 1.234,5 in German. A model leaves the marks as its source has them, or puts some
of its own; where both languages' ways are known, they are put by rule (`number_guard.py`, with `decode.guard`)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from regard.translation.terms import Span, overlaps

_POINT = frozenset("ak am cy en fil ga ha he hi ig ja ko ms mt si so sw th tl tw yo zh".split())
_COMMA = frozenset("ca da de el es eu gl hr id is it nl pt ro sl sr tr vi".split())
_OTHERS = frozenset(  # regions with a way of their own
    "de-ch de-li en-za es-cr es-do es-gt es-hn es-mx es-ni es-pa es-pe es-pr es-sv es-us it-ch pt-pt".split()
)
_SWAPPED = str.maketrans(".,", ",.")
SPACES = r" \u00a0\u202f"
# What does not stand beside a number, unless that is a part of something else.
BEFORE, AFTER = r"(?<![\w.,:/=&?#%@'’$€£¥])", r"(?![\w'’$€£¥]|[.,:/][0-9]|\.[\w*])"
_IN_PROGRAM = re.compile(r"(?:\w\( ?|[\[{])$")  # before a number
# Before a number that is a name, in which a point is no mark of thousands, and after one that is a rate.
_NAMED = re.compile(
    r"\b(?:version|release|perl|python|kernel|chapter|section|figure|table|kapitel|abschnitt|abbildung|tabelle|number|\w*nummer"
    rf"|nr\.?|no\.|(?-i:TS|PE|IP|ISO|RFC|DIN))[{SPACES}]$",
    re.IGNORECASE,
)
_RATED = re.compile(rf"[{SPACES}]?(?:fps|[kKMGT]?Hz)\b")
# After decimals that are neither a version nor a chapter nor a time of day.
_MEASURED = re.compile(
    rf"[{SPACES}-]?(?:[%‰°]|(?:per[{SPACES}]?cent|[mbt]r?illion|euro|dollar|pound|cent|degree|(?:kilo|centi|milli)?met(?:er|re)"
    r"|(?:kilo)?gram|tonne|ton|mile|inch|feet|foot|second|minute|hour|day|week|month|year|point|time)(?:s|es)?\b|[kcm]?m[²³]?\b"
    r"|[km]?g\b|m?l\b|[kMGT]?Wh?\b|[kMGT]B\b)"
)


def decimal_mark(language: str) -> str:
    """What stands before decimals; the other one of point and comma stands between thousands. Nothing: it is not known here.

    >>> decimal_mark("en"), decimal_mark("de_AT"), decimal_mark("de-CH"), decimal_mark("fr")
    ('.', ',', '', '')
    """
    code = language.lower().replace("_", "-")
    first = code.split("-")[0]
    return "" if code in _OTHERS else "." if first in _POINT else "," if first in _COMMA else ""


def other_marks(
    text: str, places: Sequence[Span], languages: tuple[str, str], with_decimals: bool = False
) -> dict[str, str]:
    """How the target's language writes those numbers at these places of a source that the source's language writes with other
    marks. Decimals with a point and nothing else may be a version, a chapter or a time of day: only with a measure after them, or
    if they are wanted.

    >>> text = "1984, 5,277, 1,299.5, 12.345, 3.12 and 3.5 km"
    >>> places = [match.span() for match in re.finditer("[0-9][0-9.,]*[0-9]", text)]
    >>> other_marks(text, places, ("en", "de"))
    {'5,277': '5.277', '1,299.5': '1.299,5', '3.5': '3,5'}
    >>> other_marks(text, places, ("en", "de"), with_decimals=True)
    {'5,277': '5.277', '1,299.5': '1.299,5', '12.345': '12,345', '3.12': '3,12', '3.5': '3,5'}
    """
    marks = marks_of(languages)
    if marks is None:
        return {}
    point, mark = marks
    grouped, decimal = _shapes(point, mark)
    numbers = [text[slice(*place)] for place in places]
    # Whoever writes 0.001 or 29.97 in a language with a comma means decimals with 1.234, too.
    _, wrong = _shapes(mark, point)
    is_mixed = any(wrong.fullmatch(number) and not grouped.fullmatch(number) for number in numbers)
    swapped: dict[str, str] = {}
    left = set()
    for number, place in zip(numbers, places, strict=True):
        is_one_group = grouped.fullmatch(number) and len(re.findall("[.,]", number)) == 1
        is_doubtful = is_one_group and (is_mixed or _RATED.match(text, place[1]))
        takes_decimals = with_decimals or point == "," or _MEASURED.match(text, place[1])
        is_number = grouped.fullmatch(number) or (takes_decimals and decimal.fullmatch(number))
        if is_number and not _is_name(text, place) and not is_doubtful:
            swapped[number] = number.translate(_SWAPPED)
        else:
            left.add(number)
    # Where 1,234 and 1.234 are two numbers, nobody knows which one a translation means.
    taken = left | swapped.keys()
    return {number: other for number, other in swapped.items() if number not in left and other not in taken}


def marks_of(languages: tuple[str, str]) -> tuple[str, str] | None:
    """What the source's language puts before decimals and between thousands, if the target's does it the other way round."""
    point, other = map(decimal_mark, languages)
    return (point, other) if point and other and point != other else None


def _shapes(point: str, mark: str) -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Numbers with marks between thousands, and those with decimals alone."""
    decimals = rf"{re.escape(point)}[0-9]+"
    return (
        re.compile(rf"[1-9][0-9]{{0,2}}(?:{re.escape(mark)}[0-9]{{3}})+(?:{decimals})?"),
        re.compile(f"[0-9]+{decimals}"),
    )


def _is_name(text: str, place: Span) -> bool:
    """Whether what stands there is a name, a time of day, a part of a program or an address (192.168.100.200)."""
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
    is_pair = (
        text[begin - 1 : begin] == "(" and text[end : end + 1] == ")" and re.fullmatch("[0-9]+,[0-9]+", text[begin:end])
    )
    is_named = "." in text[begin:end] and _NAMED.search(text, max(0, begin - 30), begin)
    return bool(is_address or is_time or is_pair or is_named or _IN_PROGRAM.search(text, max(0, begin - 3), begin))


def other_sums(spans: Sequence[str], languages: tuple[str, str]) -> dict[str, str]:
    """The same for sums of money with a sign, of which decimals are sure to be some.

    >>> other_sums(["$1,299.99", "£5m", "$2.5bn", "1.300 €"], ("en", "de"))
    {'$1,299.99': '$1.299,99', '$2.5bn': '$2,5bn'}
    """
    marks = marks_of(languages)
    if marks is None:
        return {}
    number = rf"{_shapes(*marks)[0].pattern}|[0-9]+{re.escape(marks[0])}[0-9]{{1,2}}"
    shape = re.compile(rf"[A-Z]*[$€£¥](?:{number})[A-Za-z]*|(?:{number})[{SPACES}]?[$€£¥]")
    return {span: span.translate(_SWAPPED) for span in spans if shape.fullmatch(span)}


def put_marks(text: str, marks: Mapping[str, str], kept: Sequence[Span] = ()) -> str:
    """A translation with these numbers written in another way, which is as long: whatever stands between their groups now, unless
    it is spaces alone. `kept` are places that stay.

    >>> put_marks("5,277 oder 1.234 567.5, 5 277 und $5,277", {"5,277": "5.277", "1,234,567.5": "1.234.567,5"})
    '5.277 oder 1.234.567,5, 5 277 und $5,277'
    """
    for number, other in marks.items():
        groups = re.split("[.,]", number)
        pattern = re.compile(rf"{BEFORE}{f'[.,{SPACES}]'.join(groups)}{AFTER}")
        for match in pattern.finditer(text):  # as long as before, so that all places stay
            if re.search("[.,]", match[0]) and not overlaps(match.span(), kept):
                text = text[: match.start()] + other + text[match.end() :]
    return text


def put_sums(text: str, sums: Mapping[str, str], kept: Sequence[Span] = ()) -> str:
    """The same for sums of money, which stand in a translation as in its source.

    >>> put_sums("Es kostet $1,299.99 (US$1,299.99).", {"$1,299.99": "$1.299,99"})
    'Es kostet $1.299,99 (US$1,299.99).'
    >>> put_sums("von $1,000 auf $1,000,000", {"$1,000": "$1.000", "$1,000,000": "$1.000.000"})
    'von $1.000 auf $1.000.000'
    """
    if not sums:
        return text
    spans = "|".join(map(re.escape, sorted(sums, key=len, reverse=True)))  # one may be the beginning of another
    pattern = re.compile(rf"(?<!\w)(?<![0-9][.,])(?:{spans})(?!\w|[.,][0-9])")
    return pattern.sub(lambda match: match[0] if overlaps(match.span(), kept) else sums[match[0]], text)
