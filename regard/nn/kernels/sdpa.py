"""torch's scaled_dot_product_attention on a padded grid: the kernel for any device. Slots are such a grid if all their sequences
have the same length."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from regard.layout import Layout, SequenceLayout
from regard.nn.kernels.grid import grid_bias, pad, unpad
from regard.nn.kernels.scores import PositionBias

TAKES = ("position bias", "dropout", "full slots")


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
    mask = None
    has_tiles = isinstance(q_layout, SequenceLayout) and bool(q_layout.tile_sizes)
    if has_tiles or bias is not None:
        mask = grid_bias(q_layout, k_layout, causal, q.dtype, bias)
        causal = False
    if has_tiles and isinstance(q_layout, SequenceLayout) and isinstance(k_layout, SequenceLayout):
        q_layout, k_layout = q_layout.tiles, k_layout.tiles
    # (tokens, heads, d_head) -> (sequences, heads, max_length, d_head)
    q, k, v = pad(q, q_layout).transpose(1, 2), pad(k, k_layout).transpose(1, 2), pad(v, k_layout).transpose(1, 2)
    if mask is None and not causal and isinstance(k_layout, SequenceLayout) and not k_layout.is_uniform:
        # The causal mask also hides padding, which comes after every token of its sequence.
        mask = k_layout.valid[:, None, None, :]
    output = F.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, dropout_p=dropout, is_causal=causal, scale=scale, enable_gqa=q.shape[1] != k.shape[1]
    )
    return unpad(output.transpose(1, 2), q_layout)
