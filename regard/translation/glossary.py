"""Glossaries: source terms and their required translations. Finds the terms of a text and builds code-switched sources; the search
enforces the translations (`generate/search/constrained.py`). No torch here."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

from regard.bounds import MAX_TERM
from regard.data.corpus import read_lines
from regard.errors import UserError
from regard.escaping import shorten
from regard.translation.terms import Span, find_terms, locate_terms, overlap_with

_AROUND = " \t\"'“”„‘’‚«»‹›()[]¿¡-–—"  # between the end of a sentence and the first word of the next
LONG = 5  # letters: a term this long also counts inside a longer word
Variants = tuple[str, ...]  # translations of a term, any of which will do


def with_capital(text: str) -> str:
    """The text as at the beginning of a sentence."""
    return text[:1].upper() + text[1:]


def read_entry(line: str) -> tuple[str, str] | None:
    """The source and target term of a line, separated by a tab; None for an empty line or a comment (#). Raises ValueError for
    anything else."""
    if not line.strip() or line.startswith("#"):
        return None
    source, target = (field.strip() for field in line.split("\t"))
    if not source or not target:
        raise ValueError("a term is empty")
    return source, target


def count_term(text: str, variants: Sequence[str]) -> int:
    """How often a translation contains a term, in any of its variants.

    >>> count_term("Der Vizepräsident sprach mit dem Präsidenten.", ["Präsident"]), count_term("Das Haus.", ["haus"])
    (2, 1)
    >>> count_term("Hausen", ["Haus"])
    0
    """
    return len(find_variants(text, variants))


def find_variants(text: str, variants: Sequence[str]) -> list[Span]:
    """Where a translation contains one of the variants: as whole words, with or without a capital, and long variants also inside
    longer words, since words take endings and many languages form compounds.

    >>> find_variants("den Geräten", ["Geräte"])
    [(4, 10)]
    """
    places = find_terms(text, [case for variant in variants for case in (variant, with_capital(variant))])
    is_taken = overlap_with(places)
    if long := [_without_case(variant) for variant in variants if len(variant) >= LONG]:
        pattern = re.compile("|".join(map(re.escape, sorted(long, key=len, reverse=True))))
        places += [match.span() for match in pattern.finditer(_without_case(text)) if not is_taken(match.span())]
    return sorted(places)


def insert_terms(
    text: str, wanted: Mapping[Variants, Sequence[Span]], start: int = 0
) -> tuple[str, dict[Variants, list[Span]]]:
    """The source with its terms already translated, by the first variant of each, and the new places of the terms. `wanted` comes
    from `Glossary.find`; `start` is where the first sentence begins. A capital at the start of a sentence is kept.

    >>> insert_terms("Dogs like a dog.", {("hunde",): [(0, 4)], ("Hund", "Köter"): [(12, 15)]})
    ('Hunde like a Hund.', {('hunde',): [(0, 5)], ('Hund', 'Köter'): [(13, 17)]})
    """
    switched, done = "", 0
    places: dict[Variants, list[Span]] = {}
    for (begin, end), variants in sorted((place, variants) for variants, some in wanted.items() for place in some):
        has_capital = text[begin].isupper() and _ends_sentence(text[start:begin])
        variant = with_capital(variants[0]) if has_capital else variants[0]
        switched += text[done:begin]
        places.setdefault(variants, []).append((len(switched), len(switched) + len(variant)))
        switched += variant
        done = end
    return switched + text[done:], places


def _ends_sentence(before: str) -> bool:
    """Whether the text after `before` begins a sentence."""
    before = before.rstrip(_AROUND)
    return not before or before[-1] in ".!?…"


@dataclass(frozen=True)
class Glossary:
    """Source terms, each with its variants: the translation must contain one of them."""

    terms: tuple[tuple[str, Variants], ...]

    @classmethod
    def of(cls, terms: Mapping[str, str | Sequence[str]]) -> Glossary:
        """A glossary from a mapping of source terms to one or several variants.

        >>> Glossary.of({"cat": "Katze", "dog": ["Hund", "Hunde"]}).find("A dog, a Dog and dogs")
        {('Hund', 'Hunde'): [(2, 5), (9, 12)]}
        """
        listed = {
            term: (variants,) if isinstance(variants, str) else tuple(variants) for term, variants in terms.items()
        }
        for term, variants in listed.items():
            if not term.strip() or not variants or not all(variant.strip() for variant in variants):
                raise UserError(f"a glossary must have words on both sides, but has {term!r}: {list(variants)!r}")
            if (longest := max(map(len, (term, *variants)))) > MAX_TERM:
                raise UserError(
                    f"a glossary term must have at most {MAX_TERM:,} characters on either side, but that of {shorten(term)} has "
                    f"{longest:,}"
                )
        return cls(
            tuple((term.strip(), tuple(variant.strip() for variant in variants)) for term, variants in listed.items())
        )

    @classmethod
    def read(cls, path: Path) -> Glossary:
        """Read a file with one term per line, source and target separated by a tab. Several lines for one source term give several
        variants; empty lines and lines that begin with # are skipped."""
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

    def find(self, text: str, taken: Sequence[Span] = ()) -> dict[Variants, list[Span]]:
        """The variants of each term in the text, with the places of the term; places that overlap `taken` do not count. Terms match
        as whole words, lower-case ones in any case. Of two that overlap, the longer one counts."""
        found: dict[Variants, list[Span]] = {}
        written = {True: text, False: _without_case(text)}
        there = [one for one in self._capitals_first if one[0] in written[one[1]]]  # rules out most terms cheaply
        is_taken = overlap_with(taken)
        for (begin, end), number in locate_terms([(term, written[has_case]) for term, has_case, _ in there]):
            if not is_taken((begin, end)):
                found.setdefault(there[number][2], []).append((begin, end))
        return found

    @cached_property
    def target_text(self) -> str:
        """All variants: the text that the glossary may put into a translation."""
        return " ".join(variant for _, variants in self.terms for variant in variants)

    @cached_property
    def _capitals_first(self) -> list[tuple[str, bool, Variants]]:
        """Terms as they are searched, whether case matters, and their variants. Of terms of equal length those with capitals come
        first, since the others match in any case."""
        capitals = [(term, True, variants) for term, variants in self.terms if term != term.lower()]
        return capitals + [
            (_without_case(term), False, variants) for term, variants in self.terms if term == term.lower()
        ]


def _without_case(text: str) -> str:
    """The text in lower case, of the same length as before."""
    return text.lower() if text.isascii() else "".join(map(_small, text))


@lru_cache(maxsize=4096)
def _small(character: str) -> str:
    """One lower-case character. Letters with the same capital become the same one, such as both forms of the Greek small sigma; of
    a lower case of two characters, the first one counts."""
    small = character.lower()[0]
    capital = small.upper()
    return capital.lower() if len(capital) == 1 and len(capital.lower()) == 1 else small
