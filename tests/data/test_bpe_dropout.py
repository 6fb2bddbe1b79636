"""BPE-dropout beside sentencepiece's own, and what makes it fit a run: the same draws again, and batches that hold them."""

from __future__ import annotations

import lzma
import random
from collections import Counter
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import sentencepiece

from regard.data import bpe_dropout
from regard.data.bpe_dropout import BpeDropout, Segmenter, TokenLimits, find_types, word_starts
from regard.data.feed import Feed
from regard.data.pair_packing import PairPacking, make_sampler
from regard.data.pair_slots import PairSlots, fit_slots
from regard.data.pairs import PairBatch, gather
from regard.data.store import Column, Store, store_in_memory
from regard.data.tokenizer import Tokenizer
from regard.errors import UserError

LONGEST = 60


@pytest.fixture
def store(pairs: list[tuple[str, str]], tokenizer: Tokenizer) -> Store:
    return store_in_memory([*pairs, ("naïve ☃☃ café", "  zwei  Räume\u2581hier ")], tokenizer)


def words_of(side: Column, tokenizer: Tokenizer) -> list[list[int]]:
    return [word.tolist() for word in np.split(side.ids, word_starts(side, tokenizer)[1:])]


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> tuple[Store, Tokenizer]:
    """A thousand pairs that people wrote."""
    folder = Path(__file__).parents[2] / "data" / "tatoeba"
    sides = [lzma.decompress((folder / f"dev.{side}.xz").read_bytes()).decode().split("\n") for side in ("en", "de")]
    pairs = list(zip(*sides, strict=True))[:1000]
    tokenizer = Tokenizer.train([line for pair in pairs for line in pair], 1500, tmp_path_factory.mktemp("real"))
    return store_in_memory(pairs, tokenizer), tokenizer


def test_without_dropout_words_are_segmented_as_sentencepiece_segments_sentences(real: tuple[Store, Tokenizer]) -> None:
    store, tokenizer = real
    segmenter = Segmenter(tokenizer, 0.0, random.Random(1).random)
    for side in (store["source"], store["target"]):
        words = words_of(side, tokenizer)
        assert len(words) > 5000
        for word in words:
            assert segmenter.segment(word, 1) == [word]


@pytest.mark.parametrize("probability", [0.1, 0.5])
def test_segmentations_are_as_frequent_as_sentencepieces(real: tuple[Store, Tokenizer], probability: float) -> None:
    """Its own dropout has no seed, but the same distribution: here of all segmentations of some words, in 2,000 draws each."""
    store, tokenizer = real
    processor = sentencepiece.SentencePieceProcessor(model_proto=tokenizer.models[0])
    processor.override_normalizer_spec(add_dummy_prefix=False)
    segmenter = Segmenter(tokenizer, probability, random.Random(1).random)
    words = [
        word for word in words_of(store["target"], tokenizer) if len("".join(tokenizer.pieces(word))) in (4, 7, 12)
    ]
    for word in words[:12]:
        text = "".join(tokenizer.pieces(word)).replace("\u2581", " ")
        theirs = Counter(
            tuple(processor.encode(text, enable_sampling=True, alpha=probability, nbest_size=-1)) for _ in range(2000)
        )
        ours = Counter(map(tuple, segmenter.segment(word, 2000)))
        for cut in theirs | ours:
            assert abs(theirs[cut] - ours[cut]) < 5 * (theirs[cut] + ours[cut] + 4) ** 0.5, (text, cut)


def test_the_text_stays_the_same(store: Store, tokenizer: Tokenizer) -> None:
    dropout = BpeDropout(store, tokenizer, 0.3, 1, LONGEST)
    everything = np.arange(len(store))
    usual = gather(store, everything)
    differ = 0
    for position in range(3):
        [drawn] = dropout.draw([everything], 0, position, TokenLimits(10_000))
        gathered = dropout.gather(drawn)
        for side in (0, 2):
            ends = np.cumsum(gathered[side + 1])[:-1], np.cumsum(usual[side + 1])[:-1]
            for new, old in zip(np.split(gathered[side], ends[0]), np.split(usual[side], ends[1]), strict=True):
                assert tokenizer.decode(new.tolist()) == tokenizer.decode(old.tolist())
                differ += new.tolist() != old.tolist()
    assert differ > len(store)


def feed_of(store: Store, tokenizer: Tokenizer, slots: bool, rank: int = 0, ranks: int = 1, seed: int = 1) -> Feed:
    dropout = BpeDropout(store, tokenizer, 0.3, seed, LONGEST)
    shape = fit_slots(dropout.src_lengths, dropout.tgt_lengths, store.corpora, 60, LONGEST + 1) if slots else None
    sampler = make_sampler(dropout.src_lengths, dropout.tgt_lengths, 60, 3, store.corpora, shape)
    return Feed(store, sampler, PairPacking(store, 1, 2, shape, dropout, LONGEST), 2, "cpu", rank, ranks)


def content(parts: object) -> list[object]:
    return [
        [part.src.tolist(), part.labels.tolist()] if isinstance(part, PairBatch) else part.tolist()
        for part in parts  # type: ignore[attr-defined]
    ]


@pytest.mark.parametrize("slots", [False, True])
def test_a_resumed_feed_draws_the_same_and_a_later_epoch_something_else(
    store: Store, tokenizer: Tokenizer, slots: bool
) -> None:
    feed = feed_of(store, tokenizer, slots)
    for _ in range(7):
        next(feed)
    state = feed.state()
    resumed = feed_of(store, tokenizer, slots)
    resumed.load_state(state)
    for one, other in islice(zip(feed, resumed, strict=True), 10):
        assert (one.count, content(one.parts)) == (other.count, content(other.parts))
    assert feed.epoch > 0
    feed.close()
    resumed.close()
    dropout = BpeDropout(store, tokenizer, 0.3, 1, LONGEST)
    part = [np.arange(20)]
    draws = [dropout.draw(part, epoch, 5, TokenLimits(LONGEST))[0].segmentations[0].tolist() for epoch in (0, 0, 1)]
    assert draws[0] == draws[1] != draws[2]


@pytest.mark.parametrize("slots", [False, True])
def test_two_processes_draw_what_one_draws(store: Store, tokenizer: Tokenizer, slots: bool) -> None:
    whole, *feeds = [feed_of(store, tokenizer, slots, *ranks) for ranks in ((0, 1), (0, 2), (1, 2))]
    for _ in range(12):
        expected, shares = next(whole), [next(feed) for feed in feeds]
        assert {share.count for share in shares} == {expected.count}
        assert [part for share in shares for part in content(share.parts)] == content(expected.parts)
    for feed in (whole, *feeds):
        feed.close()


def test_what_would_not_fit_is_left_as_it_is(store: Store, tokenizer: Tokenizer) -> None:
    dropout = BpeDropout(store, tokenizer, 0.9, 1, LONGEST)
    indices = np.arange(12)
    usual = int(store["target"].lengths[indices].sum()) + len(indices)
    [free] = dropout.draw([indices], 0, 1, TokenLimits(10_000))
    wanted = int(free.lengths[1].sum()) + len(indices)
    assert wanted > 1.5 * usual
    room = (usual + wanted) // 2
    [drawn] = dropout.draw([indices], 0, 1, TokenLimits(10_000, 10_000, room))
    total = int(drawn.lengths[1].sum()) + len(indices)
    assert 0.7 * room < total <= room
    assert drawn.lengths[1].tolist()[:3] == free.lengths[1].tolist()[:3]  # the first keep their draws
    assert drawn.lengths[0].tolist() == free.lengths[0].tolist()
    [short] = dropout.draw([indices], 0, 1, TokenLimits(int(store["target"].lengths[indices].max())))
    assert short.lengths[1].max() <= store["target"].lengths[indices].max()


def test_planned_lengths_are_about_those_that_come_and_never_below_the_usual(
    store: Store, tokenizer: Tokenizer
) -> None:
    dropout = BpeDropout(store, tokenizer, 0.2, 1, LONGEST)
    everything = np.arange(len(store))
    assert (dropout.tgt_lengths >= store["target"].lengths).all()
    found = [dropout.draw([everything], 0, n, TokenLimits(10_000))[0].lengths[1].sum() for n in range(20)]
    assert np.mean(found) == pytest.approx(dropout.tgt_lengths.sum(), rel=0.05)


def test_word_types_are_those_of_a_dictionary(store: Store, tokenizer: Tokenizer) -> None:
    starts = word_starts(store["target"], tokenizer)
    words = Column(store["target"].ids, np.append(starts, len(store["target"].ids)))
    types, examples, counts = find_types(words)
    listed = [tuple(word) for word in words_of(store["target"], tokenizer)]
    assert len(examples) == len(set(listed))
    assert [listed[examples[kind]] for kind in types] == listed
    assert counts.tolist() == [Counter(listed)[listed[example]] for example in examples]


def test_rare_words_get_fewer_segmentations(store: Store, tokenizer: Tokenizer) -> None:
    pool = BpeDropout(store, tokenizer, 0.1, 1, LONGEST)._pools[0]
    assert set(pool.num_drawn.tolist()) <= {1, *range(bpe_dropout.MIN_DRAWN, bpe_dropout.MAX_DRAWN + 1)}
    assert pool.num_drawn.max() > bpe_dropout.MIN_DRAWN


def test_imported_vocabularies_are_refused(store: Store, tokenizer: Tokenizer) -> None:
    with pytest.raises(UserError, match=r"train\.bpe_dropout: needs one joint vocabulary"):
        BpeDropout(store, Tokenizer([tokenizer.models[0]] * 2), 0.1, 1, LONGEST)


def test_slots_hold_every_draw(store: Store, tokenizer: Tokenizer) -> None:
    """`PairSlots.pack` raises where they do not."""
    feed = feed_of(store, tokenizer, True)
    assert isinstance(feed.slots, PairSlots)
    for update in islice(feed, 60):
        assert update.count > 0
    feed.close()
