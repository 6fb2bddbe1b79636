"""Attention over packed sequences, behind one function. Each kernel is a file, tested against `reference`.

    reference   the paper's formula, one sequence at a time; takes everything, and alone returns weights
    sdpa        torch's kernel on a padded grid; any device
    matmul      batched matrix products on a padded grid; CPUs that compute in bf16
    by_length   torch's kernel on sequences of equal length; results do not depend on the batch, to the last bit
    varlen      flash attention on the packed rows; CUDA in half precision
    dense       the formula over all rows with a mask; fixed shapes, any device
    triton      tiles of packed rows, several sequences in one; fixed shapes, CUDA with Triton

All take a scale of the scores. What else a kernel takes is in its `TAKES`: a bias on the scores (`scores.py`), a mask, dropout of
weights, a hook for the weights, slots (a `SlotLayout`, which has no lengths that the host knows), or at least full slots (all
lengths are the same). `choose` picks the fastest that takes what is asked for; a kernel that was named is refused where it
cannot do it. `residual` and `triton_residual` are the other fused part of a layer.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Collection
from functools import cache
from typing import Any, Literal

import torch
from torch import Tensor

from regard.layout import Layout, SequenceLayout, SlotLayout
from regard.nn.kernels import by_length, dense, matmul, reference, sdpa, varlen
from regard.nn.kernels.reference import WeightsHook
from regard.nn.kernels.scores import Bias, Mask, name_of, paper_scale

Kernel = Literal["auto", "reference", "sdpa", "matmul", "by_length", "varlen", "dense", "triton"]

_LACKS = {
    "position bias": "takes no bias on the scores",
    "pair bias": "takes no bias of pairs on the scores",
    "mask": "takes no mask",
    "dropout": "has no dropout of weights",
    "weights": "cannot record attention weights",
    "slots": "needs lengths, which a SlotLayout does not have",
    "full slots": "needs lengths, which a SlotLayout does not have",
}
_ON_A_GRID = ("sdpa", "matmul")  # they pad
LONG = 1024  # rows from which on a sequence takes a kernel for long ones
_KERNELS: dict[Kernel, Any] = {
    "sdpa": sdpa, "matmul": matmul, "by_length": by_length, "varlen": varlen, "dense": dense, "reference": reference,
}  # fmt: skip
_TAKES: dict[Kernel, tuple[str, ...]] = {
    name: (*takes, "full slots") if "slots" in takes else takes
    for name, takes in [*((name, module.TAKES) for name, module in _KERNELS.items()), ("triton", ("slots",))]
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


def choose(device: torch.device, dtype: torch.dtype, layout: Layout, asked: Collection[str] = ()) -> Kernel:
    """The fastest kernel for this device, type and layout that takes what is asked for."""
    able = (kernel for kernel in _by_speed(device, dtype, layout) if not set(asked) - set(_TAKES[kernel]))
    found = next(able, None)
    if found is None:
        raise ValueError(f"no attention kernel for this layout takes {' and '.join(asked)}")
    return found


def _by_speed(device: torch.device, dtype: torch.dtype, layout: Layout) -> list[Kernel]:
    """The kernels that can run here, the fastest first."""
    is_long, has_varlen = _is_long(layout), varlen.available(device, dtype)
    first: list[Kernel] = []
    if isinstance(layout, SlotLayout):
        if is_long and layout.is_uniform:
            first.append("sdpa")
        if is_long and has_varlen:
            first.append("varlen")
        if on_triton(device):
            first.append("triton")
        return [*first, "dense"]
    if has_varlen:
        first.append("varlen")
    # torch's own kernel has tiles for long sequences, on a CPU, too.
    if device.type == "cpu" and dtype == torch.bfloat16 and not is_long:
        first.append("matmul")
    return [*first, "sdpa", "reference"]


def _is_long(layout: Layout) -> bool:
    """Whether a kernel for long sequences suits the layout, and can have it: it needs to know where each sequence begins."""
    return layout.max_length >= LONG and layout.offsets is not None


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_layout: Layout,
    k_layout: Layout,
    causal: bool = False,
    kernel: Kernel = "auto",
    hook: WeightsHook | None = None,
    scale: float | None = None,
    bias: Bias | None = None,
    mask: Mask | None = None,
    dropout: float = 0.0,
) -> Tensor:
    """softmax(scale Q K^T + bias) V within each sequence; without a scale it is the paper's, 1 / sqrt(d_head).

    q is (q_tokens, num_heads, d_head), k and v are (k_tokens, kv_heads, d_head), and the result is shaped like q. Sequence n
    of q attends to sequence n of k; with `causal`, each position only to positions up to its own; with a mask, only to those
    that it shows. `dropout` drops weights with this probability. `hook` receives the weights.
    """
    scale = paper_scale(q.shape[-1]) if scale is None else scale
    kernel = _resolve(kernel, q, q_layout, bias, mask, dropout, hook)
    if kernel == "triton":
        if q_layout is k_layout:
            return attend_self(torch.cat((q, k, v), dim=1), q_layout, k.shape[1], causal, kernel, scale=scale)
        if causal:
            raise ValueError("q_layout and k_layout must be the same object for causal attention, but are two")
        return attend_cross(q, torch.cat((k, v), dim=1), q_layout, k_layout, kernel, scale=scale)
    asked = {"bias": bias, "mask": mask, "dropout": dropout or None, "hook": hook}
    given = {name: value for name, value in asked.items() if value is not None}
    attend = _KERNELS[kernel].attention
    if kernel in _ON_A_GRID and q_layout is k_layout and isinstance(q_layout, SequenceLayout) and q_layout.parts:
        each = [attend(q[rows], k[rows], v[rows], part, part, causal, scale, **given) for rows, part in q_layout.parts]
        return torch.cat(each)
    output: Tensor = attend(q, k, v, q_layout, k_layout, causal, scale, **given)
    return output


def _resolve(
    kernel: Kernel,
    q: Tensor,
    layout: Layout,
    bias: Bias | None,
    mask: Mask | None,
    dropout: float,
    hook: WeightsHook | None,
) -> Kernel:
    """The kernel that "auto" stands for; a kernel that was named must take what is asked for."""
    has_slots = isinstance(layout, SlotLayout)
    wanted = {"mask": mask is not None, "dropout": dropout > 0.0, "weights": hook is not None,
              "slots": has_slots and not layout.is_uniform, "full slots": has_slots and layout.is_uniform}  # fmt: skip
    asked = [*([name_of(bias)] if bias is not None else []), *(name for name, is_asked in wanted.items() if is_asked)]
    if kernel == "auto":
        return choose(q.device, q.dtype, layout, asked)
    if missing := [name for name in asked if name not in _TAKES[kernel]]:
        able = " or ".join(name for name, takes in _TAKES.items() if not set(asked) - set(takes)) or "another layout"
        raise ValueError(f"the {kernel} kernel {_LACKS[missing[0]]}; use kernel = {able}")
    return kernel


def attend_self(
    qkv: Tensor,
    layout: Layout,
    kv_heads: int,
    causal: bool,
    kernel: Kernel = "auto",
    hook: WeightsHook | None = None,
    scale: float | None = None,
    bias: Bias | None = None,
    dropout: float = 0.0,
) -> Tensor:
    """Self-attention on queries, keys and values side by side, (tokens, num_heads + 2 kv_heads, d_head), as one projection makes
    them: the Triton kernel reads them in place. Returns (tokens, num_heads, d_head)."""
    num_heads = qkv.shape[1] - 2 * kv_heads
    scale = paper_scale(qkv.shape[2]) if scale is None else scale
    kernel = _resolve(kernel, qkv, layout, bias, None, dropout, hook)
    if kernel == "triton":
        from regard.nn.kernels.triton_attention import self_attention_op

        merged: Tensor = self_attention_op(
            qkv.flatten(1), layout.sequence_ids, layout.groups, num_heads, kv_heads, causal, scale
        )[0]
        # (tokens, num_heads * d_head) -> (tokens, num_heads, d_head)
        return merged.view(qkv.shape[0], num_heads, qkv.shape[2])
    q, k, v = qkv.split((num_heads, kv_heads, kv_heads), dim=1)
    return attention(q, k, v, layout, layout, causal, kernel, hook, scale, bias, None, dropout)


def attend_cross(
    q: Tensor,
    kv: Tensor,
    q_layout: Layout,
    k_layout: Layout,
    kernel: Kernel = "auto",
    hook: WeightsHook | None = None,
    scale: float | None = None,
    dropout: float = 0.0,
) -> Tensor:
    """Cross-attention of q (q_tokens, num_heads, d_head) with keys and values side by side, (k_tokens, 2 kv_heads, d_head);
    returns the shape of q."""
    scale = paper_scale(q.shape[2]) if scale is None else scale
    kernel = _resolve(kernel, q, q_layout, None, None, dropout, hook)
    if kernel == "triton":
        from regard.nn.kernels.triton_attention import cross_attention_op

        merged: Tensor = cross_attention_op(
            q.flatten(1), kv.flatten(1), q_layout.sequence_ids, k_layout.sequence_ids, q_layout.groups,
            k_layout.groups, q.shape[1], kv.shape[1] // 2, scale,
        )[0]  # fmt: skip
        # (q_tokens, num_heads * d_head) -> (q_tokens, num_heads, d_head)
        return merged.view(q.shape)
    k, v = kv.chunk(2, dim=1)
    return attention(q, k, v, q_layout, k_layout, False, kernel, hook, scale, dropout=dropout)
