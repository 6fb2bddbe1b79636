"""Glossaries: terms of the source and what they must be called in the translation. Which of them a text has is found here, and the
text with them in it is made here; that the translation says so is for the search (`constrained.py`). No torch here."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

from regard.data.corpus import read_lines
from regard.errors import UserError
from regard.translation.terms import Span, find_terms, overlaps, places_of

_AROUND = " \t\"'“”„‘’‚«»‹›()[]¿¡-–—"  # what may stand between the end of a sentence and the first word of the next
LONG = 5  # letters of a term that is known again inside a longer word
Ways = tuple[str, ...]  # to say a term


def with_capital(text: str) -> str:
    """As at the beginning of a sentence."""
    return text[:1].upper() + text[1:]


def read_entry(line: str) -> tuple[str, str] | None:
    """A source term, a tab and a target term; None for a line that is empty or begins with #. Anything else is a ValueError."""
    if not line.strip() or line.startswith("#"):
        return None
    source, target = (field.strip() for field in line.split("\t"))
    if not source or not target:
        raise ValueError("a term is empty")
    return source, target


def says(text: str, ways: Sequence[str]) -> bool:
    """Whether a translation says a term in one of several ways.

    >>> says("Der Vizepräsident sprach mit den Eltern.", ["Präsident"]), says("Hausen", ["Haus"]), says("Das Haus.", ["haus"])
    (True, False, True)
    """
    return bool(places_said(text, ways))


def places_said(text: str, ways: Sequence[str]) -> list[Span]:
    """Where it says it: as whole words, of which the first may begin a sentence, or else, if it is long enough to be known again,
    inside longer words: grammar asks for endings, and many languages join words.

    >>> places_said("den Geräten", ["Geräte"])
    [(4, 10)]
    """
    whole = find_terms(text, [case for way in ways for case in (way, with_capital(way))])
    if whole:
        return whole
    small = _without_case(text)
    inside = (re.finditer(re.escape(_without_case(way)), small) for way in ways if len(way) >= LONG)
    return sorted(match.span() for matches in inside for match in matches)


def put_terms(text: str, wanted: Mapping[Ways, Sequence[Span]], start: int = 0) -> tuple[str, dict[Ways, list[Span]]]:
    """A text of the source with its terms already translated, in the first way of each, and where they stand now; `wanted` is what
    `Glossary.find` found, `start` where the first sentence begins. A term that begins one with a capital does so afterwards, too.

    >>> put_terms("Dogs like a dog.", {("hunde",): [(0, 4)], ("Hund", "Köter"): [(12, 15)]})
    ('Hunde like a Hund.', {('hunde',): [(0, 5)], ('Hund', 'Köter'): [(13, 17)]})
    """
    switched, done = "", 0
    places: dict[Ways, list[Span]] = {}
    for (begin, end), ways in sorted((place, ways) for ways, some in wanted.items() for place in some):
        has_capital = text[begin].isupper() and _ends_sentence(text[start:begin])
        way = with_capital(ways[0]) if has_capital else ways[0]
        switched += text[done:begin]
        places.setdefault(ways, []).append((len(switched), len(switched) + len(way)))
        switched += way
        done = end
    return switched + text[done:], places


def _ends_sentence(before: str) -> bool:
    """Whether what follows this begins a sentence."""
    before = before.rstrip(_AROUND)
    return not before or before[-1] in ".!?…"


@dataclass(frozen=True)
class Glossary:
    """Source terms, each with the ways to say it: one of them must be in the translation."""

    terms: tuple[tuple[str, tuple[str, ...]], ...]

    @classmethod
    def of(cls, terms: Mapping[str, str | Sequence[str]]) -> Glossary:
        """From a mapping; several ways to say a term are a list.

        >>> Glossary.of({"cat": "Katze", "dog": ["Hund", "Hunde"]}).find("A dog, a Dog and dogs")
        {('Hund', 'Hunde'): [(2, 5), (9, 12)]}
        """
        listed = {term: (ways,) if isinstance(ways, str) else tuple(ways) for term, ways in terms.items()}
        for term, ways in listed.items():
            if not term.strip() or not ways or not all(way.strip() for way in ways):
                raise UserError(f"a glossary must have words on both sides, but has {term!r}: {list(ways)!r}")
        return cls(tuple((term.strip(), tuple(way.strip() for way in ways)) for term, ways in listed.items()))

    @classmethod
    def read(cls, path: Path) -> Glossary:
        """A file with a term a line, source and target separated by a tab; several lines for one term are several ways to say it.
        Empty lines and lines that begin with # are skipped."""
        terms: dict[str, list[str]] = {}
        for number, line in enumerate(read_lines(path), 1):
            try:
                entry = read_entry(line)
            except ValueError:
                raise UserError(
                    f"{path}, line {number}: must be a source term, a tab and a target term, but is {line!r}"
                ) from None
            if entry is not None:
                terms.setdefault(entry[0], []).append(entry[1])
        if not terms:
            raise UserError(
                f"{path}: must hold at least one term, but is empty; a line is a source term, a tab and a target term"
            )
        return cls.of(terms)

    def find(self, text: str, taken: Sequence[Span] = ()) -> dict[tuple[str, ...], list[Span]]:
        """The ways to say each term that the text has, and where it has it; what stands where something is taken does not count.
        Terms are whole words; one without capitals is found with them, too. Where two overlap the longer one counts."""
        found: dict[tuple[str, ...], list[Span]] = {}
        written = {True: text, False: _without_case(text)}
        there = [one for one in self._capitals_first if one[0] in written[one[1]]]  # a quick no for most text
        for (begin, end), number in places_of([(term, written[has_case]) for term, has_case, _ in there]):
            if not overlaps((begin, end), taken):
                found.setdefault(there[number][2], []).append((begin, end))
        return found

    @cached_property
    def says(self) -> str:
        """All that it may put into a translation."""
        return " ".join(way for _, ways in self.terms for way in ways)

    @cached_property
    def _capitals_first(self) -> list[tuple[str, bool, tuple[str, ...]]]:
        """Terms as they are looked for, whether their capitals count, and the ways to say them. Of those that are equally long the
        ones with capitals come first: the others are found in any case."""
        capitals = [(term, True, ways) for term, ways in self.terms if term != term.lower()]
        return capitals + [(_without_case(term), False, ways) for term, ways in self.terms if term == term.lower()]


def _without_case(text: str) -> str:
    """As long as the text, and the same for all ways to write it with capitals."""
    return text.lower() if text.isascii() else "".join(map(_small, text))


@lru_cache(maxsize=4096)
def _small(character: str) -> str:
    """Of letters with one capital the same one, as of the three small Greek s; of a letter that would become two the first."""
    small = character.lower()[0]
    capital = small.upper()
    return capital.lower() if len(capital) == 1 and len(capital.lower()) == 1 else small
