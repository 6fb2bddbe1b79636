"""The part of a translation that a search can no longer change: what its best finished hypothesis and all that live begin with.
Whatever wins in the end is one of these, or grows out of one."""

from __future__ import annotations

from collections.abc import Generator, Iterator

import torch

from regard.generate.options import Hypothesis
from regard.generate.search.core import BeamState


def stable_prefix(state: BeamState) -> tuple[int, ...]:
    """Of the first sentence."""
    number = state.numbers[0]
    hypotheses = []
    for unit in (unit for unit, other in enumerate(state.numbers) if other == number):
        alive = ~torch.isneginf(state.log_probs[unit])
        hypotheses += state.tokens[unit][alive].tolist()
        if not torch.isneginf(state.pool_scores[unit, 0]):
            hypotheses.append(state.pool_tokens[unit, 0, : int(state.pool_lengths[unit, 0])].tolist())
    first = min(hypotheses, key=len)
    for place, token in enumerate(first):
        if any(other[place] != token for other in hypotheses):
            return tuple(first[:place])
    return tuple(first)


def stable_prefixes(steps: Generator[BeamState, None, list[list[Hypothesis]]]) -> Iterator[tuple[int, ...]]:
    """Each stable prefix that is longer than the one before, and in the end the best translation."""
    known: tuple[int, ...] = ()
    while True:
        try:
            state = next(steps)
        except StopIteration as end:
            yield end.value[0][0].ids
            return
        stable = stable_prefix(state)
        if len(stable) > len(known):
            known = stable
            yield known
