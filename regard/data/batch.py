"""A batch of sentence pairs as packed tensors: sentences end to end, no padding, each with the marks the model needs.

    src   ids </s>        tgt_in   <s> ids        labels   ids </s>

The decoder reads `tgt_in` and learns to predict `labels`, the same tokens one step ahead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from regard.data.arrays import Int64Array, IntArray
from regard.data.sampler import even_cuts
from regard.layout import SequenceLayout


@dataclass(frozen=True)
class Batch:
    """Pairs to train on or to score. `tgt_in` and `labels` share `tgt_layout`."""

    src: Tensor  # (src_tokens,) int64
    src_layout: SequenceLayout
    tgt_in: Tensor  # (tgt_tokens,) int64
    labels: Tensor  # (tgt_tokens,) int64
    tgt_layout: SequenceLayout

    @property
    def num_tokens(self) -> int:
        """Target tokens to predict, including `</s>`."""
        return self.labels.shape[0]

    @property
    def num_pairs(self) -> int:
        return self.tgt_layout.num_sequences

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Batch:
        return Batch(
            self.src.to(device, non_blocking=non_blocking),
            self.src_layout.to(device, non_blocking),
            self.tgt_in.to(device, non_blocking=non_blocking),
            self.labels.to(device, non_blocking=non_blocking),
            self.tgt_layout.to(device, non_blocking),
        )

    def pin(self) -> Batch:
        """The batch in page-locked memory, from which copies to a GPU do not block the host."""
        return Batch(
            self.src.pin_memory(),
            self.src_layout.pin_memory(),
            self.tgt_in.pin_memory(),
            self.labels.pin_memory(),
            self.tgt_layout.pin_memory(),
        )


def make_batch(
    src_ids: IntArray,
    src_lengths: IntArray,
    tgt_ids: IntArray,
    tgt_lengths: IntArray,
    bos_id: int,
    eos_id: int,
    tile_sizes: Sequence[int] = (),
) -> Batch:
    """Pack what `Store.gather` returns: the ids of each side end to end, and the length of each sentence.

    Two pairs, (7 8 9 -> 5 6) and (4 -> 3 4 3), with `<s>` = 1 and `</s>` = 2:

    >>> batch = make_batch(
    ...     src_ids=np.array([7, 8, 9, 4]), src_lengths=np.array([3, 1]),
    ...     tgt_ids=np.array([5, 6, 3, 4, 3]), tgt_lengths=np.array([2, 3]), bos_id=1, eos_id=2,
    ... )
    >>> batch.src.tolist(), batch.src_layout.lengths
    ([7, 8, 9, 2, 4, 2], (4, 2))
    >>> batch.tgt_in.tolist(), batch.tgt_layout.lengths
    ([1, 5, 6, 1, 3, 4, 3], (3, 4))
    >>> batch.labels.tolist()
    [5, 6, 2, 3, 4, 3, 2]
    """
    return Batch(
        src=_with_marks(src_ids, src_lengths, eos_id, at_end=True),
        src_layout=SequenceLayout.from_lengths((np.asarray(src_lengths) + 1).tolist(), tile_sizes=tile_sizes),
        tgt_in=_with_marks(tgt_ids, tgt_lengths, bos_id, at_end=False),
        labels=_with_marks(tgt_ids, tgt_lengths, eos_id, at_end=True),
        tgt_layout=SequenceLayout.from_lengths((np.asarray(tgt_lengths) + 1).tolist(), tile_sizes=tile_sizes),
    )


def plan_tiles(src_lengths: IntArray, tgt_lengths: IntArray) -> tuple[Int64Array, list[int]]:
    """The order and the tiles in which a batch of mixed lengths is computed: (order, pairs in each tile).

    Lengths are without `</s>`. The longest sentence decides how many rows a tile has. Each tile takes the longest pairs that are
    left, then fills up with the shortest.

    >>> order, sizes = plan_tiles(np.array([4, 9, 2, 5]), np.array([4, 8, 3, 5]))
    >>> order.tolist(), sizes
    ([1, 3, 2, 0], [1, 2, 1])
    """
    longest_first = np.argsort(-np.maximum(src_lengths, tgt_lengths), kind="stable")
    src, tgt = ((np.asarray(lengths)[longest_first] + 1).tolist() for lengths in (src_lengths, tgt_lengths))
    room = max(src + tgt, default=0)
    order: list[int] = []
    sizes: list[int] = []
    first, last = 0, len(src) - 1
    while first <= last:
        start, src_rows, tgt_rows = len(order), 0, 0
        for step in (1, -1):
            while first <= last:
                pair = first if step == 1 else last
                if src_rows + src[pair] > room or tgt_rows + tgt[pair] > room:
                    break
                src_rows, tgt_rows = src_rows + src[pair], tgt_rows + tgt[pair]
                order.append(pair)
                first, last = (first + 1, last) if step == 1 else (first, last - 1)
        sizes.append(len(order) - start)
    return longest_first[np.array(order, dtype=np.int64)], sizes


def split_indices(indices: Int64Array, lengths: IntArray, parts: int) -> list[Int64Array]:
    """Split an update into `parts` micro-batches of about as many tokens each; fewer where there are fewer pairs.

    `lengths[i]` is the number of tokens of pair `indices[i]`. Neighbours stay together, since a sampler that does not mix lengths
    puts pairs of similar length side by side.
    """
    if len(indices) != len(lengths):
        raise ValueError(f"`lengths` must have one entry per index ({len(indices)}), but has {len(lengths)}")
    parts = min(parts, len(indices))
    if parts <= 1:
        return [indices] if len(indices) else []
    return np.split(indices, even_cuts(lengths, parts))


def _with_marks(ids: IntArray, lengths: IntArray, mark: int, at_end: bool) -> Tensor:
    """(tokens,) ids -> (tokens + sentences,): `mark` added to each sentence, at its end or else at its start."""
    lengths = np.asarray(lengths)
    out = np.full(len(ids) + len(lengths), mark, dtype=np.int64)
    # A token moves right by one row for each mark before it.
    marks_before = np.repeat(np.arange(len(lengths)), lengths) + (0 if at_end else 1)
    out[np.arange(len(ids)) + marks_before] = ids
    return torch.from_numpy(out)
