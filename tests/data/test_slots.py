from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.data.corpus import CorpusRange
from regard.data.pair_slots import PairSlotBatch, PairSlots, fit_slots
from regard.data.pairs import gather, make_batch
from regard.data.store import store_in_memory
from regard.data.tokenizer import Tokenizer
from regard.errors import UserError
from regard.layout import SlotLayout, tile_groups

BOS, EOS = 1, 2
Pairs = list[tuple[list[int], list[int]]]
Gathered = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
GIVEN = settings(max_examples=150, deadline=None)

ids = st.lists(st.integers(4, 65_000), max_size=6)
pairs_and_slots = st.tuples(st.lists(st.tuples(ids, ids), max_size=8), *[st.integers(0, 9) for _ in range(3)]).map(
    lambda drawn: (drawn[0], roomy_slots(*drawn))
)


def roomy_slots(pairs: Pairs, src_room: int, tgt_room: int, pair_room: int) -> PairSlots:
    """PairSlots in which the pairs leave so many places empty."""
    src = sum(len(src) + 1 for src, _ in pairs)
    tgt = sum(len(tgt) + 1 for _, tgt in pairs)
    return PairSlots(src + src_room, tgt + tgt_room, len(pairs) + pair_room, 7)


def gathered(pairs: Pairs) -> Gathered:
    """What `Store.gather` would give."""
    sides = [[src for src, _ in pairs], [tgt for _, tgt in pairs]]
    src, tgt = (
        (np.array([i for sentence in side for i in sentence], dtype=np.uint16), np.array([*map(len, side)], np.int64))
        for side in sides
    )
    return *src, *tgt


def sequences(values: torch.Tensor, layout: SlotLayout) -> list[list[int]]:
    return [values[layout.sequence_ids == number].tolist() for number in range(layout.num_sequences)]


def tensors(batch: PairSlotBatch) -> dict[str, torch.Tensor]:
    """Everything that a batch holds, by name."""
    found = {}
    for field in fields(batch):
        value = getattr(batch, field.name)
        if isinstance(value, SlotLayout):
            for name in ("positions", "sequence_ids", "groups"):
                found[f"{field.name}.{name}"] = getattr(value, name)
        else:
            found[field.name] = value
    return found


def built_by_hand(pairs: Pairs, slots: PairSlots, count: int) -> dict[str, list[int] | int]:
    """The same as plain lists, one token after the other."""
    out: dict[str, list[int] | int] = {"count": count}
    for side, rows, sentences in [
        ("src", slots.src_tokens, [src for src, _ in pairs]),
        ("tgt", slots.tgt_tokens, [tgt for _, tgt in pairs]),
    ]:
        ended, begun, positions, sequence_ids, offsets = [], [], [], [], [0]
        for number, sentence in enumerate(sentences):
            ended += [*sentence, EOS]
            begun += [BOS, *sentence]
            positions += list(range(len(sentence) + 1))
            sequence_ids += [number] * (len(sentence) + 1)
            offsets.append(len(ended))
        empty = rows - len(ended)
        starts = tile_groups([len(src) + 1 for src, _ in pairs], [len(tgt) + 1 for _, tgt in pairs])
        groups = [offsets[start] for start in starts]
        out[f"{side}_layout.groups"] = groups + [len(ended)] * (slots.pairs + 1 - len(groups))
        out[f"{side}_layout.positions"] = positions + [0] * empty
        out[f"{side}_layout.sequence_ids"] = sequence_ids + [-1] * empty
        if side == "src":
            out["src"] = ended + [0] * empty
        else:
            out["tgt_in"] = begun + [0] * empty
            out["labels"] = ended + [-1] * empty
    return out


@GIVEN
@given(pairs_and_slots, st.integers(0, 2**31 - 1))
def test_a_packed_batch_is_what_a_plain_loop_builds(drawn: tuple[Pairs, PairSlots], count: int) -> None:
    pairs, slots = drawn
    words = slots.pack(*gathered(pairs), BOS, EOS, count)
    assert words.shape == (slots.size,) and words.dtype == torch.int32
    assert words[-1] == count
    batch = slots.unpack(words)
    assert {name: tensor.tolist() for name, tensor in tensors(batch).items()} == built_by_hand(pairs, slots, count)
    for layout, tokens in [(batch.src_layout, slots.src_tokens), (batch.tgt_layout, slots.tgt_tokens)]:
        assert (layout.num_tokens, layout.num_sequences, layout.max_length) == (tokens, slots.pairs, 7)


@GIVEN
@given(pairs_and_slots)
def test_every_sentence_can_be_read_back(drawn: tuple[Pairs, PairSlots]) -> None:
    pairs, slots = drawn
    batch = slots.unpack(slots.pack(*gathered(pairs), BOS, EOS, 1))
    unused: Pairs = [([], [])] * (slots.pairs - len(pairs))
    assert sequences(batch.src, batch.src_layout) == [[*src, EOS] for src, _ in pairs] + [src for src, _ in unused]
    assert sequences(batch.labels, batch.tgt_layout) == [[*tgt, EOS] for _, tgt in pairs] + [tgt for _, tgt in unused]
    assert sequences(batch.tgt_in, batch.tgt_layout) == [[BOS, *tgt] for _, tgt in pairs] + [tgt for _, tgt in unused]


def test_the_used_rows_equal_a_batch_of_no_fixed_shape(tokenizer: Tokenizer, pairs: list[tuple[str, str]]) -> None:
    found = gather(store_in_memory(pairs, tokenizer), np.array([5, 0, 17, 5, 30]))
    plain = make_batch(*found, BOS, EOS)
    slots = PairSlots(plain.src_layout.num_tokens + 9, plain.num_tokens + 5, 7, 40)
    batch = slots.unpack(slots.pack(*found, BOS, EOS, plain.num_tokens))
    for mine, other in [(batch.src, plain.src), (batch.tgt_in, plain.tgt_in), (batch.labels, plain.labels)]:
        assert mine[: len(other)].tolist() == other.tolist()
    for layout, packed in [(batch.src_layout, plain.src_layout), (batch.tgt_layout, plain.tgt_layout)]:
        assert layout.sequence_ids[: packed.num_tokens].tolist() == packed.sequence_ids.tolist()
        assert layout.positions[: packed.num_tokens].tolist() == packed.positions.tolist()
        assert layout.sequence_ids[: packed.num_tokens].tolist() == packed.sequence_ids.tolist()
    assert int((batch.labels >= 0).sum()) == int(batch.count) == plain.num_tokens


@GIVEN
@given(st.builds(PairSlots, st.integers(1, 40), st.integers(1, 40), st.integers(1, 40), st.just(5)))
def test_sections_are_aligned_views_that_do_not_overlap(slots: PairSlots) -> None:
    words = torch.zeros(slots.size, dtype=torch.int32)
    found = tensors(slots.unpack(words))
    assert {tensor.dtype for tensor in found.values()} == {torch.int32}
    assert found["count"].dim() == 0
    places: list[int] = []
    for tensor in found.values():
        begin = tensor.storage_offset()
        assert tensor.untyped_storage().data_ptr() == words.untyped_storage().data_ptr()
        assert begin % 4 == 0
        places += range(begin, begin + tensor.numel())
    assert len(set(places)) == len(places) and max(places) == slots.size - 1


def test_a_batch_sees_what_is_copied_into_its_words() -> None:
    # This is how a captured graph gets its next batch.
    slots = PairSlots(20, 20, 4, 7)
    words = torch.zeros(slots.size, dtype=torch.int32)
    batch = slots.unpack(words)
    words.copy_(slots.pack(*gathered([([5], [6, 7])]), BOS, EOS, 3))
    assert batch.src[:3].tolist() == [5, EOS, 0] and batch.labels[:4].tolist() == [6, 7, EOS, -1] and batch.count == 3


def test_a_batch_lies_where_its_words_lie() -> None:
    slots = PairSlots(20, 20, 4, 7)
    batch = slots.unpack(torch.zeros(slots.size, dtype=torch.int32, device="meta"))
    assert {tensor.device.type for tensor in tensors(batch).values()} == {"meta"}
    assert batch.src_layout.device.type == batch.tgt_layout.device.type == "meta"


def test_words_of_another_shape_or_type_are_refused() -> None:
    slots = PairSlots(20, 20, 4, 7)
    with pytest.raises(ValueError, match=f"must be {slots.size} int32 values, but is \\({slots.size - 1},\\)"):
        slots.unpack(torch.zeros(slots.size - 1, dtype=torch.int32))
    with pytest.raises(ValueError, match=r"of torch\.int64"):
        slots.unpack(torch.zeros(slots.size, dtype=torch.int64))


EXACT: Pairs = [([5, 6], [7]), ([8], [9, 9, 9])]  # 5 source and 6 target tokens with </s>


@pytest.mark.parametrize(
    ("slots", "message"),
    [
        (PairSlots(5, 6, 2, 4), None),
        (PairSlots(4, 6, 2, 4), "at most 4 source tokens.* but gets 5"),
        (PairSlots(5, 5, 2, 4), "at most 5 target tokens.* but gets 6"),
        (PairSlots(5, 6, 1, 4), "at most 1 pairs, but gets 2"),
        (PairSlots(5, 6, 2, 3), "target sentence must have at most 3 tokens, but one has 4"),
    ],
)
def test_what_does_not_fit_is_refused_with_its_numbers(slots: PairSlots, message: str | None) -> None:
    if message is None:
        assert slots.unpack(slots.pack(*gathered(EXACT), BOS, EOS, 6)).labels.tolist() == [7, EOS, 9, 9, 9, EOS]
        return
    with pytest.raises(ValueError, match=message):
        slots.pack(*gathered(EXACT), BOS, EOS, 6)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda src, n, tgt, m: (src[:-1], n, tgt, m),
            "source lengths must add up to 2 ids, but add up to 3",
        ),
        (
            lambda src, n, tgt, m: (src, n, tgt[:1], m),
            "target lengths must add up to 1 ids, but add up to 4",
        ),
        (lambda src, n, tgt, m: (src[:1], n[1:], tgt, m), "but gets 1 source and 2 target sentences"),
    ],
)
def test_ids_and_lengths_that_do_not_belong_together_are_refused(change: Callable[..., Gathered], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PairSlots(50, 50, 9, 9).pack(*change(*gathered(EXACT)), BOS, EOS, 6)


# --- how large the slots should be ---


def test_slots_have_room_for_random_batches_and_little_more() -> None:
    # Lengths that differ so much that the steps of 128 and 64 are small beside the deviations.
    generator = np.random.default_rng(3)
    tgt = generator.integers(0, 2000, 500_000) * (generator.random(500_000) < 0.05)
    src = tgt // 2 + generator.integers(0, 200, len(tgt))
    slots = fit_slots(src, tgt, None, 100_000, 2001)
    # The sums of batches of 100,000 target tokens, taken in the corpus's order, which is random here.
    parts = (np.cumsum(tgt + 1) - 1) // 100_000
    src_sums, counts = np.bincount(parts, src + 1)[:-1], np.bincount(parts)[:-1]
    for size, step, sums in [(slots.src_tokens, 128, src_sums), (slots.pairs, 64, counts)]:
        enough = sums.mean() + 3 * sums.std()
        assert size % step == 0
        assert enough - 0.4 * sums.std() < size < enough + 0.4 * sums.std() + step
        assert sums.std() > 2 * step
    assert slots.tgt_tokens == 100_096 and slots.max_length == 2001


def test_slots_follow_the_weights_of_the_corpora() -> None:
    generator = np.random.default_rng(4)
    tgt = generator.integers(5, 60, 3000)
    src = np.concatenate([tgt[:1000] * 2, tgt[1000:] // 2])
    corpora = [
        CorpusRange("long", 3.0, 0, 1000),
        CorpusRange("short", 1.0, 1000, 2000),
        CorpusRange("none", 0.0, 2000, 3000),
    ]
    weighted = fit_slots(src, tgt, corpora, 5000, 200)
    chosen = np.concatenate([*[np.arange(1000)] * 3, np.arange(1000, 2000)])
    assert weighted == fit_slots(src[chosen], tgt[chosen], None, 5000, 200)
    assert weighted.src_tokens > 1.4 * fit_slots(src, tgt, None, 5000, 200).src_tokens


@pytest.mark.parametrize(("max_length", "tokens"), [(257, 384), (128, 128)])
def test_slots_are_never_too_small_for_one_pair_of_the_longest(max_length: int, tokens: int) -> None:
    slots = fit_slots(np.array([3, 4]), np.array([4, 3]), None, 10, max_length)
    assert slots == PairSlots(tokens, tokens, 64, max_length)


def test_slots_for_no_pairs_or_impossible_weights_are_refused() -> None:
    lengths = np.array([3, 4])
    with pytest.raises(UserError, match="at least one pair"):
        fit_slots(lengths, lengths, [CorpusRange("a", 0.0, 0, 2)], 100, 10)
    with pytest.raises(UserError, match="weight of corpus 'a' must be"):
        fit_slots(lengths, lengths, [CorpusRange("a", float("nan"), 0, 2)], 100, 10)
