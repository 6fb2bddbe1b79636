"""Masked pieces: drawn from seed, epoch and record alone, whatever shares the batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from regard.data.corpus import CorpusRange
from regard.data.feed import Feed
from regard.data.masking import (
    MaskedPacking,
    MaskedPieces,
    Masking,
    TextPieces,
    fit_masked_slots,
    make_masked_batch,
)
from regard.data.sampler import Sampler
from regard.data.store import Column, Store
from regard.errors import UserError
from tests.data.test_rows import column_of

MASK = 3
OTHERS = np.arange(100, 200)
MASKING = Masking(0.15, MASK, OTHERS, seed=1)


def pieces_of(sizes: list[int], length: int = 40) -> TextPieces:
    """Documents of these lengths, between 1 and 2."""
    documents = [[1000 + 100 * n + place % 100 for place in range(size)] for n, size in enumerate(sizes)]
    return TextPieces(column_of(documents), [CorpusRange("x", 1.0, 0, len(sizes))], length, (1,), (2,))


def one_by_one(masked: MaskedPieces) -> list[tuple[list[int], dict[int, int]]]:
    """The ids of each piece, and the labels by their place in it."""
    ends = masked.lengths.cumsum()
    found = []
    for start, end in zip((ends - masked.lengths).tolist(), ends.tolist(), strict=True):
        inside = (masked.places >= start) & (masked.places < end)
        places = (masked.places[inside] - start).tolist()
        found.append((masked.ids[start:end].tolist(), dict(zip(places, masked.labels[inside].tolist(), strict=True))))
    return found


def test_documents_are_cut_into_pieces_of_about_equal_length() -> None:
    pieces = pieces_of([100, 38, 39, 0, 1])
    assert pieces.costs.tolist() == [35, 35, 36, 40, 21, 22, 3]
    ids, lengths = pieces.gather(np.arange(7))
    assert lengths.tolist() == pieces.costs.tolist()
    content = ids[pieces.is_content(lengths)]
    assert content.tolist() == [
        1000 + 100 * n + p % 100 for n, size in enumerate([100, 38, 39, 0, 1]) for p in range(size)
    ]
    ends = lengths.cumsum()
    assert (ids[ends - 1] == 2).all() and (ids[ends - lengths] == 1).all()
    with pytest.raises(UserError, match=r"data\.max_length must be more than the 2 tokens around a text, but is 2"):
        pieces_of([3], length=2)


def test_what_is_masked_depends_on_seed_epoch_and_record_alone() -> None:
    pieces = pieces_of([38] * 50)
    together = one_by_one(MASKING.mask(pieces, np.arange(50), epoch=4))
    order = np.array([17, 3, 42])
    assert one_by_one(MASKING.mask(pieces, order, epoch=4)) == [together[n] for n in order]
    assert one_by_one(MASKING.mask(pieces, np.array([3, 3]), epoch=4)) == [together[3]] * 2
    for masking, epoch in ((MASKING, 5), (Masking(0.15, MASK, OTHERS, seed=2), 4)):
        others = one_by_one(masking.mask(pieces, np.arange(50), epoch))
        same = sum(one[1].keys() == other[1].keys() for one, other in zip(together, others, strict=True))
        assert same < 3
    chosen = [tuple(labels) for _, labels in together]
    assert len(set(chosen)) > 45  # and each record has its own


def test_as_many_are_masked_as_asked_for_and_what_stood_there_is_the_label() -> None:
    pieces = pieces_of([100, 38, 1, 20, 3])
    plain, lengths = pieces.gather(np.arange(len(pieces.costs)))
    masked = MASKING.mask(pieces, np.arange(len(pieces.costs)), epoch=0)
    assert masked.lengths.tolist() == lengths.tolist()
    assert masked.labels.tolist() == plain[masked.places].tolist()
    others = np.setdiff1d(np.arange(len(plain)), masked.places)
    assert masked.ids[others].tolist() == plain[others].tolist()
    assert masked.places.tolist() == sorted(masked.places.tolist())
    sizes = lengths - 2
    counts = [len(labels) for _, labels in one_by_one(masked)]
    assert counts == MASKING.count(sizes).tolist() == [max(1, round(0.15 * size)) for size in sizes.tolist()]
    assert pieces.is_content(lengths)[masked.places].all()  # never the frame


def test_eight_in_ten_become_the_mask_one_another_token_and_one_stays() -> None:
    pieces = pieces_of([38] * 90)
    kinds = {"mask": 0, "other": 0, "same": 0}
    places = np.zeros(40)
    for epoch in range(60):
        masked = MASKING.mask(pieces, np.arange(90), epoch)
        now = masked.ids[masked.places]
        kinds["mask"] += int((now == MASK).sum())
        kinds["same"] += int((now == masked.labels).sum())
        kinds["other"] += int(np.isin(now, OTHERS).sum())
        places += np.bincount(masked.places % 40, minlength=40)
    total = sum(kinds.values())
    assert total == 60 * 90 * 6
    assert kinds["mask"] / total == pytest.approx(0.8, abs=0.01)
    assert kinds["other"] / total == pytest.approx(0.1, abs=0.01)
    assert places[[0, 39]].sum() == 0
    assert places[1:39] == pytest.approx(np.full(38, total / 38), rel=0.15)  # every place alike


def test_slots_hold_what_a_batch_of_any_shape_holds() -> None:
    pieces = pieces_of([20, 5, 38, 11, 7, 100])
    masked = MASKING.mask(pieces, np.array([4, 1, 0, 6]), epoch=2)
    plain = make_masked_batch(masked)
    slots = fit_masked_slots(pieces, MASKING, 100, 40)
    batch = slots.unpack(slots.pack(masked, count=9))
    used, labels = len(plain.ids), len(plain.labels)
    assert batch.ids.tolist() == plain.ids.tolist() + [0] * (slots.tokens - used)
    assert batch.places[:labels].tolist() == plain.places.tolist() and not batch.places[labels:].any()
    assert batch.labels.tolist() == plain.labels.tolist() + [-1] * (slots.labels - labels)
    assert batch.layout.sequence_ids[:used].tolist() == plain.layout.sequence_ids.tolist()
    assert batch.layout.offsets is not None and int(batch.layout.offsets[-1]) == slots.tokens
    assert int(batch.count) == 9
    too_many = MASKING.mask(pieces, np.arange(8).repeat(9), epoch=0)
    with pytest.raises(ValueError, match="a batch must hold at most"):
        slots.pack(too_many, 1)


@pytest.mark.parametrize("with_slots", [False, True])
def test_a_feed_of_pieces_counts_labels_draws_anew_each_epoch_and_resumes(with_slots: bool) -> None:
    pieces = pieces_of([3 + n % 30 for n in range(80)])
    store = Store({"text": Column(np.zeros(1, np.uint16), np.array([0, 1]))}, [], {})

    def feed_of() -> Feed:
        slots = fit_masked_slots(pieces, MASKING, 200, 40) if with_slots else None
        sampler = Sampler(pieces.costs, 200, 7, pieces.corpora, slots, noun="piece")
        return Feed(store, sampler, MaskedPacking(pieces, MASKING, slots), accumulate=2)

    def labels_of(part: Any) -> torch.Tensor:
        labels: torch.Tensor = (part if feed.slots is None else feed.slots.unpack(part)).labels
        return labels[labels >= 0]

    feed = feed_of()
    updates = [next(feed) for _ in range(40)]
    for update in updates:
        assert update.count == sum(len(labels_of(part)) for part in update.parts) < update.tokens
    state = feed.state()
    epochs = [
        sorted(
            int(label)
            for update in updates
            for part in update.parts
            for label in labels_of(part)
            if update.epoch == epoch
        )
        for epoch in (0, 1)
    ]
    assert epochs[0] != epochs[1]
    resumed = feed_of()
    resumed.load_state(state)
    for _ in range(20):
        one, other = next(feed), next(resumed)
        assert one.count == other.count
        for left, right in zip(one.parts, other.parts, strict=True):
            if with_slots:
                assert torch.equal(left, right)
            else:
                assert torch.equal(left.ids, right.ids) and torch.equal(left.places, right.places)
    feed.close()
    resumed.close()
