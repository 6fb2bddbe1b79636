"""Linear layers that can compute each row independently of the others in the batch.

A matrix product chooses its inner loops by the number of rows, so the last bits of one row can depend on how many others
there are. With `row_tile` set, the product always runs on exactly that many rows, and a row's result is a function of the
row alone. Training leaves it at 0; decoding sets it, so that a sequence's result never depends on the rest of the batch. Several
tiles that give the same bits on this machine (`equal_tiles`) save the work on rows that are not there.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.nn.int8 import Int8Weight

RowTile = (
    int | tuple[int, ...]
)  # rows of a product; several ascend, and the last is used as long as there are enough rows
_SMALLER = (4, 8, 16, 32)  # tiles that may give the same bits as a larger one


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, row_tile: RowTile = 0) -> Tensor:
    """x W^T + b, (rows, d_in) -> (rows, d_out)."""
    if not row_tile:
        return F.linear(x, weight, bias)
    rows = x.shape[0]
    own = row_tile if isinstance(row_tile, tuple) else (row_tile,)
    rest = rows % own[-1]
    missing = next(tile for tile in own if tile >= rest) - rest if rest else 0
    if missing:
        x = F.pad(x, (0, 0, 0, missing))
    tiles = [F.linear(tile, weight, bias) for tile in torch.split(x, own[-1])]
    return (tiles[0] if len(tiles) == 1 else torch.cat(tiles))[:rows]


class Linear(nn.Linear):
    """nn.Linear with `row_tile`, and a bias that a fused kernel may add instead."""

    row_tile: RowTile = 0
    int8: Int8Weight | None = None  # instead of the weight

    def forward(self, input: Tensor, add_bias: bool = True) -> Tensor:
        """(rows, d_in) -> (rows, d_out)."""
        return self._product(input, self.bias if add_bias else None)

    def _product(self, input: Tensor, bias: Tensor | None) -> Tensor:
        if self.int8 is not None:
            return self.int8(input, bias)
        return linear(input, self.weight, bias, self.row_tile)


class KeylessLinear(Linear):
    """Several projections side by side in one matrix, of which the one to keys has no bias."""

    def __init__(self, d_in: int, d_before: int, d_key: int, d_after: int) -> None:
        super().__init__(d_in, d_before + d_key + d_after)
        self.sizes = (d_before, d_key, d_after)
        self.bias = nn.Parameter(torch.zeros(d_before + d_after))

    def forward(self, input: Tensor, add_bias: bool = True) -> Tensor:
        before, keys, after = self.sizes
        first, last = self.bias.split((before, after))
        bias = torch.cat((first, first.new_zeros(keys), last))
        return self._product(input, bias if add_bias else None)


@torch.inference_mode()
def equal_tiles(weights: Iterable[Tensor], largest: int) -> tuple[int, ...]:
    """The tiles up to `largest`, ascending, in which a row of a product with each of these weights gets the same bits as in the
    largest; measured on this machine, whose library decides it."""
    equal = [tile for tile in _SMALLER if tile < largest]
    by_shape = {(weight.shape, weight.dtype): weight for weight in weights if weight.ndim == 2}
    for weight in by_shape.values():
        generator = torch.Generator().manual_seed(weight.shape[0])
        x = torch.randn(largest, weight.shape[1], generator=generator).to(weight)
        expected = F.linear(x, weight)
        for tile in list(equal):
            if not torch.equal(torch.cat([F.linear(part, weight) for part in torch.split(x, tile)]), expected):
                equal.remove(tile)
    return (*equal, largest)


def set_row_tile(model: nn.Module, rows: RowTile) -> None:
    """Make every linear layer of the model work on tiles of this many rows; 0: on all rows at once."""
    for module in model.modules():
        if hasattr(module, "row_tile"):
            setattr(module, "row_tile", rows)  # noqa: B010 - mypy takes a module's attribute for a tensor
