"""torch's varlen_attn: flash attention on packed sequences. CUDA, fp16 and bf16 only."""

from __future__ import annotations

import importlib.util
import inspect
from functools import cache
from typing import Any

import torch
from torch import Tensor

from regard.layout import SequenceLayout


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


def attention(
    q: Tensor, k: Tensor, v: Tensor, q_layout: SequenceLayout, k_layout: SequenceLayout, causal: bool
) -> Tensor:
    from torch.nn.attention.varlen import varlen_attn

    group = q.shape[1] // k.shape[1]
    if group > 1:  # (tokens, kv_heads, d_head) -> (tokens, num_heads, d_head)
        k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
    output = varlen_attn(
        q.contiguous(),
        k.contiguous(),
        v.contiguous(),
        q_layout.offsets,
        k_layout.offsets,
        q_layout.max_length,
        k_layout.max_length,
        **(_causal_argument() if causal else {}),
    )
    assert isinstance(output, Tensor)  # a pair only if the log-normalisers are requested
    return output
