"""Builds the constraints of each segment of a line for an engine: the prefix and phrases that were asked for, glossary terms that
the segment has, and words to keep that the model has no reserved pieces for. `generate/search/constrained.py` enforces them. No
torch here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from regard.generate.options import CodeSwitchedSource, Constraints
from regard.generate.search.phrases import Phrase
from regard.generate.word_tokens import phrase_of
from regard.translation.glossary import Glossary, Variants, count_term, insert_terms, with_capital
from regard.translation.protect import Protected
from regard.translation.reading import Reader, Segment
from regard.translation.results import Unmet
from regard.translation.terms import Span
from regard.translation.words import prefix_ids, tokens_at

Term = tuple[Phrase, Variants, list[Span]]  # of a source: what must appear, its variants, its places in the source


@dataclass(frozen=True)
class TextConstraints:
    """Constraints on the translation of one line, as text."""

    prefix: str = ""  # what it begins with; the search may extend the last word unless white space follows it
    phrases: tuple[str, ...] = ()  # what must appear in it, as whole words


@dataclass(frozen=True)
class ConstraintBuilder:
    """Builds the constraints of segments."""

    reader: Reader
    glossary: Glossary | None
    must_keep: bool  # whether words to keep are phrases that must appear

    def build(
        self, cut: Sequence[Sequence[Segment]], text_constraints: Sequence[TextConstraints] = ()
    ) -> list[Constraints]:
        """Constraints of each segment; an empty list if no segment has any. Prefix and phrases of a line hold for its first
        segment, glossary terms for the segment that has them."""
        if not text_constraints and self.glossary is None and not self.must_keep:
            return []
        constraints = []
        for parts, text_constraint in zip(cut, text_constraints or [TextConstraints()] * len(cut), strict=True):
            constraints += [
                self._build(part.text, TextConstraints() if number else text_constraint)
                for number, part in enumerate(parts)
            ]
        return constraints if any(constraint != Constraints() for constraint in constraints) else []

    def unmet(
        self, translation: str, segments: Sequence[Segment], text_constraint: TextConstraints
    ) -> tuple[Unmet, ...]:
        """What a line's translation lacks of what was asked for: an engine meets every constraint, but the guard may have put the
        line in place of its translation, and a term may be there less often than in the source. Empty lines stay empty, whatever
        was asked for."""
        if not translation and not segments:
            return ()
        lost = [
            Unmet("phrases", phrase)
            for phrase in text_constraint.phrases
            if phrase.strip() not in translation and with_capital(phrase.strip()) not in translation
        ]
        if not translation.startswith(text_constraint.prefix.strip()):
            lost.insert(0, Unmet("prefix", text_constraint.prefix))
        if self.glossary is not None:
            wanted: Counter[Variants] = Counter()
            for segment in segments:
                found = self.glossary.find(segment.text, self.reader.spans_kept(segment.text))
                wanted.update({variants: len(places) for variants, places in found.items()})
            lost += [Unmet("glossary", one[0]) for one, count in wanted.items() if count_term(translation, one) < count]
        return tuple(lost)

    def _build(self, text: str, text_constraint: TextConstraints) -> Constraints:
        tokenizer, terms = self.reader.tokenizer, self._terms(text)
        asked = [phrase_of(tokenizer, (phrase,)) for phrase in text_constraint.phrases]
        phrases = (*asked, *(phrase for phrase, _, _ in terms), *self._kept(text))
        code_switch = partial(self._code_switch, text, terms) if terms else None
        return Constraints(
            prefix_ids(tokenizer, text_constraint.prefix, self.reader.protected(text)), phrases, code_switch=code_switch
        )

    def _terms(self, text: str) -> list[Term]:
        wanted = {} if self.glossary is None else self.glossary.find(text, self.reader.spans_kept(text))
        if not wanted:
            return []
        tokens = self.reader.token_words(text)
        terms = []
        for variants, places in wanted.items():
            cases = tuple(map(with_capital, variants))  # a sentence may begin with it
            phrase = phrase_of(self.reader.tokenizer, variants, cases)
            phrase = replace(
                phrase,
                source=tokens_at(tokens, text, places),
                count_in=partial(self._count_term, variants),
                count=len(places),
            )
            terms.append((phrase, variants, places))
        return terms

    def _kept(self, text: str) -> list[Phrase]:
        """The words to keep that must appear and that the model can spell."""
        tokenizer = self.reader.tokenizer
        kept = self.reader.kept(text) if self.must_keep else None
        phrases = []
        for span in kept.spans if kept is not None else ():
            if tokenizer.unk_id not in tokenizer.encode(span, "target"):
                places = [place for place in self.reader.spans_kept(text) if text[slice(*place)] == span]
                source = tokens_at(self.reader.token_words(text), text, places)
                phrases.append(replace(phrase_of(tokenizer, (span,)), source=source))
        return phrases

    def _code_switch(self, text: str, terms: Sequence[Term], phrases: Sequence[Phrase]) -> CodeSwitchedSource | None:
        """The text with those of its terms that are among these phrases already translated. None if that changes nothing or the
        model cannot read it: it is too long, a term has characters that the source vocabulary lacks, or it has protected spans
        that the text has not."""
        reader, tokenizer = self.reader, self.reader.tokenizer
        variants_of = {phrase: variants for phrase, variants, _ in terms if phrase in phrases}
        wanted = {variants: places for phrase, variants, places in terms if phrase in variants_of}
        switched, places = insert_terms(text, wanted, len(tokenizer.split_code(text)[0]))
        [own, ids] = reader.encode([text, switched])
        put = [switched[slice(*place)] for some in places.values() for place in some]
        is_too_long = len(ids) > max(len(own), reader.max_length)
        is_unknown = any(tokenizer.unk_id in some for some in tokenizer.encode_batch(put))
        has_more = _spans_of(reader.protected(text)) != _spans_of(reader.protected(switched))
        if switched == text or is_too_long or is_unknown or has_more:
            return None
        tokens = reader.token_words(switched)
        # Phrases that are no glossary terms may appear anywhere.
        sources = [
            tokens_at(tokens, switched, places[variants_of[one]] if one in variants_of else []) for one in phrases
        ]
        return CodeSwitchedSource(
            ids, tuple(replace(one, source=source) for one, source in zip(phrases, sources, strict=True))
        )

    def _count_term(self, variants: Sequence[str], ids: Sequence[int]) -> int:
        return count_term(self.reader.tokenizer.decode(ids), variants)


def _spans_of(protected: Protected | None) -> list[str]:
    """What was taken out of a text, in order."""
    if protected is None:
        return []
    return [protected.spans[part] for part in protected.parts if isinstance(part, int)]
