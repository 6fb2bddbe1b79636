"""What the batches of all tasks share: marks around packed sequences, tiles, micro-batches, and the way to a device."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from regard.data.arrays import Int64Array, IntArray
from regard.data.sampler import even_cuts

T = TypeVar("T")
# By `benchmarks/attention_cpu.py`: rows from which on a text may have a tile to itself, and the share of the scores that may remain
# for this to pay.
OWN_TILE, ENOUGH = 96, 0.5


def on_device(batch: T, device: torch.device | str, non_blocking: bool = False) -> T:
    """A batch, any dataclass of tensors and layouts, on this device."""
    return _each(batch, lambda part: part.to(device, non_blocking=non_blocking))


def pinned(batch: T) -> T:
    """A batch in page-locked memory, from which copies to a GPU do not block the host."""
    return _each(batch, lambda part: part.pin_memory())


def _each(batch: T, change: Callable[[Any], Any]) -> T:
    parts = {field.name: change(getattr(batch, field.name)) for field in dataclasses.fields(batch)}  # type: ignore[arg-type]
    return dataclasses.replace(batch, **parts)  # type: ignore[type-var]


def with_marks(ids: IntArray, lengths: IntArray, mark: int, at_end: bool) -> Tensor:
    """(tokens,) ids -> (tokens + sequences,): `mark` added to each sequence, at its end or else at its start."""
    lengths = np.asarray(lengths)
    out = np.full(len(ids) + len(lengths), mark, dtype=np.int64)
    # A token moves right by one row for each mark before it.
    marks_before = np.repeat(np.arange(len(lengths)), lengths) + (0 if at_end else 1)
    out[np.arange(len(ids)) + marks_before] = ids
    return torch.from_numpy(out)


def framed(ids: IntArray, lengths: Int64Array, opening: IntArray, closing: IntArray) -> tuple[Int64Array, Int64Array]:
    """Sequences end to end, each with the marks `opening` before it and `closing` after it, and their lengths.

    >>> ids, lengths = framed(np.array([7, 8, 9]), np.array([1, 2]), np.array([1]), np.array([2]))
    >>> ids.tolist(), lengths.tolist()
    ([1, 7, 2, 1, 8, 9, 2], [3, 4])
    """
    marks = len(opening) + len(closing)
    whole = lengths + marks
    out = np.empty(int(whole.sum()), dtype=np.int64)
    # A token moves right by the marks of all sequences before its own, and by those that open its own.
    out[np.arange(len(ids)) + np.repeat(np.arange(len(lengths)) * marks + len(opening), lengths)] = ids
    ends = whole.cumsum()
    for mark, token in enumerate(opening):
        out[ends - whole + mark] = token
    for mark, token in enumerate(closing):
        out[ends - len(closing) + mark] = token
    return out, whole


def plan_tiles(*columns: IntArray) -> tuple[Int64Array, list[int]]:
    """The order and the tiles in which a batch of mixed lengths is computed: (order, records in each tile).

    `columns` are the lengths of the records, without `</s>`. The longest sequence decides how many rows a tile has. Each tile takes
    the longest records that are left, then fills up with the shortest.

    >>> order, sizes = plan_tiles(np.array([4, 9, 2, 5]), np.array([4, 8, 3, 5]))
    >>> order.tolist(), sizes
    ([1, 3, 2, 0], [1, 2, 1])
    """
    longest_first = np.argsort(-np.max(columns, axis=0), kind="stable")
    records: list[list[int]] = np.stack(
        [np.asarray(lengths)[longest_first] + 1 for lengths in columns], axis=1
    ).tolist()
    room = max((max(record) for record in records), default=0)
    order: list[int] = []
    sizes: list[int] = []
    first, last = 0, len(records) - 1
    while first <= last:
        start, rows = len(order), [0] * len(columns)
        for step in (1, -1):
            while first <= last:
                record = first if step == 1 else last
                filled = [used + length for used, length in zip(rows, records[record], strict=True)]
                if max(filled) > room:
                    break
                rows = filled
                order.append(record)
                first, last = (first + 1, last) if step == 1 else (first, last - 1)
        sizes.append(len(order) - start)
    return longest_first[np.array(order, dtype=np.int64)], sizes


def plan_by_length(costs: IntArray) -> tuple[Int64Array, list[int]]:
    """As `plan_tiles` for records of one sequence each. Where long ones are few they get tiles of their own, the longest first:
    every score of a tile is computed, so short texts that fill the tiles of a long one would mostly compute what is then hidden.

    `costs` are the lengths with all marks.

    >>> order, sizes = plan_by_length(np.array([30, 45, 200, 12, 40, 35, 20, 50]))
    >>> order.tolist(), sizes
    ([2, 7, 1, 4, 5, 3, 0, 6], [1, 1, 1, 1, 2, 2])
    """
    costs = np.asarray(costs, dtype=np.int64)
    together = plan_tiles(costs - 1)  # it counts one mark itself
    longest_first = np.argsort(-costs, kind="stable")
    num_long = int((costs >= OWN_TILE).sum())
    long, rest = longest_first[:num_long], longest_first[num_long:]
    order, sizes = plan_tiles(costs[rest] - 1)
    scores = (costs[long] ** 2).sum() + len(sizes) * costs[rest].max(initial=0) ** 2
    if scores > ENOUGH * len(together[1]) * costs.max(initial=0) ** 2:
        return together
    return np.concatenate([long, rest[order]]), [1] * num_long + sizes


def split_indices(indices: Int64Array, lengths: IntArray, parts: int) -> list[Int64Array]:
    """Split an update into `parts` micro-batches of about as many tokens each; fewer where there are fewer records.

    `lengths[i]` is the number of tokens of record `indices[i]`. Neighbours stay together, since a sampler that does not mix
    lengths puts records of similar length side by side.
    """
    if len(indices) != len(lengths):
        raise ValueError(f"`lengths` must have one entry per index ({len(indices)}), but has {len(lengths)}")
    parts = min(parts, len(indices))
    if parts <= 1:
        return [indices] if len(indices) else []
    return np.split(indices, even_cuts(lengths, parts))
