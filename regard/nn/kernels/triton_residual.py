"""Dropout, residual sum and norm in one kernel, forward and backward (Triton); the plain version is
`regard.nn.kernels.residual`.

It also adds the bias of the projection that made y. Each tensor is read once and written once. The backward pass draws the
dropout mask again instead of loading it. Sums over rows (the gradients of the norm's weight and bias) come from one partial
sum per program, in a fixed order."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from regard.nn.kernels.residual import threshold

FORWARD_TILE, BACKWARD_TILE = 2048, 2048  # elements of one tile; measured on an H200
# Of the backward pass: so many programs at a time, and tiles that each of them loads ahead.
PROGRAMS_PER_PROCESSOR, STAGES = 4, 3


@triton.jit
def _hash(x):
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = (x ^ (x >> 15)) * 0x846CA68B
    return x ^ (x >> 16)


@triton.jit
def _keep(index, seed, threshold):
    bits = _hash(_hash(index.to(tl.uint32) ^ seed.to(tl.uint32)) + (seed >> 32).to(tl.uint32))
    return (bits >> 1).to(tl.int32) >= threshold


@triton.jit
def _add_norm_kernel(
    x, y, y_bias, weight, bias, seed, added, normed, mean, scale, num_rows, threshold, factor, eps,
    D: tl.constexpr, BLOCK_D: tl.constexpr, ROWS: tl.constexpr, DROP: tl.constexpr, RMS: tl.constexpr,
    KEEP_SUM: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    d = tl.arange(0, BLOCK_D)
    inside = (rows[:, None] < num_rows) & (d[None, :] < D)
    at = rows[:, None] * D + d[None, :]
    total = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    update = tl.load(y + at, mask=inside, other=0.0).to(tl.float32)
    update += tl.load(y_bias + d, mask=d < D, other=0.0).to(tl.float32)[None, :]
    if DROP:
        update = tl.where(_keep(at, tl.load(seed), threshold), update * factor, 0.0)
    total += update
    if KEEP_SUM:
        rounded = total.to(added.dtype.element_ty)
        tl.store(added + at, rounded, mask=inside)
        total = rounded.to(tl.float32)
    w = tl.load(weight + d, mask=d < D, other=0.0).to(tl.float32)
    if RMS:
        row_scale = tl.rsqrt(tl.sum(total * total, 1) / D + eps)
        result = total * row_scale[:, None] * w[None, :]
    else:
        row_mean = tl.sum(total, 1) / D
        centred = tl.where(d[None, :] < D, total - row_mean[:, None], 0.0)
        row_scale = tl.rsqrt(tl.sum(centred * centred, 1) / D + eps)
        b = tl.load(bias + d, mask=d < D, other=0.0).to(tl.float32)
        result = centred * row_scale[:, None] * w[None, :] + b[None, :]
        tl.store(mean + rows, row_mean, mask=rows < num_rows)
    tl.store(scale + rows, row_scale, mask=rows < num_rows)
    tl.store(normed + at, result.to(normed.dtype.element_ty), mask=inside)


@triton.jit
def _add_norm_backward_kernel(
    x, y, y_bias, added, weight, seed, mean, scale, d_added, d_normed, d_x, d_y, partial, num_rows, threshold, factor,
    D: tl.constexpr, BLOCK_D: tl.constexpr, ROWS: tl.constexpr, DROP: tl.constexpr, RMS: tl.constexpr,
    KEEP_SUM: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    programs = tl.num_programs(0)
    d = tl.arange(0, BLOCK_D)
    w = tl.load(weight + d, mask=d < D, other=0.0).to(tl.float32)
    d_weight = tl.zeros((ROWS, BLOCK_D), tl.float32)
    d_bias = tl.zeros((ROWS, BLOCK_D), tl.float32)
    d_y_bias = tl.zeros((ROWS, BLOCK_D), tl.float32)
    if not KEEP_SUM:
        y_shift = tl.load(y_bias + d, mask=d < D, other=0.0).to(tl.float32)
    if DROP:
        seed_value = tl.load(seed)
    for tile in tl.range(tl.program_id(0), tl.cdiv(num_rows, ROWS), programs, num_stages=STAGES):
        rows = tile * ROWS + tl.arange(0, ROWS)
        inside = (rows[:, None] < num_rows) & (d[None, :] < D)
        at = rows[:, None] * D + d[None, :]
        if DROP:
            keep = _keep(at, seed_value, threshold)
        if KEEP_SUM:
            total = tl.load(added + at, mask=inside, other=0.0).to(tl.float32)
        else:
            total = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
            update = tl.load(y + at, mask=inside, other=0.0).to(tl.float32) + y_shift[None, :]
            if DROP:
                update = tl.where(keep, update * factor, 0.0)
            total += update
        gradient = tl.load(d_normed + at, mask=inside, other=0.0).to(tl.float32)
        row_scale = tl.load(scale + rows, mask=rows < num_rows, other=0.0)
        if RMS:
            unit = total * row_scale[:, None]
        else:
            row_mean = tl.load(mean + rows, mask=rows < num_rows, other=0.0)
            unit = tl.where(inside, (total - row_mean[:, None]) * row_scale[:, None], 0.0)
            d_bias += gradient
        d_weight += gradient * unit
        d_unit = gradient * w[None, :]
        d_total = d_unit - unit * (tl.sum(d_unit * unit, 1) / D)[:, None]
        if not RMS:
            d_total -= (tl.sum(d_unit, 1) / D)[:, None]
        d_total *= row_scale[:, None]
        if KEEP_SUM:
            d_total += tl.load(d_added + at, mask=inside, other=0.0).to(tl.float32)
        tl.store(d_x + at, d_total.to(d_x.dtype.element_ty), mask=inside)
        if DROP:
            d_total = tl.where(keep, d_total * factor, 0.0)
            tl.store(d_y + at, d_total.to(d_y.dtype.element_ty), mask=inside)
        d_y_bias += tl.where(inside, d_total, 0.0)
    partial += tl.program_id(0) * 3 * D + d
    tl.store(partial, tl.sum(d_weight, 0), mask=d < D)
    tl.store(partial + D, tl.sum(d_bias, 0), mask=d < D)
    tl.store(partial + 2 * D, tl.sum(d_y_bias, 0), mask=d < D)


def _shape(d_model: int, tile: int) -> dict[str, Any]:
    block = triton.next_power_of_2(d_model)
    return {"D": d_model, "BLOCK_D": block, "ROWS": max(1, tile // block), "num_warps": 4 if block <= 1024 else 8}


def _programs(rows: int, d_model: int, device: torch.device) -> int:
    """Programs of the backward pass: enough to keep the device busy, few enough since each leaves a partial sum."""
    tiles: int = triton.cdiv(rows, _shape(d_model, BACKWARD_TILE)["ROWS"])
    return min(tiles, PROGRAMS_PER_PROCESSOR * processors(device))


def processors(device: torch.device) -> int:
    """The number of streaming multiprocessors; 1 under the interpreter."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


@torch.library.custom_op("regard::add_norm", mutates_args=())
def add_norm_op(
    x: Tensor, y: Tensor, y_bias: Tensor, weight: Tensor, bias: Tensor | None, seed: Tensor, probability: float, eps: float,
    keep_sum: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """norm(s), s (empty unless `keep_sum`), and the mean and scale of each row."""
    rows, d_model = x.shape
    if x.numel() >= 2**31:
        raise ValueError(f"{rows} rows of {d_model} are too many for one kernel; increase train.accumulate")
    normed = torch.empty_like(x)
    added = torch.empty_like(x) if keep_sum else x.new_empty(0)
    mean = torch.empty(rows if bias is not None else 0, dtype=torch.float32, device=x.device)
    scale = torch.empty(rows, dtype=torch.float32, device=x.device)
    shape = _shape(d_model, FORWARD_TILE)
    _add_norm_kernel[(triton.cdiv(rows, shape["ROWS"]),)](
        x, y, y_bias, weight, bias if bias is not None else weight, seed, added, normed, mean, scale, rows,
        threshold(probability), 1.0 / (1.0 - probability), eps,
        DROP=probability > 0, RMS=bias is None, KEEP_SUM=keep_sum, **shape,
    )  # fmt: skip
    return normed, added, mean, scale


@add_norm_op.register_fake
def _(
    x: Tensor, y: Tensor, y_bias: Tensor, weight: Tensor, bias: Tensor | None, seed: Tensor, probability: float, eps: float,
    keep_sum: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    rows = x.shape[0]
    added = torch.empty_like(x) if keep_sum else x.new_empty(0)
    mean = x.new_empty(rows if bias is not None else 0, dtype=torch.float32)
    return torch.empty_like(x), added, mean, x.new_empty(rows, dtype=torch.float32)


@torch.library.custom_op("regard::add_norm_backward", mutates_args=())
def add_norm_backward_op(
    d_normed: Tensor, d_added: Tensor | None, x: Tensor, y: Tensor, y_bias: Tensor, added: Tensor, weight: Tensor,
    seed: Tensor, mean: Tensor, scale: Tensor, probability: float, is_rms: bool, keep_sum: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of x and y (empty without dropout: that of x), and partial sums (programs, 3, d_model) for those of the norm's
    weight and bias and of y's bias."""
    d_normed = d_normed.contiguous()
    rows, d_model = d_normed.shape
    d_x, d_y = torch.empty_like(d_normed), torch.empty_like(d_normed) if probability else d_normed.new_empty(0)
    shape = _shape(d_model, BACKWARD_TILE)
    partial = torch.empty((_programs(rows, d_model, x.device), 3, d_model), dtype=torch.float32, device=x.device)
    _add_norm_backward_kernel[(partial.shape[0],)](
        x, y, y_bias, added, weight, seed, mean, scale, d_added.contiguous() if d_added is not None else d_normed, d_normed,
        d_x, d_y, partial, rows, threshold(probability), 1.0 / (1.0 - probability),
        DROP=probability > 0, RMS=is_rms, KEEP_SUM=keep_sum, STAGES=STAGES, **shape,
    )  # fmt: skip
    return d_x, d_y, partial


@add_norm_backward_op.register_fake
def _(
    d_normed: Tensor, d_added: Tensor | None, x: Tensor, y: Tensor, y_bias: Tensor, added: Tensor, weight: Tensor,
    seed: Tensor, mean: Tensor, scale: Tensor, probability: float, is_rms: bool, keep_sum: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    rows, d_model = d_normed.shape
    partial = d_normed.new_empty((_programs(rows, d_model, d_normed.device), 3, d_model), dtype=torch.float32)
    return torch.empty_like(d_normed), torch.empty_like(d_normed) if probability else d_normed.new_empty(0), partial


def _save(ctx: Any, inputs: Any, output: Any) -> None:
    x, y, y_bias, weight, bias, seed, ctx.probability, _, ctx.keep_sum = inputs
    _, added, mean, scale = output
    ctx.set_materialize_grads(False)
    ctx.is_rms, ctx.dtype = bias is None, weight.dtype
    # x and y are needed only if their sum was not kept.
    x, y = (added, added) if ctx.keep_sum else (x, y)
    ctx.save_for_backward(x, y, y_bias, added, weight, seed, mean, scale)


def _differentiate(ctx: Any, d_normed: Any, d_added: Any, *_: Any) -> Any:
    if d_normed is None:  # only the sum was used
        d_normed = torch.zeros_like(d_added)
    if ctx.keep_sum and d_added is None:
        d_added = torch.zeros_like(d_normed)
    d_x, d_y, partial = add_norm_backward_op(
        d_normed, d_added if ctx.keep_sum else None, *ctx.saved_tensors, ctx.probability, ctx.is_rms, ctx.keep_sum
    )
    d_weight, d_bias, d_y_bias = partial.sum(dim=0).to(ctx.dtype).unbind()
    return (
        d_x,
        d_y if ctx.probability else d_x,
        d_y_bias,
        d_weight,
        None if ctx.is_rms else d_bias,
        None,
        None,
        None,
        None,
    )


add_norm_op.register_autograd(_differentiate, setup_context=_save)


def add_norm(
    x: Tensor, y: Tensor, y_bias: Tensor, weight: Tensor, bias: Tensor | None, seed: Tensor, probability: float, eps: float,
    keep_sum: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """s (empty unless `keep_sum`) and norm(s), as `regard.nn.kernels.residual.add_norm`."""
    normed, added, _, _ = add_norm_op(x, y, y_bias, weight, bias, seed, probability, eps, keep_sum)
    return added, normed
