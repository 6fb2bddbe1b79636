from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch

from regard.data.batch import plan_tiles, split_indices
from regard.data.feed import DEPTH, Feed, PreparedUpdate
from regard.data.pair_packing import PairPacking, make_sampler
from regard.data.pair_slots import PairSlots
from regard.data.pairs import PairBatch, gather, make_batch
from regard.data.sampler import Sampler
from regard.data.store import Column, Store, store_in_memory
from regard.data.tokenizer import Tokenizer

BATCH_TOKENS = 70  # several pairs a batch, and several epochs within the updates that are made ahead
SLOTS = PairSlots(src_tokens=128, tgt_tokens=96, pairs=12, max_length=40)
PATIENCE = 120.0  # seconds after which a test that hangs fails

kinds = pytest.mark.parametrize("slots", [None, SLOTS], ids=["batches", "slots"])
parts = pytest.mark.parametrize("accumulate", [1, 3])


@pytest.fixture
def store(pairs: list[tuple[str, str]], tokenizer: Tokenizer) -> Store:
    return store_in_memory(pairs, tokenizer)


@pytest.fixture(autouse=True)
def no_thread_stays() -> Iterator[None]:
    yield
    assert "prefetch" not in threads()


def threads() -> set[str]:
    return {thread.name for thread in threading.enumerate()}


def sampler_of(store: Store, slots: PairSlots | None) -> Sampler:
    return make_sampler(store["source"].lengths, store["target"].lengths, BATCH_TOKENS, 3, store.corpora, slots)


def feed_of(store: Store, accumulate: int, slots: PairSlots | None) -> Feed:
    return Feed(store, sampler_of(store, slots), PairPacking(store, 1, 2, slots), accumulate)


def values(update: PreparedUpdate) -> list[Any]:
    """Everything in an update, as plain lists."""
    found: list[Any] = [update.count, update.epoch, update.position, update.progress]
    for part in update.parts:
        if isinstance(part, PairBatch):
            found.append([tensor.tolist() for tensor in (part.src, part.tgt_in, part.labels)])
            found.append((part.src_layout.lengths, part.tgt_layout.lengths))
        else:
            found.append(part.tolist())
    return found


def wait_until_ahead(feed: Feed) -> None:
    """Until more was made than was taken; the sampler is that far ahead."""
    deadline = time.monotonic() + PATIENCE
    while feed._sampler.progress <= feed.progress + 1.0:
        assert time.monotonic() < deadline
        time.sleep(0.001)


@parts
def test_the_order_is_the_samplers(store: Store, accumulate: int) -> None:
    sampler, feed = sampler_of(store, None), feed_of(store, accumulate, None)
    for indices, update in zip(islice(sampler, 40), feed, strict=False):
        cut = split_indices(indices, store["target"].lengths[indices], accumulate)
        assert len(update.parts) == len(cut) == min(accumulate, len(indices))
        for part, expected in zip(update.parts, cut, strict=True):
            order, sizes = plan_tiles(store["source"].lengths[expected], store["target"].lengths[expected])
            batch = make_batch(*gather(store, expected[order]), 1, 2)
            assert isinstance(part, PairBatch)
            assert part.src_layout.tile_sizes == part.tgt_layout.tile_sizes == tuple(sizes)
            assert part.src.tolist() == batch.src.tolist() and part.labels.tolist() == batch.labels.tolist()
        assert update.count == int((store["target"].lengths[indices] + 1).sum())
        assert (feed.epoch, feed.position, feed.progress) == (sampler.epoch, sampler.position, sampler.progress)
    assert feed.epoch >= 3
    feed.close()


@parts
def test_with_slots_an_update_is_so_many_of_the_samplers_batches(store: Store, accumulate: int) -> None:
    sampler, feed = sampler_of(store, SLOTS), feed_of(store, accumulate, SLOTS)
    assert feed.updates_per_epoch == sampler.batches_per_epoch / accumulate
    for update in islice(feed, 20):
        taken = [next(sampler) for _ in range(accumulate)]
        count = sum(int((store["target"].lengths[indices] + 1).sum()) for indices in taken)
        assert update.count == count and len(update.parts) == accumulate
        for words, indices in zip(update.parts, taken, strict=True):  # each part knows the tokens of all
            assert torch.equal(words, SLOTS.pack(*gather(store, indices), 1, 2, count))
        assert (feed.epoch, feed.position, feed.progress) == (sampler.epoch, sampler.position, sampler.progress)
    assert feed.epoch >= 3
    feed.close()


@kinds
@parts
@pytest.mark.parametrize("taken", [0, 1, 7])
def test_a_state_goes_on_with_the_next_update_although_more_were_made(
    store: Store, slots: PairSlots | None, accumulate: int, taken: int
) -> None:
    feed = feed_of(store, accumulate, slots)
    for _ in range(taken):
        next(feed)
    if taken:
        wait_until_ahead(feed)
    state = json.loads(json.dumps(feed.state()))
    resumed = feed_of(store, accumulate, slots)
    resumed.load_state(state)
    assert (resumed.epoch, resumed.position, resumed.progress) == (feed.epoch, feed.position, feed.progress)
    assert resumed.state() == state
    for one, other in islice(zip(resumed, feed, strict=True), DEPTH + 5):
        assert values(one) == values(other)
    resumed.close()
    feed.close()


def test_a_state_comes_too_late_when_updates_were_taken(store: Store) -> None:
    feed = feed_of(store, 1, None)
    state = feed.state()
    next(feed)
    with pytest.raises(ValueError, match="before the first update"):
        feed.load_state(state)
    feed.close()


@kinds
def test_closing_ends_the_thread(store: Store, slots: PairSlots | None) -> None:
    feed = feed_of(store, 2, slots)
    feed.close()  # nothing was asked for, so nothing runs
    assert "prefetch" not in threads()
    next(feed)
    assert "prefetch" in threads()
    wait_until_ahead(feed)
    feed.close()
    assert "prefetch" not in threads()
    with pytest.raises(StopIteration):
        next(feed)
    feed.close()


@kinds
def test_what_fails_in_the_thread_is_raised_where_its_update_was_due(
    store: Store, slots: PairSlots | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    column_gather, calls = Column.gather, 0

    def failing(self: Column, indices: np.ndarray) -> Any:
        nonlocal calls
        calls += 1
        if calls > 12:  # two columns in each of two parts
            raise OSError("the disk is gone")
        return column_gather(self, indices)

    expected = list(map(values, islice(whole := feed_of(store, 2, slots), 3)))
    whole.close()
    monkeypatch.setattr(Column, "gather", failing)
    feed = feed_of(store, 2, slots)
    assert list(map(values, islice(feed, 3))) == expected
    state = feed.state()
    with pytest.raises(OSError, match="the disk is gone"):
        next(feed)
    assert feed.state() == state  # a checkpoint would still be of the last update that was taken
    feed.close()
