"""Attention over packed sequences, behind one function. Each kernel is a file; each is tested against `reference`.

    reference   the formula, sequence by sequence; gives the weights
    sdpa        torch's kernel on a padded grid; any device
    matmul      batched products on a padded grid; CPUs that compute in bf16
    by_length   torch's kernel on sequences of equal length; independent of the batch to the last bit
    varlen      flash attention on the packed rows; CUDA in half precision

`choose` says which is the fastest where.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from regard.layout import SequenceLayout
from regard.nn.kernels import by_length, matmul, reference, sdpa, varlen
from regard.nn.kernels.reference import WeightsHook

Kernel = Literal["auto", "reference", "sdpa", "matmul", "by_length", "varlen"]

_KERNELS = {
    "sdpa": sdpa.attention,
    "matmul": matmul.attention,
    "by_length": by_length.attention,
    "varlen": varlen.attention,
}


def choose(device: torch.device, dtype: torch.dtype) -> Kernel:
    """The fastest kernel for tensors of this kind."""
    if varlen.available(device, dtype):
        return "varlen"
    return "matmul" if device.type == "cpu" and dtype == torch.bfloat16 else "sdpa"


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_layout: SequenceLayout,
    k_layout: SequenceLayout,
    causal: bool = False,
    kernel: Kernel = "auto",
    hook: WeightsHook | None = None,
) -> Tensor:
    """softmax(Q K^T / sqrt(d_head)) V within each sequence.

    q is (q_tokens, num_heads, d_head), k and v are (k_tokens, kv_heads, d_head); sequence n of q attends to sequence n
    of k, and with `causal` only to places up to its own. `hook` receives the weights; only the reference kernel has
    any.
    """
    if hook is not None:
        if kernel not in ("auto", "reference"):
            raise ValueError(f"the {kernel} kernel never holds attention weights: record them with kernel='reference'")
        return reference.attention(q, k, v, q_layout, k_layout, causal, hook)
    if kernel == "auto":
        kernel = choose(q.device, q.dtype)
    if kernel == "reference":
        return reference.attention(q, k, v, q_layout, k_layout, causal)
    return _KERNELS[kernel](q, k, v, q_layout, k_layout, causal)
