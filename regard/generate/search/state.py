"""What a search is given and what it carries from step to step: `SearchSpec` and `BeamState`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.generate.options import Prefix, SearchOptions
from regard.generate.search.phrases import PhraseAutomaton

AttentionFunction = Callable[[], Tensor]  # cross-attention weights of the last step, (rows, longest source or more)

EndsFunction = Callable[[Sequence[int]], bool]


@dataclass(frozen=True)
class SearchSpec:
    """What to search for: limits, options and constraints of every sentence."""

    limits: Sequence[int]  # maximum number of tokens of each sentence's output, not counting the end token
    options: SearchOptions
    bos_id: int
    eos_id: int
    forbidden: Sequence[int] = ()
    prefixes: Sequence[Prefix] = ()  # forced prefixes, one per sentence or none at all
    phrases: Sequence[PhraseAutomaton | None] = ()  # phrases that must appear, likewise
    src: Sequence[Sequence[int]] = ()  # the sources, for sampling and coverage
    attention: AttentionFunction | None = None  # for coverage, and for phrases that translate given source tokens
    # What each output continues, in a model without an encoder. Such an output is a part of a text: rules about repetition count
    # the prompt, too, and at its limit the output stops without an end token.
    prompts: Sequence[Sequence[int]] = ()
    stop_ids: Sequence[int] = ()  # further tokens that end an output as `eos_id` does
    ends: Sequence[
        EndsFunction | None
    ] = ()  # whether an output with these tokens is complete, one per sentence or none at all

    @property
    def first_tokens(self) -> list[int]:
        """The token of each sentence that the first step reads: the last of its prompt."""
        return [prompt[-1] for prompt in self.prompts] if self.prompts else [self.bos_id] * len(self.limits)


@dataclass
class BeamState:
    """All sentences that are not done. U units: a sentence, or one group of its beam, side by side. W hypotheses per unit,
    T tokens so far, K tokens of the longest source."""

    sentences: list[int]  # (U) the input sentence that each unit belongs to
    limits: Tensor  # (U,) maximum number of tokens, not counting the end token
    tokens: Tensor  # (U, W, T) of the live hypotheses
    log_probs: Tensor  # (U, W) of the live hypotheses; -inf: there is none
    pool_tokens: Tensor  # (U, W, T) of the finished hypotheses; shorter ones are padded with the end token
    pool_lengths: Tensor  # (U, W) without the end token
    pool_log_probs: Tensor  # (U, W)
    pool_scores: Tensor  # (U, W) under the length penalty, best first; -inf: empty
    phrase_states: Tensor | None = None  # (U, W) each hypothesis's state in its sentence's `PhraseAutomaton`
    overdue: Tensor | None = None  # (U, W) whether the hypothesis continues only because phrases are missing
    steered: Tensor | None = None  # (U, W) whether a lone hypothesis was just made to start or continue a phrase
    attended: Tensor | None = None  # (U, W, K) attention that each source token has received so far, for coverage
    prompts: Tensor | None = (
        None  # (U, P) what each unit continues, -1 before shorter ones; None: nothing, or no rule counts it
    )

    @property
    def text(self) -> Tensor:
        """(U, W, P + T) what rules about repetition count: the prompt and the tokens of the live hypotheses."""
        if self.prompts is None:
            return self.tokens
        return torch.cat((self.prompts[:, None].expand(-1, self.tokens.shape[1], -1), self.tokens), dim=2)
