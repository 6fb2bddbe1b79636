"""Packed rows to a padded grid and back, for the kernels that need rectangles. Both directions are gathers, and each is the
other's gradient, which avoids scatter-add: it is slow, and on a GPU its order is not fixed."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from regard.layout import SequenceLayout


class _Pad(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, packed: Tensor, layout: SequenceLayout) -> Tensor:
        ctx.layout = layout
        return packed.index_select(0, layout.rows)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient.index_select(0, ctx.layout.slots), None


class _Unpad(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, grid: Tensor, layout: SequenceLayout) -> Tensor:
        ctx.layout = layout
        return grid.index_select(0, layout.slots)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        # Padding was never used: its gradient is zero.
        padding = ~ctx.layout.valid.reshape(-1, *([1] * (gradient.ndim - 1)))
        return gradient.index_select(0, ctx.layout.rows).masked_fill_(padding, 0.0), None


def pad(packed: Tensor, layout: SequenceLayout) -> Tensor:
    """(tokens, heads, d_head) -> (sequences, max_length, heads, d_head). Padding repeats row 0, so the caller must mask it."""
    rows = packed if layout.is_uniform else _Pad.apply(packed, layout)  # type: ignore[no-untyped-call]
    return rows.view(layout.num_sequences, layout.max_length, *packed.shape[1:])


def unpad(grid: Tensor, layout: SequenceLayout) -> Tensor:
    """(sequences, max_length, heads, d_head) -> (tokens, heads, d_head)."""
    rows = grid.reshape(-1, *grid.shape[2:])
    if layout.is_uniform:
        return rows
    packed: Tensor = _Unpad.apply(rows, layout)  # type: ignore[no-untyped-call]
    return packed
