"""The first half of a feed-forward network: an activation of x W^T + b, with a backward pass that multiplies by the slope and sums
for the bias in one read (Triton). The plain version is `activate(linear(x, W, b))`.

ReLU is in the epilogue of the matrix product, and its slope follows from its value. GELU is a kernel of its own, and keeps
x W^T + b for the backward pass.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from regard.nn.kernels.triton_residual import processors

BLOCK, ROWS, STAGES = (
    1024,
    2,
    3,
)  # columns and rows of one tile, and tiles that the backward pass loads ahead; measured on an H200
FLAT_BLOCK = 4096  # elements of one program of GELU's forward pass
PROGRAMS_PER_PROCESSOR = 4

INVERSE_SQRT_2 = tl.constexpr(0.7071067811865476)
INVERSE_SQRT_2_PI = tl.constexpr(0.3989422804014327)
LOG2_E = tl.constexpr(1.4426950408889634)
TWICE_SQRT_2_BY_PI = tl.constexpr(1.5957691216057308)
CUBIC = tl.constexpr(0.044715)


@triton.jit
def _below(z, ACTIVATION: tl.constexpr):
    """The normal distribution's share below z, or what tanh makes of it: (1 + tanh(u)) / 2 = 1 / (1 + e^(-2u))."""
    if ACTIVATION == "gelu":
        share = 0.5 + 0.5 * tl.erf(z * INVERSE_SQRT_2)
    else:
        exponent = z * (z * z * CUBIC + 1.0) * -TWICE_SQRT_2_BY_PI * LOG2_E
        share = 1.0 / (1.0 + tl.exp2(tl.minimum(exponent, 126.0)))  # beyond that float32 has no number
    return share


@triton.jit
def _slope(z, ACTIVATION: tl.constexpr):
    """The derivative of GELU at z."""
    share = _below(z, ACTIVATION)
    if ACTIVATION == "gelu":
        change = tl.exp2(z * z * -0.5 * LOG2_E) * INVERSE_SQRT_2_PI
    else:
        change = share * (1.0 - share) * (z * z * 3.0 * CUBIC + 1.0) * TWICE_SQRT_2_BY_PI
    return share + z * change


@triton.jit
def _gelu_kernel(inner, hidden, size, BLOCK: tl.constexpr, ACTIVATION: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    z = tl.load(inner + at, mask=at < size, other=0.0).to(tl.float32)
    tl.store(hidden + at, (z * _below(z, ACTIVATION)).to(hidden.dtype.element_ty), mask=at < size)


@triton.jit
def _activation_backward_kernel(
    gradient, kept, d_inner, partial, num_rows, num_columns,
    BLOCK: tl.constexpr, ROWS: tl.constexpr, ACTIVATION: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    columns = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((ROWS, BLOCK), tl.float32)
    for tile in tl.range(tl.program_id(1), tl.cdiv(num_rows, ROWS), tl.num_programs(1), num_stages=STAGES):
        rows = tile * ROWS + tl.arange(0, ROWS)
        inside = (rows[:, None] < num_rows) & (columns[None, :] < num_columns)
        at = rows[:, None].to(tl.int64) * num_columns + columns[None, :]
        passed = tl.load(gradient + at, mask=inside, other=0.0)
        saved = tl.load(kept + at, mask=inside, other=0.0)
        if ACTIVATION == "relu":
            passed = tl.where(saved > 0.0, passed, 0.0)
        else:
            passed = (passed.to(tl.float32) * _slope(saved.to(tl.float32), ACTIVATION)).to(d_inner.dtype.element_ty)
        tl.store(d_inner + at, passed, mask=inside)
        total += passed.to(tl.float32)
    tl.store(partial + tl.program_id(1) * num_columns + columns, tl.sum(total, 0), mask=columns < num_columns)


@torch.library.custom_op("regard::linear_activation", mutates_args=())
def linear_activation_op(x: Tensor, weight: Tensor, bias: Tensor, activation: str) -> tuple[Tensor, Tensor]:
    """(rows, d_in) -> (rows, d_out), and what the backward pass needs besides: x W^T + b, or nothing for ReLU."""
    if activation == "relu":
        return torch._addmm_activation(bias, x, weight.t(), use_gelu=False), x.new_empty(0)
    inner = torch.addmm(bias, x, weight.t())
    hidden = torch.empty_like(inner)
    if inner.numel():
        _gelu_kernel[(triton.cdiv(inner.numel(), FLAT_BLOCK),)](
            inner, hidden, inner.numel(), BLOCK=FLAT_BLOCK, ACTIVATION=activation, num_warps=4
        )
    return hidden, inner


@linear_activation_op.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor, activation: str) -> tuple[Tensor, Tensor]:
    hidden = x.new_empty((x.shape[0], weight.shape[0]))
    return hidden, x.new_empty(0) if activation == "relu" else torch.empty_like(hidden)


def _programs(rows: int, columns: int, device: torch.device) -> tuple[int, int]:
    blocks = triton.cdiv(columns, BLOCK)
    return blocks, min(triton.cdiv(rows, ROWS), max(1, PROGRAMS_PER_PROCESSOR * processors(device) // blocks))


@torch.library.custom_op("regard::activation_backward", mutates_args=())
def activation_backward_op(gradient: Tensor, kept: Tensor, activation: str) -> tuple[Tensor, Tensor]:
    """The gradient times the slope, and one partial sum over rows per program, (programs, columns). `kept` is the value of ReLU, or
    what entered GELU."""
    gradient = gradient.contiguous()
    rows, columns = kept.shape
    blocks, groups = _programs(rows, columns, kept.device)
    d_inner = torch.empty_like(kept)
    partial = torch.empty((groups, columns), dtype=torch.float32, device=kept.device)
    _activation_backward_kernel[(blocks, groups)](
        gradient,
        kept,
        d_inner,
        partial,
        rows,
        columns,
        BLOCK=BLOCK,
        ROWS=ROWS,
        ACTIVATION=activation,
        STAGES=STAGES,
        num_warps=4,
    )
    return d_inner, partial


@activation_backward_op.register_fake
def _(gradient: Tensor, kept: Tensor, activation: str) -> tuple[Tensor, Tensor]:
    rows, columns = kept.shape
    groups = _programs(rows, columns, kept.device)[1]
    return torch.empty_like(kept), kept.new_empty((groups, columns), dtype=torch.float32)


def _save(ctx: Any, inputs: Any, output: Any) -> None:
    x, weight, bias, ctx.activation = inputs
    hidden, inner = output
    ctx.bias_dtype = bias.dtype
    ctx.save_for_backward(x, weight, hidden if ctx.activation == "relu" else inner)


def _differentiate(ctx: Any, gradient: Tensor, _: Any) -> Any:
    x, weight, kept = ctx.saved_tensors
    d_inner, partial = activation_backward_op(gradient, kept, ctx.activation)
    return d_inner @ weight, d_inner.t() @ x, partial.sum(dim=0).to(ctx.bias_dtype), None


linear_activation_op.register_autograd(_differentiate, setup_context=_save)


def linear_activation(x: Tensor, weight: Tensor, bias: Tensor, activation: str) -> Tensor:
    """activation(x W^T + b), (rows, d_in) -> (rows, d_out), for relu, gelu and gelu_tanh."""
    hidden: Tensor = linear_activation_op(x, weight, bias, activation)[0]
    return hidden
