"""Which pairs make up each update: batches of similar lengths, as full as they can be, in an order that can be resumed.

An epoch is planned as a whole from (seed, epoch) alone, so its place is two numbers. Only raw bits of the generator are
used: numpy keeps those the same from version to version, and its shuffles not.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.errors import UserError

Indices = NDArray[np.int64]
Range = tuple[str, float, int, int]  # name, weight, start, stop

SOURCE_ROOM = 1.5  # a batch may have so many times as many source tokens as target tokens


class Sampler:
    """An endless iterator over the pair indices of one update after the other.

    `batch_tokens` limits the target tokens of an update, counting one `</s>` for each sentence; only a pair that is
    longer all by itself goes beyond it. A corpus of weight 2.5 gives each of its pairs twice an epoch, and half of them
    once more.
    """

    def __init__(
        self,
        src_lengths: NDArray[np.integer[Any]],
        tgt_lengths: NDArray[np.integer[Any]],
        batch_tokens: int,
        seed: int,
        corpora: Sequence[Range] | None = None,
    ) -> None:
        if batch_tokens < 1:
            raise UserError(f"train.batch_tokens must be at least 1, but is {batch_tokens}")
        self._src = np.asarray(src_lengths, dtype=np.int64) + 1  # with </s>
        self._tgt = np.asarray(tgt_lengths, dtype=np.int64) + 1
        self._corpora = [("", 1.0, 0, len(self._tgt))] if corpora is None else [_checked(entry) for entry in corpora]
        self._batch_tokens = int(batch_tokens)
        self._seed = int(seed)
        self.epoch = 0
        self.position = 0  # batches taken in this epoch
        self._plan()

    def __iter__(self) -> Sampler:
        return self

    def __next__(self) -> Indices:
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

    def state(self) -> dict[str, Any]:
        """Where the iteration stands, for JSON."""
        return {"epoch": self.epoch, "position": self.position, "fingerprint": self._fingerprint()}

    def load_state(self, state: dict[str, Any]) -> None:
        """Go on with exactly the batch that would have come next."""
        for field, mine in self._fingerprint().items():
            saved = state["fingerprint"].get(field)
            if saved != mine:
                raise UserError(
                    f"the run cannot go on in the same order: its {field} was {saved} and is now {mine}; "
                    "resume with the data and settings it began with, or start a new run"
                )
        self.epoch = int(state["epoch"])
        self.position = int(state["position"])
        self._plan()

    def _fingerprint(self) -> dict[str, Any]:
        lengths = zlib.crc32(self._tgt.tobytes(), zlib.crc32(self._src.tobytes()))
        weights = [[weight, start, stop] for _, weight, start, stop in self._corpora]
        return {
            "number of pairs": len(self._tgt),
            "batch_tokens": self._batch_tokens,
            "seed": self._seed,
            "checksum of lengths": lengths,
            "corpus weights": weights,
        }

    def _plan(self) -> None:
        """Draw the epoch's pairs, sort them by length, cut them into batches and shuffle the batches."""
        bits = np.random.PCG64(np.random.SeedSequence([self._seed % 2**64, self.epoch]))
        pairs = self._draw(bits)
        if len(pairs) == 0:
            raise UserError("an epoch must have at least one pair, but the corpora and their weights give none")
        pairs = pairs[_sorting(self._tgt[pairs], self._src[pairs], bits)]
        self._pairs = pairs
        self._bounds = _cut(self._tgt[pairs], self._src[pairs], self._batch_tokens)
        self._order = np.argsort(bits.random_raw(len(self._bounds) - 1), kind="stable")

    def _draw(self, bits: np.random.PCG64) -> Indices:
        drawn = []
        for _, weight, start, stop in self._corpora:
            copies = math.floor(weight)
            pairs = np.arange(start, stop, dtype=np.int64)
            extra = round((weight - copies) * len(pairs))
            drawn.append(np.tile(pairs, copies))
            if extra:
                drawn.append(pairs[np.argsort(bits.random_raw(len(pairs)), kind="stable")[:extra]])
        return np.concatenate(drawn)


def _checked(entry: Range) -> Range:
    name, weight, start, stop = entry
    if not (math.isfinite(weight) and weight >= 0):
        raise UserError(f"the weight of corpus {name!r} must be a number from 0 on, but is {weight}")
    return name, float(weight), int(start), int(stop)


def _sorting(tgt: Indices, src: Indices, bits: np.random.PCG64) -> Indices:
    """The order by target length, then source length, then chance; one sort of (16, 16, 32) bits is the fastest way."""
    top = np.uint64(0xFFFF)
    key = np.minimum(tgt.astype(np.uint64), top) << np.uint64(48)
    key |= np.minimum(src.astype(np.uint64), top) << np.uint64(32)
    key |= np.asarray(bits.random_raw(len(tgt)), dtype=np.uint64) >> np.uint64(32)
    return np.argsort(key, kind="stable")


def _cut(tgt: Indices, src: Indices, batch_tokens: int) -> Indices:
    """The bounds of batches, as few as can be; equally full where that leaves room, so that none is a tiny rest."""
    src_limit = int(SOURCE_ROOM * batch_tokens)
    full = _fill(tgt, src, batch_tokens, src_limit)
    even = np.concatenate([[0], even_cuts(tgt, len(full) - 1), [len(tgt)]])
    fits = np.add.reduceat(tgt, even[:-1]) <= batch_tokens
    fits &= np.add.reduceat(src, even[:-1]) <= src_limit
    return even if np.all(fits | (np.diff(even) == 1)) else full


def even_cuts(lengths: NDArray[np.integer[Any]], parts: int) -> Indices:
    """Where to cut a row of sentences into `parts` of about equal tokens, none empty; `parts` - 1 places."""
    ends = np.cumsum(lengths, dtype=np.int64)
    marks = int(ends[-1]) * np.arange(1, parts) / parts
    cuts = np.searchsorted(ends - np.asarray(lengths) / 2, marks)  # a sentence belongs where its middle lies
    steps = np.arange(1, parts)
    cuts = np.maximum.accumulate(np.maximum(cuts - steps, 0)) + steps  # leave a sentence for each part on the left
    return np.minimum(cuts, len(lengths) - parts + steps)  # and on the right


def _fill(tgt: Indices, src: Indices, tgt_limit: int, src_limit: int) -> Indices:
    """Bounds of batches filled one after the other until the next pair would not fit."""
    tgt_ends, src_ends = tgt.cumsum(), src.cumsum()
    bounds = [0]
    tgt_used = src_used = 0
    while bounds[-1] < len(tgt_ends):
        stop = min(
            int(tgt_ends.searchsorted(tgt_used + tgt_limit, side="right")),
            int(src_ends.searchsorted(src_used + src_limit, side="right")),
        )
        stop = max(stop, bounds[-1] + 1)
        bounds.append(stop)
        tgt_used, src_used = int(tgt_ends[stop - 1]), int(src_ends[stop - 1])
    return np.array(bounds, dtype=np.int64)
