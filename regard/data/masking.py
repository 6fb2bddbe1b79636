"""Text for masked language models (Devlin et al., 2019): pieces of documents with some tokens to predict.

    piece    <s> The cat sat on the mat . </s>
    ids      <s> The cat <mask> on the dog . </s>           labels   sat (at 3), mat (at 6)

Of the chosen tokens eight in ten become `<mask>`, one in ten another token, and one in ten stays. Which ones are chosen is drawn
from (seed, epoch, record) alone: each epoch masks others (RoBERTa's dynamic masking), and a resumed run the same ones. With whole
words all tokens of a word are chosen or none, so that none can be predicted from the rest of its word. Each token of a chosen word
is masked, replaced or kept on its own, as in BERT's whole-word masking. A share of the words is chosen, as in fairseq, so that long
words are chosen as often as short ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.data.arrays import Int64Array, IntArray
from regard.data.batch import framed, on_device, plan_by_length, split_indices
from regard.data.corpus import CorpusRange
from regard.data.feed import Packed, Part
from regard.data.hashing import STEP, UInt64Array, mix, uniform
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
from regard.data.store import Column
from regard.data.whole_words import WordTable
from regard.errors import UserError
from regard.layout import SequenceLayout, SlotLayout, tile_groups

LONGEST_WORD = 8  # tokens; a longer word, such as an address, counts as several
MASKED, CHANGED = 0.8, 0.9  # of the chosen tokens: below the first a mask, below the second another token


class TextPieces:
    """The documents of a column, cut into pieces of about equal length, each at most `length` tokens with its frame.

    >>> column = Column(np.array([5, 6, 7, 8, 9]), np.array([0, 4, 5]))  # 5 6 7 8 | 9
    >>> pieces = TextPieces(column, [CorpusRange("x", 1.0, 0, 2)], 5, opening=(1,), closing=(2,))
    >>> pieces.costs.tolist()
    [4, 4, 3]
    >>> pieces.gather(np.array([2, 1]))
    (array([1, 9, 2, 1, 7, 8, 2]), array([3, 4]))
    """

    def __init__(
        self,
        column: Column,
        corpora: Sequence[CorpusRange],
        length: int,
        opening: Sequence[int] = (),
        closing: Sequence[int] = (),
    ) -> None:
        """`opening` and `closing` are the ids around each piece, its frame."""
        self.opening, self.closing = np.array(opening, np.int64), np.array(closing, np.int64)
        room = length - len(opening) - len(closing)
        if room < 1:
            raise UserError(
                f"data.max_length must be more than the {length - room} tokens around a text, but is {length}"
            )
        sizes = np.diff(column.offsets)
        counts = -(-sizes // room)  # pieces of each document
        firsts = np.concatenate([[0], np.cumsum(counts)])
        document = np.repeat(np.arange(len(sizes)), counts)
        number = np.arange(len(document)) - firsts[document]
        cuts = [column.offsets[document] + (number + step) * sizes[document] // counts[document] for step in (0, 1)]
        self._column = Column(
            column.ids, np.concatenate([cuts[0], cuts[1][-1:]]) if len(document) else np.zeros(1, np.int64)
        )
        self.costs: Int64Array = cuts[1] - cuts[0] + (length - room)
        self.corpora = [
            CorpusRange(corpus.name, corpus.weight, int(firsts[corpus.start]), int(firsts[corpus.stop]))
            for corpus in corpora
        ]

    def gather(self, pieces: IntArray) -> tuple[Int64Array, Int64Array]:
        """The ids of these pieces, framed and end to end, and their lengths."""
        content, sizes = self._column.gather(pieces)
        return framed(content, sizes, self.opening, self.closing)

    def is_content(self, lengths: Int64Array) -> NDArray[np.bool_]:
        """Which tokens of pieces of these lengths, end to end, are text, and not their frame."""
        ends = np.repeat(lengths.cumsum(), lengths)
        place = np.arange(len(ends)) - (ends - np.repeat(lengths, lengths))
        inside: NDArray[np.bool_] = place >= len(self.opening)
        inside &= place < np.repeat(lengths, lengths) - len(self.closing)
        return inside


class MaskedPieces(NamedTuple):
    """Pieces with some tokens masked, end to end."""

    ids: Int64Array  # (tokens,)
    lengths: Int64Array  # (pieces,)
    places: Int64Array  # (labels,) the rows of the chosen tokens
    labels: Int64Array  # (labels,) what stood there

    def with_at_most(self, labels: int) -> MaskedPieces:
        """The same with only the first labels, if there are more; the other tokens are as they were."""
        if len(self.labels) <= labels:
            return self
        ids = self.ids.copy()
        ids[self.places[labels:]] = self.labels[labels:]
        return MaskedPieces(ids, self.lengths, self.places[:labels], self.labels[:labels])


@dataclass(frozen=True)
class Masking:
    """Chooses tokens and masks them."""

    share: float  # of the tokens of a piece, or of its words, that are chosen; at least one is
    mask_id: int
    others: Int64Array  # the ids that may take the place of a chosen token
    seed: int
    words: WordTable | None = None  # choose whole words

    def count(self, sizes: Int64Array) -> Int64Array:
        """How many tokens are chosen in pieces with this many tokens of text; with whole words, how many of this many words."""
        chosen: Int64Array = np.rint(self.share * sizes).astype(np.int64)
        return np.maximum(chosen, 1)

    def mask(self, pieces: TextPieces, records: Int64Array, epoch: int) -> MaskedPieces:
        """These pieces as they are in this epoch."""
        ids, lengths = pieces.gather(records)
        content = np.flatnonzero(pieces.is_content(lengths))
        sizes = lengths - len(pieces.opening) - len(pieces.closing)
        piece = np.repeat(np.arange(len(sizes)), sizes)
        starts = sizes.cumsum() - sizes
        draws = self._draws(records, sizes, np.arange(len(piece)) - starts[piece], epoch)
        if self.words is None:
            chosen = np.flatnonzero(self._choose(piece, draws))
        else:
            begins = self.words.begins(ids[content])
            begins[starts[sizes > 0]] = True
            first = _word_starts(begins)
            word = np.repeat(np.arange(len(first)), np.diff(first, append=len(piece)))
            chosen = np.flatnonzero(self._choose(piece[first], draws[first])[word])
        places, labels = content[chosen], ids[content[chosen]]
        kind = uniform(mix(draws[chosen] ^ np.uint64(1)))
        other = self.others[mix(draws[chosen] ^ np.uint64(2)) % np.uint64(len(self.others))]
        ids[places] = np.where(kind < MASKED, self.mask_id, np.where(kind < CHANGED, other, labels))
        return MaskedPieces(ids, lengths, places, labels)

    def _choose(self, owner: Int64Array, draws: UInt64Array) -> NDArray[np.bool_]:
        """Which tokens or words are chosen: of each piece those that come first in random order. `owner` is the piece of each."""
        sizes = np.bincount(owner)
        # Sorted by piece, then by chance.
        order = np.argsort(owner.astype(np.uint64) << np.uint64(40) | draws >> np.uint64(24), kind="stable")
        rank = (
            np.arange(len(owner)) - (sizes.cumsum() - sizes)[owner]
        )  # owners are in order, so also of the sorted ones
        chosen = np.zeros(len(owner), np.bool_)
        chosen[order] = rank < self.count(sizes)[owner]
        return chosen

    def _draws(self, records: Int64Array, sizes: Int64Array, places: Int64Array, epoch: int) -> UInt64Array:
        """A random number for each token of text, from (seed, epoch, record, place) alone."""
        [base] = np.random.SeedSequence([self.seed % 2**64, epoch]).generate_state(1, np.uint64)
        pieces = mix(mix(records.astype(np.uint64)) + base)
        return mix(np.repeat(pieces, sizes) + places.astype(np.uint64) * STEP)


def _word_starts(begins: NDArray[np.bool_]) -> Int64Array:
    """The places of the tokens that begin a word, or a further part of a word longer than LONGEST_WORD.

    >>> _word_starts(np.array([True, True, *[False] * 8, True])).tolist()
    [0, 1, 9, 10]
    """
    first = np.flatnonzero(begins)
    place = np.arange(len(begins)) - first[begins.cumsum() - 1]
    return np.flatnonzero(place % LONGEST_WORD == 0)


# --- batches ---


@dataclass(frozen=True)
class MaskedBatch:
    """Masked pieces to train on or to score."""

    ids: Tensor  # (tokens,) int64
    layout: SequenceLayout
    places: Tensor  # (labels,) int64, the rows whose tokens are to be guessed
    labels: Tensor  # (labels,) int64

    def to(self, device: torch.device | str, non_blocking: bool = False) -> MaskedBatch:
        return on_device(self, device, non_blocking)


def make_masked_batch(masked: MaskedPieces, tile_sizes: Sequence[int] = ()) -> MaskedBatch:
    """Masked pieces as a batch of any shape."""
    return MaskedBatch(
        torch.from_numpy(masked.ids),
        SequenceLayout.from_lengths(masked.lengths.tolist(), tile_sizes=tile_sizes),
        torch.from_numpy(masked.places),
        torch.from_numpy(masked.labels),
    )


@dataclass(frozen=True)
class MaskedSlotBatch:
    """Masked pieces in slots of a fixed shape."""

    ids: Tensor  # (tokens,) int32; 0 in empty rows
    layout: SlotLayout
    places: Tensor  # (labels,) int32; 0 where there is no label
    labels: Tensor  # (labels,) int32; -1 where there is none
    count: Tensor  # () int32, the labels of the whole update


@dataclass(frozen=True)
class MaskedSlots:
    """The fixed shape of a batch of masked pieces, and how it is packed into one array."""

    tokens: int
    sequences: int
    labels: int
    max_length: int  # tokens of the longest piece, its frame included

    @cached_property
    def _sections(self) -> list[slice]:
        # ids and their layout; places, labels; count
        tokens, edges, labels = self.tokens, self.sequences + 1, self.labels
        return make_sections((tokens, tokens, tokens, edges, edges, labels, labels, 1))

    @property
    def size(self) -> int:
        """The length of a packed batch, in int32s."""
        return int(self._sections[-1].stop)

    @property
    def limits(self) -> BatchLimits:
        return BatchLimits(self.tokens, (), self.sequences - self._room)

    @property
    def _room(self) -> int:
        """Sequences that empty rows may make."""
        return -(-self.tokens // self.max_length)

    @property
    def fingerprint(self) -> list[int]:
        """Part of saved states."""
        return list(astuple(self))

    def check_fit(self, costs: Int64Array, others: Sequence[Int64Array], corpora: Sequence[CorpusRange]) -> None:
        """All pieces fit: none is longer than `max_length`, and a batch is at least that long."""

    def pack(self, masked: MaskedPieces, count: int) -> Tensor:
        """Pack pieces into (size,) int32, on the host. `count` is the number of labels of the whole update."""
        used, num_labels = len(masked.ids), len(masked.labels)
        if used > self.tokens or len(masked.lengths) > self.limits.records or num_labels > self.labels:
            raise ValueError(
                f"a batch must hold at most {self.tokens} tokens in {self.limits.records} pieces with {self.labels} labels, but "
                f"gets {used} in {len(masked.lengths)} with {num_labels}"
            )
        packed: Int32Array = np.zeros(self.size, dtype=np.int32)
        ids, *layout, offsets, places, labels = (packed[section] for section in self._sections[:-1])
        ids[:used] = masked.ids
        lengths = masked.lengths.tolist()
        ends = write_layout(masked.lengths, np.array(tile_groups(lengths, lengths)), *layout)
        write_offsets(ends, self.tokens, self.max_length, offsets)
        places[:num_labels], labels[:num_labels], labels[num_labels:] = masked.places, masked.labels, -1
        packed[-1] = count
        return torch.from_numpy(packed)

    def unpack(self, packed: Tensor) -> MaskedSlotBatch:
        """The batch of a packed array, on its device: views, no copies."""
        check_packed(packed, self.size)
        ids, positions, sequence_ids, groups, offsets, places, labels, count = (
            packed[section] for section in self._sections
        )
        layout = SlotLayout(positions, sequence_ids, groups, self.max_length, offsets)
        return MaskedSlotBatch(ids, layout, places, labels, count[0])


def fit_masked_slots(pieces: TextPieces, masking: Masking, tokens: int, length: int) -> MaskedSlots:
    """Slots that random batches of `tokens` nearly fill: a batch almost always runs out of tokens first."""
    sequences = most_records(pieces.costs, pieces.corpora, tokens, "document")
    tokens = round_up(max(tokens, length), TOKEN_STEP)
    sequences = round_up(sequences + -(-tokens // length), RECORD_STEP)
    # Of n tokens at most share * n + 1/2 are chosen, but at least one. Whole words exceed that in some pieces, but hardly ever in a
    # whole batch; if they do, its last labels are dropped.
    return MaskedSlots(tokens, sequences, round_up(masking.share * tokens + sequences, RECORD_STEP), length)


@dataclass(frozen=True)
class MaskedPacking:
    """Turns the pieces that the sampler chose into micro-batches: see `feed.py`."""

    pieces: TextPieces
    masking: Masking
    slots: MaskedSlots | None = None

    def split(self, indices: Int64Array, parts: int) -> list[Int64Array]:
        return split_indices(indices, self.pieces.costs[indices], parts)

    def pack(self, parts: Sequence[Part], own: slice, sampler: Sampler) -> Packed:
        """Only masked tokens have labels. How many tokens the chosen words have is known once they are drawn, so each process draws
        those of all."""
        costs = np.concatenate([self.pieces.costs[part.indices] for part in parts])
        tokens = int(costs.sum())
        if self.masking.words is None:
            sizes = costs - len(self.pieces.opening) - len(self.pieces.closing)
            count, drawn = int(self.masking.count(sizes).sum()), [self._draw(part) for part in parts[own]]
        else:
            every = [self._draw(part) for part in parts]
            count, drawn = sum(len(masked.labels) for masked, _ in every), every[own]
        if self.slots is None:
            return Packed([make_masked_batch(*each) for each in drawn], count, tokens)
        return Packed([self.slots.pack(masked, count) for masked, _ in drawn], count, tokens)

    def _draw(self, part: Part) -> tuple[MaskedPieces, list[int]]:
        """The masked pieces of a micro-batch, and the pieces of each tile, which only batches of any shape have."""
        if self.slots is not None:
            masked = self.masking.mask(self.pieces, part.indices, part.epoch)
            return masked.with_at_most(self.slots.labels), []
        order, tile_sizes = plan_by_length(self.pieces.costs[part.indices])
        return self.masking.mask(self.pieces, part.indices[order], part.epoch), tile_sizes

    def without_labels(self, part: Part) -> MaskedBatch:
        """A batch that adds nothing to the loss."""
        batch = make_masked_batch(self.masking.mask(self.pieces, part.indices[:1], part.epoch))
        return replace(batch, labels=torch.full_like(batch.labels, -1))
