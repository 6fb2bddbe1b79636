"""Attention at each sequence's own length: sequences of equal length go through torch's kernel together, without mask or
padding. A sequence's result does not depend on the rest of the batch, to the last bit; decoding relies on that."""

from __future__ import annotations

from collections import defaultdict

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.layout import SequenceLayout
from regard.nn.kernels.grid import HIDDEN
from regard.nn.kernels.scores import PositionBias

TAKES = ("position bias",)


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_layout: SequenceLayout,
    k_layout: SequenceLayout,
    causal: bool,
    scale: float,
    bias: PositionBias | None = None,
) -> Tensor:
    by_length: dict[tuple[int, int], list[int]] = defaultdict(list)
    for number, lengths in enumerate(zip(q_layout.lengths, k_layout.lengths, strict=True)):
        by_length[lengths].append(number)
    output = torch.empty_like(q)
    for (q_length, k_length), numbers in by_length.items():
        # Torch splits a single head of a single sequence among its threads, which changes the last bits: compute it twice.
        count = len(numbers)
        index = torch.tensor(numbers * 2 if count * q.shape[1] == 1 else numbers, device=q.device)
        # (sequences of this length, length): their packed rows
        q_rows = q_layout.offsets[index].long()[:, None] + torch.arange(q_length, device=q.device)
        k_rows = k_layout.offsets[index].long()[:, None] + torch.arange(k_length, device=q.device)
        # (sequences, length, heads, d_head) -> (sequences, heads, length, d_head)
        result = F.scaled_dot_product_attention(
            q[q_rows].transpose(1, 2),
            k[k_rows].transpose(1, 2),
            v[k_rows].transpose(1, 2),
            attn_mask=None if bias is None else _mask(bias, q_length, k_length, causal, q),
            is_causal=causal and bias is None,
            scale=scale,
            enable_gqa=q.shape[1] != k.shape[1],
        )
        output = output.index_put((q_rows[:count],), result[:count].transpose(1, 2))
    return output


def _mask(bias: PositionBias, q_length: int, k_length: int, causal: bool, q: Tensor) -> Tensor:
    """The bias on the scores of sequences of this length, (num_heads, q_length, k_length), future positions hidden if `causal`."""
    q_places, k_places = (torch.arange(length, device=q.device) for length in (q_length, k_length))
    added = bias(q_places, k_places).to(q.dtype)
    return added.masked_fill(q_places[:, None] < k_places, HIDDEN) if causal else added
