"""The formula on a padded grid, as batched matrix products. For sentences on CPUs with bf16 it is several times as fast as
torch's scaled_dot_product_attention, whose tiles suit long sequences (benchmarks/attention_cpu.py)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from regard.layout import SequenceLayout
from regard.nn.kernels.grid import pad, tile_bias, unpad


def attention(
    q: Tensor, k: Tensor, v: Tensor, q_layout: SequenceLayout, k_layout: SequenceLayout, causal: bool
) -> Tensor:
    group = q.shape[1] // k.shape[1]
    bias = None
    if q_layout.tile_sizes:
        bias = tile_bias(q_layout, k_layout, causal, q.dtype)
        q_layout, k_layout = q_layout.tiles, k_layout.tiles
    # (tokens, heads, d_head) -> (sequences, heads, max_length, d_head)
    q, k, v = pad(q, q_layout).transpose(1, 2), pad(k, k_layout).transpose(1, 2), pad(v, k_layout).transpose(1, 2)
    if group > 1:  # (sequences, kv_heads, ...) -> (sequences, num_heads, ...)
        k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
    scores = torch.matmul(q * (1.0 / math.sqrt(q.shape[-1])), k.transpose(-2, -1))
    if bias is not None:
        scores = scores + bias
    elif causal:
        # The causal mask also hides padding, which comes after every token of its sequence.
        scores = scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1), -math.inf)
    elif not k_layout.is_uniform:
        scores = scores.masked_fill(~k_layout.valid[:, None, None, :], -math.inf)
    output = torch.matmul(torch.softmax(scores, dim=-1), v)
    return unpad(output.transpose(1, 2), q_layout)
