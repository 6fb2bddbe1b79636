"""SequenceLayout and SlotLayout: where each sequence lies in a packed tensor.

Sequences lie end to end, without padding. Three sequences of 2, 4 and 1 tokens make one tensor of seven rows:

    row        0  1 | 2  3  4  5 | 6
    sequence   0  0 | 1  1  1  1 | 2
    position   0  1 | 0  1  2  3 | 0

    lengths = [2, 4, 1]    offsets = [0, 2, 6, 7]    positions = [0, 1, 0, 1, 2, 3, 0]

Short sequences can share a tile, so that a kernel that works on a padded grid pads whole tiles instead of every sequence:
tile_sizes = [1, 2] puts the first sequence into one tile of two rows, and the other two into one of five.

A SlotLayout describes the same rows in a tensor of fixed shape, here ten rows and five sequences, the last of them empty:

    row        0  1 | 2  3  4  5 | 6 | 7  8  9
    sequence   0  0 | 1  1  1  1 | 2 | -  -  -        groups = [0, 7, 7, 7, 7, 7]: one group of three

Every tensor of shape (tokens, ...) travels with its layout. Layouts know nothing of attention or text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice

import torch
from torch import Tensor

GROUP_ROWS = 64  # rows in one tile of the attention kernel for short sequences


@dataclass(frozen=True)
class SequenceLayout:
    """Lengths, offsets and positions of the sequences in one packed tensor.

    `lengths` are plain integers on the host, so that a kernel can plan its work without waiting for the device.

    >>> layout = SequenceLayout.from_lengths([2, 4, 1])
    >>> layout.offsets.tolist(), layout.positions.tolist()
    ([0, 2, 6, 7], [0, 1, 0, 1, 2, 3, 0])
    """

    lengths: tuple[int, ...]
    offsets: Tensor  # (sequences + 1,) int32, the first row of each sequence, then the number of rows
    positions: Tensor  # (tokens,) int64, each row's position in its sequence
    tile_sizes: tuple[int, ...] = ()  # neighbouring sequences per tile; empty: no tiles

    @classmethod
    def from_lengths(
        cls, lengths: Sequence[int], device: torch.device | str = "cpu", tile_sizes: Sequence[int] = ()
    ) -> SequenceLayout:
        """The layout of sequences of these lengths, end to end."""
        lengths = tuple(int(length) for length in lengths)
        counts = torch.tensor(lengths, dtype=torch.int64)
        ends = counts.cumsum(0)
        offsets = torch.zeros(len(lengths) + 1, dtype=torch.int32)
        offsets[1:] = ends
        total = int(ends[-1]) if lengths else 0
        positions = torch.arange(total) - (ends - counts).repeat_interleave(counts)
        return cls(lengths, offsets, positions, tuple(tile_sizes)).to(device)

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
        """Whether all sequences have the same length, so that packed and padded memory are identical."""
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
            self.tile_sizes,
        )

    def pin_memory(self) -> SequenceLayout:
        return SequenceLayout(self.lengths, self.offsets.pin_memory(), self.positions.pin_memory(), self.tile_sizes)

    @cached_property
    def tiles(self) -> SequenceLayout:
        """The layout of the tiles, each as one sequence of the same rows."""
        lengths = iter(self.lengths)
        return SequenceLayout.from_lengths([sum(islice(lengths, size)) for size in self.tile_sizes], self.device)

    @cached_property
    def parts(self) -> list[tuple[slice, SequenceLayout]]:
        """Neighbouring tiles of similar length, as their rows and a layout of their own, so that a kernel pads the tiles of each
        part to its longest one alone. A part ends before a tile with at most half as many rows. Empty: that would save less than
        a quarter of the scores.

        >>> layout = SequenceLayout.from_lengths([9, 5, 4, 2, 2, 3], tile_sizes=[1, 2, 2, 1])
        >>> [(rows.start, rows.stop, part.lengths) for rows, part in layout.parts]
        [(0, 18, (9, 5, 4)), (18, 25, (2, 2, 3))]
        """
        if not self.tile_sizes:
            return []
        cuts, longest = [0], [0]
        for number, rows in enumerate(self.tiles.lengths):
            if 2 * rows <= longest[-1]:
                cuts.append(number)
                longest.append(0)
            longest[-1] = max(longest[-1], rows)
        ends = [*cuts[1:], len(self.tile_sizes)]
        scores = sum((end - start) * rows**2 for start, end, rows in zip(cuts, ends, longest, strict=True))
        if scores > 0.75 * len(self.tile_sizes) * max(longest) ** 2:
            return []
        parts: list[tuple[slice, SequenceLayout]] = []
        lengths, row = iter(self.lengths), 0
        for start, end in zip(cuts, ends, strict=True):
            sizes = self.tile_sizes[start:end]
            part = SequenceLayout.from_lengths(list(islice(lengths, sum(sizes))), self.device, sizes)
            parts.append((slice(row, row + part.num_tokens), part))
            row += part.num_tokens
        return parts

    @cached_property
    def sequence_ids(self) -> Tensor:
        """(tokens,) int64, the sequence that each row belongs to."""
        counts = (self.offsets[1:] - self.offsets[:-1]).long()
        index = torch.arange(self.num_sequences, device=self.device)
        return index.repeat_interleave(counts, output_size=self.num_tokens)

    @property
    def groups(self) -> Tensor:
        """(sequences + 1,) int32, as `SlotLayout.groups`: here each sequence is a group of its own."""
        return self.offsets

    @cached_property
    def slots(self) -> Tensor:
        """(tokens,) int64, each row's index into the flattened padded grid (sequences, max_length)."""
        return self.sequence_ids * self.max_length + self.positions

    @cached_property
    def valid(self) -> Tensor:
        """(sequences, max_length) bool, whether a cell of the padded grid holds a token."""
        counts = self.offsets[1:] - self.offsets[:-1]
        return torch.arange(self.max_length, device=self.device) < counts[:, None]

    @cached_property
    def rows(self) -> Tensor:
        """(sequences * max_length,) int64, the packed row that fills each cell of the padded grid; 0 for padding."""
        starts = self.offsets[:-1].long()
        grid = starts[:, None] + torch.arange(self.max_length, device=self.device)
        return torch.where(self.valid, grid, torch.zeros_like(grid)).reshape(-1)


@dataclass(frozen=True)
class SlotLayout:
    """A layout of fixed shape: a fixed number of rows and sequences, the unused ones at the end.

    Compiled code and CUDA graphs run again and again on the same shapes and the same memory. So lengths exist only on the
    device, and the host plans for the largest case.

    A group is a run of neighbouring sequences that a kernel processes as one tile of GROUP_ROWS rows; see `tile_groups`.
    The source and target layouts of a batch have the same groups.
    """

    positions: Tensor  # (tokens,) int32, each row's position in its sequence; 0 in empty rows
    sequence_ids: Tensor  # (tokens,) int32, the sequence that each row belongs to; -1 in empty rows
    groups: Tensor  # (sequences + 1,) int32, the first row of each group; unused entries hold the number of used rows
    max_length: int  # an upper bound on every sequence
    # (sequences + 1,) int32, the first row of each sequence, for kernels that suit long ones; None: only the groups are known.
    # Empty rows are sequences here, too, so that every row is computed; what they hold means nothing.
    offsets: Tensor | None = None
    # Whether all sequences, those of empty rows among them, have `max_length` rows, so that memory is a grid.
    is_uniform: bool = False

    @property
    def num_tokens(self) -> int:
        """The number of rows, used or not."""
        return self.positions.shape[0]

    @property
    def num_sequences(self) -> int:
        """The number of sequences that fit, used or not."""
        return self.groups.shape[0] - 1

    @property
    def device(self) -> torch.device:
        return self.positions.device


Layout = SequenceLayout | SlotLayout


def tile_groups(src_lengths: Sequence[int], tgt_lengths: Sequence[int]) -> list[int]:
    """The first pair of each group, then the number of pairs. A group takes as many neighbouring pairs as fit into GROUP_ROWS
    rows on both sides; a longer pair is a group of its own.

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
