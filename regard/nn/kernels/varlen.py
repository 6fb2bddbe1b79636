"""torch's varlen_attn: flash attention on packed sequences. CUDA, fp16 and bf16 only."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from regard.layout import Layout
from regard.nn.kernels.scores import paper_scale

TAKES = ("slots",)
HALF = (torch.float16, torch.bfloat16)
# What varlen_attn calls its arguments, by version: importing it to look takes a second, and compiled code could not.
_CAUSAL: dict[str, Any] = {"window_size": (-1, 0)} if torch.__version__ >= "2.11" else {"is_causal": True}
_GROUPED = torch.__version__ >= "2.13"  # whether it takes fewer key/value heads than query heads


def available(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether varlen_attn can run here: CUDA, compute capability 8.0 or later, half precision."""
    return device.type == "cuda" and dtype in HALF and torch.cuda.get_device_capability(device)[0] >= 8


def attention(
    q: Tensor, k: Tensor, v: Tensor, q_layout: Layout, k_layout: Layout, causal: bool, scale: float
) -> Tensor:
    from torch.nn.attention.varlen import varlen_attn

    options: dict[str, Any] = {**_CAUSAL} if causal else {}
    if scale != paper_scale(q.shape[-1]):
        options["scale"] = scale
    if (group := q.shape[1] // k.shape[1]) > 1 and _GROUPED:
        options["enable_gqa"] = True
    elif group > 1:  # (tokens, kv_heads, d_head) -> (tokens, num_heads, d_head)
        k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
    output = varlen_attn(
        q.contiguous(),
        k.contiguous(),
        v.contiguous(),
        _offsets(q_layout),
        _offsets(k_layout),
        q_layout.max_length,
        k_layout.max_length,
        **options,
    )
    assert isinstance(output, Tensor)  # a pair only if the log-normalisers are requested
    return output


def _offsets(layout: Layout) -> Tensor:
    """The first row of each sequence, then the number of rows."""
    if layout.offsets is None:
        raise ValueError("the varlen kernel needs the offsets of sequences, which this SlotLayout does not have")
    return layout.offsets
