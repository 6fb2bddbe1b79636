"""Batches of pairs of texts: framed, cut, equal texts found; slots hold what a batch of any shape holds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from regard.data.corpus import CorpusRange
from regard.data.feed import Feed, Part, PreparedUpdate
from regard.data.sampler import Sampler
from regard.data.store import Store
from regard.data.text_pairs import TextPairPacking, TextPairs, TextPairSlotBatch, fit_pair_slots, make_pair_batch
from regard.errors import UserError
from regard.models.contrastive import contrastive_loss
from tests.data.test_rows import column_of

TEMPERATURE = 0.05


def store_of(first: Sequence[Sequence[int]], second: Sequence[Sequence[int]]) -> Store:
    columns = {"source": column_of([list(one) for one in first]), "target": column_of([list(one) for one in second])}
    return Store(columns, [CorpusRange("x", 1.0, 0, len(first))], {})


def pairs_of(first: Sequence[Sequence[int]], second: Sequence[Sequence[int]], length: int = 8) -> TextPairs:
    return TextPairs(store_of(first, second), length, (1,), (2,))


def many(count: int) -> TextPairs:
    return pairs_of([[10 + n] * (1 + n % 5) for n in range(count)], [[200 + n] * (1 + n % 7) for n in range(count)])


def test_both_texts_of_a_pair_lie_side_by_side_framed_and_cut_at_their_end() -> None:
    pairs = pairs_of([[10, 11], [12] * 6, range(20, 29)], [[30], [31, 32], [33] * 7])
    assert pairs.num_cut == 1  # 6 of the 8 tokens are text
    assert pairs.costs.tolist() == [7, 12, 16]
    found = pairs.gather(np.array([2, 0]))
    assert found.lengths.tolist() == [8, 8, 4, 3]
    assert found.ids.tolist() == [1, *range(20, 26), 2, 1, *[33] * 6, 2, 1, 10, 11, 2, 1, 30, 2]
    with pytest.raises(UserError, match=r"data\.max_length must be more than the 2 tokens around a text, but is 2"):
        pairs_of([[3]], [[4]], length=2)


def test_equal_texts_have_the_same_number_on_either_side() -> None:
    pairs = pairs_of([[5, 6], [5, 6], [7], [6, 5]], [[8], [9], [5, 6], [8]])
    groups = pairs.gather(np.arange(4)).groups
    assert groups[0, 0] == groups[1, 0] == groups[2, 1] and groups[0, 1] == groups[3, 1]
    assert len(np.unique(groups)) == 5 and groups.min() == 0  # 5 6, 8, 9, 7, 6 5


def test_texts_that_are_equal_once_cut_are_equal() -> None:
    pairs = pairs_of([[5] * 6 + [7], [5] * 6 + [8]], [[1], [2]])
    groups = pairs.gather(np.arange(2)).groups
    assert groups[0, 0] == groups[1, 0]


def test_slots_hold_what_a_batch_of_any_shape_holds() -> None:
    pairs = many(30)
    gathered = pairs.gather(np.array([4, 9, 0, 17]))
    plain = make_pair_batch(gathered, TEMPERATURE)
    slots = fit_pair_slots(pairs, 100, 9, TEMPERATURE)
    batch = slots.unpack(slots.pack(gathered, count=8))
    used = len(plain.ids)
    assert batch.ids.tolist() == plain.ids.tolist() + [0] * (slots.tokens - used)
    assert batch.groups[:4].tolist() == plain.groups.tolist() and (batch.groups[4:] == -1).all()
    assert batch.layout.sequence_ids[:used].tolist() == plain.layout.sequence_ids.tolist()
    assert batch.layout.positions[:used].tolist() == plain.layout.positions.tolist()
    assert batch.layout.offsets is not None and int(batch.layout.offsets[-1]) == slots.tokens
    assert float(batch.scale) == float(plain.scale) == 20.0 and int(batch.count) == 8
    with pytest.raises(ValueError, match="a batch must hold at most"):
        slots.pack(pairs.gather(np.arange(30).repeat(9)), 1)


@pytest.mark.parametrize("with_slots", [False, True])
def test_a_feed_visits_every_pair_once_an_epoch_and_resumes(with_slots: bool) -> None:
    pairs = many(60)

    def feed_of() -> Feed:
        slots = fit_pair_slots(pairs, 100, 9, TEMPERATURE) if with_slots else None
        sampler = Sampler(pairs.costs, 100, 7, pairs.corpora, slots, noun="pair")
        return Feed(
            store_of([[1]], [[1]]),
            sampler,
            TextPairPacking(pairs, TEMPERATURE, slots),
            accumulate=1 if with_slots else 2,
        )

    def first_ids(update: PreparedUpdate) -> list[int]:
        """The word of each first text, which tells the pairs apart."""
        found = []
        for part in update.parts:
            batch = feed.slots.unpack(part) if feed.slots is not None else part
            starts = torch.nonzero(batch.layout.positions == 0).flatten()
            used = int((batch.groups[:, 0] >= 0).sum()) if isinstance(batch, TextPairSlotBatch) else len(batch.groups)
            found += batch.ids[starts[: 2 * used : 2] + 1].tolist()
        return found

    feed = feed_of()
    updates: list[PreparedUpdate] = []
    while not updates or updates[-1].epoch < 2:
        updates.append(next(feed))
    for epoch in (0, 1):
        seen = [i for update in updates if update.epoch == epoch for i in first_ids(update)]
        assert sorted(seen) == [10 + n for n in range(60)]
    for update in updates:
        assert update.count == 2 * len(first_ids(update))
    state = feed.state()
    resumed = feed_of()
    resumed.load_state(state)
    for _ in range(10):
        one, other = next(feed), next(resumed)
        assert one.count == other.count and first_ids(one) == first_ids(other)
    feed.close()
    resumed.close()


def test_a_batch_without_labels_adds_nothing() -> None:
    pairs = many(4)
    batch = TextPairPacking(pairs, TEMPERATURE).without_labels(Part(np.array([2, 0]), 0))
    assert batch.groups.tolist() == [[-1, -1]] and batch.layout.num_sequences == 2
    vectors = torch.randn(1, 2, 4)
    assert float(contrastive_loss(vectors, batch.groups, batch.scale).total) == 0.0
