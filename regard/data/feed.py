"""The updates of a run, one after the other, made ahead of the training loop in a thread: pairs from the sampler, ids from
the store, packed into tensors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from regard.data.arrays import Int64Array
from regard.data.batch import Batch, make_batch, split_indices
from regard.data.bpe_dropout import BpeDropout, TokenLimits
from regard.data.prefetch import Prefetcher
from regard.data.sampler import Sampler
from regard.data.slot_batch import Slots
from regard.data.store import Gathered, Store
from regard.errors import UserError

DEPTH = 32  # updates made ahead; planning the next epoch of millions of pairs takes as long as some of them


def check_shares(accumulate: int, num_ranks: int) -> None:
    """Refuse parts of one shape that the processes cannot share out evenly."""
    if accumulate % num_ranks:
        raise UserError(
            f"train.accumulate must be a multiple of the number of processes ({num_ranks}), but is {accumulate}: on the "
            f"fast path an update is so many batches of one shape, which the processes share out; set it to {num_ranks}, "
            f"or train.fast to off"
        )


@dataclass(frozen=True)
class PreparedUpdate:
    """The data of one update, in parts: batches, or the words of slots. Of several processes, each has a share of the parts."""

    parts: tuple[Batch, ...] | tuple[Tensor, ...]
    count: int  # target tokens of all parts, those of other processes included
    epoch: int  # where the sampler stands afterwards
    position: int
    progress: float


class Feed:
    """An endless iterator over prepared updates; `state` and `progress` are those of the last one taken."""

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
        """For CUDA devices batches are made in page-locked memory. Process `rank` of `num_ranks` makes its own share.

        With `dropout`, sentences are cut anew, into at most `max_length` tokens. `equal`: all have as many parts of every
        update, where an update has too few pairs for that, some that count for nothing.
        """
        if slots is not None:
            check_shares(accumulate, num_ranks)
        self._store, self._sampler, self._marks = store, sampler, (bos_id, eos_id)
        self._accumulate, self.slots, self._device = accumulate, slots, torch.device(device)
        # Every process has as many parts as any other, so that none waits for one that has more.
        self._rank, self.share = rank, -(-accumulate // num_ranks)
        self._num_parts = self.share * num_ranks
        self._dropout, self._equal = dropout, equal
        room = (slots.src_tokens, slots.tgt_tokens) if slots is not None else (0, 0)
        self._limits = TokenLimits(max_length, *room)
        self.epoch, self.position, self.progress = sampler.epoch, sampler.position, sampler.progress
        # A batch with slots is one part of an update, and one without is a whole update, cut into parts here.
        self.updates_per_epoch = sampler.batches_per_epoch / (accumulate if slots is not None else 1)
        self._ahead: Prefetcher[PreparedUpdate] | None = None

    def __iter__(self) -> Feed:
        return self

    def __next__(self) -> PreparedUpdate:
        if self._ahead is None:
            self._ahead = Prefetcher(self._updates(), DEPTH)
        update = next(self._ahead)
        self.epoch, self.position, self.progress = update.epoch, update.position, update.progress
        return update

    def state(self) -> dict[str, Any]:
        """The sampler's state behind the last update taken, for JSON; those made ahead are made again."""
        return self._sampler.state(self.epoch, self.position)

    def load_state(self, state: dict[str, Any]) -> None:
        """Go on behind the update that `state` was taken after; before the first one is asked for."""
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
            torch.cuda.set_device(self._device)  # of this thread
        while True:
            if self.slots is not None:
                parts = [next(self._sampler) for _ in range(self._accumulate)]
            else:
                indices = next(self._sampler)
                parts = split_indices(indices, self._store.tgt_lengths[indices], self._num_parts)
            count, share = self._gathered(parts)
            made = [self._make(gathered, count) for gathered in share]
            if self._equal and len(made) < self.share:
                made += [self._idle(parts[0])] * (self.share - len(made))
            tensors = tuple(made)
            sampler = self._sampler
            yield PreparedUpdate(tensors, count, sampler.epoch, sampler.position, sampler.progress)  # type: ignore[arg-type]

    def _gathered(self, parts: list[Int64Array]) -> tuple[int, Iterable[Gathered]]:
        """The target tokens of an update's parts, and this process's share of them."""
        share = slice(self._rank * self.share, (self._rank + 1) * self.share)
        if self._dropout is None:
            count = sum(int(self._store.tgt_lengths[part].sum()) + len(part) for part in parts)
            return count, map(self._store.gather, parts[share])
        # The draws of all parts: the others' tokens count, and their draws are not those of this one.
        drawn = self._dropout.draw(parts, self._sampler.epoch, self._sampler.position, self._limits)
        count = sum(int(each.lengths[1].sum()) + len(each.lengths[1]) for each in drawn)
        return count, map(self._dropout.gather, drawn[share])

    def _idle(self, part: Int64Array) -> Batch:
        """A batch to go through the model with the other processes, without a label."""
        batch = make_batch(*self._store.gather(part[:1]), *self._marks)
        return replace(batch, labels=torch.full_like(batch.labels, -1))

    def _make(self, gathered: Gathered, count: int) -> Batch | Tensor:
        if self.slots is None:
            batch = make_batch(*gathered, *self._marks)
            return batch.pin() if self._device.type == "cuda" else batch
        words = self.slots.pack(*gathered, *self._marks, count)
        return words.pin_memory() if self._device.type == "cuda" else words
