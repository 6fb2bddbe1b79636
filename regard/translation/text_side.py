"""The text side of translation: lines in, results out, without an engine. What it needs of one it yields as queries
(`queries.py`) and is sent the answers; it is the same for every engine.

    lines -> segments -> search -> translations of each segment -> repairs, with more searches -> joined into lines

`reading.py` cuts lines into segments; they are joined with what stood between them, and empty lines stay empty. A protected span
that the model loses is kept all the same: then the text between the spans is translated on its own. With a guard, a text in
capitals is translated in sentence case (`capitals.py`), a text whose translation has lost or changed a number is searched again
with its numbers as reserved pieces, and one whose translation has lost quotation marks with these.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice, repeat
from types import MappingProxyType

from regard.data.tokenizer import Tokenizer
from regard.generate.options import Constraints, Hypothesis
from regard.translation.capitals import may_be_in_capitals, to_capitals, to_sentence_case
from regard.translation.constraints import ConstraintBuilder, TextConstraints
from regard.translation.detokenize import Detokenizer
from regard.translation.links import Link
from regard.translation.mbr import Utility, by_expected_utility
from regard.translation.number_guard import NumberGuard
from regard.translation.protect import Protected
from regard.translation.queries import SearchQuery, TextTask, search
from regard.translation.quote_guard import QuoteGuard
from regard.translation.quotes import close_up, is_spaced
from regard.translation.reading import Quotes, Reader, Segment, one_line
from regard.translation.results import Result, Translation
from regard.translation.translation_options import TranslationOptions
from regard.translation.words import Word


@dataclass(frozen=True)
class SegmentedLines:
    """Lines with the segments that go through an engine; a line that is empty or copied whole has none."""

    lines: Sequence[str]
    segments: Sequence[Sequence[Segment]]  # of each line
    constraints: Sequence[TextConstraints] = ()  # one for each line, or none at all

    @property
    def texts(self) -> list[str]:
        """All segments, one after the other."""
        return [segment.text for segments in self.segments for segment in segments]

    def line(self, number: int) -> SegmentedLines:
        """One of the lines."""
        return SegmentedLines([self.lines[number]], [self.segments[number]], self.constraints[number : number + 1])


class TextSide:
    """Translates lines of text by asking for searches."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        options: TranslationOptions,
        max_length: int,
        *,
        takes_phrases: bool,
        utility: Utility | None = None,
    ) -> None:
        """`max_length` is the longest segment in tokens, `takes_phrases` whether the engine enforces phrases itself, `utility`
        the metric that `options.mbr` names."""
        self.tokenizer, self.options, self.max_length = tokenizer, options, max_length
        self.takes_phrases, self.utility = takes_phrases, utility
        self.searches_again = True  # to repair what the first search has lost
        self._read_with(self._reader(quotes=self._quotes_shown))

    def _reader(self, quotes: Quotes, more: Mapping[str, Sequence[str]] = MappingProxyType({})) -> Reader:
        options = self.options
        return Reader(self.tokenizer, self.max_length, options.keep, more, quotes, target=options.languages[1])

    def _read_with(self, reader: Reader) -> None:
        self.reader = reader
        # A model with reserved pieces keeps words anyway, and not every engine can enforce phrases.
        must_keep = bool(self.options.keep) and not self.tokenizer.protects and self.takes_phrases
        self.constraint_builder = ConstraintBuilder(reader, self.options.glossary, must_keep)
        self._numbers, self._quotes = NumberGuard(reader, self.options), QuoteGuard(reader, self.options)
        # A repair needs a better translation, not the text itself.
        self._detokenizer = Detokenizer(reader, self.options, keeps_refused=self.searches_again)

    @property
    def _quotes_shown(self) -> Quotes:
        if is_spaced(self.options.languages[0]):  # « Bonjour » would become " Bonjour "
            return "own"
        return "straight" if self.options.guard and '"' in self.tokenizer.characters else "own"

    def with_options(self, options: TranslationOptions, utility: Utility | None = None) -> TextSide:
        """The same model's text side with other options."""
        return TextSide(self.tokenizer, options, self.max_length, takes_phrases=self.takes_phrases, utility=utility)

    # --- lines ---

    def segment(self, lines: Sequence[str], constraints: Sequence[TextConstraints] = ()) -> SegmentedLines:
        """Cut lines into segments; `constraints` are one for each line, or none."""
        cut = self.reader.cut(lines)
        if self.options.guard:
            asked = constraints or [TextConstraints()] * len(cut)  # they hold for the first segment of a line
            cut = [
                list(map(self._without_capitals, some, chain((one,), repeat(TextConstraints()))))
                for some, one in zip(cut, asked, strict=True)
            ]
        return SegmentedLines(lines, cut, constraints)

    def _without_capitals(self, segment: Segment, asked: TextConstraints) -> Segment:
        """A segment in capitals in sentence case; one whose translation must have a given text stays as it is."""
        text, glossary = segment.text, self.options.glossary
        if not may_be_in_capitals(text) or asked != TextConstraints():
            return segment
        kept = self.reader.spans_kept(text)
        small = to_sentence_case(text, kept, self.tokenizer, self.options.languages)
        if small is None:
            return segment
        kept_in_small = self.reader.spans_kept(small)
        if glossary is not None and (glossary.find(text, kept) or glossary.find(small, kept_in_small)):
            return segment
        spans = [small[slice(*place)] for place in kept_in_small]
        if spans != [text[slice(*place)] for place in kept]:  # FILE://... would become an address, and stay one
            return segment
        return replace(segment, text=small, capitals=text)

    def as_written(self, segment: Segment, translation: Translation) -> Translation:
        """The translation of a segment in capitals, if that is in capitals."""
        if not segment.capitals:
            return translation
        if translation.is_refused:
            return replace(translation, text=segment.capitals)
        words = tuple(replace(word, text=self._to_capitals(word.text)) for word in translation.words)
        return replace(translation, text=self._to_capitals(translation.text), words=words)

    def _to_capitals(self, text: str) -> str:
        return to_capitals(text, self.reader.spans_kept(text))

    def first_search(self, segmented: SegmentedLines) -> SearchQuery:
        """The search for all segments."""
        constraints = self.constraint_builder.build(segmented.segments, segmented.constraints)
        return self._query(segmented.texts, constraints)

    def translate(self, segmented: SegmentedLines) -> TextTask[list[Result]]:
        """A result for every line."""
        hypotheses = yield from search(self.first_search(segmented))
        results = yield from self.finish(segmented, hypotheses)
        return self.rerank(results) if self.options.mbr else results

    def finish(self, segmented: SegmentedLines, hypotheses: Sequence[Sequence[Hypothesis]]) -> TextTask[list[Result]]:
        """The results of lines from the hypotheses of all their segments, not yet reranked. Asks for more searches if these
        have lost something. Constraints apply to the first segment of a line."""
        constraints = [
            TextConstraints() if number else own
            for segments, own in zip(
                segmented.segments,
                segmented.constraints or [TextConstraints()] * len(segmented.lines),
                strict=True,
            )
            for number in range(len(segments))
        ]
        translations = iter((yield from self.translations(segmented.texts, hypotheses, constraints)))
        results = [
            self._join(line, segments, list(islice(translations, len(segments))))
            for line, segments in zip(segmented.lines, segmented.segments, strict=True)
        ]
        if not segmented.constraints and self.options.glossary is None:
            return results
        own = segmented.constraints or [TextConstraints()] * len(results)
        return [
            replace(result, unmet=self.constraint_builder.unmet(result.text, segments, constraint))
            for result, segments, constraint in zip(results, segmented.segments, own, strict=True)
        ]

    def rerank(self, results: Sequence[Result]) -> list[Result]:
        """Minimum Bayes risk reranking: sort the translations of each line by their similarity to all the others."""
        return [self._reranked(result) for result in results]

    def _reranked(self, result: Result) -> Result:
        assert self.utility is not None
        best = max(translation.score for translation in result.translations)
        # Samples already occur in proportion to their probability; beam hypotheses are weighted by their scores.
        is_sample = self.options.search.sample
        weights = () if is_sample else [math.exp(one.score - best) for one in result.translations]
        order = by_expected_utility([one.text for one in result.translations], self.utility, weights)
        return replace(result, translations=tuple(result.translations[n] for n in order[: self.options.search.nbest]))

    def _join(self, line: str, segments: Sequence[Segment], translations: Sequence[list[Translation]]) -> Result:
        """The result of a line from the translations of its segments."""
        joined = []
        for rank in range(max(map(len, translations), default=0)):
            # A segment with fewer translations than another repeats its last one.
            best = (some[min(rank, len(some) - 1)] for some in translations)
            chosen = list(map(self.as_written, segments, best))
            text = "".join(
                segment.before + one.text + segment.after for one, segment in zip(chosen, segments, strict=True)
            )
            words = tuple(word for one in chosen for word in one.words)
            links = self._joined_links(segments, chosen) if self.options.alignment else ()
            joined.append(Translation(one_line(text), sum(one.score for one in chosen), words, links))
        source: list[str] = []
        if self.options.alignment:
            source = [word for segment in segments for word in self._words_of(segment)]
        return Result(line, tuple(joined) or (Translation(self.reader.copied(line), 0.0),), tuple(source))

    def _words_of(self, segment: Segment) -> Sequence[str]:
        """The words of a segment as they stand in the line."""
        words = self.reader.token_words(segment.text).words
        return list(map(self._to_capitals, words)) if segment.capitals else words

    def _joined_links(self, segments: Sequence[Segment], translations: Sequence[Translation]) -> tuple[Link, ...]:
        """The links of a line's segments, with words numbered through the line."""
        links: list[Link] = []
        target = source = 0
        for segment, translation in zip(segments, translations, strict=True):
            links += [(target + one, source + other) for one, other in translation.alignment]
            target += len(translation.words)
            source += len(self.reader.token_words(segment.text).words)
        return tuple(links)

    # --- segments ---

    def _query(self, texts: Sequence[str], constraints: Sequence[Constraints]) -> SearchQuery:
        return SearchQuery(self.reader.encode(texts), self.options.engine_search, constraints)

    def _search(
        self, texts: Sequence[str], constraints: Sequence[TextConstraints]
    ) -> TextTask[list[list[Translation]]]:
        """Search texts that need no cutting."""
        built = self.constraint_builder.build([[Segment(text, "")] for text in texts], constraints)
        hypotheses = yield from search(self._query(texts, built))
        return (yield from self.translations(texts, hypotheses, constraints))

    def translations(
        self,
        texts: Sequence[str],
        hypotheses: Sequence[Sequence[Hypothesis]],
        constraints: Sequence[TextConstraints],
    ) -> TextTask[list[list[Translation]]]:
        """The translations of each segment, best first and at least one, from its hypotheses."""
        kept = [self.reader.kept(text) for text in texts]
        found = yield from self._detokenizer.translations(texts, kept, hypotheses, constraints)
        lost = {number: one for number, one in enumerate(kept) if one is not None and not found[number]}
        if lost and self.searches_again:
            pieced = yield from self._around_spans(list(lost.values()), [constraints[number] for number in lost])
            for number, translation in zip(lost, pieced, strict=True):
                found[number] = [translation]
        found = [some or [Translation("", 0.0)] for some in found]
        if not (self.options.guard and self.searches_again):
            return found
        if self.tokenizer.protects and not self.options.search.sample:
            found = yield from self._with_numbers(texts, found, constraints)
            found = yield from self._with_quotes(texts, found, constraints)
        found = [self._numbers.localize(*one) for one in zip(texts, found, constraints, strict=True)]
        return [self._quotes.restyle(*one) for one in zip(texts, found, constraints, strict=True)]

    def _around_spans(
        self, texts: Sequence[Protected], constraints: Sequence[TextConstraints]
    ) -> TextTask[list[Translation]]:
        """Each text with its protected spans copied and every piece between them translated separately. Constraints apply to the
        first piece; a prefix only if no span comes before it."""
        between: list[str] = []
        own: list[TextConstraints] = []
        for text, given in zip(texts, constraints, strict=True):
            pieces = [part.strip() for part in text.parts if isinstance(part, str) and _has_words(part)]
            first = given if isinstance(text.parts[0], str) else replace(given, prefix="")
            between += pieces
            own += [TextConstraints() if number else first for number in range(len(pieces))]
        translations = iter((yield from self._search(between, own)) if between else [])
        results = []
        for text in texts:
            joined, score = "", 0.0
            words: list[Word] = []
            for part in text.parts:
                if isinstance(part, int):
                    joined += text.spans[part]
                    words.append(Word(text.spans[part], 0.0))
                elif _has_words(part):
                    best = next(translations)[0]
                    joined += part.replace(part.strip(), best.text, 1)
                    score += best.score
                    words += best.words
                else:
                    joined += part
            with_words = self.options.words or self.options.alignment
            results.append(Translation(joined.strip(), score, tuple(words) if with_words else ()))
        return results

    def _with_numbers(
        self,
        texts: Sequence[str],
        translations: Sequence[list[Translation]],
        constraints: Sequence[TextConstraints],
    ) -> TextTask[list[list[Translation]]]:
        """Those translations of each text that have its numbers. If none has, the text is searched again with its numbers as
        reserved pieces."""
        numbers = {text: self._numbers.numbers(text) for text in texts}
        good = [
            [one for one in some if self._numbers.survive(one.text, text, numbers[text])]
            for text, some in zip(texts, translations, strict=True)
        ]
        if not all(good):
            keeper = self._keeping(self._reader(self._quotes_shown, numbers))
            again = [n for n, text in enumerate(texts) if not good[n] and keeper.reader.has_room(text)]
            own = [constraints[n] for n in again]
            better = (yield from keeper._search([texts[n] for n in again], own)) if again else []
            for n, some in zip(again, better, strict=True):
                is_whole = _is_whole(some[0], translations[n][0])
                if is_whole and self._numbers.survive(some[0].text, texts[n], numbers[texts[n]]):
                    linked = self._linked(some, texts[n], keeper.reader)
                    # Copied numbers have the notation of the source, decimals included.
                    good[n] = self._numbers.localize(texts[n], linked, constraints[n], with_decimals=True)
        return [some or first for some, first in zip(good, translations, strict=True)]

    def _with_quotes(
        self,
        texts: Sequence[str],
        translations: Sequence[list[Translation]],
        constraints: Sequence[TextConstraints],
    ) -> TextTask[list[list[Translation]]]:
        """The translations of each text. If the best has fewer quotations than the text, it is searched again with its quotation
        marks as reserved pieces."""
        found = list(translations)
        lost = [
            n
            for n, (text, some) in enumerate(zip(texts, translations, strict=True))
            if not (some[0].is_refused or self._quotes.survive(some[0].text, text))
        ]
        if not lost:
            return found
        keeper = self._keeping(self._reader("reserved"))
        again = [n for n in lost if keeper.reader.has_room(texts[n])]
        own = [constraints[n] for n in again]
        better = (yield from keeper._search([texts[n] for n in again], own)) if again else []
        for n, some in zip(again, better, strict=True):
            has_numbers = self._numbers.survive(some[0].text, texts[n], self._numbers.numbers(texts[n]))
            if has_numbers and _is_whole(some[0], translations[n][0]) and self._quotes.survive(some[0].text, texts[n]):
                closed_up = [replace(one, text=close_up(one.text)) for one in some]
                found[n] = self._linked(closed_up, texts[n], keeper.reader)
        return found

    def _keeping(self, reader: Reader) -> TextSide:
        """The same text side, but with a reader that keeps more, and making no repairs."""
        keeper = copy.copy(self)
        keeper.searches_again = False
        keeper._read_with(reader)
        return keeper

    def _linked(self, translations: list[Translation], text: str, reader: Reader) -> list[Translation]:
        """Translations from another reader; without links if the words of its source differ from this reader's."""
        if not self.options.alignment or reader.token_words(text).words == self.reader.token_words(text).words:
            return translations
        return [replace(one, alignment=()) for one in translations]


def _is_whole(repaired: Translation, first: Translation) -> bool:
    """Whether a repaired translation is more than what was kept."""
    return 2 * len(repaired.text) > len(first.text)


def _has_words(text: str) -> bool:
    return any(character.isalpha() for character in text)
