"""Quotation marks with `decode.guard`: checks that a translation quotes as often as its source, and gives it marks of the same
kind: double or single, straight or curly, as the target language writes them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from regard.translation.constraints import TextConstraints
from regard.translation.glossary import with_capital
from regard.translation.protect import find_spans
from regard.translation.quotes import (
    Quotation,
    customary,
    find_quotations,
    has_marks,
    is_curly,
    is_spaced,
    respaced,
    with_marks,
    writes_curly,
)
from regard.translation.reading import Reader
from regard.translation.results import Translation
from regard.translation.terms import Span, find_terms, overlap_with
from regard.translation.translation_options import TranslationOptions
from regard.translation.words import cut_again

_APOSTROPHE = re.compile(r"(?<=[^\W\d_])['’]")


@dataclass(frozen=True)
class QuoteGuard:
    """Checks and rewrites quotation marks in translations of texts that `reader` reads."""

    reader: Reader
    options: TranslationOptions

    def survive(self, translation: str, text: str) -> bool:
        """Whether a translation has the quotations of a text."""
        if not has_marks(text):
            return True  # as most sentences
        kept = self.reader.kept(text)
        spans = find_terms(translation, kept.spans) if kept is not None else []
        own, found = self.reader.quotations(text), find_quotations(translation, spans)
        # By the number of their marks: half of one does not stand for a whole one.
        return Counter(len(one.places) for one in own) <= Counter(len(one.places) for one in found)

    def restyle(self, text: str, translations: list[Translation], constraints: TextConstraints) -> list[Translation]:
        """Give translations the marks of their source. Requested text (prefix, phrases, terms), protected spans and untranslated
        lines stay unchanged."""
        if not any(has_marks(translation.text) for translation in translations):
            return translations  # as of most sentences
        own = self.reader.quotations(text)
        restyled: dict[str, Translation] = {}
        for one in translations:
            new = one if one.is_refused else self._restyled(one, text, own, constraints)
            restyled.setdefault(new.text, new)  # two may have differed only in marks
        return list(restyled.values())

    def _restyled(
        self, translation: Translation, text: str, own: Sequence[Quotation], constraints: TextConstraints
    ) -> Translation:
        old = translation.text
        kept = self._asked_for(old, text, constraints)
        found = find_quotations(old, kept)
        target = self.options.languages[1]
        marks: dict[int, str] = {}
        for one, like in zip(found, _models(found, own), strict=False):
            places = zip((one.begin, one.end), customary(target, like) or (), strict=False)
            marks |= {place: mark for place, mark in places if place is not None}
        apostrophe = "’" if is_curly(text) and writes_curly(target) else "'"
        is_other = overlap_with([*kept, *((place, place + 1) for one in found for place in one.places)])
        marks |= {match.start(): apostrophe for match in _APOSTROPHE.finditer(old) if not is_other(match.span())}
        new, moved = with_marks(old, marks), None
        if any(map(is_spaced, self.options.languages)):
            new, moved = respaced(new, found, target)
        if new == old:
            return translation
        return replace(translation, text=new, words=cut_again(translation.words, old, new, moved))

    def _asked_for(self, translation: str, text: str, constraints: TextConstraints) -> list[Span]:
        """The places of a translation that stay as they are."""
        glossary, keep = self.options.glossary, self.options.keep
        found = {} if glossary is None else glossary.find(text, self.reader.spans_kept(text))
        terms = [term for variants in found for term in variants]
        asked = [*terms, *map(with_capital, terms), *constraints.phrases, *keep]
        return [(0, len(constraints.prefix)), *find_terms(translation, asked), *find_spans(translation)]


def _models(found: Sequence[Quotation], own: Sequence[Quotation]) -> Sequence[Quotation]:
    """For each quotation of a translation the one of its source whose kind it takes; none if that is not known."""
    if len(found) == len(own):
        return own
    return [own[0]] * len(found) if len({(one.is_double, one.is_curly) for one in own}) == 1 else ()
