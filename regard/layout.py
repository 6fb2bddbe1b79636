"""SequenceLayout: where the sequences lie in a packed tensor.

Sentences lie end to end without padding. Three sentences of 2, 4 and 1 tokens are one tensor of seven rows:

    row        0  1 | 2  3  4  5 | 6
    sequence   0  0 | 1  1  1  1 | 2
    position   0  1 | 0  1  2  3 | 0

    lengths = [2, 4, 1]    offsets = [0, 2, 6, 7]    positions = [0, 1, 0, 1, 2, 3, 0]

Every tensor of shape (tokens, ...) travels with its layout. Nothing here knows about attention or about text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True)
class SequenceLayout:
    """Lengths, offsets and positions of the sequences of one packed tensor.

    `lengths` stays on the host as plain integers, so that a kernel can plan its work without waiting for the device.

    >>> layout = SequenceLayout.from_lengths([2, 4, 1])
    >>> layout.offsets.tolist(), layout.positions.tolist()
    ([0, 2, 6, 7], [0, 1, 0, 1, 2, 3, 0])
    """

    lengths: tuple[int, ...]
    offsets: Tensor  # (sequences + 1,) int32, the rows where sequences begin, and the end
    positions: Tensor  # (tokens,) int64, each row's place in its sequence

    @classmethod
    def from_lengths(cls, lengths: Sequence[int], device: torch.device | str = "cpu") -> SequenceLayout:
        """The layout of sequences of these lengths, lying end to end."""
        lengths = tuple(int(length) for length in lengths)
        counts = torch.tensor(lengths, dtype=torch.int64)
        ends = counts.cumsum(0)
        offsets = torch.zeros(len(lengths) + 1, dtype=torch.int32)
        offsets[1:] = ends
        total = int(ends[-1]) if lengths else 0
        positions = torch.arange(total) - (ends - counts).repeat_interleave(counts)
        return cls(lengths, offsets, positions).to(device)

    @property
    def num_tokens(self) -> int:
        return self.positions.shape[0]

    @property
    def num_sequences(self) -> int:
        return len(self.lengths)

    @cached_property
    def max_length(self) -> int:
        return max(self.lengths, default=0)

    @cached_property
    def is_uniform(self) -> bool:
        """Whether all sequences have one length, so that packed and padded are the same memory."""
        return len(set(self.lengths)) == 1

    @property
    def device(self) -> torch.device:
        return self.positions.device

    def to(self, device: torch.device | str, non_blocking: bool = False) -> SequenceLayout:
        if self.device == torch.device(device):
            return self
        return SequenceLayout(
            self.lengths,
            self.offsets.to(device, non_blocking=non_blocking),
            self.positions.to(device, non_blocking=non_blocking),
        )

    @cached_property
    def sequence_ids(self) -> Tensor:
        """(tokens,) int64: which sequence each row belongs to."""
        counts = (self.offsets[1:] - self.offsets[:-1]).long()
        index = torch.arange(self.num_sequences, device=self.device)
        return index.repeat_interleave(counts, output_size=self.num_tokens)

    @cached_property
    def slots(self) -> Tensor:
        """(tokens,) int64: each row's place in the padded grid (sequences, max_length), flattened."""
        return self.sequence_ids * self.max_length + self.positions

    @cached_property
    def valid(self) -> Tensor:
        """(sequences, max_length) bool: which places of the padded grid hold a token."""
        counts = self.offsets[1:] - self.offsets[:-1]
        return torch.arange(self.max_length, device=self.device) < counts[:, None]

    @cached_property
    def rows(self) -> Tensor:
        """(sequences * max_length,) int64: the packed row behind each place of the padded grid, or 0."""
        starts = self.offsets[:-1].long()
        grid = starts[:, None] + torch.arange(self.max_length, device=self.device)
        return torch.where(self.valid, grid, torch.zeros_like(grid)).reshape(-1)
