"""Batches of one fixed shape, which compiled code and captured CUDA graphs need: some rows at the end stay empty.

Sequences lie end to end. A batch is packed into one int32 array, so that a single copy takes it to the device. Here is what the
shapes of all tasks share; `pairs.py`, `rows.py` and `masking.py` have those of each. Which records go into a batch is up to the
sampler.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.data.arrays import Int64Array, IntArray
from regard.data.corpus import CorpusRange, check_ranges
from regard.errors import UserError

Int32Array = NDArray[np.int32]

ALIGNMENT = 4  # int32s: a GPU loads 16 bytes at once from the start of a section
# Slots are multiples of these: matrix products prefer such sizes, and runs on similar corpora share compiled code.
TOKEN_STEP, RECORD_STEP = 128, 64
DEVIATIONS = 3.0  # standard deviations of room above the mean: hardly a batch runs out of anything but its cost first


class BatchLimits(NamedTuple):
    """The most that a batch may hold; a record that exceeds them is a batch of its own."""

    cost: int  # tokens that count
    others: tuple[int, ...]  # tokens of each further column
    records: int


class SlotShape(Protocol):
    """The fixed shape of a task's batches: what the sampler, the feed and the update know of it."""

    @property
    def size(self) -> int:
        """The length of a packed batch, in int32s."""
        ...

    @property
    def max_length(self) -> int:
        """Tokens of the longest sequence, marks included."""
        ...

    @property
    def limits(self) -> BatchLimits: ...

    @property
    def fingerprint(self) -> list[int]:
        """What a resumed run compares."""
        ...

    def check_fit(self, costs: Int64Array, others: Sequence[Int64Array], corpora: Sequence[CorpusRange]) -> None:
        """Refuse a record that does not fit into an empty batch. `costs` and `others` are those of the sampler."""
        ...

    def unpack(self, packed: Tensor) -> Any:
        """The batch of a packed array, on its device: views, no copies. Its `count` is that of the whole update."""
        ...


def make_sections(lengths: Sequence[int]) -> list[slice]:
    """Where arrays of these lengths lie in one packed array; each begins at a multiple of ALIGNMENT.

    >>> make_sections([3, 8, 1])
    [slice(0, 3, None), slice(4, 12, None), slice(12, 13, None)]
    """
    sections = []
    start = 0
    for length in lengths:
        sections.append(slice(start, start + length))
        start = round_up(start + length, ALIGNMENT)
    return sections


def check_packed(packed: Tensor, size: int) -> None:
    """Refuse an array that is no packed batch of this size."""
    if packed.shape != (size,) or packed.dtype != torch.int32:
        raise ValueError(f"a packed batch must be {size} int32 values, but is {tuple(packed.shape)} of {packed.dtype}")


def write_layout(
    lengths: Int64Array,
    group_starts: Int64Array,
    positions: Int32Array,
    sequence_ids: Int32Array,
    groups: Int32Array,
) -> Int64Array:
    """Fill in a layout, whose arrays hold zeros; returns the rows where the sequences end, (sequences,)."""
    ends = lengths.cumsum()
    used = int(lengths.sum())
    positions[:used] = np.arange(used) - np.repeat(ends - lengths, lengths)
    sequence_ids[:used] = np.repeat(np.arange(len(ends)), lengths)
    sequence_ids[used:] = -1
    groups[: len(group_starts)] = np.concatenate([[0], ends])[group_starts]
    groups[len(group_starts) :] = used
    return ends


def write_offsets(ends: Int64Array, num_rows: int, max_length: int, offsets: Int32Array) -> None:
    """Fill in where each sequence begins, for the kernels that suit long ones: empty rows are sequences there, too."""
    used = int(ends[-1]) if len(ends) else 0
    starts = [0, *ends.tolist(), *range(used + max_length, num_rows, max_length)]
    offsets[: len(starts)] = starts
    offsets[len(starts) :] = num_rows


def write_sentences(ids: IntArray, ends: Int64Array, eos_id: int, out: Int32Array) -> None:
    """Write sentences end to end into `out`, each followed by `</s>`; `ends` count it."""
    used = len(ids) + len(ends)
    inside = np.ones(used, dtype=np.bool_)
    inside[ends - 1] = False
    out[:used][inside] = ids
    out[ends - 1] = eos_id


def most_records(costs: Int64Array, corpora: Sequence[CorpusRange], tokens: int, noun: str) -> float:
    """How many records random batches of so many tokens hold at most: hardly one has more. `costs` are the tokens of each record;
    `noun` is what people call one."""
    total = np.zeros(3)
    for _, weight, start, stop in check_ranges(corpora, len(costs)):
        own = costs[start:stop].astype(np.float64)
        total += weight * np.array([len(own), own.sum(), own @ own])  # whole numbers: exact in any order
    if total[0] == 0.0:
        raise UserError(f"an epoch must have at least one {noun}, but the corpora and their weights give none")
    mean, square = (total[1:] / total[0]).tolist()
    number = tokens / mean
    return float(number + DEVIATIONS * math.sqrt(number * max(0.0, square - mean**2)) / mean)


def round_up(value: float, step: int) -> int:
    return step * math.ceil(value / step)
