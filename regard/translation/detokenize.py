"""Hypotheses back to text: protected spans are restored, hypotheses that lost one are dropped, and with `decode.guard` so are those
that are plainly nonsense. With `words` or `alignment` a translation comes with its words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from regard.generate.options import Hypothesis
from regard.translation.constraints import TextConstraints
from regard.translation.guard import is_foreign, runs_away
from regard.translation.links import Link, links_of
from regard.translation.protect import Protected
from regard.translation.queries import TextTask, attention, score
from regard.translation.reading import Reader
from regard.translation.results import Translation
from regard.translation.terms import find_terms
from regard.translation.translation_options import TranslationOptions
from regard.translation.words import Word, token_words, words_of

Details = tuple[tuple[Word, ...], tuple[Link, ...]]  # of one hypothesis


@dataclass(frozen=True)
class Detokenizer:
    """Makes translations of hypotheses for texts that `reader` reads."""

    reader: Reader
    options: TranslationOptions
    keeps_refused: bool  # whether a text stands in for its translation if the guard refuses every hypothesis

    def translations(
        self,
        texts: Sequence[str],
        kept: Sequence[Protected | None],
        hypotheses: Sequence[Sequence[Hypothesis]],
        constraints: Sequence[TextConstraints],
    ) -> TextTask[list[list[Translation]]]:
        """The translations of each text, best first; none where every hypothesis has lost one of the spans `kept`."""
        details: list[list[Details]]
        if self.options.words or self.options.alignment:
            details = yield from self._details(texts, hypotheses)
        else:
            details = [[((), ())] * len(some) for some in hypotheses]
        return [self._translations(*one) for one in zip(texts, kept, hypotheses, details, constraints, strict=True)]

    def _details(
        self, texts: Sequence[str], hypotheses: Sequence[Sequence[Hypothesis]]
    ) -> TextTask[list[list[Details]]]:
        """The words of every hypothesis, and which source words they come from."""
        sources = self.reader.encode(texts)
        src = [ids for ids, some in zip(sources, hypotheses, strict=True) for _ in some]
        tgt = [hypothesis.ids for some in hypotheses for hypothesis in some]
        scores = iter((yield from score(src, tgt)) if src else [])
        weights = iter((yield from attention(src, tgt)) if src and self.options.alignment else [])
        details: list[list[Details]] = []
        for text, some in zip(texts, hypotheses, strict=True):
            protected = self.reader.protected(text)
            details.append([])
            for hypothesis in some:
                tokens = token_words(self.reader.tokenizer, hypothesis.ids, "target", protected)
                words = words_of(tokens, next(scores))
                links = links_of(tokens, self.reader.token_words(text), next(weights)) if self.options.alignment else ()
                details[-1].append((words, links))
        return details

    def _translations(
        self,
        text: str,
        kept: Protected | None,
        hypotheses: Sequence[Hypothesis],
        details: Sequence[Details],
        constraints: TextConstraints,
    ) -> list[Translation]:
        guard, tokenizer = self.options.guard, self.reader.tokenizer
        ids = self.reader.encode([text])[0] if guard else []
        is_unknown = guard and is_foreign(text, tokenizer)
        given = self._given(text, constraints) if guard else ""
        candidates = []
        for hypothesis, (words, links) in zip(hypotheses, details, strict=True):
            decoded = self._decode(hypothesis, kept)
            if decoded is not None:
                is_wrong = guard and runs_away(text, decoded, ids, hypothesis.ids, tokenizer, given)
                translation = Translation(decoded.strip(), hypothesis.score, words, links)
                candidates.append((is_wrong or is_unknown, translation))
        if good := [translation for is_wrong, translation in candidates if not is_wrong]:
            return good
        refused = candidates[:1] if self.keeps_refused else []
        return [Translation(text, translation.score, is_refused=True) for _, translation in refused]

    def _decode(self, hypothesis: Hypothesis, kept: Protected | None) -> str | None:
        """The text of a hypothesis; None if it has lost a span."""
        tokenizer = self.reader.tokenizer
        if kept is not None and tokenizer.protects:
            return kept.restore(tokenizer, hypothesis.ids)
        decoded = tokenizer.decode(hypothesis.ids)
        return decoded if kept is None or _has_spans(decoded, kept) else None

    def _given(self, text: str, constraints: TextConstraints) -> str:
        """Everything, apart from the vocabulary, that a translation may take its characters from."""
        glossary = self.options.glossary
        return "".join(
            [text, constraints.prefix, *constraints.phrases, "" if glossary is None else glossary.target_text]
        )


def _has_spans(translation: str, kept: Protected) -> bool:
    """Whether a translation has every span to be kept, as often as the source."""
    return all(
        len(find_terms(translation, [span])) >= kept.parts.count(number) for number, span in enumerate(kept.spans)
    )
