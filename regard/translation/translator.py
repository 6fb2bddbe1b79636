"""Lines through an engine and back to text: the same for every engine.

What `reading.py` has cut is translated in parts and joined with what stood between them; empty lines stay empty. Spans that went
through the model as reserved pieces are put back, and one that the model loses is kept all the same: then what stands between the
spans is translated on its own. With a guard, a text whose translation has lost or changed a number is searched again with its
numbers as reserved pieces.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from regard.data.tokenizer import Tokenizer
from regard.errors import UserError
from regard.generate.options import Constraints, Done, Engine, Finished, Hypothesis, SearchOptions
from regard.translation.constraints import ConstraintBuilder, TextConstraints
from regard.translation.glossary import with_capital
from regard.translation.guard import is_foreign, runs_away
from regard.translation.mbr import Utility, by_expected_utility
from regard.translation.notation import marks_of, other_marks, other_sums, put_marks, put_sums
from regard.translation.numbers import has_numbers, numbers_of
from regard.translation.protect import Protected, encode_pairs, find_spans
from regard.translation.reading import Part, Reader, count_lines, one_line
from regard.translation.terms import Span, find_terms, overlaps
from regard.translation.words import Link, Word, links_of, spell, words_of

Details = tuple[tuple[Word, ...], tuple[Link, ...]]  # of a translation


@dataclass(frozen=True)
class Translation:
    """One way to translate a line."""

    text: str
    score: float  # of the search: log-probability under the length penalty; added up over the parts of a cut line
    words: tuple[Word, ...] = ()  # where `SearchOptions.words` asks for them, and the translation is the model's
    alignment: tuple[Link, ...] = ()  # likewise: which of `words` comes from which of the result's `source_words`
    is_refused: bool = False  # the guard has refused all that was found, and this is the line itself


@dataclass(frozen=True)
class Result:
    """A line and its translations, best first."""

    source: str
    translations: tuple[Translation, ...]
    source_words: tuple[str, ...] = ()  # where `SearchOptions.alignment` asks for them

    @property
    def text(self) -> str:
        return self.translations[0].text


class Translator:
    """Translates lines of text with an engine."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        engine: Engine,
        options: SearchOptions,
        max_length: int,
        utility: Utility | None = None,
    ) -> None:
        """`utility` is what `options.mbr` names."""
        self.tokenizer, self.engine, self.options, self.max_length = tokenizer, engine, options, max_length
        self.utility = utility
        self.searches_again = True  # for what a first search has lost
        self.reader = Reader(tokenizer, max_length, options.keep)
        # A model with reserved pieces keeps words without being made to, and not every engine can make one.
        insists_on_kept = bool(options.keep) and not tokenizer.protects and engine.takes_phrases
        self.constraint_builder = ConstraintBuilder(self.reader, options.glossary, insists_on_kept)

    def translate(
        self, lines: Sequence[str], done: Done | None = None, constraints: Sequence[TextConstraints] = ()
    ) -> list[Result]:
        """A result for every line, in order; `done` hears of lines as they are finished, in whatever order that is, as
        `count_lines` counts them. `constraints` are one for each line, or none."""
        cut = self.reader.cut(lines)
        texts = [part.text for parts in cut for part in parts]
        finished = None if done is None else count_lines(cut, done)
        return self.join(
            lines, cut, self._search(texts, self.constraint_builder.build(cut, constraints), finished), constraints
        )

    def _search(
        self, texts: Sequence[str], constraints: Sequence[Constraints], finished: Finished | None = None
    ) -> list[list[Hypothesis]]:
        ids, options = self.reader.encode(texts), self.options.of_engine
        if constraints:
            return self.engine.translate(ids, options, finished, constraints)
        return self.engine.translate(ids, options, finished)

    def choose(self, results: Sequence[Result]) -> list[Result]:
        """The translations of each line by how much they are like all the others."""
        return [self._chosen(result) for result in results]

    def _chosen(self, result: Result) -> Result:
        assert self.utility is not None
        best = max(way.score for way in result.translations)
        # Samples come as often as they are likely; what a beam finds is likely by its score.
        weights = () if self.options.sample else [math.exp(way.score - best) for way in result.translations]
        order = by_expected_utility([way.text for way in result.translations], self.utility, weights)
        return replace(result, translations=tuple(result.translations[n] for n in order[: self.options.nbest]))

    def join(
        self,
        lines: Sequence[str],
        cut: Sequence[Sequence[Part]],
        found: Sequence[Sequence[Hypothesis]],
        asks: Sequence[TextConstraints] = (),
    ) -> list[Result]:
        """The results of lines, from what was found for all their parts. What was asked of a line is asked of its first part."""
        asked = [
            TextConstraints() if number else ask
            for parts, ask in zip(cut, asks or [TextConstraints()] * len(cut), strict=True)
            for number in range(len(parts))
        ]
        all_ways = iter(self._all_ways([part.text for parts in cut for part in parts], found, asked))
        results = []
        for line, parts in zip(lines, cut, strict=True):
            ways = list(islice(all_ways, len(parts)))
            translations = []
            for rank in range(max(map(len, ways), default=0)):
                # A part with fewer ways than another repeats its last one.
                chosen = [part_ways[min(rank, len(part_ways) - 1)] for part_ways in ways]
                joined = "".join(way.text + part.after for way, part in zip(chosen, parts, strict=True))
                words = tuple(word for way in chosen for word in way.words)
                links = self._joined_links(parts, chosen) if self.options.alignment else ()
                translations.append(Translation(one_line(joined), sum(way.score for way in chosen), words, links))
            source = (
                [word for part in parts for word in self.reader.spelt(part.text).words]
                if self.options.alignment
                else ()
            )
            results.append(Result(line, tuple(translations) or (Translation("", 0.0),), tuple(source)))
        return self.choose(results) if self.options.mbr else results

    def _joined_links(self, parts: Sequence[Part], ways: Sequence[Translation]) -> tuple[Link, ...]:
        """Links of the parts of a line, with their words counted through."""
        links: list[Link] = []
        target = source = 0
        for part, way in zip(parts, ways, strict=True):
            links += [(target + one, source + other) for one, other in way.alignment]
            target, source = target + len(way.words), source + len(self.reader.spelt(part.text).words)
        return tuple(links)

    def _all_ways(
        self, texts: Sequence[str], found: Sequence[Sequence[Hypothesis]], asks: Sequence[TextConstraints]
    ) -> list[list[Translation]]:
        """Ways to translate each text, best first, from what was found for it; at least one."""
        spans = {
            number: without for number, text in enumerate(texts) if (without := self.reader.kept(text)) is not None
        }
        if self.options.words or self.options.alignment:
            details = self._details(texts, found)
        else:
            details = [[((), ())] * len(hypotheses) for hypotheses in found]
        ways = [
            self._ways(text, spans.get(number), hypotheses, some, ask)
            for number, (text, hypotheses, some, ask) in enumerate(zip(texts, found, details, asks, strict=True))
        ]
        # The model has lost a span in all of them: what stands between the spans is translated on its own.
        lost = [number for number in spans if not ways[number] and self.searches_again]
        pieced = self._around_spans([spans[number] for number in lost], [asks[number] for number in lost])
        for number, way in zip(lost, pieced, strict=True):
            ways[number] = [way]
        found_ways = [some or [Translation("", 0.0)] for some in ways]
        if not (self.options.guard and self.searches_again):
            return found_ways
        if self.tokenizer.protects and not self.options.sample:
            found_ways = self._with_numbers(texts, found_ways, asks)
        return [self._with_marks(text, some, ask) for text, some, ask in zip(texts, found_ways, asks, strict=True)]

    def _with_numbers(
        self, texts: Sequence[str], ways: Sequence[list[Translation]], asks: Sequence[TextConstraints]
    ) -> list[list[Translation]]:
        """Those ways to translate each text that have its numbers. Where none has, the text is searched again with its numbers as
        reserved pieces."""
        numbers = {text: [text[slice(*place)] for place in self._numbers(text)] for text in texts}
        kept = [
            [way for way in some if self._has_numbers(way.text, text, numbers[text])]
            for text, some in zip(texts, ways, strict=True)
        ]
        if not all(kept):
            keeper = self._keeping(numbers)
            again = [number for number, text in enumerate(texts) if not kept[number] and keeper.reader.has_room(text)]
            some, asked = [texts[number] for number in again], [asks[number] for number in again]
            constraints = keeper.constraint_builder.build([[Part(text, "")] for text in some], asked)
            found = keeper._search(some, constraints) if some else []
            for number, text, better in zip(again, some, keeper._all_ways(some, found, asked), strict=True):
                is_whole = 2 * len(better[0].text) > len(ways[number][0].text)  # and not the numbers alone
                if is_whole and self._has_numbers(better[0].text, text, numbers[text]):
                    linked = self._linked(better, text, keeper.reader)
                    # What stands there as in the source has the source's decimals, too.
                    kept[number] = self._with_marks(text, linked, asks[number], with_decimals=True)
        return [some or first for some, first in zip(kept, ways, strict=True)]

    def _has_numbers(self, translation: str, text: str, numbers: Sequence[str]) -> bool:
        """Whether a translation has these numbers of a text, those in its spans aside."""
        if not numbers:
            return True  # nearly every sentence
        kept = self.reader.kept(text)
        for span in sorted(kept.spans, key=len, reverse=True) if kept is not None else ():
            translation = translation.replace(span, " ; ")
        return has_numbers(translation, numbers, text, *self.options.languages)

    def _numbers(self, text: str) -> list[Span]:
        """Where the numbers of a text are that its translation must have: not those that are kept anyway, or that a glossary calls
        something else."""
        if not (numbers := numbers_of(text, self.options.languages[0])):
            return []  # nearly every sentence
        taken = [*self.reader.places_kept(text), *(place for places in self._wanted(text).values() for place in places)]
        return [place for place in numbers if not overlaps(place, taken)]

    def _wanted(self, text: str) -> Mapping[tuple[str, ...], Sequence[Span]]:
        """What a glossary calls the terms of a text, and where those are."""
        glossary = self.options.glossary
        return {} if glossary is None else glossary.wanted(text, self.reader.places_kept(text))

    def _with_marks(
        self, text: str, ways: list[Translation], ask: TextConstraints, with_decimals: bool = False
    ) -> list[Translation]:
        """Ways to translate a text, with the marks in its numbers and sums of money that the target's language has. What a person
        asked for stays, and so does a text that was not translated."""
        languages = self.options.languages
        if marks_of(languages) is None:
            return ways
        protected = self.reader.protected(text)
        marks = other_marks(text, self._numbers(text), languages, with_decimals)
        spans = () if protected is None else protected.spans
        sums = other_sums([span for span in spans if span not in self.options.keep], languages)
        if not (marks or sums):
            return ways
        words = [way for ways in self._wanted(text) for way in (*ways, *map(with_capital, ways))]
        marked: dict[str, Translation] = {}
        for way in ways:
            asked = [(0, len(ask.prefix)), *find_terms(way.text, [*words, *ask.phrases, *self.options.keep])]
            new = put_marks(way.text, marks, [*asked, *find_spans(way.text, self.options.keep)])
            new = put_sums(new, sums, asked)
            is_same = way.is_refused or new == way.text
            new_way = way if is_same else replace(way, text=new, words=_cut_again(way.words, way.text, new))
            marked.setdefault(new_way.text, new_way)  # two that differed in their marks alone are one
        return list(marked.values())

    def _keeping(self, more: Mapping[str, Sequence[str]]) -> Translator:
        """The same translator, which keeps these words of these texts, too, and is content with what it finds."""
        keeper = copy.copy(self)
        keeper.searches_again = False
        keeper.reader = Reader(self.tokenizer, self.max_length, self.options.keep, more)
        keeper.constraint_builder = replace(self.constraint_builder, reader=keeper.reader)
        return keeper

    def _linked(self, ways: list[Translation], text: str, reader: Reader) -> list[Translation]:
        """What another reader's text was translated into; without links, if those are to other words than this reader's."""
        if not self.options.alignment or reader.spelt(text).words == self.reader.spelt(text).words:
            return ways
        return [replace(way, alignment=()) for way in ways]

    def _details(self, texts: Sequence[str], found: Sequence[Sequence[Hypothesis]]) -> list[list[Details]]:
        """The words of every hypothesis, and where they come from."""
        sources = self.reader.encode(texts)
        src = [ids for ids, ways in zip(sources, found, strict=True) for _ in ways]
        tgt = [way.ids for ways in found for way in ways]
        scores = iter(self.engine.score(src, tgt) if src else [])
        weights = iter(self.engine.attention(src, tgt) if src and self.options.alignment else [])
        details: list[list[Details]] = []
        for text, hypotheses in zip(texts, found, strict=True):
            protected = self.reader.protected(text)
            details.append([])
            for hypothesis in hypotheses:
                spelt = spell(self.tokenizer, hypothesis.ids, "target", protected)
                words = words_of(spelt, next(scores))
                links = links_of(spelt, self.reader.spelt(text), next(weights)) if self.options.alignment else ()
                details[-1].append((words, links))
        return details

    def _ways(
        self,
        text: str,
        kept: Protected | None,
        hypotheses: Sequence[Hypothesis],
        details: Sequence[Details],
        ask: TextConstraints,
    ) -> list[Translation]:
        """The texts of hypotheses, but for those that have lost a span and, if there is a guard, those that are nonsense."""
        ids = self.reader.encode([text])[0] if self.options.guard else []
        is_unknown = self.options.guard and is_foreign(text, self.tokenizer)
        given = self._given(text, ask) if self.options.guard else ""
        ways = []
        for hypothesis, (words, links) in zip(hypotheses, details, strict=True):
            if kept is not None and self.tokenizer.protects:
                found = kept.restore(self.tokenizer, hypothesis.ids)
            else:
                found = self.tokenizer.decode(hypothesis.ids)
            if found is not None and (self.tokenizer.protects or kept is None or _has_spans(found, kept)):
                is_wrong = self.options.guard and runs_away(text, found, ids, hypothesis.ids, self.tokenizer, given)
                ways.append((is_wrong or is_unknown, Translation(found.strip(), hypothesis.score, words, links)))
        good = [way for is_wrong, way in ways if not is_wrong]
        # A second search is for something better, and not for the text itself.
        return good or [Translation(text, way.score, is_refused=True) for _, way in ways[:1] if self.searches_again]

    def _given(self, text: str, ask: TextConstraints) -> str:
        """All that a translation may have its characters from, the vocabulary aside."""
        glossary = self.options.glossary
        return "".join([text, ask.prefix, *ask.phrases, "" if glossary is None else glossary.says])

    def _around_spans(self, texts: Sequence[Protected], asks: Sequence[TextConstraints]) -> list[Translation]:
        """Each text with its spans as they are and everything between them translated by itself. What was asked of a text is asked
        of the first of it; a prefix only where no span comes before."""
        between: list[str] = []
        asked: list[TextConstraints] = []
        for text, ask in zip(texts, asks, strict=True):
            parts = [part.strip() for part in text.parts if isinstance(part, str) and _has_words(part)]
            first = ask if isinstance(text.parts[0], str) else replace(ask, prefix="")
            between += parts
            asked += [TextConstraints() if number else first for number in range(len(parts))]
        constraints = self.constraint_builder.build([[Part(part, "")] for part in between], asked)
        found = iter(self._all_ways(between, self._search(between, constraints), asked) if between else [])
        results = []
        for text in texts:
            joined, score = "", 0.0
            words: list[Word] = []
            for part in text.parts:
                if isinstance(part, int):
                    joined += text.spans[part]
                    words.append(Word(text.spans[part], 0.0))
                elif _has_words(part):
                    best = next(found)[0]
                    joined += part.replace(part.strip(), best.text, 1)
                    score += best.score
                    words += best.words
                else:
                    joined += part
            with_words = self.options.words or self.options.alignment
            results.append(Translation(joined.strip(), score, tuple(words) if with_words else ()))
        return results

    def stream(
        self, lines: Iterable[str], chunk: int, done: Done | None = None, ask: TextConstraints | None = None
    ) -> Iterator[Result]:
        """Results one by one, holding at most `chunk` lines; inside a chunk lines are sorted by length. `ask` is for each."""
        lines = iter(lines)
        while block := list(islice(lines, chunk)):
            yield from self.translate(block, done, [ask] * len(block) if ask else ())

    def follow(self, text: str, ask: TextConstraints) -> Iterator[str]:
        """The translation of one text as it grows: what will not change any more, and in the end all of it. A part with something
        to be kept in it comes at once, when it is done."""
        if self.options.mbr or self.options.nbest > 1:
            raise UserError("a translation can be followed only as one that is searched for; leave out mbr and nbest")
        done, shown = "", ""
        cut = self.reader.cut([text])[0]
        for part, constraint in zip(
            cut, self.constraint_builder.build([cut], [ask]) or [Constraints()] * len(cut), strict=True
        ):
            ids: tuple[int, ...] = ()
            for ids in self.engine.stream(self.reader.encode([part.text])[0], self.options.of_engine, constraint):
                begun = one_line(done + self.tokenizer.decode(ids).rstrip("\ufffd").strip())
                if (
                    self.reader.kept(part.text) is None
                    and not self.options.guard
                    and begun.startswith(shown)
                    and begun != shown
                ):
                    shown = begun
                    yield shown
            [[best, *_]] = self._all_ways(
                [part.text], [[Hypothesis(ids, 0.0, 0.0)]], [ask if part is cut[0] else TextConstraints()]
            )
            done += best.text + part.after
        if one_line(done) != shown:
            yield one_line(done)

    def score(self, sources: Sequence[str], targets: Sequence[str]) -> list[list[float]]:
        """Log-probabilities of the tokens of given translations, the end token last."""
        stripped = ([line.strip() for line in lines] for lines in (sources, targets))
        return self.engine.score(*encode_pairs(self.tokenizer, *stripped))


def _has_spans(translation: str, kept: Protected) -> bool:
    """Whether a translation has all that is to be kept, as often as the source."""
    return all(
        len(find_terms(translation, [span])) >= kept.parts.count(number) for number, span in enumerate(kept.spans)
    )


def _cut_again(words: Sequence[Word], old: str, new: str) -> tuple[Word, ...]:
    """The words of a text, from another one that is as long."""
    cut, begin = [], 0
    for word in words:
        place = old.find(word.text, begin)
        if place < 0:
            cut.append(word)
        else:
            begin = place + len(word.text)
            cut.append(replace(word, text=new[place:begin]))
    return tuple(cut)


def _has_words(text: str) -> bool:
    return any(character.isalpha() for character in text)
