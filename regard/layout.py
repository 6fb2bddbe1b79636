"""SequenceLayout and SlotLayout: where the sequences lie in a packed tensor.

Sentences lie end to end without padding. Three sentences of 2, 4 and 1 tokens are one tensor of seven rows:

    row        0  1 | 2  3  4  5 | 6
    sequence   0  0 | 1  1  1  1 | 2
    position   0  1 | 0  1  2  3 | 0

    lengths = [2, 4, 1]    offsets = [0, 2, 6, 7]    positions = [0, 1, 0, 1, 2, 3, 0]

A SlotLayout has the same rows in a fixed number of places, here ten rows and five sequences, the last ones empty:

    row        0  1 | 2  3  4  5 | 6 | 7  8  9
    sequence   0  0 | 1  1  1  1 | 2 | -  -  -        groups = [0, 7, 7, 7, 7, 7], all three in one

Every tensor of shape (tokens, ...) travels with its layout. Nothing here knows about attention or about text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

GROUP_ROWS = 64  # of a tile that a kernel for short sequences works on


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

    @property
    def groups(self) -> Tensor:
        """The rows where groups of sequences begin, as in `SlotLayout`: here each sequence is one."""
        return self.offsets

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


@dataclass(frozen=True)
class SlotLayout:
    """A layout of fixed shape: so many rows and so many sequences, some of them empty.

    Compiled code and captured graphs run again and again on the same shapes and the same memory. So the lengths are only
    on the device here, and what is planned on the host is planned for the fullest case.

    Groups are neighbouring sequences that are worked on together, in tiles of GROUP_ROWS rows: see `tile_groups`. The two
    layouts of a batch of pairs are grouped alike.
    """

    positions: Tensor  # (tokens,) int32, each row's place in its sequence; 0 in empty rows
    sequence_ids: Tensor  # (tokens,) int32, which sequence a row belongs to; -1 in empty rows
    groups: Tensor  # (sequences + 1,) int32, the rows where groups of sequences begin; unused ones at the end of the used rows
    max_length: int  # no sequence is longer

    @property
    def num_tokens(self) -> int:
        """Rows, used or not."""
        return self.positions.shape[0]

    @property
    def num_sequences(self) -> int:
        """Places for sequences, used or not."""
        return self.groups.shape[0] - 1

    @property
    def device(self) -> torch.device:
        return self.positions.device


Layout = SequenceLayout | SlotLayout


def tile_groups(src_lengths: Sequence[int], tgt_lengths: Sequence[int]) -> list[int]:
    """Where groups of neighbouring pairs begin, and the end: as many pairs as have at most GROUP_ROWS rows on either side;
    a longer pair is a group by itself.

    >>> tile_groups([30, 30, 30, 90, 4], [20, 44, 4, 80, 4])
    [0, 2, 3, 4, 5]
    """
    starts = [0]
    src_rows = tgt_rows = 0
    for number, (src, tgt) in enumerate(zip(src_lengths, tgt_lengths, strict=True)):
        src_rows, tgt_rows = src_rows + src, tgt_rows + tgt
        if number and (src_rows > GROUP_ROWS or tgt_rows > GROUP_ROWS):
            starts.append(number)
            src_rows, tgt_rows = src, tgt
    return [*starts, len(src_lengths)] if src_lengths else [0]
