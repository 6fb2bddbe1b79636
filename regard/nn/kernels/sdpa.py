"""torch's scaled_dot_product_attention on a padded grid: the kernel for any device."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from regard.layout import SequenceLayout
from regard.nn.kernels.grid import pad, tile_bias, unpad


def attention(
    q: Tensor, k: Tensor, v: Tensor, q_layout: SequenceLayout, k_layout: SequenceLayout, causal: bool
) -> Tensor:
    bias = None
    if q_layout.tile_sizes:
        bias = tile_bias(q_layout, k_layout, causal, q.dtype)
        q_layout, k_layout, causal = q_layout.tiles, k_layout.tiles, False
    # (tokens, heads, d_head) -> (sequences, heads, max_length, d_head)
    q, k, v = pad(q, q_layout).transpose(1, 2), pad(k, k_layout).transpose(1, 2), pad(v, k_layout).transpose(1, 2)
    # The causal mask also hides padding, which comes after every token of its sequence.
    mask = bias if bias is not None or causal or k_layout.is_uniform else k_layout.valid[:, None, None, :]
    output = F.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, is_causal=causal, enable_gqa=q.shape[1] != k.shape[1]
    )
    return unpad(output.transpose(1, 2), q_layout)
