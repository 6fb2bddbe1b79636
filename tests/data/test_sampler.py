from __future__ import annotations

import json
from collections import Counter
from itertools import islice
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.data.corpus import CorpusRange
from regard.data.pair_packing import make_sampler
from regard.data.pair_slots import PairSlots, fit_slots
from regard.data.sampler import Sampler
from regard.errors import UserError

lengths = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), min_size=1, max_size=80)
RECORDED = {
    False: [[14, 9], [0, 15, 10, 5, 1, 16], [3, 18, 13], [17, 12, 8]],
    True: [[5, 18, 17], [6, 3, 9], [7, 4], [1, 10, 11, 15]],
}
GIVEN = settings(max_examples=100, deadline=None)


def sampler_of(pairs: list[tuple[int, int]], batch_tokens: int, seed: int = 0, **options: Any) -> Sampler:
    array = np.array(pairs, dtype=np.int32)
    return make_sampler(array[:, 0], array[:, 1], batch_tokens, seed, **options)


def epoch_of(sampler: Sampler) -> list[np.ndarray]:
    first = next(sampler)  # this one may begin the epoch and so change its number of batches
    return [first, *islice(sampler, sampler.batches_per_epoch - 1)]


def sums_of(pairs: list[tuple[int, int]], batch: np.ndarray) -> tuple[int, int, int]:
    """Source tokens, target tokens and pairs of a batch, as `PairSlots` counts them."""
    return sum(pairs[i][0] + 1 for i in batch), sum(pairs[i][1] + 1 for i in batch), len(batch)


def random_lengths(count: int, seed: int = 0) -> list[tuple[int, int]]:
    generator = np.random.default_rng(seed)
    tgt = generator.integers(1, 50, count)
    return list(zip((tgt + generator.integers(0, 10, count)).tolist(), tgt.tolist(), strict=True))


@GIVEN
@given(lengths, st.integers(1, 300), st.integers(0, 2**64), st.booleans())
def test_an_epoch_holds_every_pair_once(
    pairs: list[tuple[int, int]], batch_tokens: int, seed: int, mixed: bool
) -> None:
    sampler = sampler_of(pairs, batch_tokens, seed, mixed=mixed)
    for epoch in range(2):
        taken = np.concatenate(epoch_of(sampler))
        assert sorted(taken.tolist()) == list(range(len(pairs)))
        assert sampler.epoch == epoch and sampler.position == sampler.batches_per_epoch


@GIVEN
@given(lengths, st.integers(1, 300), st.booleans())
def test_no_batch_is_too_large_unless_it_is_one_pair(
    pairs: list[tuple[int, int]], batch_tokens: int, mixed: bool
) -> None:
    for batch in epoch_of(sampler_of(pairs, batch_tokens, mixed=mixed)):
        assert len(batch) >= 1
        if len(batch) > 1:
            assert sum(pairs[i][1] + 1 for i in batch) <= batch_tokens
            assert sum(pairs[i][0] + 1 for i in batch) <= 1.5 * batch_tokens


@pytest.mark.parametrize("mixed", [True, False])
def test_batches_are_full_and_of_all_lengths_or_of_similar_ones(mixed: bool) -> None:
    pairs = random_lengths(20_000)
    batches = epoch_of(sampler_of(pairs, 2000, mixed=mixed))
    tokens = [sum(pairs[i][1] + 1 for i in batch) for batch in batches]
    assert np.mean(tokens) > 0.95 * 2000 and min(tokens) > 0.5 * 2000
    spread = [np.ptp([pairs[i][1] for i in batch]) for batch in batches]
    assert np.mean(spread) > 40 if mixed else np.mean(spread) < 1


def test_the_rest_of_a_small_corpus_is_no_tiny_batch() -> None:
    # 11 batches' worth of tokens plus one pair: twelve batches, none of them of a single pair.
    batches = epoch_of(sampler_of([(9, 9)] * 111, 100))
    assert len(batches) == 12 and min(map(len, batches)) >= 2


def test_batches_come_in_random_order_and_epochs_differ() -> None:
    pairs = random_lengths(5000)
    sampler = sampler_of(pairs, 500)
    first, second = epoch_of(sampler), epoch_of(sampler)
    means = [float(np.mean([pairs[i][1] for i in batch])) for batch in first]
    assert abs(np.corrcoef(means, np.arange(len(means)))[0, 1]) < 0.3
    assert {tuple(batch) for batch in first} != {tuple(batch) for batch in second}


@pytest.mark.parametrize("mixed", [True, False])
def test_the_order_is_the_same_everywhere_and_hangs_on_the_seed(mixed: bool) -> None:
    sampler = sampler_of([(i % 7, i % 5) for i in range(20)], 12, seed=1234, mixed=mixed)
    # Recorded; a change here breaks the resuming of every run under way.
    assert [batch.tolist() for batch in islice(sampler, 4)] == RECORDED[mixed]
    assert [batch.tolist() for batch in islice(sampler_of([(1, 1)] * 50, 20, seed=1), 3)] != [
        batch.tolist() for batch in islice(sampler_of([(1, 1)] * 50, 20, seed=2), 3)
    ]


@GIVEN
@given(lengths, st.integers(1, 100), st.integers(0, 40))
def test_a_loaded_state_goes_on_with_exactly_the_next_batch(
    pairs: list[tuple[int, int]], batch_tokens: int, taken: int
) -> None:
    sampler = sampler_of(pairs, batch_tokens, 5)
    for _ in range(taken):
        next(sampler)
    state = json.loads(json.dumps(sampler.state()))
    resumed = sampler_of(pairs, batch_tokens, 5)
    resumed.load_state(state)
    assert resumed.progress == sampler.progress
    for _ in range(10):
        assert next(resumed).tolist() == next(sampler).tolist()


def test_a_run_that_began_with_batches_of_similar_lengths_keeps_them() -> None:
    pairs = random_lengths(300)
    before = sampler_of(pairs, 100, mixed=False)
    next(before)
    resumed = sampler_of(pairs, 100)  # as runs begin today
    assert resumed.state()["fingerprint"] != before.state()["fingerprint"]
    resumed.load_state(before.state())
    assert resumed.state() == before.state()
    for _ in range(2 * before.batches_per_epoch):
        assert next(resumed).tolist() == next(before).tolist()


@pytest.mark.parametrize(
    ("field", "other"),
    [
        ("number of pairs", sampler_of([(1, 1)] * 11, 50, 0)),
        ("batch_tokens", sampler_of([(1, 1)] * 10, 60, 0)),
        ("seed", sampler_of([(1, 1)] * 10, 50, 1)),
        ("checksum of lengths", sampler_of([(1, 2)] * 10, 50, 0)),
        ("corpus weights", sampler_of([(1, 1)] * 10, 50, 0, corpora=[CorpusRange("a", 2.0, 0, 10)])),
    ],
)
def test_a_state_of_other_data_or_settings_is_refused(field: str, other: Sampler) -> None:
    with pytest.raises(UserError, match=f"its {field} was .* and is now"):
        sampler_of([(1, 1)] * 10, 50, 0).load_state(other.state())


def test_weights_repeat_and_thin_out_corpora() -> None:
    corpora = [
        CorpusRange("one", 1.0, 0, 100),
        CorpusRange("more", 2.25, 100, 300),
        CorpusRange("less", 0.5, 300, 400),
        CorpusRange("none", 0.0, 400, 450),
    ]
    sampler = sampler_of(random_lengths(450), 200, corpora=corpora)
    halves = []
    for _ in range(2):
        counts = Counter(np.concatenate(epoch_of(sampler)).tolist())
        assert all(counts[i] == 1 for i in range(100))
        assert Counter(counts[i] for i in range(100, 300)) == {2: 150, 3: 50}
        assert Counter(counts[i] for i in range(300, 400)) == {0: 50, 1: 50}
        assert not any(counts[i] for i in range(400, 450))
        halves.append({i for i in range(300, 400) if counts[i]})
    assert halves[0] != halves[1]


def test_impossible_settings_are_refused() -> None:
    with pytest.raises(UserError, match=r"train\.batch_tokens must be at least 1"):
        sampler_of([(1, 1)], 0)
    with pytest.raises(UserError, match="weight of corpus 'a' must be"):
        sampler_of([(1, 1)], 10, corpora=[CorpusRange("a", -1.0, 0, 1)])
    with pytest.raises(UserError, match="at least one pair"):
        sampler_of([(1, 1)], 10, corpora=[CorpusRange("a", 0.0, 0, 1)])


# --- batches of fixed slots ---

slots_for_lengths = st.builds(PairSlots, st.integers(61, 300), st.integers(61, 300), st.integers(1, 20), st.just(61))
RECORDED_IN_SLOTS = [[5, 18, 17, 6], [3, 9], [7, 4, 1, 10], [11, 15, 14, 16]]


@GIVEN
@given(lengths, slots_for_lengths, st.integers(1, 300), st.integers(0, 2**64))
def test_with_slots_an_epoch_holds_every_pair_once_and_no_batch_goes_beyond_a_limit(
    pairs: list[tuple[int, int]], slots: PairSlots, batch_tokens: int, seed: int
) -> None:
    sampler = sampler_of(pairs, batch_tokens, seed, slots=slots)
    for epoch in range(2):
        batches = epoch_of(sampler)
        assert sorted(np.concatenate(batches).tolist()) == list(range(len(pairs)))
        assert sampler.epoch == epoch and sampler.position == sampler.batches_per_epoch
        for batch in batches:
            src, tgt, count = sums_of(pairs, batch)
            assert src <= slots.src_tokens and tgt <= slots.tgt_tokens and 1 <= count <= slots.pairs
            assert tgt <= batch_tokens or count == 1


@GIVEN
@given(lengths, slots_for_lengths, st.integers(61, 300))
def test_with_slots_batches_are_as_few_as_the_order_allows(
    pairs: list[tuple[int, int]], slots: PairSlots, batch_tokens: int
) -> None:
    batches = epoch_of(sampler_of(pairs, batch_tokens, slots=slots))
    limits = (slots.src_tokens, min(slots.tgt_tokens, batch_tokens), slots.pairs)
    used, needed = [0, 0, 0], 1
    for pair in np.concatenate(batches):
        more = sums_of(pairs, np.array([pair]))
        if any(u + m > limit for u, m, limit in zip(used, more, limits, strict=True)):
            used, needed = [0, 0, 0], needed + 1
        used = [u + m for u, m in zip(used, more, strict=True)]
    assert len(batches) == needed


@pytest.mark.parametrize(
    ("slots", "binding"),
    [(PairSlots(2000, 9999, 9999, 100), 0), (PairSlots(9999, 2000, 9999, 100), 1), (PairSlots(9999, 9999, 50, 100), 2)],
)
def test_with_slots_the_scarcest_of_the_three_fills_up(slots: PairSlots, binding: int) -> None:
    pairs = random_lengths(20_000)
    limit = (slots.src_tokens, slots.tgt_tokens, slots.pairs)[binding]
    sums = [sums_of(pairs, batch)[binding] for batch in epoch_of(sampler_of(pairs, 9999, slots=slots))]
    assert max(sums) <= limit and np.mean(sums) > 0.98 * limit
    assert min(sums) > 0.4 * limit  # the end of the epoch is no tiny rest either


@pytest.mark.parametrize("batch_tokens", [1000, 20_000])
def test_with_slots_the_rest_of_an_epoch_is_shared_by_the_last_two_batches(batch_tokens: int) -> None:
    pairs = random_lengths(3000)
    sampler = sampler_of(pairs, batch_tokens, slots=PairSlots(40_000, 20_096, 2000, 100))
    *before, last = epoch_of(sampler)
    assert abs(sums_of(pairs, before[-1])[1] - sums_of(pairs, last)[1]) <= 50


def test_with_slots_batches_mix_all_lengths_and_epochs_differ() -> None:
    pairs = random_lengths(5000)
    sampler = sampler_of(pairs, 2000, slots=PairSlots(9999, 2048, 999, 100))
    first, second = epoch_of(sampler), epoch_of(sampler)
    assert min(np.ptp([pairs[i][1] for i in batch]) for batch in [*first, *second]) > 30
    order = np.concatenate(first)
    assert order.tolist() != np.concatenate(second).tolist()
    # Neither the place in the corpus nor the length tells when a pair comes.
    assert abs(np.corrcoef(order, np.arange(len(order)))[0, 1]) < 0.06
    assert abs(np.corrcoef([pairs[i][1] for i in order], np.arange(len(order)))[0, 1]) < 0.06


def test_with_slots_the_order_is_the_same_everywhere_and_hangs_on_the_seed() -> None:
    options = {"slots": PairSlots(40, 40, 9, 8)}
    sampler = sampler_of([(i % 7, i % 5) for i in range(20)], 12, seed=1234, **options)
    # Recorded; a change here breaks the resuming of every run under way.
    assert [batch.tolist() for batch in islice(sampler, 4)] == RECORDED_IN_SLOTS
    assert [batch.tolist() for batch in islice(sampler_of([(1, 1)] * 50, 20, seed=1, **options), 3)] != [
        batch.tolist() for batch in islice(sampler_of([(1, 1)] * 50, 20, seed=2, **options), 3)
    ]


@GIVEN
@given(lengths, slots_for_lengths, st.integers(0, 40))
def test_with_slots_a_loaded_state_goes_on_with_exactly_the_next_batch(
    pairs: list[tuple[int, int]], slots: PairSlots, taken: int
) -> None:
    sampler = sampler_of(pairs, 100, 5, slots=slots)
    for _ in range(taken):
        next(sampler)
    resumed = sampler_of(pairs, 100, 5, slots=slots)
    resumed.load_state(json.loads(json.dumps(sampler.state())))
    assert resumed.progress == sampler.progress
    for _ in range(10):
        assert next(resumed).tolist() == next(sampler).tolist()


def test_a_state_of_other_slots_or_of_none_is_refused_and_an_older_one_is_not() -> None:
    pairs = [(1, 1)] * 10
    plain, one, other = (
        sampler_of(pairs, 50, slots=s) for s in (None, PairSlots(50, 50, 9, 8), PairSlots(50, 50, 8, 8))
    )
    for mine, saved in [(plain, one), (one, plain), (one, other)]:
        with pytest.raises(UserError, match=r"its slots was .* and is now"):
            mine.load_state(saved.state())
    # What a run wrote before there were slots.
    fingerprint = {
        "number of pairs": 10,
        "batch_tokens": 50,
        "seed": 0,
        "checksum of lengths": plain.state()["fingerprint"]["checksum of lengths"],
        "corpus weights": [[1.0, 0, 10]],
    }
    plain.load_state({"epoch": 3, "position": 0, "fingerprint": fingerprint})
    assert plain.epoch == 3 and plain.state()["fingerprint"] == fingerprint


def test_with_slots_weights_repeat_and_thin_out_corpora() -> None:
    corpora = [
        CorpusRange("more", 2.25, 0, 200),
        CorpusRange("less", 0.5, 200, 300),
        CorpusRange("none", 0.0, 300, 350),
    ]
    sampler = sampler_of(random_lengths(350), 200, corpora=corpora, slots=PairSlots(400, 256, 64, 100))
    counts = Counter(np.concatenate(epoch_of(sampler)).tolist())
    assert Counter(counts[i] for i in range(200)) == {2: 150, 3: 50}
    assert Counter(counts[i] for i in range(200, 300)) == {0: 50, 1: 50}
    assert not any(counts[i] for i in range(300, 350))


@pytest.mark.parametrize(
    ("slots", "pair", "fits"),
    [
        (PairSlots(99, 99, 9, 21), (20, 20), True),
        (PairSlots(99, 99, 9, 21), (21, 20), False),
        (PairSlots(99, 99, 9, 21), (20, 21), False),
        (PairSlots(21, 99, 9, 41), (20, 40), True),
        (PairSlots(21, 99, 9, 41), (21, 40), False),
        (PairSlots(99, 21, 9, 41), (40, 20), True),
        (PairSlots(99, 21, 9, 41), (40, 21), False),
    ],
)
def test_a_pair_that_alone_does_not_fit_the_slots_is_refused_at_once(
    slots: PairSlots, pair: tuple[int, int], fits: bool
) -> None:
    pairs = [(5, 5), pair, (6, 6)]
    if fits:
        assert sorted(np.concatenate(epoch_of(sampler_of(pairs, 10, slots=slots))).tolist()) == [0, 1, 2]
        return
    remedy = r"; set data\.max_length to at most 20, or raise train\.batch_tokens$"
    with pytest.raises(UserError, match=f"number 2 has {pair[0] + 1} and {pair[1] + 1}, </s> included{remedy}"):
        sampler_of(pairs, 10, slots=slots)
    # Where its corpus gives no pairs, it does no harm.
    sampler_of(
        pairs,
        10,
        slots=slots,
        corpora=[CorpusRange("a", 1.0, 0, 1), CorpusRange("b", 0.0, 1, 2), CorpusRange("c", 1.0, 2, 3)],
    )


@pytest.mark.parametrize(("tokens", "tgt_full", "src_full"), [(25_000, 0.98, 0.93), (4000, 0.95, 0.88)])
def test_fitted_slots_are_nearly_full_of_sentences_of_all_lengths(
    tokens: int, tgt_full: float, src_full: float
) -> None:
    # Lengths as in text: many short, few long, 28 on average, and a source about as long as its target.
    generator = np.random.default_rng(7)
    tgt = np.clip(np.exp(generator.normal(3.1, 0.68, 200_000)), 1, 256).astype(np.int32)
    src = np.clip(tgt * np.exp(generator.normal(-0.05, 0.22, len(tgt))), 1, 256).astype(np.int32)
    assert 26 < tgt.mean() < 30 and 0.9 < np.corrcoef(src, tgt)[0, 1] < 0.97
    slots = fit_slots(src, tgt, None, tokens, 257)
    batches = epoch_of(make_sampler(src, tgt, tokens, 0, slots=slots))
    assert np.mean([tgt[batch].sum() + len(batch) for batch in batches]) > tgt_full * slots.tgt_tokens
    assert np.mean([src[batch].sum() + len(batch) for batch in batches]) > src_full * slots.src_tokens
    # Hardly a batch ends for want of room for its source or its pairs.
    ended_early = [batch for batch in batches[:-2] if tgt[batch].sum() + len(batch) <= tokens - 257]
    assert len(ended_early) < 0.005 * len(batches)
