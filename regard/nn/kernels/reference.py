"""Attention as the paper prints it (section 3.2.1), one sequence at a time: softmax(Q K^T / sqrt(d_k)) V, with d_k = d_head.

Slow and plain: every other kernel is tested against it, and only this one can return the weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from regard.layout import SequenceLayout

WeightsHook = Callable[[int, Tensor], None]  # called with a sequence's index and its weights (heads, q_len, k_len)


def scaled_dot_product(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> tuple[Tensor, Tensor]:
    """One sequence: q (heads, q_len, d_head), k and v (heads, k_len, d_head) -> output (heads, q_len, d_head) and weights
    (heads, q_len, k_len)."""
    # (heads, q_len, d_head) @ (heads, d_head, k_len) -> (heads, q_len, k_len)
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    if causal:
        future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(future, -math.inf)
    weights = torch.softmax(scores, dim=-1)
    return weights @ v, weights


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_layout: SequenceLayout,
    k_layout: SequenceLayout,
    causal: bool,
    hook: WeightsHook | None = None,
) -> Tensor:
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
        output, weights = scaled_dot_product(q_one, k_one, v_one, causal)
        if hook is not None:
            hook(number, weights)
        # (heads, length, d_head) -> (length, heads, d_head)
        outputs.append(output.transpose(0, 1))
    return torch.cat(outputs) if outputs else q
