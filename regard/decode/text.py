"""Text before and after the engine: the same for every engine.

A line longer than the model was trained on is cut at the end of a sentence, else at a clause, else at a space, translated in parts
and joined with what stood between them; it is never truncated. White space around a line is not shown to the model, and empty lines
stay empty. Where the tokenizer protects, addresses, placeholders and tags go through the model as reserved pieces and are put
back; one that the model loses is kept all the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from regard.data.clean import is_loop
from regard.data.protect import Protected, encode_pairs, find_spans, protect
from regard.data.tokenizer import Tokenizer
from regard.decode.options import Done, Engine, Hypothesis, SearchOptions, Wish
from regard.decode.words import Word, prefix_ids, words_of

# Places to cut, best first: after the end of a sentence, after a clause, between words, anywhere.
_CUTS = [
    re.compile(r"(?<=[.!?…])[\"'”’»)\]]*\s+|(?<=[。！？])"),
    re.compile(r"(?<=[;:,–—])\s+|(?<=[；：，、])"),
    re.compile(r"\s+"),
]


@dataclass(frozen=True)
class Translation:
    """One way to translate a line."""

    text: str
    score: float  # of the search: log-probability under the length penalty; added up over the parts of a cut line
    words: tuple[Word, ...] = ()  # where `SearchOptions.words` asks for them, and the translation is the model's


@dataclass(frozen=True)
class Result:
    """A line and its translations, best first."""

    source: str
    translations: tuple[Translation, ...]

    @property
    def text(self) -> str:
        return self.translations[0].text


@dataclass(frozen=True)
class Ask:
    """What a person wants of one line's translation."""

    prefix: str = ""  # what it begins with; the last word may go on, unless a space follows it


@dataclass(frozen=True)
class Part:
    """A piece of a line that goes through the engine, and the white space that follows it."""

    text: str
    after: str


def cut_line(line: str, tokenizer: Tokenizer, max_length: int) -> list[Part]:
    """The parts of a line, none longer than `max_length` tokens; most lines are one part."""
    if len(line) <= 1 or len(_encode(line, tokenizer)) <= max_length:
        return [Part(line, "")]
    code, text = tokenizer.split_code(line)
    if code:  # every part must say into which language it goes
        parts = cut_line(text.lstrip(), tokenizer, max(1, max_length - 1))
        return [Part(f"{code} {part.text}", part.after) for part in parts]
    left, after, right = _cut_once(line, find_spans(line) if tokenizer.protects else [])
    parts = cut_line(left, tokenizer, max_length)
    parts[-1] = Part(parts[-1].text, parts[-1].after + after)
    return parts + cut_line(right, tokenizer, max_length)


def _encode(text: str, tokenizer: Tokenizer) -> list[int]:
    """The ids that the model reads."""
    protected = protect(text) if tokenizer.protects else None
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


class Translator:
    """Translates lines of text with an engine."""

    def __init__(self, tokenizer: Tokenizer, engine: Engine, options: SearchOptions, max_length: int) -> None:
        self.tokenizer, self.engine, self.options, self.max_length = tokenizer, engine, options, max_length

    def translate(self, lines: Sequence[str], done: Done | None = None, asks: Sequence[Ask] = ()) -> list[Result]:
        """A result for every line, in order; `done` hears of lines as they are finished, in whatever order that is. `asks` are one
        for each line, or none."""
        cut = self.cut(lines)
        texts = [part.text for parts in cut for part in parts]
        if done is not None:
            done(len(lines) - len(texts))  # so that the sum is the number of lines, also with empty and with cut ones
        ids, wishes = self.encode(texts), self.wishes(cut, asks)
        if wishes:
            return self.join(lines, cut, self.engine.translate(ids, self.options, done, wishes))
        return self.join(lines, cut, self.engine.translate(ids, self.options, done))

    def wishes(self, cut: Sequence[Sequence[Part]], asks: Sequence[Ask]) -> list[Wish]:
        """What an engine is to heed of each part, from what was asked of the lines; none where there is nothing. A prefix is
        that of a line's first part."""
        wishes = []
        for parts, ask in zip(cut, asks, strict=True) if asks else ():
            for number, part in enumerate(parts):
                prefix = ask.prefix if number == 0 else ""
                wishes.append(Wish(prefix_ids(self.tokenizer, prefix, self.protected(part.text))))
        return wishes if any(wish != Wish() for wish in wishes) else []

    def protected(self, text: str) -> Protected | None:
        return protect(text) if self.tokenizer.protects else None

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
                cut[number] = cut_line(stripped[number], self.tokenizer, self.max_length)
        return cut

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids that an engine translates, of parts as `cut` gives them."""
        ids = self.tokenizer.encode_batch(texts)
        for number, text in enumerate(texts):
            if (protected := self.protected(text)) is not None:
                ids[number] = protected.ids(self.tokenizer)
        return ids

    def join(
        self, lines: Sequence[str], cut: Sequence[Sequence[Part]], found: Sequence[Sequence[Hypothesis]]
    ) -> list[Result]:
        """The results of lines, from what was found for all their parts."""
        all_ways = iter(self._all_ways([part.text for parts in cut for part in parts], found))
        results = []
        for line, parts in zip(lines, cut, strict=True):
            ways = list(islice(all_ways, len(parts)))
            translations = []
            for rank in range(max(map(len, ways), default=0)):
                # A part with fewer ways than another repeats its last one.
                chosen = [part_ways[min(rank, len(part_ways) - 1)] for part_ways in ways]
                joined = "".join(way.text + part.after for way, part in zip(chosen, parts, strict=True))
                words = tuple(word for way in chosen for word in way.words)
                translations.append(Translation(one_line(joined), sum(way.score for way in chosen), words))
            results.append(Result(line, tuple(translations) or (Translation("", 0.0),)))
        return results

    def _all_ways(self, texts: Sequence[str], found: Sequence[Sequence[Hypothesis]]) -> list[list[Translation]]:
        """Ways to translate each text, best first, from what was found for it; at least one."""
        spans = {number: without for number, text in enumerate(texts) if (without := self.protected(text)) is not None}
        log_probs = self._token_log_probs(texts, found) if self.options.words else [None] * len(texts)
        ways = [
            self._ways(text, spans.get(number), hypotheses, values)
            for number, (text, hypotheses, values) in enumerate(zip(texts, found, log_probs, strict=True))
        ]
        # The model has lost a span in all of them: what stands between the spans is translated on its own.
        lost = [number for number in spans if not ways[number]]
        for number, way in zip(lost, self._around_spans([spans[number] for number in lost]), strict=True):
            ways[number] = [way]
        return [some or [Translation("", 0.0)] for some in ways]

    def _token_log_probs(self, texts: Sequence[str], found: Sequence[Sequence[Hypothesis]]) -> list[list[list[float]]]:
        """The log-probabilities of the tokens of every hypothesis."""
        pairs = [(src, way.ids) for src, ways in zip(self.encode(texts), found, strict=True) for way in ways]
        scores = iter(self.engine.score([src for src, _ in pairs], [ids for _, ids in pairs]) if pairs else [])
        return [list(islice(scores, len(ways))) for ways in found]

    def _ways(
        self,
        text: str,
        protected: Protected | None,
        hypotheses: Sequence[Hypothesis],
        log_probs: Sequence[Sequence[float]] | None,
    ) -> list[Translation]:
        """The texts of hypotheses, but for those that have lost a span and, if there is a guard, those that run away."""
        ids = _encode(text, self.tokenizer) if self.options.guard else []
        ways = []
        for rank, hypothesis in enumerate(hypotheses):
            if protected is None:
                found: str | None = self.tokenizer.decode(hypothesis.ids)
            else:
                found = protected.restore(self.tokenizer, hypothesis.ids)
            if found is not None:
                runs_away = self.options.guard and _runs_away(text, found, ids, hypothesis.ids)
                words = words_of(self.tokenizer, hypothesis.ids, log_probs[rank], protected) if log_probs else ()
                ways.append((runs_away, Translation(found.strip(), hypothesis.score, words)))
        good = [way for runs_away, way in ways if not runs_away]
        return good or [Translation(text, way.score) for _, way in ways[:1]]

    def _around_spans(self, texts: Sequence[Protected]) -> list[Translation]:
        """Each text with its spans as they are and everything between them translated by itself."""
        between = [part.strip() for text in texts for part in text.parts if isinstance(part, str) and _has_words(part)]
        found = iter(
            self._all_ways(between, self.engine.translate(self.encode(between), self.options)) if between else []
        )
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
            results.append(Translation(joined, score, tuple(words) if self.options.words else ()))
        return results

    def stream(
        self, lines: Iterable[str], chunk: int, done: Done | None = None, ask: Ask | None = None
    ) -> Iterator[Result]:
        """Results one by one, holding at most `chunk` lines; inside a chunk lines are sorted by length. `ask` is for each."""
        lines = iter(lines)
        while block := list(islice(lines, chunk)):
            yield from self.translate(block, done, [ask] * len(block) if ask else ())

    def score(self, sources: Sequence[str], targets: Sequence[str]) -> list[list[float]]:
        """Log-probabilities of the tokens of given translations, the end token last."""
        stripped = ([line.strip() for line in lines] for lines in (sources, targets))
        return self.engine.score(*encode_pairs(self.tokenizer, *stripped))


def _has_words(text: str) -> bool:
    return any(character.isalpha() for character in text)


def _runs_away(source: str, translation: str, source_ids: Sequence[int], ids: Sequence[int]) -> bool:
    """Whether a translation repeats itself without end, or is far longer than what it translates."""
    return is_loop(source_ids, ids) or len(translation) > 3 * len(source) + 20


def one_line(text: str) -> str:
    """The text without line breaks: line N of the output is the translation of line N of the input."""
    return re.sub(r"[\r\n]+", " ", text)
