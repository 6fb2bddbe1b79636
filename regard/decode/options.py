"""What an engine is asked and what it answers. No torch here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from regard.data.tokenizer import Tokenizer
from regard.errors import UserError


@dataclass(frozen=True)
class SearchOptions:
    """How to search. The defaults are the paper's."""

    beam: int = 4  # 1: greedy
    alpha: float = 0.6  # hypotheses are ranked by log-probability / ((5 + |Y|) / 6)^alpha, |Y| counting the end token
    max_extra: int = 50  # a translation has at most this many tokens more than its source
    nbest: int = 1
    # What is done around the engine, and not its business:
    guard: bool = False  # a line whose translation repeats itself without end stays as it is
    words: bool = False  # translations come with their words and the log-probabilities of these

    def __post_init__(self) -> None:
        if self.beam < 1:
            raise UserError(f"beam must be at least 1, but is {self.beam}")
        if not 1 <= self.nbest <= self.beam:
            raise UserError(
                f"nbest must be between 1 and the beam ({self.beam}), but is {self.nbest}; use a wider beam"
            )
        if self.alpha < 0:
            raise UserError(f"alpha must not be negative, but is {self.alpha}")
        if self.max_extra < 0:
            raise UserError(f"max_extra must not be negative, but is {self.max_extra}")

    @property
    def of_engine(self) -> SearchOptions:
        """These options without what is done around the engine."""
        return replace(self, guard=False, words=False)

    def changed(self, beam: int | None, alpha: float | None, nbest: int | None) -> SearchOptions:
        """These options with what is given; the beam is at least as wide as `nbest`, unless it is given, too."""
        nbest = nbest or 1
        width = beam if beam is not None else max(self.beam, nbest)
        return replace(self, beam=width, alpha=self.alpha if alpha is None else alpha, nbest=nbest)


# What a translation begins with: at each place a token, or several to choose from.
Prefix = Sequence[int | Sequence[int]]


@dataclass(frozen=True)
class Wish:
    """What is wanted of one sentence's translation."""

    prefix: Prefix = ()
    most: int | None = None  # tokens at most, if not what `max_extra` says; a longer prefix is taken as it is


@dataclass(frozen=True)
class Hypothesis:
    ids: tuple[int, ...]  # without the start and end tokens
    log_prob: float  # sum over its tokens and the end token
    score: float  # log_prob under the length penalty: what the search ranks by


Done = Callable[[int], None]  # told how many more sentences are finished


class Engine(Protocol):
    """Turns source ids into hypotheses, best first, in the order of the input."""

    batch: int  # sentences computed together at most
    parallel: int  # calls of `translate` that may run beside each other, each in a thread of its own, and gain by it

    def translate(
        self,
        ids: Sequence[Sequence[int]],
        options: SearchOptions,
        done: Done | None = None,
        wishes: Sequence[Wish] = (),  # one for each sentence, or none at all
    ) -> list[list[Hypothesis]]: ...

    def score(self, src: Sequence[Sequence[int]], tgt: Sequence[Sequence[int]]) -> list[list[float]]:
        """Log-probabilities of the tokens of given translations, the end token last."""
        ...

    def next_log_probs(self, src: Sequence[int], prefix: Sequence[int]) -> list[float]:
        """The log-probability of every token of the vocabulary right after the beginning of a translation."""
        ...


def forbidden_ids(tokenizer: Tokenizer) -> list[int]:
    """Tokens that no translation may contain: those that stand for nothing in a text. An imported model has its own list."""
    if tokenizer.vocabulary is not None:
        return list(tokenizer.vocabulary.special.forbidden)
    spans = () if tokenizer.protects else tokenizer.span_ids
    ids = (tokenizer.unk_id, tokenizer.bos_id, tokenizer.pad_id, *spans, *tokenizer.tag_ids)
    return [i for i in ids if i >= 0]  # a model without padding says -1, which would mean the last piece
