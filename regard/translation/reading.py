"""Lines as a model reads them: their segments, the token ids of those, and the spans that are kept. The same for every engine.

A line longer than the model was trained on is cut at the end of a sentence, else at a clause, else at a space; it is never
truncated. White space around a line and words too long to translate (`long_words.py`) are not shown to the model. Where the
tokenizer protects, addresses, placeholders and tags go through the model as reserved pieces, and so do words that a person wants
kept. A model without reserved pieces is shown those as they are. With a guard, quotation marks are shown as straight ones, or as
reserved pieces where a translation has lost them (`quote_guard.py`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from types import MappingProxyType
from typing import Literal

from regard.data.tokenizer import NUM_SPANS, Tokenizer
from regard.generate.options import OnFinished
from regard.progress import OnProgress
from regard.translation.long_words import MOST_CHARACTERS, split_long_words
from regard.translation.protect import Protected, find_spans, protect, take_out
from regard.translation.quotes import DISTINCT, Quotation, distinct, find_quotations, has_marks, straightened
from regard.translation.terms import Span, find_terms, overlap_with
from regard.translation.words import TokenWords, find_words, token_words

Quotes = Literal["own", "straight", "reserved"]  # how a model is shown the quotation marks of a text
_SPACE = "\u2581"
# Places to cut, best first: after the end of a sentence, after a clause, between words, anywhere.
_CUTS = [
    re.compile(r"(?<=[.!?…])[\"'”’»)\]]*\s+|(?<=[。！？])"),
    re.compile(r"(?<=[;:,–—])\s+|(?<=[；：，、])"),
    re.compile(r"\s+"),
]


@dataclass(frozen=True)
class Segment:
    """A piece of a line that goes through the engine on its own, and what is copied around it."""

    text: str
    after: str  # white space, and words too long to translate
    before: str = ""  # such words at the beginning of the line
    capitals: str = ""  # what stands in the line, where that is in capitals and `text` in sentence case


def cut_line(line: str, tokenizer: Tokenizer, max_length: int, keep: Sequence[str] = ()) -> list[Segment]:
    """The segments of a line, none longer than `max_length` tokens; most lines are one. A kept span is never cut."""
    if len(line) <= 1 or len(_encode(line, tokenizer, keep)) <= max_length:
        return [Segment(line, "")]
    code, text = tokenizer.split_code(line)
    if code:  # every segment needs the target-language code
        parts = cut_line(text.lstrip(), tokenizer, max(1, max_length - 1), keep)
        return [replace(part, text=f"{code} {part.text}") for part in parts]
    left, after, right = _cut_once(line, find_spans(line, keep) if tokenizer.protects else find_terms(line, keep))
    parts = cut_line(left, tokenizer, max_length, keep)
    parts[-1] = Segment(parts[-1].text, parts[-1].after + after)
    return parts + cut_line(right, tokenizer, max_length, keep)


def _encode(text: str, tokenizer: Tokenizer, keep: Sequence[str]) -> list[int]:
    """The ids that the model reads."""
    protected = protect(text, terms=keep) if tokenizer.protects else None
    return tokenizer.encode(text) if protected is None else protected.ids(tokenizer)


def _cut_once(line: str, spans: Sequence[Span]) -> tuple[str, str, str]:
    """Split a line in two at the best kind of place, as near to the middle as possible, not near its ends and not inside a span."""
    middle = len(line) / 2
    first, end = len(line) - len(line.lstrip()), len(line.rstrip())  # words must be left on both sides
    is_inside = overlap_with(spans)
    for pattern in _CUTS:
        places = [
            m
            for m in pattern.finditer(line)
            if (len(line) * 0.2 < m.end() < len(line) * 0.8 or pattern is _CUTS[-1])
            and first < m.start()
            and m.end() < end
            and not is_inside(m.span())
        ]
        if places:
            best = min(places, key=lambda m: abs(m.end() - middle))
            left = line[: best.end()]
            begin = len(left.rstrip())
            return left[:begin], left[begin:], line[best.end() :]
    half = len(line) // 2
    for begin, end in spans:
        if begin < half < end and (begin > 0 or end < len(line)):
            half = begin or end
    return line[:half], "", line[half:]


def one_line(text: str) -> str:
    """The text without line breaks: line N of the output is the translation of line N of the input."""
    return re.sub(r"[\r\n]+", " ", text)


def count_lines(segments: Sequence[Sequence[Segment]], on_progress: OnProgress, steps: int = 1) -> OnFinished:
    """Counts lines for `on_progress` from the segments that an engine reports as finished; empty lines count at once. The segments
    of a line may be finished far apart, so each counts as its share of the line: a file of long lines shows progress before the
    first is complete. A line counts as `steps` units."""
    shares = [Fraction(1, len(own)) for own in segments for _ in own]  # exact: in the end every line is counted
    count, reported = Fraction(sum(not own for own in segments)), 0

    def on_finished(numbers: Sequence[int]) -> None:
        nonlocal count, reported
        count += sum(shares[number] for number in numbers)
        if (more := int(count * steps) - reported) > 0:
            reported += more
            on_progress(more)

    on_finished([])
    return on_finished


class Reader:
    """Reads text for a model; `keep` is text that is not translated, `more` the same for single texts, `quotes` how quotation marks
    are shown. `target` is the target language, which a model for several directions is told by a tag."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        max_length: int,
        keep: Sequence[str] = (),
        more: Mapping[str, Sequence[str]] = MappingProxyType({}),
        quotes: Quotes = "own",
        target: str = "",
    ) -> None:
        self.tokenizer, self.keep, self.more = tokenizer, keep, more
        self.quotes, self.target = quotes, target
        self.tag = tokenizer.target_tag(target)
        self.max_length = max(1, max_length - len(self.tag))  # of the text of a segment

    def cut(self, lines: Sequence[str]) -> list[list[Segment]]:
        """The segments of every line; a line that is empty or copied whole has none."""
        stripped = [one_line(line.strip()) for line in lines]  # no model knows line breaks
        # At most one token per byte, plus one for the leading space: short lines need no counting. (Imported tokenizers may
        # expand characters.)
        may_be_short = self.tokenizer.kind == "joint"
        long = [
            number
            for number, line in enumerate(stripped)
            if not (may_be_short and len(line.encode("utf-8", "surrogatepass")) < self.max_length)
        ]
        cut = [[Segment(line, "")] if line else [] for line in stripped]
        around = {n: self._around_long_words(stripped[n]) for n in long if len(stripped[n]) > MOST_CHARACTERS}
        whole = [n for n in long if around.get(n) is None]
        for number, ids in zip(whole, self.tokenizer.encode_batch([stripped[n] for n in whole]), strict=True):
            if len(ids) > self.max_length:
                cut[number] = cut_line(stripped[number], self.tokenizer, self.max_length, self.keep)
        return [cut[n] if (own := around.get(n)) is None else own for n in range(len(lines))]

    def copied(self, line: str) -> str:
        """What stands for the translation of a line without segments."""
        return one_line(self.tokenizer.split_code(line.strip())[1].strip())

    def _around_long_words(self, line: str) -> list[Segment] | None:
        """The segments around the words of a line that are too long to translate; None if it has no such words. Without any
        segment the line is copied whole."""
        code, text = self.tokenizer.split_code(line)
        parts = list(split_long_words(text))
        if not any(is_long for _, is_long in parts):
            return None
        segments: list[Segment] = []
        copied = ""  # since the last segment
        for part, is_long in parts:
            inner = "" if is_long else part.strip()
            if not inner:
                copied += part
                continue
            lead, _, tail = part.partition(inner)
            some = cut_line(f"{code} {inner}" if code else inner, self.tokenizer, self.max_length, self.keep)
            if segments:
                segments[-1] = replace(segments[-1], after=copied + lead)
            else:
                some[0] = replace(some[0], before=(copied + lead).lstrip())
            segments += some
            copied = tail
        if segments:
            segments[-1] = replace(segments[-1], after=copied)
        return segments

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The token ids of segments."""
        ids = self.tokenizer.encode_batch([self.shown(text) for text in texts])
        for number, text in enumerate(texts):
            if (protected := self.protected(text)) is not None:
                ids[number] = protected.ids(self.tokenizer)
        return [[*self.tag, *own] for own in ids] if self.tag else ids

    def protected(self, text: str) -> Protected | None:
        """The text with its protected spans taken out, `keep` among them; None without any, or without reserved pieces."""
        return protect(self.shown(text), terms=self._keep(text)) if self.tokenizer.protects else None

    def shown(self, text: str) -> str:
        """The text with the quotation marks that the model is shown; as long as the text itself."""
        if self.quotes == "own" or not has_marks(text):
            return text
        rewritten = straightened if self.quotes == "straight" else distinct
        return rewritten(text, self.quotations(text))

    def quotations(self, text: str) -> list[Quotation]:
        """What a text quotes; marks in protected spans do not count."""
        return (
            find_quotations(text, find_spans(text, (*self.keep, *self.more.get(text, ())))) if has_marks(text) else []
        )

    def has_room(self, text: str) -> bool:
        """Whether there is a reserved piece for every span of a text."""
        text, keep = self.shown(text), self._keep(text)
        return len({text[begin:end] for begin, end in find_spans(text, keep)}) <= NUM_SPANS

    def _keep(self, text: str) -> Sequence[str]:
        # U+2581 is the space of tokenizers: a model without reserved pieces has no way to write one.
        spaces = (_SPACE,) if _SPACE in text and not self.tokenizer.protects else ()
        marks = DISTINCT if self.quotes == "reserved" else ()
        return (*self.keep, *self.more.get(text, ()), *spaces, *marks)

    def spans_kept(self, text: str) -> list[Span]:
        """Where a text has spans that are not translated, including a language code."""
        keep = self._keep(text)
        kept = find_spans(text, keep) if self.tokenizer.protects else find_terms(text, keep)
        code, _ = self.tokenizer.split_code(text)
        return [(0, len(code)), *kept] if code else kept

    def kept(self, text: str) -> Protected | None:
        """The text with the spans taken out that must be kept, whether the model has reserved pieces or not."""
        if self.tokenizer.protects:
            return self.protected(text)
        places = find_terms(text, self._keep(text))
        return take_out(text, places, most=len(places)) if places else None

    def token_words(self, text: str) -> TokenWords:
        """The words of a source text."""
        found = token_words(self.tokenizer, self.encode([text])[0], "source", self.protected(text))
        if (shown := self.shown(text)) == text:
            return found
        own = {number: text[slice(*place)] for number, place in find_words(found.words, shown)}
        return replace(found, words=[own.get(number, word) for number, word in enumerate(found.words)])
