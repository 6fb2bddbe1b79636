"""Documents end to end in full rows: each token is predicted once, and documents do not see each other."""

from __future__ import annotations

from itertools import islice, pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.data.corpus import CorpusRange
from regard.data.feed import Feed
from regard.data.rows import (
    RowPacking,
    TextBatch,
    TextRows,
    TextSlots,
    fit_text_slots,
    make_text_batch,
    neighbour_tiles,
)
from regard.data.sampler import Sampler
from regard.data.store import Column, Store
from regard.errors import UserError

START, END = 1, 2
Documents = list[list[int]]

documents_of = st.lists(st.lists(st.integers(10, 99), max_size=9), min_size=1, max_size=12)


def column_of(documents: Documents) -> Column:
    offsets = np.concatenate([[0], np.cumsum([len(each) for each in documents])]).astype(np.int64)
    return Column(np.array([token for each in documents for token in each], np.uint16), offsets)


def rows_of(
    documents: Documents, length: int, seed: int | None = None, across: bool = False, cuts: tuple[int, ...] = ()
) -> TextRows:
    edges = [0, *cuts, len(documents)]
    corpora = [CorpusRange(str(n), 1.0, a, b) for n, (a, b) in enumerate(pairwise(edges))]
    return TextRows(column_of(documents), corpora, length, START, END, across, seed)


def marked(documents: Documents) -> tuple[list[int], list[int]]:
    """All ids and all labels, end to end."""
    ids = [token for each in documents for token in (START, *each)]
    return ids, [token for each in documents for token in (*each, END)]


@settings(max_examples=150, deadline=None)
@given(documents_of, st.integers(1, 12))
def test_rows_to_measure_have_every_token_once_in_order(documents: Documents, length: int) -> None:
    rows = rows_of(documents, length)
    found = rows.gather(np.arange(len(rows.costs)))
    ids, labels = marked(documents)
    assert (found.ids.tolist(), found.labels.tolist()) == (ids, labels)
    assert rows.costs.tolist() == [min(length, len(ids) - start) for start in range(0, len(ids), length)]
    # A sequence ends with its document or its row, and nowhere else.
    ends = {*np.cumsum([len(each) + 1 for each in documents]).tolist(), *np.cumsum(rows.costs).tolist()}
    assert found.lengths.cumsum().tolist() == sorted(ends)


@settings(max_examples=150, deadline=None)
@given(documents_of, st.integers(1, 12), st.integers(0, 5), st.data())
def test_an_epoch_has_full_rows_and_every_token(
    documents: Documents, length: int, epoch: int, data: st.DataObject
) -> None:
    cut = data.draw(st.integers(0, len(documents) - 1))
    rows = rows_of(documents, length, seed=3, cuts=(cut,) if cut else ())
    for corpus, part in zip(rows.corpora, (documents[:cut], documents[cut:]) if cut else (documents,), strict=True):
        ids, labels = marked(part)
        own = min(length, len(ids))
        assert rows.costs[corpus.start : corpus.stop].tolist() == [own] * (corpus.stop - corpus.start)
        found = rows.gather(np.arange(corpus.start, corpus.stop), epoch)
        assert len(found.ids) == own * (corpus.stop - corpus.start)
        # The rows are the text, as a ring, from some place on.
        ring = list(zip(ids, labels, strict=True)) * (2 + len(found.ids) // len(ids))
        tokens = list(zip(found.ids.tolist(), found.labels.tolist(), strict=True))
        assert any(ring[place : place + len(tokens)] == tokens for place in range(own))
        assert sum(found.lengths) == len(found.ids)


def test_epochs_cut_the_text_at_other_places_and_a_resumed_one_at_the_same() -> None:
    documents = [list(range(10, 90))]
    rows, again = rows_of(documents, 20, seed=1), rows_of(documents, 20, seed=1)
    everything = np.arange(len(rows.costs))
    cuts = [rows.gather(everything, epoch).ids.tolist() for epoch in range(6)]
    assert len({tuple(each) for each in cuts}) > 3
    assert [again.gather(everything, epoch).ids.tolist() for epoch in range(6)] == cuts
    assert rows_of(documents, 20, seed=2).gather(everything, 0).ids.tolist() != cuts[0]


def test_sequences_are_documents_unless_asked_otherwise() -> None:
    documents = [[10, 11, 12], [20], [30, 31]]
    assert rows_of(documents, 9).gather(np.array([0])).lengths.tolist() == [4, 2, 3]
    assert rows_of(documents, 9, across=True).gather(np.array([0])).lengths.tolist() == [9]
    assert rows_of(documents, 5, across=True).gather(np.array([1, 0])).lengths.tolist() == [4, 5]


@settings(max_examples=150, deadline=None)
@given(documents_of, st.integers(1, 12), st.booleans())
def test_no_row_has_more_sequences_than_the_slots_expect(documents: Documents, length: int, across: bool) -> None:
    rows = rows_of(documents, length, seed=3, across=across)
    for epoch in range(8):
        for row in range(len(rows.costs)):
            assert len(rows.gather(np.array([row]), epoch).lengths) <= rows.density * rows.costs[row] + 1e-9
    slots = fit_text_slots(rows, 30, length)
    for tokens in (slots.tokens // length, 1):  # a full batch, and an almost empty one
        chosen = np.arange(tokens) % len(rows.costs)
        found = rows.gather(chosen[: max(1, slots.tokens // int(rows.costs.max()))], 0)
        slots.unpack(slots.pack(found, 1))


def test_slots_hold_what_a_batch_of_any_shape_holds() -> None:
    documents = [list(range(10, 10 + size)) for size in (5, 1, 0, 9, 3, 3, 2, 12)]
    rows = rows_of(documents, 8, seed=1)
    found = rows.gather(np.array([2, 0, 4]), epoch=1)
    plain = make_text_batch(found)
    slots = TextSlots(tokens=40, sequences=20, max_length=8)
    packed = slots.pack(found, count=77)
    batch = slots.unpack(packed)
    assert packed.shape == (slots.size,) and packed.dtype == torch.int32 and int(batch.count) == 77
    used = len(plain.ids)
    assert batch.ids.tolist() == plain.ids.tolist() + [0] * (40 - used)
    assert batch.labels.tolist() == plain.labels.tolist() + [-1] * (40 - used)
    assert batch.layout.positions.tolist() == plain.layout.positions.tolist() + [0] * (40 - used)
    assert batch.layout.sequence_ids.tolist() == plain.layout.sequence_ids.tolist() + [-1] * (40 - used)
    # Where each sequence begins; empty rows make more of them, none longer than a row.
    assert batch.layout.offsets is not None
    offsets = batch.layout.offsets.tolist()
    assert offsets[: plain.layout.num_sequences + 1] == plain.layout.offsets.tolist()
    assert offsets[-1] == 40 and max(np.diff(offsets)) <= 8 and min(np.diff(offsets)) >= 0
    packed.zero_()  # an update copies the next batch into this memory
    assert not batch.ids.any() and not batch.labels.any() and not batch.layout.positions.any() and not batch.count
    with pytest.raises(ValueError, match="at most 20 tokens in 9 sequences, but gets 24 in"):
        TextSlots(20, 9, 8).pack(found, 1)


def test_neighbours_share_tiles() -> None:
    batch = make_text_batch(rows_of([[10] * 2, [11] * 3, [12] * 7, [13]], 30).gather(np.array([0])))
    assert batch.layout.lengths == (3, 4, 8, 2) and batch.layout.tile_sizes == (2, 1, 1)
    assert neighbour_tiles([]) == []


@pytest.mark.parametrize("with_slots", [False, True])
@pytest.mark.parametrize("accumulate", [1, 3])
def test_a_feed_of_rows_resumes_and_is_shared_out(with_slots: bool, accumulate: int) -> None:
    documents = [list(range(10, 10 + n % 23)) for n in range(60)]
    column = column_of(documents)
    store = Store({"text": column}, [CorpusRange("a", 1.0, 0, 40), CorpusRange("b", 1.5, 40, 60)], {})

    def feed_of(rank: int = 0, ranks: int = 1) -> Feed:
        rows = TextRows(column, store.corpora, 16, START, END, seed=5)
        slots = fit_text_slots(rows, 48, 16) if with_slots else None
        sampler = Sampler(rows.costs, 48, 5, rows.corpora, slots, noun="row")
        return Feed(store, sampler, RowPacking(rows, slots), accumulate, rank=rank, num_ranks=ranks)

    def values(parts: tuple[object, ...]) -> list[list[int]]:
        return [part.ids.tolist() if isinstance(part, TextBatch) else part.tolist() for part in parts]  # type: ignore[attr-defined]

    feed = feed_of()
    first = [next(feed) for _ in range(30)]
    state = feed.state()
    rest = [next(feed) for _ in range(30)]
    assert first[-1].epoch >= 1
    resumed = feed_of()
    resumed.load_state(state)
    for one, other in zip(rest, islice(resumed, 30), strict=True):
        assert values(one.parts) == values(other.parts) and one.count == other.count == one.tokens
    shares = [feed_of(rank, 3) for rank in range(3)] if accumulate == 3 else []
    for update in first if shares else []:
        parts = [next(share) for share in shares]
        assert [part.count for part in parts] == [update.count] * 3
        assert [each for part in parts for each in values(part.parts)] == values(update.parts)
    for each in (feed, resumed, *shares):
        each.close()
    shorter = Sampler(np.full(9, 16), 48, 5, noun="row")
    with pytest.raises(UserError, match=r"its number of rows was .* and is now 9"):
        shorter.load_state(state)
