"""The formula over all rows of a batch at once, with a block-diagonal mask made from the layout: shapes never change, on
any device. It holds a score for every pair of rows, so it is for small batches: the twin of `triton_attention`."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from regard.layout import Layout


def attention(q: Tensor, k: Tensor, v: Tensor, q_layout: Layout, k_layout: Layout, causal: bool) -> Tensor:
    group = q.shape[1] // k.shape[1]
    # (tokens, heads, d_head) -> (heads, tokens, d_head)
    q, k, v = q.transpose(0, 1), k.transpose(0, 1), v.transpose(0, 1)
    if group > 1:
        k, v = k.repeat_interleave(group, dim=0), v.repeat_interleave(group, dim=0)
    q_ids, k_ids = q_layout.sequence_ids, k_layout.sequence_ids
    seen = (q_ids[:, None] == k_ids[None, :]) & (q_ids[:, None] >= 0)
    if causal:
        seen &= q_layout.positions[:, None] >= k_layout.positions[None, :]
    scores = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(q.shape[-1])
    weights = torch.softmax(scores.masked_fill(~seen, torch.finfo(scores.dtype).min), dim=-1)
    weights = weights * seen  # an empty row sees nothing and is zero
    return torch.matmul(weights, v).transpose(0, 1)
