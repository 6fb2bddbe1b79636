"""Batches of sentence pairs as packed tensors: sentences end to end, no padding, each with the marks the model needs.

    src   ids </s>        tgt_in   <s> ids        labels   ids </s>

The decoder reads `tgt_in` and learns to predict `labels`, the same tokens one step ahead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from regard.data.arrays import IntArray, PairArrays
from regard.data.batch import on_device, with_marks
from regard.data.store import Store
from regard.layout import SequenceLayout


@dataclass(frozen=True)
class PairBatch:
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

    def to(self, device: torch.device | str, non_blocking: bool = False) -> PairBatch:
        return on_device(self, device, non_blocking)


def make_batch(
    src_ids: IntArray,
    src_lengths: IntArray,
    tgt_ids: IntArray,
    tgt_lengths: IntArray,
    bos_id: int,
    eos_id: int,
    tile_sizes: Sequence[int] = (),
) -> PairBatch:
    """Pack what `gather` returns: the ids of each side end to end, and the length of each sentence.

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
    return PairBatch(
        src=with_marks(src_ids, src_lengths, eos_id, at_end=True),
        src_layout=SequenceLayout.from_lengths((np.asarray(src_lengths) + 1).tolist(), tile_sizes=tile_sizes),
        tgt_in=with_marks(tgt_ids, tgt_lengths, bos_id, at_end=False),
        labels=with_marks(tgt_ids, tgt_lengths, eos_id, at_end=True),
        tgt_layout=SequenceLayout.from_lengths((np.asarray(tgt_lengths) + 1).tolist(), tile_sizes=tile_sizes),
    )


def gather(store: Store, indices: IntArray) -> PairArrays:
    """The ids of these pairs, end to end in the order of `indices`, and their lengths."""
    return *store["source"].gather(indices), *store["target"].gather(indices)
