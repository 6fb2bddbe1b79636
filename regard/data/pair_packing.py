"""From the pairs that the sampler chose to batches: see `feed.py`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch

from regard.data.arrays import Int64Array, IntArray, PairArrays
from regard.data.batch import plan_tiles, split_indices
from regard.data.bpe_dropout import BpeDropout, TokenLimits
from regard.data.corpus import CorpusRange
from regard.data.feed import Packed, Part
from regard.data.pair_slots import PairSlots
from regard.data.pairs import PairBatch, gather, make_batch
from regard.data.sampler import Sampler
from regard.data.store import Store


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

    def pack(self, parts: Sequence[Part], own: slice, sampler: Sampler) -> Packed:
        """All target tokens have labels."""
        indices, tiles = [part.indices for part in parts], [list[int]() for _ in parts]
        if self.slots is None and sampler.mixed:
            planned = [
                plan_tiles(*(column.lengths[part] for column in self.store.columns.values())) for part in indices
            ]
            indices = [part[order] for part, (order, _) in zip(indices, planned, strict=True)]
            tiles = [sizes for _, sizes in planned]
        count, gathered = self._gather(indices, own, sampler)
        if self.slots is not None:
            words = [self.slots.pack(*each, self.bos_id, self.eos_id, count) for each in gathered]
            return Packed(words, count, count)
        sizes = zip(gathered, tiles[own], strict=True)
        batches = [make_batch(*each, self.bos_id, self.eos_id, tile_sizes) for each, tile_sizes in sizes]
        return Packed(batches, count, count)

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
