from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.data.arrays import Int64Array
from regard.data.batch import OWN_TILE, plan_by_length, plan_tiles, split_indices
from regard.data.pairs import PairBatch, gather, make_batch
from regard.data.store import store_in_memory
from regard.data.tokenizer import Tokenizer
from regard.layout import SequenceLayout

BOS, EOS = 1, 2
Pairs = list[tuple[list[int], list[int]]]


def batch_of(pairs: Pairs) -> PairBatch:
    src, tgt = (
        (np.array([i for sentence in side for i in sentence], dtype=np.int64), np.array([*map(len, side)]))
        for side in zip(*pairs, strict=True)
    )
    return make_batch(*src, *tgt, BOS, EOS)


ids = st.lists(st.integers(4, 99), max_size=6)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(ids, ids), min_size=1, max_size=8))
def test_a_batch_is_the_pairs_end_to_end_with_their_marks(pairs: list[tuple[list[int], list[int]]]) -> None:
    batch = batch_of(pairs)
    assert batch.src.tolist() == [i for src, _ in pairs for i in [*src, EOS]]
    assert batch.tgt_in.tolist() == [i for _, tgt in pairs for i in [BOS, *tgt]]
    assert batch.labels.tolist() == [i for _, tgt in pairs for i in [*tgt, EOS]]
    assert batch.src_layout.lengths == tuple(len(src) + 1 for src, _ in pairs)
    assert batch.tgt_layout.lengths == tuple(len(tgt) + 1 for _, tgt in pairs)
    assert {batch.src.dtype, batch.tgt_in.dtype, batch.labels.dtype} == {torch.int64}
    assert batch.num_pairs == len(pairs) and batch.num_tokens == len(batch.labels) == batch.tgt_layout.num_tokens


def test_a_gathered_batch_equals_one_from_lists(tokenizer: Tokenizer, pairs: list[tuple[str, str]]) -> None:
    chosen = [5, 0, 17, 5]
    gathered = make_batch(*gather(store_in_memory(pairs, tokenizer), np.array(chosen)), BOS, EOS)
    listed = batch_of([(tokenizer.encode(pairs[i][0]), tokenizer.encode(pairs[i][1])) for i in chosen])
    assert torch.equal(gathered.src, listed.src) and torch.equal(gathered.labels, listed.labels)


def test_a_batch_moves_with_its_layouts() -> None:
    moved = batch_of([([5], [6, 7])]).to("meta")
    devices = {
        moved.src.device,
        moved.tgt_in.device,
        moved.labels.device,
        moved.src_layout.device,
        moved.tgt_layout.device,
    }
    assert {device.type for device in devices} == {"meta"}


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(1, 50), max_size=40), st.integers(1, 9))
def test_parts_hold_every_pair_once_in_order_and_none_is_empty(lengths: list[int], parts: int) -> None:
    indices = np.arange(len(lengths), dtype=np.int64) + 100
    split = split_indices(indices, np.array(lengths, dtype=np.int32), parts)
    assert len(split) == min(parts, len(lengths))
    assert all(len(part) for part in split)
    assert [i for part in split for i in part.tolist()] == indices.tolist()


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(1, 20), min_size=60, max_size=200), st.integers(1, 6))
def test_parts_have_about_equal_tokens(lengths: list[int], parts: int) -> None:
    array = np.array(lengths)
    split = split_indices(np.arange(len(lengths)), array, parts)
    assert all(abs(int(array[part].sum()) - sum(lengths) / parts) <= 20 for part in split)


def test_lengths_that_do_not_belong_to_the_indices_are_refused() -> None:
    with pytest.raises(ValueError, match="one entry per index"):
        split_indices(np.arange(3), np.arange(5), 2)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), min_size=1, max_size=60))
def test_tiles_hold_every_pair_once_and_are_no_longer_than_the_longest_sentence(pairs: list[tuple[int, int]]) -> None:
    src, tgt = np.array(pairs, dtype=np.int32).T
    order, sizes = plan_tiles(src, tgt)
    assert sorted(order.tolist()) == list(range(len(pairs))) and sum(sizes) == len(pairs) and min(sizes) >= 1
    longest = max(src.max(), tgt.max()) + 1
    for tile in np.split(order, np.cumsum(sizes)[:-1]):
        assert (src[tile] + 1).sum() <= longest and (tgt[tile] + 1).sum() <= longest


def test_tiles_of_ordinary_sentences_are_nearly_full() -> None:
    generator = np.random.default_rng(0)
    tgt = np.clip(generator.geometric(0.1, 200), 1, 60)
    src = np.clip(tgt + generator.integers(-2, 3, 200), 1, 60)
    _, sizes = plan_tiles(src, tgt)
    rows = len(sizes) * (max(src.max(), tgt.max()) + 1)
    assert (tgt + 1).sum() > 0.8 * rows


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(1, 300), max_size=60))
def test_shorter_texts_have_smaller_tiles(lengths: list[int]) -> None:
    costs = np.array(lengths, dtype=np.int32)
    order, sizes = plan_by_length(costs)
    assert sorted(order.tolist()) == list(range(len(costs))) and sum(sizes) == len(costs)
    tiles = np.split(order, np.cumsum(sizes)[:-1]) if sizes else []
    if len(sizes) != len(plan_tiles(costs - 1)[1]):  # the long ones are apart
        assert all(len(tile) == 1 or costs[tile].sum() < OWN_TILE for tile in tiles)
    assert all(costs[tile].sum() <= costs.max() for tile in tiles)


def test_a_long_text_does_not_make_the_tiles_of_short_ones_long() -> None:
    costs = np.array([256] + [12] * 200)

    def scores(order: Int64Array, sizes: list[int]) -> int:
        layout = SequenceLayout.from_lengths(costs[order].tolist(), tile_sizes=sizes)
        return sum(
            len(part.tile_sizes) * part.tiles.max_length**2 for _, part in layout.parts or [(slice(None), layout)]
        )

    assert scores(*plan_tiles(costs - 1)) == 11 * 256**2
    assert scores(*plan_by_length(costs)) == 256**2 + 200 * 12**2
    many = np.array([256, 240, 200, 180, 150, 120, 100, 90, 80, 70])
    assert plan_by_length(many)[1] == plan_tiles(many - 1)[1]  # few short ones: nothing is gained
