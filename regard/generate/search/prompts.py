"""What differs in a search whose outputs continue prompts: rules about repetition count the prompt, too, and at its limit, or where
it is complete, an output stops without an end token."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from regard.generate.search.state import BeamState, SearchSpec


def padded_prompts(spec: SearchSpec, sentences: Sequence[int], device: torch.device) -> Tensor:
    """The prompts of these sentences, (U, P), with -1 before shorter ones."""
    longest = max(map(len, spec.prompts))
    rows = [[*[-1] * (longest - len(spec.prompts[number])), *spec.prompts[number]] for number in sentences]
    return torch.tensor(rows, device=device)


def counted_length(state: BeamState, spec: SearchSpec, length: int) -> Tensor | int:
    """The length of outputs that end now, in tokens that the model predicted: with the end token, unless they stop without one."""
    if not spec.prompts:
        return length + 1
    return torch.where(state.limits <= length, length, length + 1)[:, None]


def end_complete(log_probs: Tensor, state: BeamState, spec: SearchSpec) -> None:
    """Hypotheses that `SearchSpec.ends` says are complete end now, without an end token: nothing else is allowed, and it has the
    probability 1."""
    for unit, number in enumerate(state.sentences):
        ends = spec.ends[number]
        if ends is None:
            continue
        for row, tokens in enumerate(state.tokens[unit].tolist()):
            if float(state.log_probs[unit, row]) > -math.inf and ends(tokens):
                log_probs[unit, row] = -math.inf
                log_probs[unit, row, spec.eos_id] = 0.0


def all_stop(state: BeamState, spec: SearchSpec) -> bool:
    """Whether all outputs stop now without an end token, so that no further step of the model is needed."""
    return bool(spec.prompts) and bool((state.limits <= state.tokens.shape[2]).all())
