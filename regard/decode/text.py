"""Text before and after the engine: the same for every engine.

A line longer than the model was trained on is cut at the end of a sentence, else at a clause, else at a space, translated in parts
and joined with what stood between them; it is never truncated. White space around a line is not shown to the model, and empty lines
stay empty. Where the tokenizer protects, addresses, placeholders and tags go through the model as reserved pieces and are put
back; one that the model loses is kept all the same. So are words that a person wants kept (`SearchOptions.keep`). A model without
reserved pieces is shown those as they are, and where the engine can, they are something that must appear.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from itertools import islice

from regard.data.protect import Protected, encode_pairs, find_spans, protect, take_out
from regard.data.terms import find_terms
from regard.data.tokenizer import Tokenizer
from regard.decode.glossary import Place, Ways, put_terms, says, with_capital
from regard.decode.guard import is_foreign, runs_away
from regard.decode.mbr import Utility, by_expected_utility
from regard.decode.options import Done, Engine, Finished, Hypothesis, Mixed, SearchOptions, Wish
from regard.decode.search.phrases import Phrase
from regard.decode.words import Link, Spelt, Word, links_of, phrase_of, prefix_ids, spell, tokens_at, words_of
from regard.errors import UserError

# Places to cut, best first: after the end of a sentence, after a clause, between words, anywhere.
_CUTS = [
    re.compile(r"(?<=[.!?…])[\"'”’»)\]]*\s+|(?<=[。！？])"),
    re.compile(r"(?<=[;:,–—])\s+|(?<=[；：，、])"),
    re.compile(r"\s+"),
]


Term = tuple[Phrase, Ways, list[Place]]  # of a source: what must appear, the ways to say it, where the source has it
Details = tuple[tuple[Word, ...], tuple[Link, ...]]  # of a translation


@dataclass(frozen=True)
class Translation:
    """One way to translate a line."""

    text: str
    score: float  # of the search: log-probability under the length penalty; added up over the parts of a cut line
    words: tuple[Word, ...] = ()  # where `SearchOptions.words` asks for them, and the translation is the model's
    alignment: tuple[Link, ...] = ()  # likewise: which of `words` comes from which of the result's `source_words`


@dataclass(frozen=True)
class Result:
    """A line and its translations, best first."""

    source: str
    translations: tuple[Translation, ...]
    source_words: tuple[str, ...] = ()  # where `SearchOptions.alignment` asks for them

    @property
    def text(self) -> str:
        return self.translations[0].text


@dataclass(frozen=True)
class Ask:
    """What a person wants of one line's translation."""

    prefix: str = ""  # what it begins with; the last word may go on, unless a space follows it
    phrases: tuple[str, ...] = ()  # what must appear in it, as whole words


@dataclass(frozen=True)
class Part:
    """A piece of a line that goes through the engine, and the white space that follows it."""

    text: str
    after: str


def cut_line(line: str, tokenizer: Tokenizer, max_length: int, keep: Sequence[str] = ()) -> list[Part]:
    """The parts of a line, none longer than `max_length` tokens; most lines are one part. What is to be kept is not cut."""
    if len(line) <= 1 or len(_encode(line, tokenizer, keep)) <= max_length:
        return [Part(line, "")]
    code, text = tokenizer.split_code(line)
    if code:  # every part must say into which language it goes
        parts = cut_line(text.lstrip(), tokenizer, max(1, max_length - 1), keep)
        return [Part(f"{code} {part.text}", part.after) for part in parts]
    left, after, right = _cut_once(line, find_spans(line, keep) if tokenizer.protects else find_terms(line, keep))
    parts = cut_line(left, tokenizer, max_length, keep)
    parts[-1] = Part(parts[-1].text, parts[-1].after + after)
    return parts + cut_line(right, tokenizer, max_length, keep)


def _encode(text: str, tokenizer: Tokenizer, keep: Sequence[str]) -> list[int]:
    """The ids that the model reads."""
    protected = protect(text, terms=keep) if tokenizer.protects else None
    return tokenizer.encode(text) if protected is None else protected.ids(tokenizer)


def _cut_once(line: str, spans: Sequence[tuple[int, int]]) -> tuple[str, str, str]:
    """Split a line in two at the best kind of place, as near to the middle as there is one, but not near its ends, and not
    inside a span."""
    middle = len(line) / 2
    for pattern in _CUTS:
        places = [
            m for m in pattern.finditer(line) if len(line) * 0.2 < m.end() < len(line) * 0.8 or pattern is _CUTS[-1]
        ]
        places = [m for m in places if line[: m.start()].strip() and line[m.end() :].strip()]
        places = [m for m in places if not any(begin < m.end() and m.start() < end for begin, end in spans)]
        if places:
            best = min(places, key=lambda m: abs(m.end() - middle))
            space = re.search(r"\s*$", line[: best.end()])
            assert space is not None
            return line[: space.start()], space[0], line[best.end() :]
    half = len(line) // 2
    for begin, end in spans:
        if begin < half < end and (begin > 0 or end < len(line)):
            half = begin or end
    return line[:half], "", line[half:]


def count_lines(cut: Sequence[Sequence[Part]], done: Done) -> Finished:
    """Tells `done` of lines, from what an engine tells of their parts; of empty lines at once. The parts of a line may be finished
    far from each other, so each counts as its share of the line: a file of long lines shows how far it is before the first is
    whole."""
    shares = [Fraction(1, len(parts)) for parts in cut for _ in parts]  # exact: in the end every line is counted
    count, told = Fraction(sum(not parts for parts in cut)), 0

    def finished(numbers: Sequence[int]) -> None:
        nonlocal count, told
        count += sum(shares[number] for number in numbers)
        if (more := int(count) - told) > 0:
            told += more
            done(more)

    finished([])
    return finished


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

    def translate(self, lines: Sequence[str], done: Done | None = None, asks: Sequence[Ask] = ()) -> list[Result]:
        """A result for every line, in order; `done` hears of lines as they are finished, in whatever order that is, as
        `count_lines` counts them. `asks` are one for each line, or none."""
        cut = self.cut(lines)
        texts = [part.text for parts in cut for part in parts]
        finished = None if done is None else count_lines(cut, done)
        return self.join(lines, cut, self._search(texts, self.wishes(cut, asks), finished), asks)

    def _search(
        self, texts: Sequence[str], wishes: Sequence[Wish], finished: Finished | None = None
    ) -> list[list[Hypothesis]]:
        ids, options = self.encode(texts), self.options.of_engine
        if wishes:
            return self.engine.translate(ids, options, finished, wishes)
        return self.engine.translate(ids, options, finished)

    def wishes(self, cut: Sequence[Sequence[Part]], asks: Sequence[Ask] = ()) -> list[Wish]:
        """What an engine is to heed of each part, from what was asked of the lines; none where there is nothing. A prefix, and what
        must appear, is that of a line's first part; terms of the glossary are those of the part that has them."""
        if not asks and self.options.glossary is None and not self._insists_on_kept:
            return []
        wishes = []
        for parts, ask in zip(cut, asks or [Ask()] * len(cut), strict=True):
            wishes += [self._wish(part.text, Ask() if number else ask) for number, part in enumerate(parts)]
        return wishes if any(wish != Wish() for wish in wishes) else []

    def _wish(self, text: str, ask: Ask) -> Wish:
        protected = self.protected(text)
        phrases = [phrase_of(self.tokenizer, (phrase,)) for phrase in ask.phrases]
        terms: list[Term] = []
        if self.options.glossary is not None:
            wanted = self.options.glossary.wanted(text, self._places_kept(text))
            spelt = self._spelt(text) if wanted else None
            for ways, places in wanted.items():
                # A sentence may begin with it.
                cases = tuple(map(with_capital, ways))
                phrase = phrase_of(self.tokenizer, ways, cases)
                assert spelt is not None
                is_said = partial(self._says, ways)
                phrase = replace(phrase, source=tokens_at(spelt, text, places), is_said=is_said)
                terms.append((phrase, ways, places))
        phrases += [phrase for phrase, _, _ in terms]
        kept = self._kept(text) if self._insists_on_kept else None
        for span in kept.spans if kept is not None else ():
            places = [place for place in self._places_kept(text) if text[slice(*place)] == span]
            if self.tokenizer.unk_id not in self.tokenizer.encode(span, "target"):
                phrases.append(
                    replace(phrase_of(self.tokenizer, (span,)), source=tokens_at(self._spelt(text), text, places))
                )
        mixed = partial(self._mixed, text, terms) if terms else None
        return Wish(prefix_ids(self.tokenizer, ask.prefix, protected), tuple(phrases), mixed=mixed)

    def _mixed(self, text: str, terms: Sequence[Term], phrases: Sequence[Phrase]) -> Mixed | None:
        """A text in which those of its terms that are among these phrases are already translated. None where that changes nothing,
        or where the model cannot read it: it would be too long, have characters in a term that the source's side of the vocabulary
        lacks, or more in it that is kept than the text has."""
        ways_of = {phrase: ways for phrase, ways, _ in terms if phrase in phrases}
        wanted = {ways: places for phrase, ways, places in terms if phrase in ways_of}
        mixed, places = put_terms(text, wanted, len(self.tokenizer.split_code(text)[0]))
        [own, ids] = self.encode([text, mixed])
        put = [mixed[slice(*place)] for some in places.values() for place in some]
        is_too_long = len(ids) > max(len(own), self.max_length)
        is_unknown = any(self.tokenizer.unk_id in some for some in self.tokenizer.encode_batch(put))
        has_more = _spans_of(self.protected(text)) != _spans_of(self.protected(mixed))
        if mixed == text or is_too_long or is_unknown or has_more:
            return None
        spelt = self._spelt(mixed)
        # What is no term of the glossary may stand anywhere.
        sources = [tokens_at(spelt, mixed, places[ways_of[one]] if one in ways_of else []) for one in phrases]
        return Mixed(ids, tuple(replace(one, source=source) for one, source in zip(phrases, sources, strict=True)))

    def _says(self, ways: Sequence[str], ids: Sequence[int]) -> bool:
        return says(self.tokenizer.decode(ids), ways)

    @property
    def _insists_on_kept(self) -> bool:
        """Whether what is to be kept is something that must appear: for models without reserved pieces, where the engine can."""
        return bool(self.options.keep) and not self.tokenizer.protects and self.engine.takes_phrases

    def protected(self, text: str) -> Protected | None:
        """The text with its spans taken out, those that a person wants kept among them, where the model knows reserved pieces."""
        return protect(text, terms=self.options.keep) if self.tokenizer.protects else None

    def _places_kept(self, text: str) -> list[Place]:
        """Where something stands in a text that is not translated, a language code with it."""
        kept = find_spans(text, self.options.keep) if self.tokenizer.protects else find_terms(text, self.options.keep)
        code, _ = self.tokenizer.split_code(text)
        return [(0, len(code)), *kept] if code else kept

    def _kept(self, text: str) -> Protected | None:
        """Likewise, with what must be kept of it in any case."""
        if self.tokenizer.protects:
            return self.protected(text)
        places = find_terms(text, self.options.keep)
        return take_out(text, places, most=len(places)) if places else None

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

    def cut(self, lines: Sequence[str]) -> list[list[Part]]:
        """The parts of every line, each to be translated on its own; an empty line has none."""
        stripped = [line.strip() for line in lines]
        # One token a byte is the most, and one for the space before it, so that short lines need not be counted. (Imported
        # tokenizers write some characters out.)
        may_be_short = self.tokenizer.kind == "joint"
        long = [
            number
            for number, line in enumerate(stripped)
            if not (may_be_short and len(line.encode("utf-8", "surrogatepass")) < self.max_length)
        ]
        cut = [[Part(line, "")] if line else [] for line in stripped]
        for number, ids in zip(long, self.tokenizer.encode_batch([stripped[n] for n in long]), strict=True):
            if len(ids) > self.max_length:
                cut[number] = cut_line(stripped[number], self.tokenizer, self.max_length, self.options.keep)
        return cut

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids that an engine translates, of parts as `cut` gives them."""
        ids = self.tokenizer.encode_batch(texts)
        for number, text in enumerate(texts):
            if (protected := self.protected(text)) is not None:
                ids[number] = protected.ids(self.tokenizer)
        return ids

    def join(
        self,
        lines: Sequence[str],
        cut: Sequence[Sequence[Part]],
        found: Sequence[Sequence[Hypothesis]],
        asks: Sequence[Ask] = (),
    ) -> list[Result]:
        """The results of lines, from what was found for all their parts. What was asked of a line is asked of its first part."""
        asked = [
            Ask() if number else ask
            for parts, ask in zip(cut, asks or [Ask()] * len(cut), strict=True)
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
            source = [word for part in parts for word in self._spelt(part.text).words] if self.options.alignment else ()
            results.append(Result(line, tuple(translations) or (Translation("", 0.0),), tuple(source)))
        return self.choose(results) if self.options.mbr else results

    def _spelt(self, text: str) -> Spelt:
        """The words of a source."""
        return spell(self.tokenizer, self.encode([text])[0], "source", self.protected(text))

    def _joined_links(self, parts: Sequence[Part], ways: Sequence[Translation]) -> tuple[Link, ...]:
        """Links of the parts of a line, with their words counted through."""
        links: list[Link] = []
        target = source = 0
        for part, way in zip(parts, ways, strict=True):
            links += [(target + one, source + other) for one, other in way.alignment]
            target, source = target + len(way.words), source + len(self._spelt(part.text).words)
        return tuple(links)

    def _all_ways(
        self, texts: Sequence[str], found: Sequence[Sequence[Hypothesis]], asks: Sequence[Ask]
    ) -> list[list[Translation]]:
        """Ways to translate each text, best first, from what was found for it; at least one."""
        spans = {number: without for number, text in enumerate(texts) if (without := self._kept(text)) is not None}
        if self.options.words or self.options.alignment:
            details = self._details(texts, found)
        else:
            details = [[((), ())] * len(hypotheses) for hypotheses in found]
        ways = [
            self._ways(text, spans.get(number), hypotheses, some, ask)
            for number, (text, hypotheses, some, ask) in enumerate(zip(texts, found, details, asks, strict=True))
        ]
        # The model has lost a span in all of them: what stands between the spans is translated on its own.
        lost = [number for number in spans if not ways[number]]
        pieced = self._around_spans([spans[number] for number in lost], [asks[number] for number in lost])
        for number, way in zip(lost, pieced, strict=True):
            ways[number] = [way]
        return [some or [Translation("", 0.0)] for some in ways]

    def _details(self, texts: Sequence[str], found: Sequence[Sequence[Hypothesis]]) -> list[list[Details]]:
        """The words of every hypothesis, and where they come from."""
        sources = self.encode(texts)
        src = [ids for ids, ways in zip(sources, found, strict=True) for _ in ways]
        tgt = [way.ids for ways in found for way in ways]
        scores = iter(self.engine.score(src, tgt) if src else [])
        weights = iter(self.engine.attention(src, tgt) if src and self.options.alignment else [])
        details: list[list[Details]] = []
        for text, hypotheses in zip(texts, found, strict=True):
            protected = self.protected(text)
            details.append([])
            for hypothesis in hypotheses:
                spelt = spell(self.tokenizer, hypothesis.ids, "target", protected)
                words = words_of(spelt, next(scores))
                links = links_of(spelt, self._spelt(text), next(weights)) if self.options.alignment else ()
                details[-1].append((words, links))
        return details

    def _ways(
        self,
        text: str,
        kept: Protected | None,
        hypotheses: Sequence[Hypothesis],
        details: Sequence[Details],
        ask: Ask,
    ) -> list[Translation]:
        """The texts of hypotheses, but for those that have lost a span and, if there is a guard, those that are nonsense."""
        ids = _encode(text, self.tokenizer, self.options.keep) if self.options.guard else []
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
        return good or [Translation(text, way.score) for _, way in ways[:1]]

    def _given(self, text: str, ask: Ask) -> str:
        """All that a translation may have its characters from, the vocabulary aside."""
        glossary = self.options.glossary
        return "".join([text, ask.prefix, *ask.phrases, "" if glossary is None else glossary.says])

    def _around_spans(self, texts: Sequence[Protected], asks: Sequence[Ask]) -> list[Translation]:
        """Each text with its spans as they are and everything between them translated by itself. What was asked of a text is asked
        of the first of it; a prefix only where no span comes before."""
        between: list[str] = []
        asked: list[Ask] = []
        for text, ask in zip(texts, asks, strict=True):
            parts = [part.strip() for part in text.parts if isinstance(part, str) and _has_words(part)]
            first = ask if isinstance(text.parts[0], str) else replace(ask, prefix="")
            between += parts
            asked += [Ask() if number else first for number in range(len(parts))]
        wishes = self.wishes([[Part(part, "")] for part in between], asked)
        found = iter(self._all_ways(between, self._search(between, wishes), asked) if between else [])
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
        self, lines: Iterable[str], chunk: int, done: Done | None = None, ask: Ask | None = None
    ) -> Iterator[Result]:
        """Results one by one, holding at most `chunk` lines; inside a chunk lines are sorted by length. `ask` is for each."""
        lines = iter(lines)
        while block := list(islice(lines, chunk)):
            yield from self.translate(block, done, [ask] * len(block) if ask else ())

    def follow(self, text: str, ask: Ask) -> Iterator[str]:
        """The translation of one text as it grows: what will not change any more, and in the end all of it. A part with something
        to be kept in it comes at once, when it is done."""
        if self.options.mbr or self.options.nbest > 1:
            raise UserError("a translation can be followed only as one that is searched for; leave out mbr and nbest")
        done, shown = "", ""
        cut = self.cut([text])[0]
        for part, wish in zip(cut, self.wishes([cut], [ask]) or [Wish()] * len(cut), strict=True):
            ids: tuple[int, ...] = ()
            for ids in self.engine.stream(self.encode([part.text])[0], self.options.of_engine, wish):
                begun = one_line(done + self.tokenizer.decode(ids).rstrip("\ufffd").strip())
                if (
                    self._kept(part.text) is None
                    and not self.options.guard
                    and begun.startswith(shown)
                    and begun != shown
                ):
                    shown = begun
                    yield shown
            [[best, *_]] = self._all_ways(
                [part.text], [[Hypothesis(ids, 0.0, 0.0)]], [ask if part is cut[0] else Ask()]
            )
            done += best.text + part.after
        if one_line(done) != shown:
            yield one_line(done)

    def score(self, sources: Sequence[str], targets: Sequence[str]) -> list[list[float]]:
        """Log-probabilities of the tokens of given translations, the end token last."""
        stripped = ([line.strip() for line in lines] for lines in (sources, targets))
        return self.engine.score(*encode_pairs(self.tokenizer, *stripped))


def _spans_of(protected: Protected | None) -> list[str]:
    """What was taken out of a text, in order."""
    if protected is None:
        return []
    return [protected.spans[part] for part in protected.parts if isinstance(part, int)]


def _has_spans(translation: str, kept: Protected) -> bool:
    """Whether a translation has all that is to be kept, as often as the source."""
    return all(
        len(find_terms(translation, [span])) >= kept.parts.count(number) for number, span in enumerate(kept.spans)
    )


def _has_words(text: str) -> bool:
    return any(character.isalpha() for character in text)


def one_line(text: str) -> str:
    """The text without line breaks: line N of the output is the translation of line N of the input."""
    return re.sub(r"[\r\n]+", " ", text)
