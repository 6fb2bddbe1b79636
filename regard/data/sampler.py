"""Which pairs make up each batch: batches as full as they can be, in an order that a run can resume.

Batches mix all lengths, in random order: with the same updates a model learns far more than from batches of one length. Runs
that began with batches of one length, as the plain path used to make them, go on with those.

An epoch is planned as a whole, from (seed, epoch) alone: its state is two numbers, the epoch and the batches taken.
Randomness comes from the raw bits of the generator: numpy guarantees those from version to version, but not its shuffles.
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
from regard.data.corpus import CorpusRange, check_ranges
from regard.data.slot_batch import Slots
from regard.errors import UserError

MIXED = "mixed lengths"  # a key of saved states
MAX_SOURCE_RATIO = 1.5  # source tokens of a batch per `batch_tokens`, which limits its target tokens


class Sampler:
    """An endless iterator over batches, each as the indices of its pairs: (pairs,) int64.

    A batch is one update: at most `batch_tokens` target tokens, counting one `</s>` per sentence. Only a pair that is
    longer than that by itself exceeds it. With `slots` a batch is one micro-batch of an update, `batch_tokens` limits that
    micro-batch, and the slots are never exceeded.

    A corpus of weight 2.5 contributes each of its pairs twice per epoch, and a random half of them once more.
    """

    def __init__(
        self,
        src_lengths: IntArray,
        tgt_lengths: IntArray,
        batch_tokens: int,
        seed: int,
        corpora: Sequence[CorpusRange] | None = None,
        slots: Slots | None = None,
        mixed: bool = True,
    ) -> None:
        """`src_lengths` and `tgt_lengths` are (pairs,), without `</s>`; `corpora` None is one corpus of all pairs. With neither
        `mixed` nor `slots`, each batch holds pairs of similar length."""
        if batch_tokens < 1:
            raise UserError(f"train.batch_tokens must be at least 1, but is {batch_tokens}")
        self._src = np.asarray(src_lengths, dtype=np.int64) + 1  # with </s>
        self._tgt = np.asarray(tgt_lengths, dtype=np.int64) + 1
        self._corpora = check_ranges(corpora, len(self._tgt))
        self._batch_tokens = int(batch_tokens)
        self._slots = slots
        self.mixed = mixed or slots is not None
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
        """Batches in the current epoch; with fractional weights the next one may have one more or less."""
        return len(self._order)

    @property
    def progress(self) -> float:
        """Epochs so far, such as 2.25."""
        return self.epoch + self.position / self.batches_per_epoch

    def state(self, epoch: int | None = None, position: int | None = None) -> dict[str, Any]:
        """The current state, or that of an earlier epoch and position, for JSON."""
        return {
            "epoch": self.epoch if epoch is None else epoch,
            "position": self.position if position is None else position,
            "fingerprint": self._fingerprint,
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Continue with exactly the batch that would have come next."""
        saved = state["fingerprint"]
        if self._slots is None and "slots" not in saved:
            self.mixed = bool(saved.get(MIXED))
        now = self._fingerprint
        for field in now | saved:  # "slots" is in only one of them if the run switched to slots or away from them
            if field != MIXED and saved.get(field) != now.get(field):
                hint = " (train.fast = off goes without slots)" if field == "slots" else ""
                raise UserError(
                    f"the run cannot resume in the same order: its {field} was {saved.get(field)} and is now {now.get(field)}; "
                    f"resume with the data and settings it started with{hint}, or start a new run"
                )
        self.epoch = int(state["epoch"])
        self.position = int(state["position"])
        self._plan()
        if self.position > self.batches_per_epoch:
            raise UserError(
                f"the run cannot resume in the same order: its position in the epoch must be at most {self.batches_per_epoch}, "
                f"but is {self.position}; resume from an earlier checkpoint, or start a new run"
            )

    @cached_property
    def _checksum(self) -> int:
        return zlib.crc32(self._tgt.tobytes(), zlib.crc32(self._src.tobytes()))

    @property
    def _fingerprint(self) -> dict[str, Any]:
        """All that decides the order. The keys are part of saved states."""
        weights = [[weight, start, stop] for _, weight, start, stop in self._corpora]
        fingerprint = {
            "number of pairs": len(self._tgt),
            "batch_tokens": self._batch_tokens,
            "seed": self._seed,
            "checksum of lengths": self._checksum,
            "corpus weights": weights,
        }
        if self._slots is not None:  # no such key without slots: runs from before there were slots resume
            fingerprint["slots"] = list(astuple(self._slots))
        elif self.mixed:  # nor this one with batches of one length
            fingerprint[MIXED] = True
        return fingerprint

    def _check_fit(self, slots: Slots) -> None:
        """Refuse a pair that does not fit into an empty batch."""
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
        """Draw the epoch's pairs, order them and cut them into batches.

        Mixed lengths: shuffle the pairs, then cut. Similar lengths: order by length, cut, then shuffle the batches.
        """
        bits = np.random.PCG64(np.random.SeedSequence([self._seed % 2**64, self.epoch]))
        pairs = self._draw(bits)
        if len(pairs) == 0:
            raise UserError("an epoch must have at least one pair, but the corpora and their weights give none")
        if not self.mixed:
            pairs = pairs[_length_order(self._tgt[pairs], self._src[pairs], bits)]
            limits = BatchLimits(self._batch_tokens, int(MAX_SOURCE_RATIO * self._batch_tokens), len(pairs))
            self._bounds = _cut(self._tgt[pairs], self._src[pairs], limits)
            self._order = _random_order(len(self._bounds) - 1, bits)
        else:
            pairs = pairs[_random_order(len(pairs), bits)]
            limits = BatchLimits(self._batch_tokens, int(MAX_SOURCE_RATIO * self._batch_tokens), len(pairs))
            if (slots := self._slots) is not None:
                limits = BatchLimits(min(self._batch_tokens, slots.tgt_tokens), slots.src_tokens, slots.pairs)
            self._bounds = _cut_with_even_end(self._tgt[pairs], self._src[pairs], limits)
            self._order = np.arange(len(self._bounds) - 1)
        self._pairs = pairs

    def _draw(self, bits: np.random.PCG64) -> Int64Array:
        """The pairs of an epoch, corpus by corpus, each as often as its corpus's weight says."""
        drawn = []
        for _, weight, start, stop in self._corpora:
            copies = math.floor(weight)
            pairs = np.arange(start, stop, dtype=np.int64)
            extra = round((weight - copies) * len(pairs))
            drawn.append(np.tile(pairs, copies))
            if extra:
                drawn.append(pairs[_random_order(len(pairs), bits)[:extra]])
        return np.concatenate(drawn)


class BatchLimits(NamedTuple):
    """The most that a batch may hold; a pair that exceeds them is a batch of its own."""

    tgt: int  # tokens, </s> included
    src: int
    pairs: int


def _random_order(count: int, bits: np.random.PCG64) -> Int64Array:
    return np.argsort(bits.random_raw(count), kind="stable")


def _length_order(tgt: Int64Array, src: Int64Array, bits: np.random.PCG64) -> Int64Array:
    """Indices that sort by target length, then source length, then chance: one sort of (16, 16, 32)-bit keys is fastest."""
    top = np.uint64(0xFFFF)
    key = np.minimum(tgt.astype(np.uint64), top) << np.uint64(48)
    key |= np.minimum(src.astype(np.uint64), top) << np.uint64(32)
    key |= np.asarray(bits.random_raw(len(tgt)), dtype=np.uint64) >> np.uint64(32)
    return np.argsort(key, kind="stable")


# --- cutting a row of pairs into batches: batch b is pairs[bounds[b] : bounds[b + 1]] ---


def _cut(tgt: Int64Array, src: Int64Array, limits: BatchLimits) -> Int64Array:
    """The bounds of as few batches as possible, equally full where the limits allow it: no tiny batch at the end.

    >>> lengths = np.full(9, 10)
    >>> _fill(lengths, lengths, BatchLimits(40, 60, 9)), _cut(lengths, lengths, BatchLimits(40, 60, 9))
    (array([0, 4, 8, 9]), array([0, 3, 6, 9]))
    """
    full = _fill(tgt, src, limits)
    even = np.concatenate([[0], even_cuts(tgt, len(full) - 1), [len(tgt)]])
    fits = np.add.reduceat(tgt, even[:-1]) <= limits.tgt
    fits &= np.add.reduceat(src, even[:-1]) <= limits.src
    fits &= np.diff(even) <= limits.pairs
    return even if np.all(fits | (np.diff(even) == 1)) else full


def _cut_with_even_end(tgt: Int64Array, src: Int64Array, limits: BatchLimits) -> Int64Array:
    """As `_cut`; where a whole epoch of equally full batches does not fit, at least the last two are equally full."""
    bounds = _cut(tgt, src, limits)
    begin = int(bounds[-3]) if len(bounds) > 2 else 0
    return np.concatenate([bounds[:-3], begin + _cut(tgt[begin:], src[begin:], limits)])


def _fill(tgt: Int64Array, src: Int64Array, limits: BatchLimits) -> Int64Array:
    """The bounds of batches filled one after the other, each until the next pair would not fit."""
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


def even_cuts(lengths: IntArray, parts: int) -> Int64Array:
    """Where to cut a row of sentences into `parts` of about as many tokens each, none empty: (parts - 1,).

    >>> even_cuts(np.array([5, 5, 10, 10, 10]), 2)  # 5 5 10 | 10 10
    array([3])
    """
    ends = np.cumsum(lengths, dtype=np.int64)
    marks = int(ends[-1]) * np.arange(1, parts) / parts
    cuts = np.searchsorted(ends - np.asarray(lengths) / 2, marks)  # a sentence belongs where its middle lies
    steps = np.arange(1, parts)
    cuts = np.maximum.accumulate(np.maximum(cuts - steps, 0)) + steps  # leave a sentence for each part on the left
    return np.minimum(cuts, len(lengths) - parts + steps)  # and on the right
