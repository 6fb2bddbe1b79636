"""The projection to queries, keys and values for attention that takes them apart: the backward pass joins their gradients and sums
them for the bias in one read (Triton). The plain version is `linear(x, W, b).split(...)`."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from regard.nn.kernels.triton_residual import processors

BLOCK, ROWS = 256, 16  # columns and rows of one tile; measured on an H200
PROGRAMS_PER_PROCESSOR = 4


@triton.jit
def _copy_columns(
    source, joined, partial, block, num_rows,
    FIRST: tl.constexpr, WIDTH: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """A block of the columns of `source`, (rows, WIDTH), to those of `joined`, (rows, D), from FIRST on, and their sums."""
    columns = block * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((ROWS, BLOCK), tl.float32)
    for tile in range(tl.program_id(1), tl.cdiv(num_rows, ROWS), tl.num_programs(1)):
        rows = (tile * ROWS + tl.arange(0, ROWS)).to(tl.int64)
        inside = (rows[:, None] < num_rows) & (columns[None, :] < WIDTH)
        gradient = tl.load(source + rows[:, None] * WIDTH + columns[None, :], mask=inside, other=0.0)
        tl.store(joined + rows[:, None] * D + FIRST + columns[None, :], gradient, mask=inside)
        total += gradient.to(tl.float32)
    tl.store(partial + tl.program_id(1) * D + FIRST + columns, tl.sum(total, 0), mask=columns < WIDTH)


@triton.jit
def _join_kernel(
    d_q, d_k, d_v, joined, partial, num_rows, D_QUERY: tl.constexpr, D_KEY: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr
):  # fmt: skip
    """The blocks of d_q come first, then those of d_k and d_v."""
    width: tl.constexpr = D_QUERY + 2 * D_KEY
    query_blocks: tl.constexpr = (D_QUERY + BLOCK - 1) // BLOCK
    key_blocks: tl.constexpr = (D_KEY + BLOCK - 1) // BLOCK
    block = tl.program_id(0)
    if block < query_blocks:
        _copy_columns(d_q, joined, partial, block, num_rows, 0, D_QUERY, width, BLOCK, ROWS)
    elif block < query_blocks + key_blocks:
        _copy_columns(d_k, joined, partial, block - query_blocks, num_rows, D_QUERY, D_KEY, width, BLOCK, ROWS)
    else:
        block -= query_blocks + key_blocks
        _copy_columns(d_v, joined, partial, block, num_rows, D_QUERY + D_KEY, D_KEY, width, BLOCK, ROWS)


def _programs(rows: int, d_query: int, d_key: int, device: torch.device) -> tuple[int, int]:
    blocks = triton.cdiv(d_query, BLOCK) + 2 * triton.cdiv(d_key, BLOCK)
    return blocks, min(triton.cdiv(rows, ROWS), max(1, PROGRAMS_PER_PROCESSOR * processors(device) // blocks))


@torch.library.custom_op("regard::join_gradients", mutates_args=())
def join_op(d_q: Tensor, d_k: Tensor, d_v: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients side by side, (rows, d_query + 2 d_key), and one partial sum over rows per program, (programs, the same)."""
    d_q, d_k, d_v = d_q.contiguous(), d_k.contiguous(), d_v.contiguous()
    rows, d_query = d_q.shape
    d_key = d_k.shape[1]
    blocks, groups = _programs(rows, d_query, d_key, d_q.device)
    joined = d_q.new_empty((rows, d_query + 2 * d_key))
    partial = torch.empty((groups, joined.shape[1]), dtype=torch.float32, device=d_q.device)
    _join_kernel[(blocks, groups)](
        d_q, d_k, d_v, joined, partial, rows, D_QUERY=d_query, D_KEY=d_key, BLOCK=BLOCK, ROWS=ROWS, num_warps=4
    )
    return joined, partial


@join_op.register_fake
def _(d_q: Tensor, d_k: Tensor, d_v: Tensor) -> tuple[Tensor, Tensor]:
    (rows, d_query), d_key = d_q.shape, d_k.shape[1]
    width, groups = d_query + 2 * d_key, _programs(rows, d_query, d_key, d_q.device)[1]
    return d_q.new_empty((rows, width)), d_q.new_empty((groups, width), dtype=torch.float32)


class _Projection(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, d_query: int) -> tuple[Tensor, Tensor, Tensor]:
        ctx.save_for_backward(x, weight)
        d_key = (weight.shape[0] - d_query) // 2
        q, k, v = torch.addmm(bias, x, weight.t()).split((d_query, d_key, d_key), dim=1)
        return q, k, v

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_q: Tensor, d_k: Tensor, d_v: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        joined, partial = join_op(d_q, d_k, d_v)
        return joined @ weight, joined.t() @ x, partial.sum(dim=0).to(weight.dtype), None


def projection(x: Tensor, weight: Tensor, bias: Tensor, d_query: int) -> tuple[Tensor, Tensor, Tensor]:
    """x W^T + b, (rows, d_in) -> q (rows, d_query), and k and v, which share the other columns."""
    q, k, v = _Projection.apply(x, weight, bias, d_query)  # type: ignore[no-untyped-call]
    return q, k, v
