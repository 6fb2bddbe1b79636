"""Which pairs make up each update: batches of similar lengths, as full as they can be, in an order that can be resumed.

Batches of fixed slots (`data/slot_batch.py`) have no padding to save and so mix all lengths: they are cut from a random order.
An epoch is planned as a whole from (seed, epoch) alone, so its place is two numbers. Only raw bits of the generator are
used: numpy keeps those the same from version to version, and its shuffles not.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from dataclasses import astuple
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from regard.data.arrays import Int64Array, IntArray
from regard.data.slot_batch import Range, Slots, checked_ranges
from regard.errors import UserError

SOURCE_ROOM = 1.5  # a batch may have so many times as many source tokens as target tokens


class Sampler:
    """An endless iterator over the pair indices of one update after the other.

    `batch_tokens` limits the target tokens of an update, counting one `</s>` for each sentence; only a pair that is
    longer all by itself goes beyond it. A corpus of weight 2.5 gives each of its pairs twice an epoch, and half of them
    once more.

    With `slots`, a batch is one part of an update, of which the training loop takes `accumulate`: `batch_tokens` is that
    of a part then. Its pairs are of all lengths, and it never goes beyond the slots.
    """

    def __init__(
        self,
        src_lengths: IntArray,
        tgt_lengths: IntArray,
        batch_tokens: int,
        seed: int,
        corpora: Sequence[Range] | None = None,
        slots: Slots | None = None,
    ) -> None:
        if batch_tokens < 1:
            raise UserError(f"train.batch_tokens must be at least 1, but is {batch_tokens}")
        self._src = np.asarray(src_lengths, dtype=np.int64) + 1  # with </s>
        self._tgt = np.asarray(tgt_lengths, dtype=np.int64) + 1
        self._corpora = checked_ranges(corpora, len(self._tgt))
        self._batch_tokens = int(batch_tokens)
        self._slots = slots
        if slots is not None:
            self._check_fit(slots)
        self._seed = int(seed)
        self.epoch = 0
        self.position = 0  # batches taken in this epoch
        self._plan()

    def __iter__(self) -> Sampler:
        return self

    def __next__(self) -> Int64Array:
        if self.position == self.batches_per_epoch:
            self.epoch += 1
            self.position = 0
            self._plan()
        batch = self._order[self.position]
        self.position += 1
        return self._pairs[self._bounds[batch] : self._bounds[batch + 1]]

    @property
    def batches_per_epoch(self) -> int:
        """Of the current epoch; with fractional weights the next may have one more or less."""
        return len(self._order)

    @property
    def progress(self) -> float:
        """Epochs so far, such as 2.25."""
        return self.epoch + self.position / self.batches_per_epoch

    def state(self, epoch: int | None = None, position: int | None = None) -> dict[str, Any]:
        """Where the iteration stands, or stood, for JSON."""
        return {
            "epoch": self.epoch if epoch is None else epoch,
            "position": self.position if position is None else position,
            "fingerprint": self._fingerprint,
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Go on with exactly the batch that would have come next."""
        mine, saved = self._fingerprint, state["fingerprint"]
        for field in mine | saved:  # the slots stand in only one of the two if the run changed to them or from them
            if saved.get(field) != mine.get(field):
                hint = " (train.fast = off goes without slots)" if field == "slots" else ""
                raise UserError(
                    f"the run cannot go on in the same order: its {field} was {saved.get(field)} and is now {mine.get(field)}; "
                    f"resume with the data and settings it began with{hint}, or start a new run"
                )
        self.epoch = int(state["epoch"])
        self.position = int(state["position"])
        self._plan()

    @cached_property
    def _fingerprint(self) -> dict[str, Any]:
        lengths = zlib.crc32(self._tgt.tobytes(), zlib.crc32(self._src.tobytes()))
        weights = [[weight, start, stop] for _, weight, start, stop in self._corpora]
        fingerprint = {
            "number of pairs": len(self._tgt),
            "batch_tokens": self._batch_tokens,
            "seed": self._seed,
            "checksum of lengths": lengths,
            "corpus weights": weights,
        }
        if self._slots is not None:  # without slots it stays as it always was, for the sake of older runs
            fingerprint["slots"] = list(astuple(self._slots))
        return fingerprint

    def _check_fit(self, slots: Slots) -> None:
        src_limit, tgt_limit = min(slots.src_tokens, slots.max_length), min(slots.tgt_tokens, slots.max_length)
        for _, weight, start, stop in self._corpora:
            misfits = (self._src[start:stop] > src_limit) | (self._tgt[start:stop] > tgt_limit)
            if weight and misfits.any():
                pair = start + int(misfits.argmax())
                raise UserError(
                    f"every pair must fit into a batch of {slots.src_tokens} source and {slots.tgt_tokens} target tokens with "
                    f"sentences of up to {slots.max_length}, but number {pair + 1} has {self._src[pair]} and {self._tgt[pair]}, "
                    f"</s> included; set data.max_length to at most {min(src_limit, tgt_limit) - 1}, or raise train.batch_tokens"
                )

    def _plan(self) -> None:
        """Draw the epoch's pairs, put them in order and cut them into batches.

        The order is by length, and then the batches are shuffled; with slots it is random, and the batches stay in it.
        """
        bits = np.random.PCG64(np.random.SeedSequence([self._seed % 2**64, self.epoch]))
        pairs = self._draw(bits)
        if len(pairs) == 0:
            raise UserError("an epoch must have at least one pair, but the corpora and their weights give none")
        if self._slots is None:
            pairs = pairs[_sorting(self._tgt[pairs], self._src[pairs], bits)]
            limits = BatchLimits(self._batch_tokens, int(SOURCE_ROOM * self._batch_tokens), len(pairs))
            self._bounds = _cut(self._tgt[pairs], self._src[pairs], limits)
            self._order = np.argsort(bits.random_raw(len(self._bounds) - 1), kind="stable")
        else:
            pairs = pairs[np.argsort(bits.random_raw(len(pairs)), kind="stable")]
            slots = self._slots
            limits = BatchLimits(min(self._batch_tokens, slots.tgt_tokens), slots.src_tokens, slots.pairs)
            self._bounds = _with_even_end(self._tgt[pairs], self._src[pairs], limits)
            self._order = np.arange(len(self._bounds) - 1)
        self._pairs = pairs

    def _draw(self, bits: np.random.PCG64) -> Int64Array:
        drawn = []
        for _, weight, start, stop in self._corpora:
            copies = math.floor(weight)
            pairs = np.arange(start, stop, dtype=np.int64)
            extra = round((weight - copies) * len(pairs))
            drawn.append(np.tile(pairs, copies))
            if extra:
                drawn.append(pairs[np.argsort(bits.random_raw(len(pairs)), kind="stable")[:extra]])
        return np.concatenate(drawn)


class BatchLimits(NamedTuple):
    """What a batch may hold; a pair beyond them is a batch of its own."""

    tgt: int
    src: int
    pairs: int


def _sorting(tgt: Int64Array, src: Int64Array, bits: np.random.PCG64) -> Int64Array:
    """The order by target length, then source length, then chance; one sort of (16, 16, 32) bits is the fastest way."""
    top = np.uint64(0xFFFF)
    key = np.minimum(tgt.astype(np.uint64), top) << np.uint64(48)
    key |= np.minimum(src.astype(np.uint64), top) << np.uint64(32)
    key |= np.asarray(bits.random_raw(len(tgt)), dtype=np.uint64) >> np.uint64(32)
    return np.argsort(key, kind="stable")


def _cut(tgt: Int64Array, src: Int64Array, limits: BatchLimits) -> Int64Array:
    """The bounds of batches, as few as can be; equally full where that leaves room, so that none is a tiny rest."""
    full = _fill(tgt, src, limits)
    even = np.concatenate([[0], even_cuts(tgt, len(full) - 1), [len(tgt)]])
    fits = np.add.reduceat(tgt, even[:-1]) <= limits.tgt
    fits &= np.add.reduceat(src, even[:-1]) <= limits.src
    fits &= np.diff(even) <= limits.pairs
    return even if np.all(fits | (np.diff(even) == 1)) else full


def _with_even_end(tgt: Int64Array, src: Int64Array, limits: BatchLimits) -> Int64Array:
    """The bounds of `_cut`, with the last two batches equally full where a whole epoch of equally full ones does not fit."""
    bounds = _cut(tgt, src, limits)
    begin = int(bounds[-3]) if len(bounds) > 2 else 0
    return np.concatenate([bounds[:-3], begin + _cut(tgt[begin:], src[begin:], limits)])


def even_cuts(lengths: IntArray, parts: int) -> Int64Array:
    """Where to cut a row of sentences into `parts` of about equal tokens, none empty; `parts` - 1 places."""
    ends = np.cumsum(lengths, dtype=np.int64)
    marks = int(ends[-1]) * np.arange(1, parts) / parts
    cuts = np.searchsorted(ends - np.asarray(lengths) / 2, marks)  # a sentence belongs where its middle lies
    steps = np.arange(1, parts)
    cuts = np.maximum.accumulate(np.maximum(cuts - steps, 0)) + steps  # leave a sentence for each part on the left
    return np.minimum(cuts, len(lengths) - parts + steps)  # and on the right


def _fill(tgt: Int64Array, src: Int64Array, limits: BatchLimits) -> Int64Array:
    """Bounds of batches filled one after the other until the next pair would not fit."""
    tgt_ends, src_ends = tgt.cumsum(), src.cumsum()
    bounds = [0]
    tgt_used = src_used = 0
    while bounds[-1] < len(tgt_ends):
        stop = min(
            int(tgt_ends.searchsorted(tgt_used + limits.tgt, side="right")),
            int(src_ends.searchsorted(src_used + limits.src, side="right")),
            bounds[-1] + limits.pairs,
        )
        stop = max(stop, bounds[-1] + 1)
        bounds.append(stop)
        tgt_used, src_used = int(tgt_ends[stop - 1]), int(src_ends[stop - 1])
    return np.array(bounds, dtype=np.int64)
