"""Batches of sentence pairs as packed tensors: sentences end to end, no padding, each with the marks the model needs.

    src   ids </s>        tgt_in   <s> ids        labels   ids </s>

The decoder reads `tgt_in` and learns to predict `labels`, the same tokens one step ahead.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from regard.data.arrays import Int64Array, IntArray, PairArrays
from regard.data.batch import on_device, pinned, plan_tiles, split_indices, with_marks
from regard.data.bpe_dropout import BpeDropout, TokenLimits
from regard.data.corpus import CorpusRange
from regard.data.feed import Part
from regard.data.pair_slots import PairSlots
from regard.data.sampler import Sampler
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

    def pin(self) -> PairBatch:
        return pinned(self)


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


# --- from the store to a batch ---


def gather(store: Store, indices: IntArray) -> PairArrays:
    """The ids of these pairs, end to end in the order of `indices`, and their lengths."""
    return *store["source"].gather(indices), *store["target"].gather(indices)


def make_sampler(
    src_lengths: IntArray,
    tgt_lengths: IntArray,
    batch_tokens: int,
    seed: int,
    corpora: Sequence[CorpusRange] | None = None,
    slots: PairSlots | None = None,
    mixed: bool = True,
) -> Sampler:
    """A sampler of pairs, whose lengths are without `</s>`: a pair costs its target tokens, and `batch_tokens` counts those."""
    src, tgt = (np.asarray(lengths, dtype=np.int64) + 1 for lengths in (src_lengths, tgt_lengths))
    return Sampler(tgt, batch_tokens, seed, corpora, slots, mixed, others=(src,))


@dataclass(frozen=True)
class PairPacking:
    """Turns the pairs that the sampler chose into micro-batches: see `feed.py`."""

    store: Store
    bos_id: int
    eos_id: int
    slots: PairSlots | None = None
    dropout: BpeDropout | None = None  # segments sentences anew for each update, into at most `max_length` tokens
    max_length: int = 0

    def split(self, indices: Int64Array, parts: int) -> list[Int64Array]:
        """An update as micro-batches of about as many target tokens each."""
        return split_indices(indices, self.store["target"].lengths[indices], parts)

    def pack(self, parts: Sequence[Part], own: slice, sampler: Sampler) -> tuple[int, list[PairBatch] | list[Tensor]]:
        """The number of target tokens of all parts, and those in `own`, packed."""
        indices, tiles = [part.indices for part in parts], [list[int]() for _ in parts]
        if self.slots is None and sampler.mixed:
            planned = [
                plan_tiles(*(column.lengths[part] for column in self.store.columns.values())) for part in indices
            ]
            indices = [part[order] for part, (order, _) in zip(indices, planned, strict=True)]
            tiles = [sizes for _, sizes in planned]
        count, gathered = self._gather(indices, own, sampler)
        if self.slots is not None:
            return count, [self.slots.pack(*each, self.bos_id, self.eos_id, count) for each in gathered]
        sizes = zip(gathered, tiles[own], strict=True)
        return count, [make_batch(*each, self.bos_id, self.eos_id, tile_sizes) for each, tile_sizes in sizes]

    def without_labels(self, part: Part) -> PairBatch:
        """A batch that adds nothing to the loss."""
        batch = make_batch(*gather(self.store, part.indices[:1]), self.bos_id, self.eos_id)
        return replace(batch, labels=torch.full_like(batch.labels, -1))

    def _gather(self, parts: list[Int64Array], own: slice, sampler: Sampler) -> tuple[int, Iterable[PairArrays]]:
        """The number of target tokens of the whole update, and the ids of this process's share."""
        if self.dropout is None:
            lengths = self.store["target"].lengths
            return sum(int(lengths[part].sum()) + len(part) for part in parts), map(
                partial(gather, self.store), parts[own]
            )
        # Draw for all processes: each needs the total count, and draws in the same order.
        room = (self.slots.src_tokens, self.slots.tgt_tokens) if self.slots is not None else (0, 0)
        drawn = self.dropout.draw(parts, sampler.epoch, sampler.position, TokenLimits(self.max_length, *room))
        count = sum(int(each.lengths[1].sum()) + len(each.lengths[1]) for each in drawn)
        return count, map(self.dropout.gather, drawn[own])
