"""Attention as the paper prints it (section 3.2.1), one sequence at a time: softmax(Q K^T / sqrt(d_k)) V, with d_k = d_head.

Slow and plain: it takes everything that attention may be asked for, every other kernel is tested against it, and only this one
can return the weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from regard.layout import SequenceLayout
from regard.nn.dropout import dropout as drop
from regard.nn.kernels.scores import Bias, Mask, PairBias

TAKES = ("position bias", "pair bias", "mask", "dropout", "weights")
WeightsHook = Callable[[int, Tensor], None]  # called with a sequence's index and its weights (heads, q_len, k_len)


def scaled_dot_product(
    q: Tensor, k: Tensor, v: Tensor, visible: Tensor | None, scale: float, bias: Tensor | None, dropout: float
) -> tuple[Tensor, Tensor]:
    """One sequence: q (heads, q_len, d_head), k and v (heads, k_len, d_head) -> output (heads, q_len, d_head) and weights
    (heads, q_len, k_len). `visible` is (q_len, k_len), `bias` (heads, q_len, k_len)."""
    # (heads, q_len, d_head) @ (heads, d_head, k_len) -> (heads, q_len, k_len)
    scores = q @ k.transpose(-2, -1) * scale
    if bias is not None:
        scores = scores + bias.to(scores.dtype)
    if visible is not None:
        scores = scores.masked_fill(~visible, -math.inf)
    weights = torch.softmax(scores, dim=-1)
    if visible is not None:
        weights = weights.masked_fill(~visible, 0.0)  # a query that sees nothing has no softmax
    return drop(weights, dropout, training=True) @ v, weights


def attention(
    q: Tensor, k: Tensor, v: Tensor, q_layout: SequenceLayout, k_layout: SequenceLayout, causal: bool, scale: float,
    bias: Bias | None = None, mask: Mask | None = None, dropout: float = 0.0, hook: WeightsHook | None = None,
) -> Tensor:  # fmt: skip
    """q (q_tokens, num_heads, d_head), k and v (k_tokens, kv_heads, d_head) -> (q_tokens, num_heads, d_head)."""
    group = q.shape[1] // k.shape[1]
    outputs = []
    q_lengths, k_lengths = list(q_layout.lengths), list(k_layout.lengths)
    sequences = zip(torch.split(q, q_lengths), torch.split(k, k_lengths), torch.split(v, k_lengths), strict=True)
    for number, (q_one, k_one, v_one) in enumerate(sequences):
        # (length, heads, d_head) -> (heads, length, d_head), each key/value head repeated for its group of query heads
        q_one = q_one.transpose(0, 1)
        k_one = k_one.transpose(0, 1).repeat_interleave(group, dim=0)
        v_one = v_one.transpose(0, 1).repeat_interleave(group, dim=0)
        q_places, k_places = (torch.arange(one.shape[1], device=q.device) for one in (q_one, k_one))
        visible = q_places[:, None] >= k_places if causal else None
        if mask is not None:
            visible = mask.visible[number] if visible is None else visible & mask.visible[number]
        added = None
        if bias is not None:
            added = bias.matrices[number] if isinstance(bias, PairBias) else bias(q_places, k_places)
        output, weights = scaled_dot_product(q_one, k_one, v_one, visible, scale, added, dropout)
        if hook is not None:
            hook(number, weights)
        # (heads, length, d_head) -> (length, heads, d_head)
        outputs.append(output.transpose(0, 1))
    return torch.cat(outputs) if outputs else q
