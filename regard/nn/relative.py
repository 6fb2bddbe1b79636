"""Relative positions (T5): a learned number for the distance between a query and a key is added to their score."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from regard.settings import StackConfig


class RelativePositions(nn.Module):
    """T5's relative positions: a learned number for each head and each bucket of distances, added to the scores of every layer's
    self-attention. Small distances have a bucket each; larger ones share buckets that grow with the distance."""

    buckets: Tensor

    def __init__(self, config: StackConfig) -> None:
        super().__init__()
        self.farthest = config.relative_max_distance
        self.weight = nn.Parameter(torch.empty(config.relative_buckets, config.num_heads))
        distances = torch.arange(-self.farthest, self.farthest + 1, device="cpu")
        table = bucket(distances, config.causal, config.relative_buckets, self.farthest)
        self.register_buffer("buckets", table, persistent=False)

    def forward(self, q_positions: Tensor, k_positions: Tensor) -> Tensor:
        """Positions (..., q_len) and (..., k_len) -> what to add to the scores, (..., num_heads, q_len, k_len)."""
        distances = (k_positions[..., None, :] - q_positions[..., :, None]).clamp(-self.farthest, self.farthest)
        # (..., q_len, k_len, num_heads) -> (..., num_heads, q_len, k_len)
        return self.weight[self.buckets[distances + self.farthest]].movedim(-1, -3)


def bucket(distances: Tensor, causal: bool, num_buckets: int, farthest: int) -> Tensor:
    """The bucket of each distance from a query to a key; a decoder sees no key after its query, and keeps no bucket for one."""
    buckets = torch.zeros_like(distances)
    if causal:
        distances = -distances.clamp(max=0)
    else:
        num_buckets //= 2
        buckets += (distances > 0) * num_buckets
        distances = distances.abs()
    exact = num_buckets // 2
    growth = torch.log(distances.clamp(min=1).float() / exact) / math.log(farthest / exact)
    shared = (exact + (growth * (num_buckets - exact)).long()).clamp(max=num_buckets - 1)
    return buckets + torch.where(distances < exact, distances, shared)
