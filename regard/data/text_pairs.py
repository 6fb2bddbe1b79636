"""Batches of pairs of texts that mean the same, for one encoder: both texts of a pair side by side, each framed as the tokenizer
frames an input.

    ids   The cat . </s> Die Katze . </s> Yes . </s> Ja . </s>          sequences   first, second, first, second, ...
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from regard.data.arrays import Int64Array
from regard.data.batch import framed, on_device, plan_by_length, split_indices
from regard.data.corpus import CorpusRange
from regard.data.feed import Packed, Part
from regard.data.hashing import sequence_hashes
from regard.data.sampler import Sampler
from regard.data.slot_batch import (
    RECORD_STEP,
    TOKEN_STEP,
    BatchLimits,
    Int32Array,
    check_packed,
    make_sections,
    most_records,
    round_up,
    write_layout,
    write_offsets,
)
from regard.data.store import Store
from regard.errors import UserError
from regard.layout import SequenceLayout, SlotLayout, tile_groups


class GatheredPairs(NamedTuple):
    """Texts end to end, and which of them are equal."""

    ids: Int64Array  # (tokens,)
    lengths: Int64Array  # (2 pairs,) first, second, first, second, ...
    groups: Int64Array  # (pairs, 2) the same number for equal texts, from 0


class TextPairs:
    """The pairs of a store. `costs` are the tokens of both texts with their frames; what exceeds `length` is cut off.

    >>> from regard.data.store import Column
    >>> first, second = Column(np.array([5, 6, 7]), np.array([0, 2, 3])), Column(np.array([8, 9]), np.array([0, 1, 2]))
    >>> pairs = TextPairs(Store({"source": first, "target": second}, [], {}), 4, (1,), (2,))
    >>> pairs.gather(np.array([0])).ids.tolist()
    [1, 5, 6, 2, 1, 8, 2]
    """

    def __init__(self, store: Store, length: int, opening: Sequence[int] = (), closing: Sequence[int] = ()) -> None:
        """`opening` and `closing` are the ids around each text, its frame."""
        self._columns = store["source"], store["target"]
        self.opening, self.closing = np.array(opening, np.int64), np.array(closing, np.int64)
        marks = len(opening) + len(closing)
        self._room = length - marks
        if self._room < 1:
            raise UserError(f"data.max_length must be more than the {marks} tokens around a text, but is {length}")
        sizes = [np.asarray(column.lengths, np.int64) for column in self._columns]
        self.num_cut = int(np.count_nonzero(np.maximum(*sizes) > self._room))
        kept = [np.minimum(size, self._room) for size in sizes]
        self.costs: Int64Array = kept[0] + kept[1] + 2 * marks
        self.corpora: list[CorpusRange] = list(store.corpora)

    def gather(self, pairs: Int64Array) -> GatheredPairs:
        """Both texts of these pairs, framed and end to end."""
        parts = [self._cut(*column.gather(pairs)) for column in self._columns]
        content = np.concatenate([ids for ids, _ in parts])
        # Texts lie side by side by column; (pairs, 2) -> (2 pairs,) puts those of a pair side by side.
        sizes = np.stack([lengths for _, lengths in parts], axis=1).reshape(-1)
        starts = np.concatenate([lengths for _, lengths in parts]).cumsum().reshape(2, -1).T.reshape(-1) - sizes
        place = np.arange(len(content)) - np.repeat(sizes.cumsum() - sizes, sizes)
        ids, lengths = framed(content[np.repeat(starts, sizes) + place], sizes, self.opening, self.closing)
        _, groups = np.unique(sequence_hashes(ids, lengths), return_inverse=True)
        return GatheredPairs(ids, lengths, groups.reshape(-1, 2).astype(np.int64))

    def _cut(self, ids: Int64Array, sizes: Int64Array) -> tuple[Int64Array, Int64Array]:
        """The beginnings that fit."""
        if int(sizes.max(initial=0)) <= self._room:
            return ids, sizes
        place = np.arange(len(ids)) - np.repeat(sizes.cumsum() - sizes, sizes)
        return ids[place < self._room], np.minimum(sizes, self._room)


# --- batches ---


@dataclass(frozen=True)
class TextPairBatch:
    """Pairs to train on: sequences 2n and 2n + 1 are the texts of pair n."""

    ids: Tensor  # (tokens,) int64
    layout: SequenceLayout
    groups: Tensor  # (pairs, 2) int64, the same number for equal texts; -1: there is no pair
    scale: Tensor  # () 1 / temperature

    def to(self, device: torch.device | str, non_blocking: bool = False) -> TextPairBatch:
        return on_device(self, device, non_blocking)


def one_side(batch: TextPairBatch, side: int) -> tuple[Tensor, SequenceLayout]:
    """The first texts of all pairs, or with `side` 1 the second ones: their ids, and where each lies."""
    layout = batch.layout
    sizes = [size // 2 for size in layout.tile_sizes]  # a tile has whole pairs
    alone = SequenceLayout.from_lengths(layout.lengths[side::2], layout.device, sizes)
    return batch.ids[layout.sequence_ids % 2 == side], alone


def make_pair_batch(gathered: GatheredPairs, temperature: float, tile_sizes: Sequence[int] = ()) -> TextPairBatch:
    """Pairs as a batch of any shape; `tile_sizes` are the pairs of each tile."""
    return TextPairBatch(
        torch.from_numpy(gathered.ids),
        SequenceLayout.from_lengths(gathered.lengths.tolist(), tile_sizes=[2 * size for size in tile_sizes]),
        torch.from_numpy(gathered.groups),
        torch.tensor(1.0 / temperature),
    )


@dataclass(frozen=True)
class TextPairSlotBatch:
    """Pairs in slots of a fixed shape."""

    ids: Tensor  # (tokens,) int32; 0 in empty rows
    layout: SlotLayout  # has more sequences than those of pairs: see `TextPairSlots`
    groups: Tensor  # (pairs, 2) int32; -1 where there is no pair
    scale: Tensor  # () 1 / temperature
    count: Tensor  # () int32, the texts of the whole update


@dataclass(frozen=True)
class TextPairSlots:
    """The fixed shape of a batch of pairs, and how it is packed into one array. After the sequences of the pairs there is room for
    those that empty rows make."""

    tokens: int
    pairs: int
    max_length: int  # tokens of the longest text, its frame included
    temperature: float

    @cached_property
    def _sections(self) -> list[slice]:
        # ids and their layout; groups of equal texts; count
        edges = 2 * self.pairs + -(-self.tokens // self.max_length) + 1
        return make_sections((self.tokens, self.tokens, self.tokens, edges, edges, 2 * self.pairs, 1))

    @property
    def size(self) -> int:
        """The length of a packed batch, in int32s."""
        return int(self._sections[-1].stop)

    @property
    def limits(self) -> BatchLimits:
        return BatchLimits(self.tokens, (), self.pairs)

    @property
    def fingerprint(self) -> list[int]:
        """Part of saved states."""
        return [self.tokens, self.pairs, self.max_length]

    def check_fit(self, costs: Int64Array, others: Sequence[Int64Array], corpora: Sequence[CorpusRange]) -> None:
        """All pairs fit: no text is longer than `max_length`, and a batch has at least twice as many tokens."""

    def pack(self, gathered: GatheredPairs, count: int) -> Tensor:
        """Pack pairs into (size,) int32, on the host. `count` is the number of texts of the whole update."""
        used, num_pairs = len(gathered.ids), len(gathered.groups)
        if used > self.tokens or num_pairs > self.pairs:
            raise ValueError(
                f"a batch must hold at most {self.tokens} tokens in {self.pairs} pairs, but gets {used} in {num_pairs}"
            )
        packed: Int32Array = np.zeros(self.size, dtype=np.int32)
        ids, *layout, offsets, groups = (packed[section] for section in self._sections[:-1])
        ids[:used] = gathered.ids
        lengths = gathered.lengths.tolist()
        ends = write_layout(gathered.lengths, np.array(tile_groups(lengths, lengths)), *layout)
        write_offsets(ends, self.tokens, self.max_length, offsets)
        groups[: 2 * num_pairs], groups[2 * num_pairs :] = gathered.groups.reshape(-1), -1
        packed[-1] = count
        return torch.from_numpy(packed)

    def unpack(self, packed: Tensor) -> TextPairSlotBatch:
        """The batch of a packed array, on its device: views, no copies."""
        check_packed(packed, self.size)
        ids, positions, sequence_ids, tiles, offsets, groups, count = (packed[section] for section in self._sections)
        layout = SlotLayout(positions, sequence_ids, tiles, self.max_length, offsets)
        scale = torch.tensor(1.0 / self.temperature, device=packed.device)
        return TextPairSlotBatch(ids, layout, groups.view(-1, 2), scale, count[0])


def fit_pair_slots(pairs: TextPairs, tokens: int, length: int, temperature: float) -> TextPairSlots:
    """Slots that random batches of `tokens` nearly fill: a batch almost always runs out of tokens first."""
    most = most_records(pairs.costs, pairs.corpora, tokens, "pair")
    return TextPairSlots(
        round_up(max(tokens, 2 * length), TOKEN_STEP), round_up(most, RECORD_STEP), length, temperature
    )


@dataclass(frozen=True)
class TextPairPacking:
    """Turns the pairs that the sampler chose into micro-batches: see `feed.py`. The negatives of a pair are the other pairs of its
    micro-batch, so how an update is split into micro-batches and processes is part of what is learnt."""

    pairs: TextPairs
    temperature: float
    slots: TextPairSlots | None = None

    def split(self, indices: Int64Array, parts: int) -> list[Int64Array]:
        return split_indices(indices, self.pairs.costs[indices], parts)

    def pack(self, parts: Sequence[Part], own: slice, sampler: Sampler) -> Packed:
        """A label is a text, whose pair is to be found."""
        indices = np.concatenate([part.indices for part in parts])
        count, tokens = 2 * len(indices), int(self.pairs.costs[indices].sum())
        if self.slots is None:
            return Packed([self._batch(part) for part in parts[own]], count, tokens)
        gathered = (self.pairs.gather(part.indices) for part in parts[own])
        return Packed([self.slots.pack(each, count) for each in gathered], count, tokens)

    def _batch(self, part: Part) -> TextPairBatch:
        order, tile_sizes = plan_by_length(self.pairs.costs[part.indices])
        return make_pair_batch(self.pairs.gather(part.indices[order]), self.temperature, tile_sizes)

    def without_labels(self, part: Part) -> TextPairBatch:
        """A batch that adds nothing to the loss."""
        batch = make_pair_batch(self.pairs.gather(part.indices[:1]), self.temperature)
        return replace(batch, groups=torch.full_like(batch.groups, -1))
