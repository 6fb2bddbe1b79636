"""Scores texts with a language model: documents of any length, minimal pairs and multiple-choice questions.

A text longer than the model's context is read in overlapping windows, and only the new tokens of each window count: every token is
scored once, with at least `window - stride` tokens before it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from regard.data.tokenizer import Tokenizer
from regard.errors import InputError, RegardError, UserError
from regard.escaping import shorten
from regard.generate.options import TextEngine

WINDOW = 2_048  # the longest window, in tokens, even if the model's context is longer
_TOGETHER = 256  # windows scored between two reports of progress

OnScored = Callable[[int], None]  # called with the number of newly finished texts


@dataclass(frozen=True)
class TextScore:
    """The likelihood of one text: all of its tokens, but not its end."""

    log_prob: float
    num_tokens: int
    num_bytes: int
    windows: int = 1

    @property
    def loss(self) -> float:
        """Nats per token."""
        return -self.log_prob / self.num_tokens if self.num_tokens else math.nan

    @property
    def perplexity(self) -> float:
        return math.exp(min(self.loss, 700.0)) if self.num_tokens else math.nan

    @property
    def bits_per_byte(self) -> float:
        return -self.log_prob / math.log(2.0) / self.num_bytes if self.num_bytes else math.nan

    def to_json(self) -> dict[str, Any]:
        shown = {"loss": self.loss, "perplexity": self.perplexity, "bits_per_byte": self.bits_per_byte}
        found = {name: None if math.isnan(value) else value for name, value in shown.items()}
        counted = {"tokens": self.num_tokens, "bytes": self.num_bytes, "windows": self.windows}
        return {"log_prob": self.log_prob, **found, **counted}


def total(scores: Sequence[TextScore]) -> TextScore:
    """Several texts as one."""
    return TextScore(
        math.fsum(one.log_prob for one in scores),
        sum(one.num_tokens for one in scores),
        sum(one.num_bytes for one in scores),
        sum(one.windows for one in scores),
    )


class TextScorer:
    """Scores texts with a language model."""

    def __init__(self, tokenizer: Tokenizer, engine: TextEngine, context: int, stride: int | None = None) -> None:
        """`context`: the longest text that the model was made for. `stride`: new tokens in each window after the first; by default
        half a window."""
        self.tokenizer, self.engine = tokenizer, engine
        self.window = min(context, WINDOW)
        self.stride = max(1, self.window // 2) if stride is None else stride
        if not 1 <= self.stride < self.window:
            raise UserError(
                f"stride must be at least 1 and less than a window of {self.window:,} tokens, but is {self.stride:,}"
            )

    def score(self, texts: Sequence[str], on_scored: OnScored | None = None) -> list[TextScore]:
        """The likelihood of each text, from its beginning."""
        ids = self.tokenizer.encode_batch(texts, "target")
        found = self._score([self._opening] * len(texts), ids, on_scored)
        return [
            TextScore(math.fsum(values), len(own), len(text.encode()), windows)
            for (values, windows), own, text in zip(found, ids, texts, strict=True)
        ]

    def after(self, pairs: Sequence[tuple[str, str]], on_scored: OnScored | None = None) -> list[float]:
        """The log-probability of the second text of each pair, given the first. Both are tokenized together; spaces at the end of
        the first count as part of the second."""
        prompts, rest = [], []
        for context, text in pairs:
            stripped = context.rstrip()
            before = self.tokenizer.encode(stripped, "target")
            whole = self.tokenizer.encode(context + text, "target")
            prompts.append((*self._opening, *before))
            rest.append(whole[len(before) :])
            if (length := len(self._opening) + len(whole)) > self.window:
                raise InputError(
                    f"a question with an answer must have at most {self.window:,} tokens, this model's window, but number "
                    f"{len(prompts):,} has {length:,}: {shorten(context + text)}"
                )
        return [math.fsum(values) for values, _ in self._score(prompts, rest, on_scored)]

    @property
    def _opening(self) -> tuple[int, ...]:
        """The tokens before a text; engines take no empty prompt."""
        opening = self.tokenizer.prompt_opening
        first = self.tokenizer.bos_id if self.tokenizer.bos_id >= 0 else self.tokenizer.eos_id
        if not opening and first < 0:
            raise UserError("this model has no token that begins a text, so a text's first token has no probability")
        return opening or (first,)

    def _score(
        self, prompts: Sequence[Sequence[int]], texts: Sequence[Sequence[int]], on_scored: OnScored | None
    ) -> list[tuple[list[float], int]]:
        """The log-probabilities of each text's tokens, and the number of windows in which it was read."""
        windows = [
            (number, *window)
            for number, pair in enumerate(zip(prompts, texts, strict=True))
            for window in self._windows(*pair)
        ]
        values: list[list[float]] = [[] for _ in texts]
        counts = [0] * len(texts)
        done = 0
        for begin in range(0, len(windows), _TOGETHER):
            some = windows[begin : begin + _TOGETHER]
            scored = self.engine.score([before for _, before, _ in some], [new for _, _, new in some])
            for (number, _, new), found in zip(some, scored, strict=True):
                values[number] += found[: len(new)]  # without the end of the text
                counts[number] += 1
            finished = some[-1][0] + (begin + _TOGETHER >= len(windows))
            if on_scored is not None and finished > done:
                on_scored(finished - done)
                done = finished
        if on_scored is not None and done < len(texts):
            on_scored(len(texts) - done)
        for number, own in enumerate(values, 1):
            if not all(map(math.isfinite, own)):
                raise RegardError(f"the model's outputs for text {number:,} are not finite, so it has no score")
        return list(zip(values, counts, strict=True))

    def _windows(self, prompt: Sequence[int], text: Sequence[int]) -> Iterator[tuple[Sequence[int], Sequence[int]]]:
        """For each window, its context and its new tokens."""
        whole, place = [*prompt, *text], len(prompt)
        while place < len(whole):
            most = self.window if place == len(prompt) and len(prompt) < self.window else place + self.stride
            end = min(len(whole), most)
            yield whole[max(0, end - self.window) : place], whole[place:end]
            place = end


# --- minimal pairs and multiple choice ---


@dataclass(frozen=True)
class MinimalPair:
    """An acceptable and an unacceptable sentence, and what they test."""

    good: str
    bad: str
    paradigm: str


@dataclass(frozen=True)
class Choice:
    """A multiple-choice question; `answer` is the index of the right choice."""

    context: str
    choices: tuple[str, ...]
    answer: int


@dataclass(frozen=True)
class Accuracy:
    """How often a model was right, in percent, with the standard error of that share."""

    correct: int
    count: int

    @property
    def percent(self) -> float:
        return 100.0 * self.correct / self.count

    @property
    def error(self) -> float:
        share = self.correct / self.count
        return 100.0 * math.sqrt(share * (1.0 - share) / (self.count - 1)) if self.count > 1 else 0.0

    def to_json(self) -> dict[str, Any]:
        return {"accuracy": self.percent, "standard_error": self.error, "correct": self.correct, "count": self.count}


def score_pairs(
    scorer: TextScorer, pairs: Sequence[MinimalPair], on_scored: OnScored | None = None
) -> dict[str, Accuracy]:
    """For each paradigm, in order of first appearance: how often the right sentence is the likelier one. A tie counts as wrong."""
    texts = [text for pair in pairs for text in (pair.good, pair.bad)]
    scores = [one.log_prob for one in scorer.score(texts, on_scored)]
    by_paradigm: dict[str, list[bool]] = {}
    for pair, good, bad in zip(pairs, scores[0::2], scores[1::2], strict=True):
        by_paradigm.setdefault(pair.paradigm, []).append(good > bad)
    return {name: Accuracy(sum(right), len(right)) for name, right in by_paradigm.items()}


def score_choices(
    scorer: TextScorer, questions: Sequence[Choice], on_scored: OnScored | None = None
) -> dict[str, Accuracy]:
    """`acc`: how often the right answer has the highest log-probability after the question; `acc_norm`: the same with each
    log-probability divided by the bytes of its answer. A space goes between question and answer where there is no white space."""
    pairs = [
        (question.context, f"{'' if _has_space(question.context, choice) else ' '}{choice}")
        for question in questions
        for choice in question.choices
    ]
    scores = iter(scorer.after(pairs, on_scored))
    right = normed = 0
    for question in questions:
        own = [next(scores) for _ in question.choices]
        by_byte = [value / max(1, len(text.encode())) for value, text in zip(own, question.choices, strict=True)]
        right += own.index(max(own)) == question.answer
        normed += by_byte.index(max(by_byte)) == question.answer
    return {"acc": Accuracy(right, len(questions)), "acc_norm": Accuracy(normed, len(questions))}


def _has_space(context: str, choice: str) -> bool:
    return not context or context[-1].isspace() or choice[:1].isspace()
