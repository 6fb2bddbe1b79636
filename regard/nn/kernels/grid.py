"""Packed rows to a padded grid and back, for the kernels that need rectangles. Both directions are gathers, and each is the
other's gradient, which avoids scatter-add: it is slow, and on a GPU its order is not fixed."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from regard.layout import Layout, SequenceLayout, SlotLayout
from regard.nn.kernels.scores import PositionBias

HIDDEN = -1e4  # added to a score: e to this power is 0 in every precision


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


def grid_bias(
    q_layout: Layout, k_layout: Layout, causal: bool, dtype: torch.dtype, bias: PositionBias | None
) -> Tensor:
    """What to add to the scores of a grid, or of tiles if the layout has some, (sequences or tiles or 1, num_heads or 1, q_rows,
    k_rows): the bias, and where a query does not see a key a number so low that the weight becomes 0."""
    if isinstance(q_layout, SequenceLayout) and isinstance(k_layout, SequenceLayout) and q_layout.tile_sizes:
        hidden = tile_bias(q_layout, k_layout, causal, dtype)
        if bias is None:
            return hidden
        return hidden + bias(_tile_rows(q_layout)[1], _tile_rows(k_layout)[1]).to(dtype)
    assert bias is not None
    q_places, k_places = (torch.arange(one.max_length, device=one.device) for one in (q_layout, k_layout))
    added = bias(q_places, k_places).to(dtype)[None]
    if causal:  # this also hides padding, which comes after every token of its sequence
        return added.masked_fill(q_places[:, None] < k_places, HIDDEN)
    if isinstance(k_layout, SlotLayout) or k_layout.is_uniform:
        return added
    return added.masked_fill(~k_layout.valid[:, None, None, :], HIDDEN)


def tile_bias(q_layout: SequenceLayout, k_layout: SequenceLayout, causal: bool, dtype: torch.dtype) -> Tensor:
    """What to add to the scores of tiles, (tiles, 1, q_rows, k_rows): 0 where a query sees a key, else a number so low that the
    weight becomes 0. Not minus infinity, since a row of padding sees nothing. Every layer uses the same one."""
    known: dict[Any, tuple[SequenceLayout, Tensor]] = q_layout.__dict__.setdefault("_tile_biases", {})
    key = id(k_layout), causal, dtype  # the layout is kept beside the bias, so that its id stays its own
    if key not in known:
        (q_ids, q_positions), (k_ids, k_positions) = _tile_rows(q_layout), _tile_rows(k_layout)
        visible = q_ids[:, :, None] == k_ids[:, None, :]
        if causal:
            visible &= q_positions[:, :, None] >= k_positions[:, None, :]
        known[key] = k_layout, torch.where(visible, 0.0, HIDDEN).to(dtype)[:, None]
    return known[key][1]


def _tile_rows(layout: SequenceLayout) -> tuple[Tensor, Tensor]:
    """The sequence and position of each row of each tile, both (tiles, rows); padding belongs to sequence -1."""
    tiles = layout.tiles
    ids, positions = (
        torch.full((tiles.num_sequences * tiles.max_length,), -1, device=layout.device).index_copy_(
            0, tiles.slots, values
        )
        for values in (layout.sequence_ids, layout.positions)
    )
    return ids.view(tiles.num_sequences, -1), positions.view(tiles.num_sequences, -1)


def pad(packed: Tensor, layout: Layout) -> Tensor:
    """(tokens, heads, d_head) -> (sequences, max_length, heads, d_head). Padding repeats row 0, so the caller must mask it."""
    rows = packed if layout.is_uniform else _Pad.apply(packed, layout)  # type: ignore[no-untyped-call]
    # The sequences of a SlotLayout are as many as fit, used or not.
    number = layout.num_tokens // layout.max_length if isinstance(layout, SlotLayout) else layout.num_sequences
    return rows.view(number, layout.max_length, *packed.shape[1:])


def unpad(grid: Tensor, layout: Layout) -> Tensor:
    """(sequences, max_length, heads, d_head) -> (tokens, heads, d_head)."""
    rows = grid.reshape(-1, *grid.shape[2:])
    if layout.is_uniform:
        return rows
    packed: Tensor = _Unpad.apply(rows, layout)  # type: ignore[no-untyped-call]
    return packed
