"""Quotation marks: finds what a text quotes, and writes marks as another text or language does. A mark is one character in every
style, so places in a text stay valid. `quote_guard.py` uses it on translations (`decode.guard`)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from regard.translation.languages import first_subtag
from regard.translation.terms import Span, overlap_with

_DOUBLE = '"„“”‟«»'
_CLOSERS = {
    '"': '"”“',
    "„": '“”"',
    "“": '”"',
    "”": '”"',
    "‟": '”"',
    "»": "«",
    "«": "»",
    "'": "'’",
    "‚": "‘’'",
    "‘": "’'",
    "’": "’'",
    "›": "‹",
    "‹": "›",
}
_MARK = re.compile("[\"„“”‟«»'‚‘’‹›]")
_APOSTROPHE = re.compile(r"(?<=\w)['’‘](?=\w)|(?<!\w)['’‘](?:n['’‘](?!\w)|(?=\d\ds?\b))")  # it's, rock 'n' roll, '60s
_KEPT = "\0"  # stands for kept text, which may be beside any mark
_BEFORE = f"{_KEPT} \t\u00a0\u202f([{{-–—/¿¡" + "".join(_CLOSERS)  # what may stand before an opening mark
_AFTER = f"{_KEPT} \t\u00a0\u202f)]}}-–—/.,;:!?…" + "".join(_CLOSERS)
_DEEPEST = 8  # quotations inside each other
_BLANK = " \t\u00a0\u202f"
_HEAD, _TAIL = re.compile(r"\s*"), re.compile(r"[\s.,;:!?…]*\Z")
_ENDED = re.compile(r"[^\W\d][.,;:!?…)]*\Z")  # before a mark at the end of a text; after a digit it may be inches
# Opening and closing marks of quotations, and of those inside them, where they are customary. English has curly ones in print, but
# nearly all text on line is typed with straight ones: so are the references of all test sets.
_CUSTOMARY = {
    "cs": "„“‚‘",
    "da": "»«›‹",
    "de": "„“‚‘",
    "en": "\"\"''",
    "es": "«»“”",
    "fr": "«»“”",
    "it": "«»“”",
    "nl": "“”‘’",
    "pl": "„”«»",
    "pt": "“”‘’",
    "sv": "””’’",
}
_BLANK_INSIDE = frozenset(["fr"])  # with a blank inside « », also where other languages are typed with straight marks


@dataclass(frozen=True)
class Quotation:
    """The places of a pair of marks; of one whose other mark is in another sentence, None for that."""

    begin: int | None
    end: int | None
    is_double: bool
    is_curly: bool  # not the marks of a typewriter

    @property
    def places(self) -> tuple[int, ...]:
        return tuple(place for place in (self.begin, self.end) if place is not None)


def has_marks(text: str) -> bool:
    """Whether a text has anything that may be a quotation mark or an apostrophe."""
    return _MARK.search(text) is not None


def is_curly(text: str) -> bool:
    """Whether a text has marks that no typewriter has, apostrophes among them."""
    return any(mark not in "\"'" for mark in _MARK.findall(text))


def find_quotations(text: str, kept: Sequence[Span] = ()) -> list[Quotation]:
    """The quotations of a text, by their first mark; marks in `kept` do not count, nor do apostrophes, feet and inches.

    >>> [text[one.begin:one.end + 1] for text in ["»Ja«, sagt „er“.", 'It\\'s 6\\' 2" "long"'] for one in find_quotations(text)]
    ['»Ja«', '„er“', '"long"']
    >>> find_quotations("“So it began.")
    [Quotation(begin=0, end=None, is_double=True, is_curly=True)]
    """
    if kept:
        text = with_marks(text, {place: _KEPT for begin, end in kept for place in range(begin, min(end, len(text)))})
    is_apostrophe = overlap_with([match.span() for match in _APOSTROPHE.finditer(text)])
    found: list[Quotation] = []
    waiting: list[int] = []  # opening marks
    for match in _MARK.finditer(text):
        place = match.start()
        if is_apostrophe(match.span()):
            continue
        opened = _opened_by(text, place, waiting) if _may_close(text, place) else None
        if opened is not None:
            while waiting.pop() != opened:  # what was opened since is no quotation
                pass
            found.append(_quotation(text, opened, place))
        elif _may_open(text, place):
            waiting.append(place)
        elif text[place] in _DOUBLE and _TAIL.match(text, place + 1) and _ENDED.search(text, 0, place):
            found.append(_quotation(text, None, place))
    head = _HEAD.match(text)
    if waiting and head is not None and waiting[0] == head.end() and re.search(r"\w", text) and text[waiting[0]] != "'":
        found.append(_quotation(text, waiting[0], None))
    return sorted(found, key=lambda one: one.places)


def _quotation(text: str, begin: int | None, end: int | None) -> Quotation:
    first = text[begin if begin is not None else end or 0]
    return Quotation(begin, end, first in _DOUBLE, first not in "\"'")


def _may_open(text: str, place: int) -> bool:
    before, after = text[place - 1 : place], text[place + 1 : place + 2]
    if text[place] in "„‚":
        return True
    is_blank = not after or after in _BLANK  # « Bonjour »
    return (not before or before in _BEFORE) and not (is_blank and before and before not in _BLANK) and bool(after)


def _may_close(text: str, place: int) -> bool:
    after = text[place + 1 : place + 2]
    if text[place] in "„‚":
        return False
    return not after or after in _AFTER


def _opened_by(text: str, place: int, waiting: Sequence[int]) -> int | None:
    """The opening mark that belongs to a closing one. A single mark does not reach beyond a double one."""
    before, after = text[place - 1 : place], text[place + 1 : place + 2]
    is_apart = before in _BLANK and after and after not in _BLANK  # « Bonjour », but not a »beginning
    for begin in reversed(waiting[-_DEEPEST:]):
        fits = text[place] in _CLOSERS[text[begin]] and place > begin + 1
        if fits and not (is_apart and text[begin + 1] not in _BLANK):
            return begin
        if text[place] not in _DOUBLE and text[begin] in _DOUBLE:
            return None
    return None


def straightened(text: str, quotations: Sequence[Quotation]) -> str:
    """The text with these quotations, and apostrophes, in the marks of a typewriter. Models have met them most.

    >>> text = "‚Gut‘, sagte sie. „Er rief: ‚Komm!‘“ Wie geht’s?"
    >>> straightened(text, find_quotations(text))
    '"Gut", sagte sie. "Er rief: \\'Komm!\\'" Wie geht\\'s?'
    """
    inner = _inner(quotations)
    marks = {place: "'" if one in inner else '"' for one in quotations for place in one.places}
    apostrophes = {match.start(): "'" for match in re.finditer(r"(?<=\w)’(?=\w)", text) if match.start() not in marks}
    return with_marks(text, marks | apostrophes)


def distinct(text: str, quotations: Sequence[Quotation]) -> str:
    """The text with opening and closing marks that differ."""
    inner = _inner(quotations)
    marks: dict[int, str] = {}
    for one in quotations:
        first, last = "‚‘" if one in inner else "„“"
        marks |= {place: mark for place, mark in ((one.begin, first), (one.end, last)) if place is not None}
    return with_marks(text, marks)


DISTINCT = ("„", "“", "‚", "‘")


def close_up(text: str) -> str:
    """A text with `DISTINCT` marks without blanks between them and what they enclose.

    >>> close_up("Er nannte es eine „ Katastrophe “.")
    'Er nannte es eine „Katastrophe“.'
    """
    return re.sub(f"(?<=[„‚])[{_BLANK}]+|[{_BLANK}]+(?=[“‘])", "", text)


def _inner(quotations: Sequence[Quotation]) -> set[Quotation]:
    """Quotations inside others."""
    inner, until = set(), -1
    for one in quotations:
        if one.begin is not None and one.end is not None and one.begin < until:
            inner.add(one)
        elif one.begin is not None:
            until = one.end if one.end is not None else 1 << 60
    return inner


def customary(language: str, like: Quotation) -> tuple[str, str] | None:
    """The opening and closing mark that a language uses for a quotation of the same kind as `like`: double or single, curly or
    straight. None if the language's marks are not known, and for straight marks in French: a model may write « » for them, which
    stay.

    >>> [customary("de_AT", find_quotations(said)[0]) for said in ("“Yes”", '"Yes"', "‘Yes’")]
    [('„', '“'), ('"', '"'), ('‚', '‘')]
    """
    if not like.is_curly:
        if is_spaced(language):
            return None
        return ('"', '"') if like.is_double else ("'", "'")
    if not (marks := _marks_of(language)):
        return None
    return (marks[0], marks[1]) if like.is_double else (marks[2], marks[3])


def is_spaced(language: str) -> bool:
    """Whether a language writes blanks inside its quotation marks."""
    return first_subtag(language) in _BLANK_INSIDE


def respaced(text: str, quotations: Sequence[Quotation], language: str) -> tuple[str, list[int]]:
    """The text with a blank inside these quotations if they are in « » and the language writes one there, else with none; and the
    place in it of each character, for one that is gone that of what follows.

    >>> [respaced(text, find_quotations(text), code)[0] for text, code in (('Il dit «oui».', "fr"), ('Er sagt „ ja “.', "de"))]
    ['Il dit «\\xa0oui\\xa0».', 'Er sagt „ja“.']
    >>> respaced("„ ja", find_quotations("„ ja"), "de")
    ('„ja', [0, 1, 1, 2])
    """
    blanks: dict[int, str] = {}  # by the place after which one is, or would be
    for one in quotations:
        for place, step in ((one.begin, 0), (one.end, -1)):
            if place is not None:
                blanks[place + step] = "\u00a0" if is_spaced(language) and text[place] in "«»" else ""
    made, done = "", 0
    places: list[int] = []
    for after, blank in sorted(blanks.items()):
        begin = end = after + 1
        while begin > done and text[begin - 1] in _BLANK:
            begin -= 1
        while end < len(text) and text[end] in _BLANK:
            end += 1
        places += range(len(made), len(made) + begin - done)
        made += text[done:begin] + blank
        places += [len(made)] * (end - begin)
        done = end
    places += range(len(made), len(made) + len(text) - done)
    return made + text[done:], places


def writes_curly(language: str) -> bool:
    """Whether a language is known for marks that no typewriter has."""
    return is_curly(_marks_of(language))


def _marks_of(language: str) -> str:
    return _CUSTOMARY.get(first_subtag(language), "")


def with_marks(text: str, marks: dict[int, str]) -> str:
    """The text with these characters in these places."""
    if not marks:
        return text
    characters = list(text)
    for place, mark in marks.items():
        characters[place] = mark
    return "".join(characters)
