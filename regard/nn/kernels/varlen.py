"""torch's varlen_attn: flash attention on packed sequences. CUDA, fp16 and bf16 only."""

from __future__ import annotations

import importlib.util
import inspect
from functools import cache
from typing import Any

import torch
from torch import Tensor

from regard.layout import Layout
from regard.nn.kernels.scores import paper_scale

TAKES = ("slots",)


@cache
def _causal_argument() -> dict[str, Any]:
    """The argument for causal attention: `is_causal` in torch 2.10, a window from 2.11 on."""
    from torch.nn.attention.varlen import varlen_attn

    known = inspect.signature(varlen_attn).parameters
    return {"window_size": (-1, 0)} if "window_size" in known else {"is_causal": True}


def available(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether varlen_attn can run here: CUDA, compute capability 8.0 or later, half precision."""
    if device.type != "cuda" or dtype not in (torch.float16, torch.bfloat16):
        return False
    if importlib.util.find_spec("torch.nn.attention.varlen") is None:
        return False
    return torch.cuda.get_device_capability(device)[0] >= 8


def offsets(layout: Layout) -> Tensor:
    """The first row of each sequence, then the number of rows."""
    if layout.offsets is None:
        raise ValueError("the varlen kernel needs the offsets of sequences, which this SlotLayout does not have")
    return layout.offsets


def attention(
    q: Tensor, k: Tensor, v: Tensor, q_layout: Layout, k_layout: Layout, causal: bool, scale: float
) -> Tensor:
    from torch.nn.attention.varlen import varlen_attn

    group = q.shape[1] // k.shape[1]
    if group > 1:  # (tokens, kv_heads, d_head) -> (tokens, num_heads, d_head)
        k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
    options = _causal_argument() if causal else {}
    if scale != paper_scale(q.shape[-1]):
        options = {**options, "scale": scale}
    output = varlen_attn(
        q.contiguous(),
        k.contiguous(),
        v.contiguous(),
        offsets(q_layout),
        offsets(k_layout),
        q_layout.max_length,
        k_layout.max_length,
        **options,
    )
    assert isinstance(output, Tensor)  # a pair only if the log-normalisers are requested
    return output
