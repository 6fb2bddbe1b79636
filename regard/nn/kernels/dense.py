"""The formula over all rows of a batch at once, with a block-diagonal mask made from the layout: fixed shapes, any device. It
holds a score for every pair of rows, so it is only for small batches: the plain version of `triton_attention`."""

from __future__ import annotations

import torch
from torch import Tensor

from regard.layout import Layout
from regard.nn.dropout import dropout as drop
from regard.nn.kernels.scores import PositionBias

TAKES = ("position bias", "dropout", "slots")


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_layout: Layout,
    k_layout: Layout,
    causal: bool,
    scale: float,
    bias: PositionBias | None = None,
    dropout: float = 0.0,
) -> Tensor:
    group = q.shape[1] // k.shape[1]
    # (tokens, heads, d_head) -> (heads, tokens, d_head)
    q, k, v = q.transpose(0, 1), k.transpose(0, 1), v.transpose(0, 1)
    if group > 1:  # (kv_heads, tokens, d_head) -> (num_heads, tokens, d_head)
        k, v = k.repeat_interleave(group, dim=0), v.repeat_interleave(group, dim=0)
    q_ids, k_ids = q_layout.sequence_ids, k_layout.sequence_ids
    visible = (q_ids[:, None] == k_ids[None, :]) & (q_ids[:, None] >= 0)  # (q_tokens, k_tokens)
    if causal:
        visible &= q_layout.positions[:, None] >= k_layout.positions[None, :]
    scores = torch.matmul(q, k.transpose(-2, -1)) * scale
    if bias is not None:
        scores = scores + bias(q_layout.positions, k_layout.positions).to(scores.dtype)
    weights = torch.softmax(scores.masked_fill(~visible, torch.finfo(scores.dtype).min), dim=-1)
    weights = weights * visible  # an empty row attends to nothing, and its output is zero
    # (heads, tokens, d_head) -> (tokens, heads, d_head)
    return torch.matmul(drop(weights, dropout, training=True), v).transpose(0, 1)
