"""Rotary positions (RoPE): queries and keys are rotated, so that their product depends on the distance between them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from regard.settings import StackConfig


class Rotary:
    """Rotary positions: rotates dimensions of queries and keys, two at a time, by an angle that grows with the position. Two
    dimensions are neighbours (`pairs`, 2i and 2i + 1) or lie half a width apart (`halves`)."""

    def __init__(self, config: StackConfig) -> None:
        self.dim, self.d_head = config.rotary_dim, config.d_head
        self.base, self.halves = config.rotary_base, config.rotary_pairing == "halves"
        self.scaling = config.rotary_scaling
        self._tables: dict[torch.device, Tensor] = {}  # frequencies, for `rotate_heads`

    def __call__(self, x: Tensor, positions: Tensor) -> Tensor:
        """(tokens, heads, d_head) in and out. Dimensions from `rotary_dim` on stay as they are."""
        if self.dim == self.d_head:
            return rotate(x, positions, self.frequencies(x.device), self.halves)
        rotated = rotate(x[..., : self.dim], positions, self.frequencies(x.device), self.halves)
        return torch.cat((rotated, x[..., self.dim :]), dim=-1)

    def rotate_heads(self, heads: Tensor, rotated: int, positions: Tensor) -> Tensor:
        """The first `rotated` heads of (tokens, heads, d_head) rotated in place; without gradients, and with Triton."""
        from regard.nn.kernels.triton_rotary import rotate_

        if heads.device not in self._tables:
            self._tables[heads.device] = self.frequencies(heads.device)
        return rotate_(heads, rotated, positions, self._tables[heads.device], self.halves)

    def frequencies(self, device: torch.device) -> Tensor:
        """The angle of one position for each two dimensions, base^(-2i / dim), (dim / 2,)."""
        exponents = torch.arange(0, self.dim, 2, dtype=torch.float32, device=device) / self.dim
        frequencies = torch.exp(-math.log(self.base) * exponents)
        return stretched(frequencies, self.scaling) if self.scaling else frequencies


def stretched(frequencies: Tensor, scaling: Mapping[str, Any]) -> Tensor:
    """Frequencies for sequences longer than the model was first trained on. `linear` divides all of them; `llama3` divides those
    of long waves, keeps those of short ones, and goes from one to the other in between."""
    slow: Tensor = frequencies / scaling["factor"]
    if scaling["kind"] == "linear":
        return slow
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    waves = scaling["original_max_positions"] * frequencies / (2 * math.pi)  # how often a wave fits the first length
    share = ((waves - low) / (high - low)).clamp(0.0, 1.0)
    mixed: Tensor = (1.0 - share) * slow + share * frequencies
    return mixed


def rotate(x: Tensor, positions: Tensor, frequencies: Tensor, halves: bool = False) -> Tensor:
    """x (tokens, heads, dim) with each two dimensions rotated by position * frequency; see `Rotary`."""
    angles = positions.float()[:, None] * frequencies
    # (tokens, dim / 2) -> (tokens, 1, dim / 2), broadcast over the heads
    cos, sin = angles.cos()[:, None, :].to(x.dtype), angles.sin()[:, None, :].to(x.dtype)
    if halves:
        # (tokens, heads, dim) -> twice (tokens, heads, dim / 2), and back
        first, second = x.chunk(2, dim=-1)
        return torch.cat((first * cos - second * sin, first * sin + second * cos), dim=-1)
    even, odd = x[..., 0::2], x[..., 1::2]
    # twice (tokens, heads, dim / 2) -> interleaved (tokens, heads, dim)
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2)
