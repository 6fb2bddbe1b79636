"""Numbers with `decode.guard`: checks that a translation has those of its source, and writes them as the target language does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from regard.translation.constraints import TextConstraints
from regard.translation.glossary import with_capital
from regard.translation.notation import marks_of, other_marks, other_sums, put_marks, put_sums
from regard.translation.numbers import has_numbers, numbers_of
from regard.translation.protect import find_spans
from regard.translation.reading import Reader
from regard.translation.results import Translation
from regard.translation.terms import Span, find_terms, overlap_with
from regard.translation.translation_options import TranslationOptions
from regard.translation.words import cut_again


@dataclass(frozen=True)
class NumberGuard:
    """Checks and rewrites numbers in translations of texts that `reader` reads."""

    reader: Reader
    options: TranslationOptions

    def numbers(self, text: str) -> list[str]:
        """The numbers of a text that its translation must have."""
        return [text[slice(*span)] for span in self._spans(text)]

    def survive(self, translation: str, text: str, numbers: Sequence[str]) -> bool:
        """Whether a translation has these numbers of a text, apart from those in its protected spans."""
        if not numbers:
            return True  # as for nearly every sentence
        kept = self.reader.kept(text)
        for span in sorted(kept.spans, key=len, reverse=True) if kept is not None else ():
            translation = translation.replace(span, " ; ")
        return has_numbers(translation, numbers, text, *self.options.languages)

    def localize(
        self,
        text: str,
        translations: list[Translation],
        constraints: TextConstraints,
        with_decimals: bool = False,
    ) -> list[Translation]:
        """Write numbers and amounts of money in translations as the target language does. Requested text (prefix, phrases, terms)
        and untranslated lines stay unchanged. `with_decimals`: see `other_marks`."""
        languages, keep = self.options.languages, self.options.keep
        if marks_of(languages) is None:
            return translations
        protected = self.reader.protected(text)
        marks = other_marks(text, self._spans(text), languages, with_decimals)
        spans = () if protected is None else protected.spans
        sums = other_sums([span for span in spans if span not in keep], languages)
        if not (marks or sums):
            return translations
        terms = [term for terms in self._glossary_terms(text) for term in (*terms, *map(with_capital, terms))]
        localized: dict[str, Translation] = {}
        for translation in translations:
            old, new_translation = translation.text, translation
            asked = [(0, len(constraints.prefix)), *find_terms(old, [*terms, *constraints.phrases, *keep])]
            new = put_sums(put_marks(old, marks, [*asked, *find_spans(old, keep)]), sums, asked)
            if not (translation.is_refused or new == old):
                new_translation = replace(translation, text=new, words=cut_again(translation.words, old, new))
            localized.setdefault(new_translation.text, new_translation)  # two may have differed only in separators
        return list(localized.values())

    def _spans(self, text: str) -> list[Span]:
        """The places of the numbers that a translation must have, without protected ones and those in glossary terms."""
        if not (numbers := numbers_of(text, self.options.languages[0])):
            return []  # as for nearly every sentence
        terms = [span for spans in self._glossary_terms(text).values() for span in spans]
        taken = [*self.reader.spans_kept(text), *terms]
        is_taken = overlap_with(taken)
        return [span for span in numbers if not is_taken(span)]

    def _glossary_terms(self, text: str) -> Mapping[tuple[str, ...], Sequence[Span]]:
        """The glossary terms of a text: their variants, and their places."""
        glossary = self.options.glossary
        return {} if glossary is None else glossary.find(text, self.reader.spans_kept(text))
