"""The formula on a padded grid, as batched matrix products. For sentences on CPUs with bf16 it is several times as fast as
torch's scaled_dot_product_attention, whose tiles suit long sequences (benchmarks/attention_cpu.py)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from regard.layout import SequenceLayout
from regard.nn.dropout import dropout as drop
from regard.nn.kernels.grid import grid_bias, pad, unpad
from regard.nn.kernels.scores import PositionBias

TAKES = ("position bias", "dropout")


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_layout: SequenceLayout,
    k_layout: SequenceLayout,
    causal: bool,
    scale: float,
    bias: PositionBias | None = None,
    dropout: float = 0.0,
) -> Tensor:
    group = q.shape[1] // k.shape[1]
    added = None
    if q_layout.tile_sizes or bias is not None:
        added = grid_bias(q_layout, k_layout, causal, q.dtype, bias)
    if q_layout.tile_sizes:
        q_layout, k_layout = q_layout.tiles, k_layout.tiles
    # (tokens, heads, d_head) -> (sequences, heads, max_length, d_head)
    q, k, v = pad(q, q_layout).transpose(1, 2), pad(k, k_layout).transpose(1, 2), pad(v, k_layout).transpose(1, 2)
    if group > 1:  # (sequences, kv_heads, ...) -> (sequences, num_heads, ...)
        k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
    scores = torch.matmul(q * scale, k.transpose(-2, -1))
    if added is not None:
        scores = scores + added
    elif causal:
        # The causal mask also hides padding, which comes after every token of its sequence.
        scores = scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1), -math.inf)
    elif not k_layout.is_uniform:
        scores = scores.masked_fill(~k_layout.valid[:, None, None, :], -math.inf)
    output = torch.matmul(drop(torch.softmax(scores, dim=-1), dropout, training=True), v)
    return unpad(output.transpose(1, 2), q_layout)
