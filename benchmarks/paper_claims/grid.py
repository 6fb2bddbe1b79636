"""Packed sentences as a padded grid, which the rivals compute on, and widths that make models equally large."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from regard.layout import SequenceLayout

WIDTH_STEP = 8


@dataclass(frozen=True)
class Grid:
    """Sentences side by side, padded on the right."""

    ids: Tensor  # (sentences, longest)
    lengths: tuple[int, ...]
    mask: Tensor  # (sentences, longest), true where there is a token

    @classmethod
    def full(cls, ids: Tensor) -> Grid:
        """Sentences of one length: (sentences, length)."""
        return cls(ids, (ids.shape[1],) * ids.shape[0], torch.ones_like(ids, dtype=torch.bool))


def to_grid(ids: Tensor, layout: SequenceLayout) -> Grid:
    """(tokens,) -> a grid."""
    shape = (layout.num_sequences, layout.max_length)
    grid, mask = ids.new_zeros(shape), torch.zeros(shape, dtype=torch.bool, device=ids.device)
    places = cells(layout)
    grid.view(-1)[places] = ids
    mask.view(-1)[places] = True
    return Grid(grid, layout.lengths, mask)


def cells(layout: SequenceLayout) -> Tensor:
    """(tokens,): where each token lies in the flattened grid."""
    return layout.sequence_ids * layout.max_length + layout.positions


def to_rows(states: Tensor, layout: SequenceLayout) -> Tensor:
    """(sentences, longest, width) -> (tokens, width)."""
    return states.flatten(0, 1).index_select(0, cells(layout))


def num_parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def fit_width(build: Callable[[int], nn.Module], parameters: int) -> int:
    """The width, a multiple of WIDTH_STEP, at which the model comes closest to so many parameters."""

    def size(steps: int) -> int:
        with torch.device("meta"):
            return num_parameters(build(steps * WIDTH_STEP))

    high = 1
    while size(high) < parameters:
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if size(middle) < parameters else (low, middle)
    low = max(low, 1)
    return WIDTH_STEP * min((low, high), key=lambda steps: abs(size(steps) - parameters))
