"""Attention over packed sequences, behind one function. Each kernel is a file; each is tested against `reference`.

    reference   the formula, sequence by sequence; gives the weights
    sdpa        torch's kernel on a padded grid; any device
    matmul      batched products on a padded grid; CPUs that compute in bf16
    by_length   torch's kernel on sequences of equal length; independent of the batch to the last bit
    varlen      flash attention on the packed rows; CUDA in half precision
    dense       the formula with a mask over all rows; shapes that never change, any device
    triton      tiles of rows as they lie, several sentences in one; shapes that never change, CUDA with Triton

The first five take the lengths from a `SequenceLayout` and plan on the host; the last two work on a `SlotLayout`, too.
`choose` says which is the fastest where. `residual` and `triton_residual` are the other fused part of a layer.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from functools import cache
from typing import Literal

import torch
from torch import Tensor

from regard.layout import Layout, SequenceLayout, SlotLayout
from regard.nn.kernels import by_length, dense, matmul, reference, sdpa, varlen
from regard.nn.kernels.reference import WeightsHook

Kernel = Literal["auto", "reference", "sdpa", "matmul", "by_length", "varlen", "dense", "triton"]

_KERNELS = {
    "sdpa": sdpa.attention,
    "matmul": matmul.attention,
    "by_length": by_length.attention,
    "varlen": varlen.attention,
}


@cache
def has_triton() -> bool:
    """Whether Triton is installed; it has a GPU to work for only where `device` is one."""
    return importlib.util.find_spec("triton") is not None


@cache
def has_compiler() -> bool:
    """Whether there is the C compiler that Triton calls."""
    return bool(os.environ.get("CC") or any(map(shutil.which, ("cc", "gcc", "clang"))))


def on_triton(device: torch.device) -> bool:
    """Whether Triton's kernels can run there: on NVIDIA GPUs from Ampere on."""
    return device.type == "cuda" and has_triton() and has_compiler() and _is_new_enough(device)


@cache
def _is_new_enough(device: torch.device) -> bool:
    return torch.cuda.get_device_capability(device) >= (8, 0)


def choose(device: torch.device, dtype: torch.dtype, layout: Layout) -> Kernel:
    """The fastest kernel for tensors of this kind."""
    if isinstance(layout, SlotLayout):
        return "triton" if on_triton(device) else "dense"
    if varlen.available(device, dtype):
        return "varlen"
    return "matmul" if device.type == "cpu" and dtype == torch.bfloat16 else "sdpa"


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_layout: Layout,
    k_layout: Layout,
    causal: bool = False,
    kernel: Kernel = "auto",
    hook: WeightsHook | None = None,
) -> Tensor:
    """softmax(Q K^T / sqrt(d_head)) V within each sequence.

    q is (q_tokens, num_heads, d_head), k and v are (k_tokens, kv_heads, d_head); sequence n of q attends to sequence n
    of k, and with `causal` only to places up to its own. `hook` receives the weights; only the reference kernel has
    any.
    """
    kernel = _resolve(kernel, hook, q, q_layout)
    if kernel == "dense":
        return dense.attention(q, k, v, q_layout, k_layout, causal)
    if kernel == "triton":
        if q_layout is k_layout:
            return attend_self(torch.cat((q, k, v), dim=1), q_layout, k.shape[1], causal, kernel)
        if causal:
            raise ValueError("causal attention is over one sequence: both layouts must be the same object")
        return attend_cross(q, torch.cat((k, v), dim=1), q_layout, k_layout, kernel)
    if not (isinstance(q_layout, SequenceLayout) and isinstance(k_layout, SequenceLayout)):
        raise ValueError(f"the {kernel} kernel plans by lengths, which a SlotLayout has not: take dense or triton")
    if kernel == "reference":
        return reference.attention(q, k, v, q_layout, k_layout, causal, hook)
    return _KERNELS[kernel](q, k, v, q_layout, k_layout, causal)


def _resolve(kernel: Kernel, hook: WeightsHook | None, q: Tensor, layout: Layout) -> Kernel:
    """The kernel that "auto" means here. Only the reference kernel has weights to hand out."""
    if kernel == "auto":
        return "reference" if hook is not None else choose(q.device, q.dtype, layout)
    if hook is not None and kernel != "reference":
        raise ValueError(f"the {kernel} kernel never holds attention weights: record them with kernel='reference'")
    return kernel


def attend_self(
    qkv: Tensor,
    layout: Layout,
    kv_heads: int,
    causal: bool,
    kernel: Kernel = "auto",
    hook: WeightsHook | None = None,
) -> Tensor:
    """Self-attention on queries, keys and values as one projection gives them, (tokens, num_heads + 2 kv_heads, d_head):
    the Triton kernel reads and writes them where they lie."""
    num_heads = qkv.shape[1] - 2 * kv_heads
    kernel = _resolve(kernel, hook, qkv, layout)
    if kernel == "triton":
        from regard.nn.kernels.triton_attention import self_attention_op

        merged: Tensor = self_attention_op(
            qkv.flatten(1), layout.sequence_ids, layout.groups, num_heads, kv_heads, causal
        )[0]
        return merged.view(qkv.shape[0], num_heads, qkv.shape[2])
    q, k, v = qkv.split((num_heads, kv_heads, kv_heads), dim=1)
    return attention(q, k, v, layout, layout, causal, kernel, hook)


def attend_cross(
    q: Tensor,
    kv: Tensor,
    q_layout: Layout,
    k_layout: Layout,
    kernel: Kernel = "auto",
    hook: WeightsHook | None = None,
) -> Tensor:
    """Cross-attention with keys and values side by side, (k_tokens, 2 kv_heads, d_head)."""
    kernel = _resolve(kernel, hook, q, q_layout)
    if kernel == "triton":
        from regard.nn.kernels.triton_attention import cross_attention_op

        merged: Tensor = cross_attention_op(
            q.flatten(1), kv.flatten(1), q_layout.sequence_ids, k_layout.sequence_ids, q_layout.groups,
            k_layout.groups, q.shape[1], kv.shape[1] // 2,
        )[0]  # fmt: skip
        return merged.view(q.shape)
    k, v = kv.chunk(2, dim=1)
    return attention(q, k, v, q_layout, k_layout, False, kernel, hook)
