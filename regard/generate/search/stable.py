"""The prefix that a running search can no longer change, for streaming: what its best finished hypothesis and all live ones have in
common. Whichever wins is one of these, or extends one."""

from __future__ import annotations

from collections.abc import Generator, Iterator

import torch

from regard.generate.options import Hypothesis
from regard.generate.search.state import BeamState


def stable_prefix(state: BeamState) -> tuple[int, ...]:
    """The common prefix of all hypotheses of the first sentence that can still win."""
    hypotheses: list[list[int]] = []
    for unit in (unit for unit, number in enumerate(state.sentences) if number == state.sentences[0]):
        alive = ~torch.isneginf(state.log_probs[unit])
        hypotheses += state.tokens[unit][alive].tolist()
        if not torch.isneginf(state.pool_scores[unit, 0]):
            hypotheses.append(state.pool_tokens[unit, 0, : int(state.pool_lengths[unit, 0])].tolist())
    shortest = min(hypotheses, key=len, default=[])  # none: the next step says why
    for position, token in enumerate(shortest):
        if any(other[position] != token for other in hypotheses):
            return tuple(shortest[:position])
    return tuple(shortest)


def stable_prefixes(steps: Generator[BeamState, None, list[list[Hypothesis]]]) -> Iterator[tuple[int, ...]]:
    """Yields each stable prefix that is longer than the one before, and finally the best hypothesis."""
    longest: tuple[int, ...] = ()
    while True:
        try:
            state = next(steps)
        except StopIteration as end:
            yield end.value[0][0].ids
            return
        stable = stable_prefix(state)
        if len(stable) > len(longest):
            longest = stable
            yield longest
