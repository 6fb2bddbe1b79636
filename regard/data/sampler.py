"""Which records make up each batch: batches as full as they can be, in an order that a run can resume.

Batches mix all lengths, in random order: with the same updates a model learns far more than from batches of one length. Runs
that began with batches of one length, as the plain path used to make them, go on with those.

An epoch is planned as a whole, from (seed, epoch) alone: its state is two numbers, the epoch and the batches taken.
Randomness comes from the raw bits of the generator: numpy guarantees those from version to version, but not its shuffles.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from regard.data.arrays import Int64Array, IntArray
from regard.data.corpus import CorpusRange, check_ranges
from regard.data.slot_batch import BatchLimits, SlotShape
from regard.errors import UserError

MIXED = "mixed lengths"  # a key of saved states
OTHER_RATIO = 1.5  # tokens of another column in a batch per `batch_tokens`, which limits its cost


class Sampler:
    """An endless iterator over batches, each as the indices of its records: (records,) int64.

    A batch is one update: records whose costs add up to at most `batch_tokens`. Only a record that costs more than that by itself
    exceeds it. With `slots` a batch is one micro-batch of an update, `batch_tokens` limits that micro-batch, and the slots are
    never exceeded.

    A corpus of weight 2.5 contributes each of its records twice per epoch, and a random half of them once more.
    """

    def __init__(
        self,
        costs: IntArray,
        batch_tokens: int,
        seed: int,
        corpora: Sequence[CorpusRange] | None = None,
        slots: SlotShape | None = None,
        mixed: bool = True,
        others: Sequence[IntArray] = (),
        noun: str = "pair",
    ) -> None:
        """`costs` are the tokens of each record that count, (records,); `others` those of further columns, (records,) each, which a
        batch limits, too. `corpora` None is one corpus of all records. With neither `mixed` nor `slots`, each batch holds records
        of similar length. `noun` is what people call a record."""
        if batch_tokens < 1:
            raise UserError(f"train.batch_tokens must be at least 1, but is {batch_tokens}")
        self._costs = np.asarray(costs, dtype=np.int64)
        self._others = tuple(np.asarray(other, dtype=np.int64) for other in others)
        self._corpora = check_ranges(corpora, len(self._costs))
        self._batch_tokens = int(batch_tokens)
        self._slots = slots
        self._noun = noun
        self.mixed = mixed or slots is not None
        if slots is not None:
            slots.check_fit(self._costs, self._others, self._corpora)
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
        return self._records[self._bounds[batch] : self._bounds[batch + 1]]

    @property
    def num_records(self) -> int:
        return len(self._costs)

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
        checksum = 0
        for lengths in (*self._others, self._costs):
            checksum = zlib.crc32(lengths.tobytes(), checksum)
        return checksum

    @property
    def _fingerprint(self) -> dict[str, Any]:
        """All that decides the order. The keys are part of saved states."""
        weights = [[weight, start, stop] for _, weight, start, stop in self._corpora]
        fingerprint = {
            f"number of {self._noun}s": self.num_records,
            "batch_tokens": self._batch_tokens,
            "seed": self._seed,
            "checksum of lengths": self._checksum,
            "corpus weights": weights,
        }
        if self._slots is not None:  # no such key without slots: runs from before there were slots resume
            fingerprint["slots"] = self._slots.fingerprint
        elif self.mixed:  # nor this one with batches of one length
            fingerprint[MIXED] = True
        return fingerprint

    def _plan(self) -> None:
        """Draw the epoch's records, order them and cut them into batches.

        Mixed lengths: shuffle the records, then cut. Similar lengths: order by length, cut, then shuffle the batches.
        """
        bits = np.random.PCG64(np.random.SeedSequence([self._seed % 2**64, self.epoch]))
        records = self._draw(bits)
        if len(records) == 0:
            raise UserError(
                f"an epoch must have at least one {self._noun}, but the corpora and their weights give none"
            )
        if not self.mixed:
            records = records[_length_order(*self._row(records), bits)]
            self._bounds = _cut(*self._row(records), self._limits(len(records)))
            self._order = _random_order(len(self._bounds) - 1, bits)
        else:
            records = records[_random_order(len(records), bits)]
            self._bounds = _cut_with_even_end(*self._row(records), self._limits(len(records)))
            self._order = np.arange(len(self._bounds) - 1)
        self._records = records

    def _row(self, records: Int64Array) -> tuple[Int64Array, list[Int64Array]]:
        """The costs of these records, and their tokens in the other columns."""
        return self._costs[records], [other[records] for other in self._others]

    def _limits(self, num_records: int) -> BatchLimits:
        if self._slots is not None:
            limits = self._slots.limits
            return limits._replace(cost=min(self._batch_tokens, limits.cost))
        other = int(OTHER_RATIO * self._batch_tokens)
        return BatchLimits(self._batch_tokens, (other,) * len(self._others), num_records)

    def _draw(self, bits: np.random.PCG64) -> Int64Array:
        """The records of an epoch, corpus by corpus, each as often as its corpus's weight says."""
        drawn = []
        for _, weight, start, stop in self._corpora:
            copies = math.floor(weight)
            records = np.arange(start, stop, dtype=np.int64)
            extra = round((weight - copies) * len(records))
            drawn.append(np.tile(records, copies))
            if extra:
                drawn.append(records[_random_order(len(records), bits)[:extra]])
        return np.concatenate(drawn)


def _random_order(count: int, bits: np.random.PCG64) -> Int64Array:
    return np.argsort(bits.random_raw(count), kind="stable")


def _length_order(costs: Int64Array, others: Sequence[Int64Array], bits: np.random.PCG64) -> Int64Array:
    """Indices that sort by cost, then by the tokens of the first other column, then by chance: one sort of (16, 16, 32)-bit keys
    is fastest."""
    top = np.uint64(0xFFFF)
    key = np.minimum(costs.astype(np.uint64), top) << np.uint64(48)
    if others:
        key |= np.minimum(others[0].astype(np.uint64), top) << np.uint64(32)
    key |= np.asarray(bits.random_raw(len(costs)), dtype=np.uint64) >> np.uint64(32)
    return np.argsort(key, kind="stable")


# --- cutting a row of records into batches: batch b is records[bounds[b] : bounds[b + 1]] ---


def _cut(costs: Int64Array, others: Sequence[Int64Array], limits: BatchLimits) -> Int64Array:
    """The bounds of as few batches as possible, equally full where the limits allow it: no tiny batch at the end.

    >>> lengths, limits = np.full(9, 10), BatchLimits(40, (60,), 9)
    >>> _fill(lengths, [lengths], limits), _cut(lengths, [lengths], limits)
    (array([0, 4, 8, 9]), array([0, 3, 6, 9]))
    """
    full = _fill(costs, others, limits)
    even = np.concatenate([[0], even_cuts(costs, len(full) - 1), [len(costs)]])
    fits = np.diff(even) <= limits.records
    for lengths, limit in zip((costs, *others), (limits.cost, *limits.others), strict=True):
        fits &= np.add.reduceat(lengths, even[:-1]) <= limit
    return even if np.all(fits | (np.diff(even) == 1)) else full


def _cut_with_even_end(costs: Int64Array, others: Sequence[Int64Array], limits: BatchLimits) -> Int64Array:
    """As `_cut`; where a whole epoch of equally full batches does not fit, at least the last two are equally full."""
    bounds = _cut(costs, others, limits)
    begin = int(bounds[-3]) if len(bounds) > 2 else 0
    return np.concatenate([bounds[:-3], begin + _cut(costs[begin:], [other[begin:] for other in others], limits)])


def _fill(costs: Int64Array, others: Sequence[Int64Array], limits: BatchLimits) -> Int64Array:
    """The bounds of batches filled one after the other, each until the next record would not fit."""
    columns = [
        (lengths.cumsum(), limit)
        for lengths, limit in zip((costs, *others), (limits.cost, *limits.others), strict=True)
    ]
    bounds = [0]
    used = [0] * len(columns)
    while bounds[-1] < len(costs):
        fitting = [
            int(ends.searchsorted(before + limit, side="right"))
            for before, (ends, limit) in zip(used, columns, strict=True)
        ]
        stop = max(min(*fitting, bounds[-1] + limits.records), bounds[-1] + 1)
        bounds.append(stop)
        used = [int(ends[stop - 1]) for ends, _ in columns]
    return np.array(bounds, dtype=np.int64)


def even_cuts(lengths: IntArray, parts: int) -> Int64Array:
    """Where to cut a row of records into `parts` of about as many tokens each, none empty: (parts - 1,).

    >>> even_cuts(np.array([5, 5, 10, 10, 10]), 2)  # 5 5 10 | 10 10
    array([3])
    """
    ends = np.cumsum(lengths, dtype=np.int64)
    marks = int(ends[-1]) * np.arange(1, parts) / parts
    cuts = np.searchsorted(ends - np.asarray(lengths) / 2, marks)  # a record belongs where its middle lies
    steps = np.arange(1, parts)
    cuts = np.maximum.accumulate(np.maximum(cuts - steps, 0)) + steps  # leave a record for each part on the left
    return np.minimum(cuts, len(lengths) - parts + steps)  # and on the right
