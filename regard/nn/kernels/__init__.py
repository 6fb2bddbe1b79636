"""Attention over packed sequences, behind one function. Each kernel is a file, tested against `reference`.

    reference   the paper's formula, one sequence at a time; the only one that returns weights
    sdpa        torch's kernel on a padded grid; any device
    matmul      batched matrix products on a padded grid; CPUs that compute in bf16
    by_length   torch's kernel on sequences of equal length; results do not depend on the batch, to the last bit
    varlen      flash attention on the packed rows; CUDA in half precision
    dense       the formula over all rows with a mask; fixed shapes, any device
    triton      tiles of packed rows, several sequences in one; fixed shapes, CUDA with Triton

The first five plan by the lengths of a `SequenceLayout`; the last two also take a `SlotLayout`. `choose` picks the fastest.
`residual` and `triton_residual` are the other fused part of a layer.
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
    """Whether Triton is installed, with or without a GPU to run it on."""
    return importlib.util.find_spec("triton") is not None


@cache
def has_compiler() -> bool:
    """Whether there is a C compiler, which Triton needs."""
    return bool(os.environ.get("CC") or any(map(shutil.which, ("cc", "gcc", "clang"))))


def on_triton(device: torch.device) -> bool:
    """Whether Triton's kernels can run on this device: NVIDIA GPUs, Ampere or later."""
    return device.type == "cuda" and has_triton() and has_compiler() and _is_new_enough(device)


@cache
def _is_new_enough(device: torch.device) -> bool:
    return torch.cuda.get_device_capability(device) >= (8, 0)


def choose(device: torch.device, dtype: torch.dtype, layout: Layout) -> Kernel:
    """The fastest kernel for this device, type and kind of layout."""
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

    q is (q_tokens, num_heads, d_head), k and v are (k_tokens, kv_heads, d_head), and the result is shaped like q. Sequence n
    of q attends to sequence n of k; with `causal`, each position only to positions up to its own. `hook` receives the
    weights, which only the reference kernel can provide.
    """
    kernel = _resolve(kernel, hook, q, q_layout)
    if kernel == "dense":
        return dense.attention(q, k, v, q_layout, k_layout, causal)
    if kernel == "triton":
        if q_layout is k_layout:
            return attend_self(torch.cat((q, k, v), dim=1), q_layout, k.shape[1], causal, kernel)
        if causal:
            raise ValueError("q_layout and k_layout must be the same object for causal attention, but are two")
        return attend_cross(q, torch.cat((k, v), dim=1), q_layout, k_layout, kernel)
    if not (isinstance(q_layout, SequenceLayout) and isinstance(k_layout, SequenceLayout)):
        raise ValueError(f"the {kernel} kernel needs lengths, which a SlotLayout does not have; use dense or triton")
    if kernel == "reference":
        return reference.attention(q, k, v, q_layout, k_layout, causal, hook)
    return _KERNELS[kernel](q, k, v, q_layout, k_layout, causal)


def _resolve(kernel: Kernel, hook: WeightsHook | None, q: Tensor, layout: Layout) -> Kernel:
    """The kernel that "auto" stands for; a hook needs the reference kernel."""
    if kernel == "auto":
        return "reference" if hook is not None else choose(q.device, q.dtype, layout)
    if hook is not None and kernel != "reference":
        raise ValueError(f"the {kernel} kernel cannot record attention weights; use kernel='reference'")
    return kernel


def attend_self(
    qkv: Tensor,
    layout: Layout,
    kv_heads: int,
    causal: bool,
    kernel: Kernel = "auto",
    hook: WeightsHook | None = None,
) -> Tensor:
    """Self-attention on queries, keys and values side by side, (tokens, num_heads + 2 kv_heads, d_head), as one projection makes
    them: the Triton kernel reads them in place. Returns (tokens, num_heads, d_head)."""
    num_heads = qkv.shape[1] - 2 * kv_heads
    kernel = _resolve(kernel, hook, qkv, layout)
    if kernel == "triton":
        from regard.nn.kernels.triton_attention import self_attention_op

        merged: Tensor = self_attention_op(
            qkv.flatten(1), layout.sequence_ids, layout.groups, num_heads, kv_heads, causal
        )[0]
        # (tokens, num_heads * d_head) -> (tokens, num_heads, d_head)
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
    """Cross-attention of q (q_tokens, num_heads, d_head) with keys and values side by side, (k_tokens, 2 kv_heads, d_head);
    returns the shape of q."""
    kernel = _resolve(kernel, hook, q, q_layout)
    if kernel == "triton":
        from regard.nn.kernels.triton_attention import cross_attention_op

        merged: Tensor = cross_attention_op(
            q.flatten(1), kv.flatten(1), q_layout.sequence_ids, k_layout.sequence_ids, q_layout.groups,
            k_layout.groups, q.shape[1], kv.shape[1] // 2,
        )[0]  # fmt: skip
        # (q_tokens, num_heads * d_head) -> (q_tokens, num_heads, d_head)
        return merged.view(q.shape)
    k, v = kv.chunk(2, dim=1)
    return attention(q, k, v, q_layout, k_layout, False, kernel, hook)
