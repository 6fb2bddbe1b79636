"""Linear layers whose rows can be made independent of the rows beside them.

A matrix product picks its inner loops by the number of rows, so the last bits of one row can depend on how many others
there are. With `row_tile` set, rows go through in tiles of exactly that many: what a row gets is then a function of the
row alone. Training leaves it at 0; translation sets it, so that a sentence never depends on the batch that it shares.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, row_tile: int = 0) -> Tensor:
    """x W^T + b for x of shape (rows, d_in)."""
    if not row_tile:
        return F.linear(x, weight, bias)
    rows = x.shape[0]
    if short := -rows % row_tile:
        x = F.pad(x, (0, 0, 0, short))
    tiles = [F.linear(tile, weight, bias) for tile in torch.split(x, row_tile)]
    return (tiles[0] if len(tiles) == 1 else torch.cat(tiles))[:rows]


class Linear(nn.Linear):
    row_tile = 0

    def forward(self, input: Tensor, add_bias: bool = True) -> Tensor:
        """`add_bias`: not where what comes next adds it on the way."""
        return linear(input, self.weight, self.bias if add_bias else None, self.row_tile)


def set_row_tile(model: nn.Module, rows: int) -> None:
    """Send the rows of every linear layer of the model through in tiles of this many; 0 lets them go together."""
    for module in model.modules():
        if hasattr(module, "row_tile"):
            setattr(module, "row_tile", rows)  # noqa: B010 - mypy takes an attribute of a module for a tensor
