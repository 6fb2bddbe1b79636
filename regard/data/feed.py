"""The updates of a run, prepared in a thread ahead of the training loop: records from the sampler, which the task's packing
turns into tensors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from regard.data.arrays import Int64Array
from regard.data.batch import pinned
from regard.data.checksums import Recheck
from regard.data.prefetch import Prefetcher
from regard.data.sampler import Sampler
from regard.data.slot_batch import SlotShape
from regard.data.store import Store
from regard.errors import UserError

DEPTH = 32  # updates prepared ahead: enough to hide the planning of the next epoch of millions of records


def check_shares(accumulate: int, num_ranks: int) -> None:
    """Refuse a number of fixed-shape micro-batches that the processes cannot divide evenly."""
    if accumulate % num_ranks:
        raise UserError(
            f"train.accumulate must be a multiple of the number of processes ({num_ranks}), but is {accumulate}: on the "
            f"fast path an update is this many micro-batches of one shape, divided among the processes; set it to "
            f"{num_ranks}, or train.fast to off"
        )


class Part(NamedTuple):
    """The records of one micro-batch, and the epoch that they were drawn in."""

    indices: Int64Array
    epoch: int


@dataclass(frozen=True)
class Packed:
    """The micro-batches of one process, and what the whole update has: see `PreparedUpdate`."""

    parts: Sequence[Any]
    count: int
    tokens: int


class Packing(Protocol):
    """How a task turns records into micro-batches: batches of any shape or, with `slots`, arrays of one shape."""

    @property
    def slots(self) -> SlotShape | None: ...

    def split(self, indices: Int64Array, parts: int) -> list[Int64Array]:
        """An update as at most so many micro-batches of about the same cost."""
        ...

    def pack(self, parts: Sequence[Part], own: slice, sampler: Sampler) -> Packed:
        """The parts in `own` as batches. The sampler has just yielded all parts."""
        ...

    def without_labels(self, part: Part) -> Any:
        """A batch that adds nothing to the loss: it keeps a process in step with the others."""
        ...


@dataclass(frozen=True)
class PreparedUpdate:
    """The data of one update, as micro-batches: batches, or arrays that slots unpack. Each process has its share."""

    parts: tuple[Any, ...]
    count: int  # labels of all micro-batches, those of other processes included
    tokens: int  # tokens that they are measured by: to translate, target tokens
    epoch: int  # of the sampler, after this update; so are the next two
    position: int
    progress: float


class Feed:
    """An endless iterator over prepared updates; `state` and `progress` are as of the last update taken."""

    def __init__(
        self,
        store: Store,
        sampler: Sampler,
        packing: Packing,
        accumulate: int,
        device: torch.device | str = "cpu",
        rank: int = 0,
        num_ranks: int = 1,
        equal: bool = False,
    ) -> None:
        """Process `rank` of `num_ranks` prepares its own share of every update, for CUDA devices in page-locked memory.

        With `equal`, every process gets the same number of micro-batches: where an update has too few records, batches without
        labels fill up.
        """
        self.slots = packing.slots
        if self.slots is not None:
            check_shares(accumulate, num_ranks)
        self._sampler, self._packing = sampler, packing
        self._accumulate, self._device = accumulate, torch.device(device)
        # The same number of micro-batches for every process: none waits for another that has more.
        self.share = -(-accumulate // num_ranks)
        self._own = slice(rank * self.share, (rank + 1) * self.share)  # this process's micro-batches
        self._num_parts = self.share * num_ranks
        self._equal = equal
        self.epoch, self.position, self.progress = sampler.epoch, sampler.position, sampler.progress
        # With slots, the sampler's batch is one micro-batch; without, it is a whole update, which is split here.
        self.updates_per_epoch = sampler.batches_per_epoch / (accumulate if self.slots is not None else 1)
        self._ahead: Prefetcher[PreparedUpdate] | None = None
        # All processes together check each piece of the store about once per epoch.
        self._recheck, self._num_ranks = Recheck(store.pieces, rank / num_ranks), num_ranks

    def __iter__(self) -> Feed:
        return self

    def __next__(self) -> PreparedUpdate:
        if self._ahead is None:
            self._ahead = Prefetcher(self._updates(), DEPTH)
        update = next(self._ahead)
        self.epoch, self.position, self.progress = update.epoch, update.position, update.progress
        return update

    def state(self) -> dict[str, Any]:
        """The sampler's state after the last update taken, for JSON; a resumed run prepares again what was ahead."""
        return self._sampler.state(self.epoch, self.position)

    def load_state(self, state: dict[str, Any]) -> None:
        """Continue after the update that `state` was taken at. Call it before taking the first update."""
        if self._ahead is not None:
            raise ValueError("the state must be loaded before the first update is taken")
        self._sampler.load_state(state)
        self.epoch, self.position, self.progress = (
            self._sampler.epoch,
            self._sampler.position,
            self._sampler.progress,
        )

    def close(self) -> None:
        if self._ahead is not None:
            self._ahead.close()

    def _updates(self) -> Iterator[PreparedUpdate]:
        if self._device.type == "cuda":
            torch.cuda.set_device(self._device)  # the current device is per thread
        while True:
            parts = self._take()
            self._recheck.advance(
                sum(len(part.indices) for part in parts) / (self._num_ranks * self._sampler.num_records)
            )
            packed = self._packing.pack(parts, self._own, self._sampler)
            own_share = [self._pinned(each) for each in packed.parts]
            if self._equal and len(own_share) < self.share:
                own_share += [self._packing.without_labels(parts[0])] * (self.share - len(own_share))
            sampler = self._sampler
            place = (sampler.epoch, sampler.position, sampler.progress)
            yield PreparedUpdate(tuple(own_share), packed.count, packed.tokens, *place)

    def _take(self) -> list[Part]:
        """The micro-batches of the next update, those of all processes."""
        sampler = self._sampler
        if self.slots is not None:
            return [Part(next(sampler), sampler.epoch) for _ in range(self._accumulate)]
        split = self._packing.split(next(sampler), self._num_parts)
        return [Part(indices, sampler.epoch) for indices in split]

    def _pinned(self, packed: Any) -> Any:
        if self._device.type != "cuda":
            return packed
        return packed.pin_memory() if isinstance(packed, Tensor) else pinned(packed)
