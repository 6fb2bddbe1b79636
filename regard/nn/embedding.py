"""Embeddings, and the positions that are added to them: sinusoidal (section 3.5 of the paper) or learned. Other positions enter
in self-attention: `rotary.py` and `relative.py`."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Embedding(nn.Embedding):
    """nn.Embedding that draws nothing on the meta device, where a model waits for its weights: drawing there would import
    torch's compiler, which takes longer than everything else that loads a small model."""

    def reset_parameters(self) -> None:
        if not self.weight.is_meta:
            super().reset_parameters()


def sinusoids(length: int, d_model: int) -> Tensor:
    """PE(pos, 2i) = sin(pos / 10000^(2i/d_model)) and PE(pos, 2i+1) = cos of the same, as a table (length, d_model).

    Computed in float64, since a float32 angle in the thousands is too coarse, and on the CPU, since not every device has
    float64.

    >>> sinusoids(2, 4)[0].tolist()
    [0.0, 1.0, 0.0, 1.0]
    """
    exponents = torch.arange(0, d_model, 2, dtype=torch.float64, device="cpu") / d_model
    angles = torch.arange(length, dtype=torch.float64, device="cpu")[:, None] * 10_000.0**-exponents
    # sines and cosines (length, d_model / 2) -> interleaved (length, d_model)
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1).float()


class SinusoidalPositions(nn.Module):
    """Adds the paper's sinusoids, from a table that grows when a longer sequence comes."""

    table: Tensor

    def __init__(self, d_model: int, length: int = 512) -> None:
        super().__init__()
        self.register_buffer("table", sinusoids(length, d_model), persistent=False)

    def reserve(self, longest: int) -> Tensor:
        """A table of at least this many rows. Use the one returned: another thread may replace `self.table` at any time."""
        table = self.table
        if longest > table.shape[0]:
            table = sinusoids(2 * longest, table.shape[1]).to(table)  # the model's device and precision
            self.table = table
        return table

    def forward(self, x: Tensor, positions: Tensor, longest: int) -> Tensor:
        """x (tokens, d_model) plus the encodings of positions (tokens,), all below `longest`."""
        return x + self.reserve(longest)[positions]


class LearnedPositions(nn.Module):
    """Adds a learned vector per position, up to a fixed length. The first `offset` rows of the table are unused, as in BART's."""

    def __init__(self, d_model: int, length: int, offset: int = 0) -> None:
        super().__init__()
        self.length, self.offset = length, offset
        self.weight = nn.Parameter(torch.empty(offset + length, d_model))

    def forward(self, x: Tensor, positions: Tensor, longest: int) -> Tensor:
        if longest > self.length:
            raise ValueError(f"a sequence of {longest} tokens is longer than max_positions = {self.length}")
        return x + self.weight[positions + self.offset if self.offset else positions]


class NoPositions(nn.Module):
    """For models whose positions enter in self-attention, or that have none."""

    def forward(self, x: Tensor, positions: Tensor, longest: int) -> Tensor:
        return x
