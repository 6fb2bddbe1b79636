"""What an attention may change about its scores before the softmax: their scale, a bias, and who sees whom."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor


def paper_scale(d_head: int) -> float:
    """The factor of the scores where a model sets no other: 1 / sqrt(d_head)."""
    return 1.0 / math.sqrt(d_head)


class PositionBias(Protocol):
    """A bias that depends on positions alone, such as T5's relative positions (`nn/relative.py`)."""

    def __call__(self, q_positions: Tensor, k_positions: Tensor) -> Tensor:
        """Positions (..., q_len) and (..., k_len) -> what to add to the scores, (..., num_heads, q_len, k_len)."""
        ...


@dataclass(frozen=True)
class PairBias:
    """A bias for each pair of rows."""

    matrices: Sequence[Tensor]  # for each sequence, (num_heads, q_len, k_len)


@dataclass(frozen=True)
class Mask:
    """Who sees whom, beyond `causal`. A query that sees nothing gets zeros."""

    visible: Sequence[Tensor]  # for each sequence, (q_len, k_len) bool


Bias = PositionBias | PairBias


def name_of(bias: Bias) -> str:
    """The kind of bias, as kernels declare it."""
    return "pair bias" if isinstance(bias, PairBias) else "position bias"
