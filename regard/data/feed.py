"""The updates of a run, prepared in a thread ahead of the training loop: pairs from the sampler, ids from the store, packed
into tensors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from regard.data.arrays import Int64Array
from regard.data.batch import Batch, make_batch, plan_tiles, split_indices
from regard.data.bpe_dropout import BpeDropout, TokenLimits
from regard.data.checksums import Recheck
from regard.data.prefetch import Prefetcher
from regard.data.sampler import Sampler
from regard.data.slot_batch import Slots
from regard.data.store import Gathered, Store
from regard.errors import UserError

DEPTH = 32  # updates prepared ahead: enough to hide the planning of the next epoch of millions of pairs


def check_shares(accumulate: int, num_ranks: int) -> None:
    """Refuse a number of fixed-shape micro-batches that the processes cannot divide evenly."""
    if accumulate % num_ranks:
        raise UserError(
            f"train.accumulate must be a multiple of the number of processes ({num_ranks}), but is {accumulate}: on the "
            f"fast path an update is this many micro-batches of one shape, divided among the processes; set it to "
            f"{num_ranks}, or train.fast to off"
        )


@dataclass(frozen=True)
class PreparedUpdate:
    """The data of one update, as micro-batches: batches, or slot batches packed by `Slots.pack`. Each process has its share."""

    parts: tuple[Batch, ...] | tuple[Tensor, ...]
    count: int  # target tokens of all micro-batches, those of other processes included
    epoch: int  # of the sampler, after this update; so are the next two
    position: int
    progress: float


class Feed:
    """An endless iterator over prepared updates; `state` and `progress` are as of the last update taken."""

    def __init__(
        self,
        store: Store,
        sampler: Sampler,
        bos_id: int,
        eos_id: int,
        accumulate: int,
        slots: Slots | None,
        device: torch.device | str = "cpu",
        rank: int = 0,
        num_ranks: int = 1,
        dropout: BpeDropout | None = None,
        max_length: int = 0,
        equal: bool = False,
    ) -> None:
        """Process `rank` of `num_ranks` prepares its own share of every update, for CUDA devices in page-locked memory.

        With `dropout`, sentences are segmented anew for each update, into at most `max_length` tokens. With `equal`, every
        process gets the same number of micro-batches: where an update has too few pairs, batches without labels fill up.
        """
        if slots is not None:
            check_shares(accumulate, num_ranks)
        self._store, self._sampler, self._marks = store, sampler, (bos_id, eos_id)
        self._accumulate, self.slots, self._device = accumulate, slots, torch.device(device)
        # The same number of micro-batches for every process: none waits for another that has more.
        self.share = -(-accumulate // num_ranks)
        self._own = slice(rank * self.share, (rank + 1) * self.share)  # this process's micro-batches
        self._num_parts = self.share * num_ranks
        self._dropout, self._equal = dropout, equal
        room = (slots.src_tokens, slots.tgt_tokens) if slots is not None else (0, 0)
        self._limits = TokenLimits(max_length, *room)
        self.epoch, self.position, self.progress = sampler.epoch, sampler.position, sampler.progress
        # With slots, the sampler's batch is one micro-batch; without, it is a whole update, which is split here.
        self.updates_per_epoch = sampler.batches_per_epoch / (accumulate if slots is not None else 1)
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
            if self.slots is not None:
                parts = [next(self._sampler) for _ in range(self._accumulate)]
            else:
                indices = next(self._sampler)
                parts = split_indices(indices, self._store.tgt_lengths[indices], self._num_parts)
            self._recheck.advance(sum(map(len, parts)) / (self._num_ranks * len(self._store)))
            tiles: list[list[int]] = [[] for _ in parts]
            if self.slots is None and self._sampler.mixed:
                parts, tiles = self._tile(parts)
            count, own_share = self._gather(parts)
            packed = [
                self._pack(gathered, count, sizes) for gathered, sizes in zip(own_share, tiles[self._own], strict=True)
            ]
            if self._equal and len(packed) < self.share:
                packed += [self._batch_without_labels(parts[0])] * (self.share - len(packed))
            sampler = self._sampler
            yield PreparedUpdate(tuple(packed), count, sampler.epoch, sampler.position, sampler.progress)  # type: ignore[arg-type]

    def _gather(self, parts: list[Int64Array]) -> tuple[int, Iterable[Gathered]]:
        """The number of target tokens of the whole update, and the ids of this process's share."""
        if self._dropout is None:
            count = sum(int(self._store.tgt_lengths[part].sum()) + len(part) for part in parts)
            return count, map(self._store.gather, parts[self._own])
        # Draw for all processes: each needs the total count, and draws in the same order.
        drawn = self._dropout.draw(parts, self._sampler.epoch, self._sampler.position, self._limits)
        count = sum(int(each.lengths[1].sum()) + len(each.lengths[1]) for each in drawn)
        return count, map(self._dropout.gather, drawn[self._own])

    def _batch_without_labels(self, part: Int64Array) -> Batch:
        """A batch that adds nothing to the loss: it keeps this process in step with the others."""
        batch = make_batch(*self._store.gather(part[:1]), *self._marks)
        return replace(batch, labels=torch.full_like(batch.labels, -1))

    def _tile(self, parts: list[Int64Array]) -> tuple[list[Int64Array], list[list[int]]]:
        """The micro-batches in the order of their tiles, and the tiles of each."""
        src, tgt = self._store.src_lengths, self._store.tgt_lengths
        planned = [plan_tiles(src[part], tgt[part]) for part in parts]
        return [part[order] for part, (order, _) in zip(parts, planned, strict=True)], [sizes for _, sizes in planned]

    def _pack(self, gathered: Gathered, count: int, tile_sizes: list[int]) -> Batch | Tensor:
        if self.slots is None:
            batch = make_batch(*gathered, *self._marks, tile_sizes)
            return batch.pin() if self._device.type == "cuda" else batch
        packed = self.slots.pack(*gathered, *self._marks, count)
        return packed.pin_memory() if self._device.type == "cuda" else packed
