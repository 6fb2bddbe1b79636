"""relu(x W^T + b), with bias and ReLU in the epilogue of the matrix product, and a backward pass that masks the gradient and
sums it for the bias in one read (Triton). The plain version is `relu(linear(x, W, b))`."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from regard.nn.kernels.triton_residual import processors

BLOCK, ROWS = 512, 8  # columns and rows of one tile
PROGRAMS_PER_PROCESSOR = 4


@triton.jit
def _relu_backward_kernel(
    gradient, hidden, d_hidden, partial, num_rows, num_columns, BLOCK: tl.constexpr, ROWS: tl.constexpr
):
    columns = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((ROWS, BLOCK), tl.float32)
    for tile in range(tl.program_id(1), tl.cdiv(num_rows, ROWS), tl.num_programs(1)):
        rows = tile * ROWS + tl.arange(0, ROWS)
        inside = (rows[:, None] < num_rows) & (columns[None, :] < num_columns)
        at = rows[:, None].to(tl.int64) * num_columns + columns[None, :]
        passed = tl.load(gradient + at, mask=inside, other=0.0)
        passed = tl.where(tl.load(hidden + at, mask=inside, other=0.0) > 0.0, passed, 0.0)
        tl.store(d_hidden + at, passed, mask=inside)
        total += passed.to(tl.float32)
    tl.store(partial + tl.program_id(1) * num_columns + columns, tl.sum(total, 0), mask=columns < num_columns)


@torch.library.custom_op("regard::linear_relu", mutates_args=())
def linear_relu_op(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """(rows, d_in) -> (rows, d_out)."""
    return torch._addmm_activation(bias, x, weight.t(), use_gelu=False)


@linear_relu_op.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return x.new_empty((x.shape[0], weight.shape[0]))


def _programs(rows: int, columns: int, device: torch.device) -> tuple[int, int]:
    blocks = triton.cdiv(columns, BLOCK)
    return blocks, min(triton.cdiv(rows, ROWS), max(1, PROGRAMS_PER_PROCESSOR * processors(device) // blocks))


@torch.library.custom_op("regard::relu_backward", mutates_args=())
def relu_backward_op(gradient: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
    """The gradient where the hidden value is above zero, and one partial sum over rows per program, (programs, columns)."""
    gradient = gradient.contiguous()
    rows, columns = hidden.shape
    blocks, groups = _programs(rows, columns, hidden.device)
    d_hidden = torch.empty_like(hidden)
    partial = torch.empty((groups, columns), dtype=torch.float32, device=hidden.device)
    _relu_backward_kernel[(blocks, groups)](
        gradient, hidden, d_hidden, partial, rows, columns, BLOCK=BLOCK, ROWS=ROWS, num_warps=4
    )
    return d_hidden, partial


@relu_backward_op.register_fake
def _(gradient: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
    rows, columns = hidden.shape
    groups = _programs(rows, columns, hidden.device)[1]
    return torch.empty_like(hidden), hidden.new_empty((groups, columns), dtype=torch.float32)


def _save(ctx: Any, inputs: Any, output: Any) -> None:
    x, weight, bias = inputs
    ctx.bias_dtype = bias.dtype
    ctx.save_for_backward(x, weight, output)


def _differentiate(ctx: Any, gradient: Tensor) -> Any:
    x, weight, hidden = ctx.saved_tensors
    d_hidden, partial = relu_backward_op(gradient, hidden)
    return d_hidden @ weight, d_hidden.t() @ x, partial.sum(dim=0).to(ctx.bias_dtype)


linear_relu_op.register_autograd(_differentiate, setup_context=_save)
