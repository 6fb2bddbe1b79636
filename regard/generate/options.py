"""What an engine is asked and what it answers. No torch here."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Protocol

from regard.bounds import (
    MAX_ALPHA,
    MAX_BEAM,
    MAX_EXTRA,
    MAX_PENALTY,
    MAX_TEMPERATURE,
    MIN_TEMPERATURE,
    check_flag,
    check_number,
    check_whole,
)
from regard.data.tokenizer import Tokenizer
from regard.errors import UserError
from regard.generate.search.phrases import Phrase

if TYPE_CHECKING:
    from regard.bundle import Bundle

# Constraints can always be met, so that only NaN and infinity leave a search without a result.
NOTHING_FOUND = "no translation was found: the model's outputs are not finite"
NO_CONTINUATION = NOTHING_FOUND.replace("translation", "continuation")


@dataclass(frozen=True)
class SearchOptions:
    """How to search. The defaults are the paper's."""

    beam: int = 4  # 1: greedy
    alpha: float = 0.6  # hypotheses are ranked by log-probability / ((5 + |Y|) / 6)^alpha, |Y| counting the end token
    max_extra: int = (
        50  # a translation has at most this many tokens more than its source, a continuation this many in all
    )
    nbest: int = 1  # hypotheses to return
    coverage: float = 0.0  # penalty of a finished hypothesis for source tokens that were hardly attended to
    no_repeat: int = 0  # n-gram size that may not repeat; 0 disables
    max_repeat: int = 0  # times that a run of tokens may repeat in a row; 0 disables
    repetition_penalty: float = 1.0  # divides the logits of tokens that the text already has; 1 disables
    groups: int = 1  # diverse beam search: the beam is split into groups that avoid each other's tokens
    diversity: float = 0.5  # penalty between groups
    sample: bool = False  # draw `beam` hypotheses at random instead of searching for the best
    temperature: float = 1.0  # of sampling: below 1 favours likely tokens, above 1 unlikely ones
    top_k: int = 0  # sample among this many tokens; 0: among all
    top_p: float = 1.0  # sample among the likeliest tokens that make up this probability
    min_p: float = 0.0  # sample among tokens that are at least this likely, relative to the likeliest
    seed: int = 0

    def __post_init__(self) -> None:
        for name, most in (("beam", MAX_BEAM), ("groups", MAX_BEAM)):
            check_whole(name, getattr(self, name), 1, most)
        check_whole("nbest", self.nbest)
        if not 1 <= self.nbest <= self.beam:
            raise UserError(
                f"nbest must be between 1 and the beam ({self.beam}), but is {self.nbest}; use a wider beam"
            )
        check_whole("max_extra", self.max_extra, 0, MAX_EXTRA)
        for name in ("no_repeat", "max_repeat", "top_k"):
            check_whole(name, getattr(self, name), 0, sys.maxsize)
        check_whole("seed", self.seed, -sys.maxsize, sys.maxsize)
        check_number("alpha", self.alpha, 0, MAX_ALPHA)
        for name in ("coverage", "diversity"):
            check_number(name, getattr(self, name), 0, MAX_PENALTY)
        check_flag("sample", self.sample)
        for name in ("temperature", "top_p", "min_p", "repetition_penalty"):
            check_number(name, getattr(self, name))
        if self.beam % self.groups:
            raise UserError(f"the beam must be a multiple of groups ({self.groups}), but is {self.beam}")
        if not self.temperature > 0:
            raise UserError(
                f"temperature must be above 0, but is {self.temperature}; leave out sample to get the likeliest"
            )
        check_number("temperature", self.temperature, MIN_TEMPERATURE, MAX_TEMPERATURE)
        if not 0 < self.top_p <= 1:
            raise UserError(f"top_p must be above 0 and at most 1, but is {self.top_p}")
        if not 0 <= self.min_p <= 1:
            raise UserError(f"min_p must be between 0 and 1, but is {self.min_p}")
        if not 0 < self.repetition_penalty <= MAX_PENALTY:
            raise UserError(
                f"repetition_penalty must be above 0 and at most {MAX_PENALTY}, but is {self.repetition_penalty}"
            )
        if self.groups == 1 and self.diversity != 0.5:
            raise UserError("diversity is for the groups of a beam; set groups, or leave it out")
        if self.sample and self.groups > 1:
            raise UserError("sample and groups exclude each other: samples are drawn independently; leave out one")
        if not self.sample and (self.temperature, self.top_k, self.top_p, self.seed) != (1.0, 0, 1.0, 0):
            raise UserError("temperature, top_k, top_p and seed are for sampling; add sample, or leave them out")
        if not self.sample and self.min_p:
            raise UserError("min_p is for sampling; add sample, or leave it out")

    @classmethod
    def names(cls) -> list[str]:
        """All options by name."""
        return [option.name for option in fields(cls)]

    @classmethod
    def of(cls, bundle: Bundle) -> SearchOptions:
        """A model's own options."""
        own = asdict(bundle.decode)
        return cls(**{name: own[name] for name in cls.names() if name in own})

    @property
    def beyond_beam(self) -> list[str]:
        """The names of options in use that not every engine supports: all but the beam, its n-best list and the length penalty."""
        used = {
            "coverage": self.coverage > 0,
            "no_repeat": self.no_repeat > 0,
            "max_repeat": self.max_repeat > 0,
            "repetition_penalty": self.repetition_penalty != 1.0,
            "groups": self.groups > 1,
            "sample": self.sample,
        }
        return [name for name, is_used in used.items() if is_used]

    @property
    def counts_text(self) -> bool:
        """Whether a rule about repetition is in use, which counts what the text already has."""
        return self.no_repeat > 0 or self.max_repeat > 0 or self.repetition_penalty != 1.0

    def changed(
        self, beam: int | None = None, alpha: float | None = None, nbest: int | None = None, **more: Any
    ) -> SearchOptions:
        """These options with some changed. Unless given, the beam is widened to `nbest` and to a multiple of the groups; with
        `sample` there are `nbest` samples."""
        refuse_unknown(more, self.names())
        nbest = 1 if nbest is None else nbest
        if beam is None:
            groups = max(1, more.get("groups", self.groups))
            beam = nbest if more.get("sample") else max(self.beam, nbest)
            beam = -(-beam // groups) * groups
        return replace(self, beam=beam, alpha=self.alpha if alpha is None else alpha, nbest=nbest, **more)


def refuse_unknown(given: Iterable[str], known: Sequence[str]) -> None:
    """Refuse options that are not among the known ones."""
    if unknown := sorted(set(given) - set(known)):
        near = difflib.get_close_matches(unknown[0], known, 1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
        raise UserError(f"there is no search option {unknown[0]!r}; {hint}")


# The forced beginning of a translation: at each position a token, or several to choose from.
Prefix = Sequence[int | Sequence[int]]


@dataclass(frozen=True)
class CodeSwitchedSource:
    """A source sentence in which glossary terms are already translated."""

    ids: Sequence[int]
    phrases: tuple[Phrase, ...]  # what must appear, with its positions in this source


@dataclass(frozen=True)
class Constraints:
    """Constraints on the translation of one sentence."""

    prefix: Prefix = ()
    phrases: tuple[Phrase, ...] = ()  # what must appear
    max_tokens: int | None = None  # instead of what `max_extra` allows; a longer prefix is still taken whole
    # Builds the source with the terms of these phrases already translated; returns None if there is no such source.
    code_switch: Callable[[Sequence[Phrase]], CodeSwitchedSource | None] | None = field(default=None, compare=False)
    # Whether an output with these tokens is complete, such as one with a stop string: it then ends without an end token.
    ends: Callable[[Sequence[int]], bool] | None = field(default=None, compare=False)


@dataclass(frozen=True)
class Hypothesis:
    """One output of a search."""

    ids: tuple[int, ...]  # without the start and end tokens
    log_prob: float  # sum over its tokens and the end token
    score: float  # what the search ranks by: log_prob under the length penalty, less coverage and late-phrase penalties
    ended: bool = True  # false: a continuation that stopped at its length limit, without an end token


Matrix = list[list[float]]  # (queries, keys)
OnFinished = Callable[[Sequence[int]], None]  # called with the numbers of finished sentences, each once


class Engine(Protocol):
    """Turns source ids into hypotheses, best first, in the order of the input."""

    batch: int  # most sentences computed together
    parallel: int  # calls of `translate` worth running at once, each in its own thread
    takes_phrases: bool  # whether it enforces `Constraints.phrases` itself

    def translate(
        self,
        ids: Sequence[Sequence[int]],
        options: SearchOptions,
        on_finished: OnFinished | None = None,
        constraints: Sequence[Constraints] = (),  # one for each sentence, or none at all
    ) -> list[list[Hypothesis]]: ...

    def score(self, src: Sequence[Sequence[int]], tgt: Sequence[Sequence[int]]) -> list[list[float]]:
        """Log-probabilities of the tokens of given translations, the end token last."""
        ...

    def attention(self, src: Sequence[Sequence[int]], tgt: Sequence[Sequence[int]]) -> list[Matrix]:
        """The attention of given translations to their sources, each (target tokens, source tokens) without end tokens, from the
        model's `AlignmentHeads`."""
        ...

    def stream(
        self, src: Sequence[int], options: SearchOptions, constraint: Constraints | None = None
    ) -> Iterator[tuple[int, ...]]:
        """Yield the final part of one sentence's translation as it grows, and at last the whole translation."""
        ...

    def next_log_probs(self, src: Sequence[int], prefix: Sequence[int]) -> list[float]:
        """The log-probability of every token of the vocabulary after a target prefix."""
        ...


class TextEngine(Protocol):
    """Continues texts with a model without an encoder: prompts in, hypotheses for what follows out, best first, in the order of the
    input. An empty prompt stands for the start of a text."""

    batch: int  # most prompts computed together
    parallel: int  # calls of `generate` worth running at once, each in its own thread
    takes_phrases: bool  # whether it enforces `Constraints.phrases` itself

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        options: SearchOptions,
        on_finished: OnFinished | None = None,
        constraints: Sequence[Constraints] = (),  # one for each prompt, or none at all
    ) -> list[list[Hypothesis]]: ...

    def score(self, prompts: Sequence[Sequence[int]], texts: Sequence[Sequence[int]]) -> list[list[float]]:
        """Log-probabilities of the tokens of given texts after their prompts, and last that the text ends there."""
        ...

    def stream(
        self, prompt: Sequence[int], options: SearchOptions, constraint: Constraints | None = None
    ) -> Iterator[tuple[int, ...]]:
        """Yield the final part of what follows one prompt as it grows, and at last all of it."""
        ...

    def next_log_probs(self, prompt: Sequence[int], prefix: Sequence[int]) -> list[float]:
        """The log-probability of every token of the vocabulary after a prompt and what follows it so far."""
        ...


def forbidden_ids(tokenizer: Tokenizer) -> list[int]:
    """Tokens that no translation may contain because they stand for no text. An imported model has its own list."""
    if tokenizer.vocabulary is not None:
        return list(tokenizer.vocabulary.special.forbidden)
    if tokenizer.controls is not None:
        return list(tokenizer.controls.forbidden)
    spans = () if tokenizer.protects else tokenizer.span_ids
    ids = (tokenizer.unk_id, tokenizer.bos_id, tokenizer.pad_id, *spans, *tokenizer.tag_ids)
    return [i for i in ids if i >= 0]  # a model without padding says -1, which would mean the last piece
