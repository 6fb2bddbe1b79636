"""Text before and after the engine: the same for every engine.

A line longer than the model was trained on is cut at the end of a sentence, else at a clause, else at a space, translated in parts
and joined with what stood between them; it is never truncated. White space around a line is not shown to the model, and empty lines
stay empty.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from regard.data.tokenizer import Tokenizer
from regard.decode.options import Done, Engine, Hypothesis, SearchOptions

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


@dataclass(frozen=True)
class Result:
    """A line and its translations, best first."""

    source: str
    translations: tuple[Translation, ...]

    @property
    def text(self) -> str:
        return self.translations[0].text


@dataclass(frozen=True)
class Part:
    """A piece of a line that goes through the engine, and the white space that follows it."""

    text: str
    after: str


def cut_line(line: str, tokenizer: Tokenizer, max_length: int) -> list[Part]:
    """The parts of a line, none longer than `max_length` tokens; most lines are one part."""
    if len(line) <= 1 or len(tokenizer.encode(line)) <= max_length:
        return [Part(line, "")]
    code, text = tokenizer.split_code(line)
    if code:  # every part must say into which language it goes
        parts = cut_line(text.lstrip(), tokenizer, max(1, max_length - 1))
        return [Part(f"{code} {part.text}", part.after) for part in parts]
    left, after, right = _cut_once(line)
    parts = cut_line(left, tokenizer, max_length)
    parts[-1] = Part(parts[-1].text, parts[-1].after + after)
    return parts + cut_line(right, tokenizer, max_length)


def _cut_once(line: str) -> tuple[str, str, str]:
    """Split a line in two at the best kind of place, as near to the middle as there is one, but not near its ends."""
    middle = len(line) / 2
    for pattern in _CUTS:
        places = [
            m for m in pattern.finditer(line) if len(line) * 0.2 < m.end() < len(line) * 0.8 or pattern is _CUTS[-1]
        ]
        places = [m for m in places if line[: m.start()].strip() and line[m.end() :].strip()]
        if places:
            best = min(places, key=lambda m: abs(m.end() - middle))
            space = re.search(r"\s*$", line[: best.end()])
            assert space is not None
            return line[: space.start()], space[0], line[best.end() :]
    half = len(line) // 2
    return line[:half], "", line[half:]


class Translator:
    """Translates lines of text with an engine."""

    def __init__(self, tokenizer: Tokenizer, engine: Engine, options: SearchOptions, max_length: int) -> None:
        self.tokenizer, self.engine, self.options, self.max_length = tokenizer, engine, options, max_length

    def translate(self, lines: Sequence[str], done: Done | None = None) -> list[Result]:
        """A result for every line, in order; `done` hears of lines as they are finished, in whatever order that is."""
        cut = self.cut(lines)
        texts = [part.text for parts in cut for part in parts]
        if done is not None:
            done(len(lines) - len(texts))  # so that the sum is the number of lines, also with empty and with cut ones
        return self.join(lines, cut, self.engine.translate(self.tokenizer.encode_batch(texts), self.options, done))

    def cut(self, lines: Sequence[str]) -> list[list[Part]]:
        """The parts of every line, each to be translated on its own; an empty line has none."""
        return [cut_line(line.strip(), self.tokenizer, self.max_length) if line.strip() else [] for line in lines]

    def join(
        self, lines: Sequence[str], cut: Sequence[Sequence[Part]], found: Sequence[Sequence[Hypothesis]]
    ) -> list[Result]:
        """The results of lines, from what was found for all their parts."""
        rest = iter(found)
        results = []
        for line, parts in zip(lines, cut, strict=True):
            hypotheses = list(islice(rest, len(parts)))
            ways = max(map(len, hypotheses), default=0)
            translations = []
            for rank in range(ways):
                # A part with fewer ways than another repeats its last one.
                chosen = [part_ways[min(rank, len(part_ways) - 1)] for part_ways in hypotheses]
                decoded = [self.tokenizer.decode(hypothesis.ids).strip() for hypothesis in chosen]
                joined = "".join(text + part.after for text, part in zip(decoded, parts, strict=True))
                translations.append(Translation(one_line(joined), sum(hypothesis.score for hypothesis in chosen)))
            results.append(Result(line, tuple(translations) or (Translation("", 0.0),)))
        return results

    def stream(self, lines: Iterable[str], chunk: int, done: Done | None = None) -> Iterator[Result]:
        """Results one by one, holding at most `chunk` lines; inside a chunk lines are sorted by length."""
        lines = iter(lines)
        while block := list(islice(lines, chunk)):
            yield from self.translate(block, done)

    def score(self, sources: Sequence[str], targets: Sequence[str]) -> list[list[float]]:
        """Log-probabilities of the tokens of given translations, the end token last."""
        src = self.tokenizer.encode_batch([line.strip() for line in sources])
        tgt = self.tokenizer.encode_batch([line.strip() for line in targets], "target")
        return self.engine.score(src, tgt)


def one_line(text: str) -> str:
    """The text without line breaks: line N of the output is the translation of line N of the input."""
    return re.sub(r"[\r\n]+", " ", text)
