"""Text for language models: documents end to end, cut into full rows, each token predicted from those before it.

    document        The cat sat.             A dog.
    ids             <s> The cat sat .        <s> A dog .
    labels          The cat sat . </s>       A dog . </s>
    in rows of 5    <s> The cat sat . | <s> A dog . ...

A row that begins inside a document sees nothing of what came before. Documents do not see each other: each part of one in a row
is a sequence of its own, unless asked otherwise.
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
from regard.data.batch import on_device, split_indices
from regard.data.corpus import CorpusRange
from regard.data.feed import Packed, Part
from regard.data.sampler import Sampler
from regard.data.slot_batch import (
    RECORD_STEP,
    TOKEN_STEP,
    BatchLimits,
    Int32Array,
    check_packed,
    make_sections,
    round_up,
    write_layout,
    write_offsets,
)
from regard.data.store import Column
from regard.layout import SequenceLayout, SlotLayout, tile_groups


@dataclass(frozen=True)
class TextBatch:
    """Rows of text to train on or to score."""

    ids: Tensor  # (tokens,) int64
    labels: Tensor  # (tokens,) int64: the next token, or -1 where it is not learnt
    layout: SequenceLayout

    def to(self, device: torch.device | str, non_blocking: bool = False) -> TextBatch:
        return on_device(self, device, non_blocking)


class GatheredRows(NamedTuple):
    """The tokens of some rows, end to end, and the lengths of the sequences in them."""

    ids: Int64Array  # (tokens,)
    labels: Int64Array  # (tokens,)
    lengths: Int64Array  # (sequences,)


class TextRows:
    """The rows of a column of documents. Row r has `costs[r]` tokens.

    In training the text of each corpus is a ring, and an epoch cuts it at places of its own, so that all rows are full and a token
    meets other neighbours each time. With `seed` None rows begin at the first token, and the last one is shorter.

    >>> column = Column(np.array([5, 6, 7, 8, 9]), np.array([0, 3, 5]))  # 5 6 7 | 8 9
    >>> rows = TextRows(column, [CorpusRange("x", 1.0, 0, 2)], 5, start_id=1, end_id=2)
    >>> rows.costs.tolist(), [array.tolist() for array in rows.gather(np.array([0]))]
    ([5, 2], [[1, 5, 6, 7, 1], [5, 6, 7, 2, 8], [4, 1]])
    >>> [array.tolist() for array in rows.gather(np.array([1]))]
    [[8, 9], [9, 2], [2]]
    """

    def __init__(
        self,
        column: Column,
        corpora: Sequence[CorpusRange],
        length: int,
        start_id: int,
        end_id: int,
        across: bool = False,
        seed: int | None = None,
        learnt: Column | None = None,
    ) -> None:
        """`across`: a row is one sequence, whatever documents it has. The marks begin and end a document. `learnt` is 1 where an id
        is to be learnt; without it all are, and the marks at the ends."""
        self._ids, self._marks, self.across = column.ids, (start_id, end_id), across
        self._learnt = None if learnt is None else learnt.ids
        self._seed = None if seed is None else seed % 2**64
        # Where each document begins in the text: one token more than its ids, for its mark.
        self._begins: Int64Array = column.offsets + np.arange(len(column.offsets))
        self._edges = [(int(self._begins[start]), int(self._begins[stop])) for _, _, start, stop in corpora]
        self._lengths = [min(length, stop - start) for start, stop in self._edges]
        counts = [
            -(-(stop - start) // own) if own else 0
            for (start, stop), own in zip(self._edges, self._lengths, strict=True)
        ]
        self._firsts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)  # the first row of each corpus
        self.corpora = [
            CorpusRange(corpus.name, corpus.weight, int(first), int(stop))
            for corpus, first, stop in zip(corpora, self._firsts[:-1], self._firsts[1:], strict=True)
        ]
        self.costs: Int64Array = np.repeat(np.array(self._lengths, dtype=np.int64), counts)
        if seed is None:
            for corpus, (start, stop), own in zip(self.corpora, self._edges, self._lengths, strict=True):
                if corpus.stop > corpus.start:
                    self.costs[corpus.stop - 1] = stop - start - own * (corpus.stop - corpus.start - 1)

    def gather(self, rows: Int64Array, epoch: int = 0) -> GatheredRows:
        """These rows as an epoch cuts them."""
        ids, labels, lengths = [], [], []
        for row in rows.tolist():
            for start, stop in self._spans(row, epoch):
                first, own_lengths = self._documents(start, stop)
                numbers = np.repeat(np.arange(first, first + len(own_lengths)), own_lengths)
                span_ids, span_labels = self._tokens(np.arange(start, stop), numbers)
                ids.append(span_ids)
                labels.append(span_labels)
                if not self.across:
                    lengths.append(own_lengths)
            if self.across:
                lengths.append(self.costs[row : row + 1])
        return GatheredRows(np.concatenate(ids), np.concatenate(labels), np.concatenate(lengths))

    @property
    def learns_all(self) -> bool:
        """Whether every token has a label."""
        return self._learnt is None

    @property
    def density(self) -> float:
        """The most sequences per token that a row can have."""
        densities = []
        for corpus, (start, stop), own in zip(self.corpora, self._edges, self._lengths, strict=True):
            if corpus.weight and own:
                begins = self._begins[np.searchsorted(self._begins, start) : np.searchsorted(self._begins, stop)]
                ring = np.concatenate([begins, begins + (stop - start)])
                within = int((np.searchsorted(ring, begins + own) - np.arange(len(begins))).max())
                densities.append((1 if self.across else within + 1) / own)  # a row may begin inside a document
        return max(densities, default=0.0)

    def _spans(self, row: int, epoch: int) -> list[tuple[int, int]]:
        """Where a row lies in the text: a part of it, or its end and its beginning."""
        corpus = int(np.searchsorted(self._firsts, row, side="right")) - 1
        (first, end), own = self._edges[corpus], self._lengths[corpus]
        start = first + (row - int(self._firsts[corpus])) * own
        if self._seed is None:
            return [(start, min(start + own, end))]
        start = first + (start - first + self._shift(epoch, corpus)) % (end - first)
        spans = [(start, min(start + own, end)), (first, first + start + own - end)]
        return [(begin, stop) for begin, stop in spans if begin < stop]

    def _shift(self, epoch: int, corpus: int) -> int:
        """How far an epoch's rows are moved along the text, below the length of a row."""
        bits = np.random.PCG64(np.random.SeedSequence([self._seed or 0, epoch, corpus, 1]))
        return int(bits.random_raw()) % self._lengths[corpus]

    def _documents(self, start: int, stop: int) -> tuple[int, Int64Array]:
        """The first document in a part of the text, and how many tokens of it and of the next ones are there."""
        first, last = (int(np.searchsorted(self._begins, place, side="right")) - 1 for place in (start, stop - 1))
        bounds: Int64Array = np.clip(self._begins[first : last + 2], start, stop)
        return first, bounds[1:] - bounds[:-1]

    def _tokens(self, places: Int64Array, documents: Int64Array) -> tuple[Int64Array, Int64Array]:
        """The ids and labels at these places of the text, which lie in these documents: (tokens,) each."""
        start_id, end_id = self._marks
        after = places - documents  # among the ids, where the label is; the token itself is one before
        padded = np.concatenate([[start_id], self._ids[max(0, int(after[0]) - 1) : int(after[-1]) + 1], [end_id]])
        offset = 1 - max(0, int(after[0]) - 1)
        ids = np.where(places == self._begins[documents], start_id, padded[after - 1 + offset])
        is_last = places == self._begins[documents + 1] - 1
        labels = np.where(is_last, end_id, padded[after + offset])
        if self._learnt is not None:
            learnt = self._learnt[np.minimum(after, len(self._learnt) - 1)] > 0
            labels = np.where(learnt & ~is_last, labels, -1)
        return ids.astype(np.int64), labels.astype(np.int64)


# --- batches ---


def make_text_batch(gathered: GatheredRows) -> TextBatch:
    """Rows as a batch of any shape."""
    lengths = gathered.lengths.tolist()
    return TextBatch(
        torch.from_numpy(gathered.ids),
        torch.from_numpy(gathered.labels),
        SequenceLayout.from_lengths(lengths, tile_sizes=neighbour_tiles(lengths)),
    )


def neighbour_tiles(lengths: Sequence[int]) -> list[int]:
    """How many neighbours share each tile, whose rows are those of the longest sequence; empty if all are alone.

    >>> neighbour_tiles([5, 2, 2, 4, 1]), neighbour_tiles([3, 3])
    ([1, 2, 2], [])
    """
    room, sizes, rows = max(lengths, default=0), [0], 0
    for length in lengths:
        if rows + length > room:
            sizes.append(0)
            rows = 0
        sizes[-1] += 1
        rows += length
    return sizes if len(sizes) < len(lengths) else []


@dataclass(frozen=True)
class TextSlotBatch:
    """Rows of text in slots of a fixed number of tokens."""

    ids: Tensor  # (tokens,) int32; 0 in empty rows
    labels: Tensor  # (tokens,) int32; -1 in empty rows
    layout: SlotLayout
    count: Tensor  # () int32, the labels of the whole update


@dataclass(frozen=True)
class TextSlots:
    """The fixed shape of a batch of rows, and how it is packed into one array."""

    tokens: int
    sequences: int
    max_length: int  # tokens of a row
    is_uniform: bool = False  # whether each row is one sequence and full

    @cached_property
    def _sections(self) -> list[slice]:
        # ids, labels and their layout; count
        tokens, edges = self.tokens, self.sequences + 1
        return make_sections((tokens, tokens, tokens, tokens, edges, edges, 1))

    @property
    def size(self) -> int:
        """The length of a packed batch, in int32s."""
        return int(self._sections[-1].stop)

    @property
    def limits(self) -> BatchLimits:
        return BatchLimits(self.tokens, (), self.tokens)

    @property
    def fingerprint(self) -> list[int]:
        """Part of saved states."""
        return [self.tokens, self.sequences, self.max_length]

    def check_fit(self, costs: Int64Array, others: Sequence[Int64Array], corpora: Sequence[CorpusRange]) -> None:
        """All rows fit: a batch has at least as many tokens as a row."""

    def pack(self, gathered: GatheredRows, count: int) -> Tensor:
        """Pack rows into (size,) int32, on the host. `count` is the number of labels of the whole update."""
        used = len(gathered.ids)
        if used > self.tokens or len(gathered.lengths) > self.sequences:
            raise ValueError(
                f"a batch must hold at most {self.tokens} tokens in {self.sequences} sequences, but gets {used} in "
                f"{len(gathered.lengths)}"
            )
        if self.is_uniform and (gathered.lengths != self.max_length).any():
            raise ValueError(f"all rows must be sequences of {self.max_length} tokens, but some are not")
        packed: Int32Array = np.zeros(self.size, dtype=np.int32)
        ids, labels, *layout, offsets = (packed[section] for section in self._sections[:-1])
        ids[:used], labels[:used], labels[used:] = gathered.ids, gathered.labels, -1
        lengths = gathered.lengths.tolist()
        ends = write_layout(gathered.lengths, np.array(tile_groups(lengths, lengths)), *layout)
        write_offsets(ends, self.tokens, self.max_length, offsets)
        packed[-1] = count
        return torch.from_numpy(packed)

    def unpack(self, packed: Tensor) -> TextSlotBatch:
        """The batch of a packed array, on its device: views, no copies."""
        check_packed(packed, self.size)
        ids, labels, positions, sequence_ids, groups, offsets, count = (packed[section] for section in self._sections)
        layout = SlotLayout(positions, sequence_ids, groups, self.max_length, offsets, self.is_uniform)
        return TextSlotBatch(ids, labels, layout, count[0])


def fit_text_slots(rows: TextRows, tokens: int, length: int) -> TextSlots:
    """Slots for as many whole rows of this length as `tokens` allow."""
    tokens = round_up(max(tokens // length, 1) * length, TOKEN_STEP)
    is_uniform = rows.across and tokens % length == 0 and bool((rows.costs == length).all())
    return TextSlots(tokens, round_up(tokens * rows.density + 1, RECORD_STEP), length, is_uniform)


@dataclass(frozen=True)
class RowPacking:
    """Turns the rows that the sampler chose into micro-batches: see `feed.py`."""

    rows: TextRows
    slots: TextSlots | None = None

    def split(self, indices: Int64Array, parts: int) -> list[Int64Array]:
        return split_indices(indices, self.rows.costs[indices], parts)

    def pack(self, parts: Sequence[Part], own: slice, sampler: Sampler) -> Packed:
        tokens = sum(int(self.rows.costs[part.indices].sum()) for part in parts)
        if self.rows.learns_all:
            count, gathered = tokens, [self.rows.gather(part.indices, part.epoch) for part in parts[own]]
        else:  # which labels the others have only their rows can tell
            every = [self.rows.gather(part.indices, part.epoch) for part in parts]
            count, gathered = max(1, sum(int((each.labels >= 0).sum()) for each in every)), every[own]
        if self.slots is not None:
            return Packed([self.slots.pack(each, count) for each in gathered], count, tokens)
        return Packed([make_text_batch(each) for each in gathered], count, tokens)

    def without_labels(self, part: Part) -> TextBatch:
        """A batch that adds nothing to the loss."""
        batch = make_text_batch(self.rows.gather(part.indices[:1], part.epoch))
        return replace(batch, labels=torch.full_like(batch.labels, -1))
