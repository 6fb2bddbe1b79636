"""Positions: sinusoidal (the paper's), learned, or rotary."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


def sinusoids(length: int, d_model: int) -> Tensor:
    """PE(pos, 2i) = sin(pos / 10000^(2i/d_model)), PE(pos, 2i+1) = cos of the same, for pos < length: (length,
    d_model).

    Computed in float64, since a float32 angle of thousands has no digits left to turn by; and so on the CPU, since not
    every device has float64.

    >>> sinusoids(2, 4)[0].tolist()
    [0.0, 1.0, 0.0, 1.0]
    """
    exponents = torch.arange(0, d_model, 2, dtype=torch.float64, device="cpu") / d_model
    angles = torch.arange(length, dtype=torch.float64, device="cpu")[:, None] * 10_000.0**-exponents
    # (length, d_model / 2) sines and cosines, interleaved -> (length, d_model)
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1).float()


class SinusoidalPositions(nn.Module):
    """Adds the paper's sinusoids, from a table that grows when a longer sentence comes."""

    table: Tensor

    def __init__(self, d_model: int, length: int = 512) -> None:
        super().__init__()
        self.register_buffer("table", sinusoids(length, d_model), persistent=False)

    def reserve(self, longest: int) -> Tensor:
        """A table that is long enough. Callers take the one that they get: another thread may put its own in the same place."""
        table = self.table
        if longest > table.shape[0]:
            table = sinusoids(2 * longest, table.shape[1]).to(table)  # in the model's device and precision
            self.table = table
        return table

    def forward(self, x: Tensor, positions: Tensor, longest: int) -> Tensor:
        return x + self.reserve(longest)[positions]


class LearnedPositions(nn.Module):
    def __init__(self, d_model: int, length: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(length, d_model))

    def forward(self, x: Tensor, positions: Tensor, longest: int) -> Tensor:
        if longest > self.weight.shape[0]:
            raise ValueError(f"a sequence of {longest} tokens is longer than max_positions = {self.weight.shape[0]}")
        return x + self.weight[positions]


class NoPositions(nn.Module):
    """For rotary models, whose positions enter inside self-attention."""

    def forward(self, x: Tensor, positions: Tensor, longest: int) -> Tensor:
        return x


def rotate(x: Tensor, positions: Tensor) -> Tensor:
    """Turn each pair of dimensions (2i, 2i+1) by pos / 10000^(2i/d_head); x is (tokens, heads, d_head)."""
    d_head = x.shape[-1]
    exponents = torch.arange(0, d_head, 2, dtype=torch.float32, device=x.device) / d_head
    angles = positions.float()[:, None] * torch.exp(-math.log(10_000.0) * exponents)
    # (tokens, d_head / 2) -> (tokens, 1, d_head / 2), the same for every head
    cos, sin = angles.cos()[:, None, :].to(x.dtype), angles.sin()[:, None, :].to(x.dtype)
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2)
