"""One batch of pairs as packed tensors, with `<s>` and `</s>` where the model needs them.

source   ids </s>          tgt_in   <s> ids          labels   ids </s>
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from regard.data.arrays import Int64Array, IntArray
from regard.data.sampler import even_cuts
from regard.layout import SequenceLayout


@dataclass(frozen=True)
class Batch:
    """Pairs to train on or to score, packed without padding. `labels` has the layout of `tgt_in`."""

    src: Tensor  # (src_tokens,) int64
    src_layout: SequenceLayout
    tgt_in: Tensor  # (tgt_tokens,) int64
    labels: Tensor  # (tgt_tokens,) int64
    tgt_layout: SequenceLayout

    @property
    def num_tokens(self) -> int:
        """Target tokens to be predicted, `</s>` among them."""
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
        """In page-locked memory, from where a copy to a GPU does not hold up the host."""
        src_layout, tgt_layout = (
            SequenceLayout(layout.lengths, layout.offsets.pin_memory(), layout.positions.pin_memory())
            for layout in (self.src_layout, self.tgt_layout)
        )
        return Batch(self.src.pin_memory(), src_layout, self.tgt_in.pin_memory(), self.labels.pin_memory(), tgt_layout)


def make_batch(
    src_ids: IntArray, src_lengths: IntArray, tgt_ids: IntArray, tgt_lengths: IntArray, bos_id: int, eos_id: int
) -> Batch:
    """A batch out of what `Store.gather` gives: ids end to end, and the length of each sentence."""
    return Batch(
        src=_with_ends(src_ids, src_lengths, eos_id, shift=0),
        src_layout=SequenceLayout.from_lengths((np.asarray(src_lengths) + 1).tolist()),
        tgt_in=_with_ends(tgt_ids, tgt_lengths, bos_id, shift=1),
        labels=_with_ends(tgt_ids, tgt_lengths, eos_id, shift=0),
        tgt_layout=SequenceLayout.from_lengths((np.asarray(tgt_lengths) + 1).tolist()),
    )


def split_indices(indices: Int64Array, lengths: IntArray, parts: int) -> list[Int64Array]:
    """Cut an update's pairs into `parts` micro-batches of about equal tokens, or into fewer, so that none is empty.

    `lengths[i]` are the tokens of pair `indices[i]`. Neighbours stay together, since they are of similar length.
    """
    if len(indices) != len(lengths):
        raise ValueError(f"`lengths` must have one entry per index ({len(indices)}), but has {len(lengths)}")
    parts = min(parts, len(indices))
    if parts <= 1:
        return [indices] if len(indices) else []
    return np.split(indices, even_cuts(lengths, parts))


def _with_ends(ids: IntArray, lengths: IntArray, mark: int, shift: int) -> Tensor:
    """The sequences, each one longer: by `mark` at its end (shift 0) or at its beginning (shift 1)."""
    lengths = np.asarray(lengths)
    out = np.full(len(ids) + len(lengths), mark, dtype=np.int64)
    out[np.arange(len(ids)) + np.repeat(np.arange(len(lengths)), lengths) + shift] = ids
    return torch.from_numpy(out)
