"""Whole-word masking: all tokens of a chosen word or none, as many tokens as asked for, and BERT's 80/10/10."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from regard.data.corpus import CorpusRange
from regard.data.feed import Part
from regard.data.masking import LONGEST_WORD, MaskedPacking, MaskedPieces, Masking, TextPieces, fit_masked_slots
from regard.data.pieces import group_words
from regard.data.sampler import Sampler
from regard.data.tokenizer import Tokenizer
from regard.data.whole_words import WordTable
from tests.data.test_rows import column_of
from tests.encoders import vector_model

MASK = 3
LINES = [
    "The unbelievable transformation of quarterly parliamentary proceedings, once again!",
    "Don't walk; run (if you can) to the 3 supermarkets... of Nordrhein-Westfalen.",
    'Die Donaudampfschifffahrtsgesellschaft fährt: 12,5 Kilometer – "weit" genug?',
    "naïve café owners said: 日本語 und ภาษาไทย too",
]


@pytest.fixture(scope="module", params=["sentencepiece", "WordPiece"])
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "WordPiece":
        return vector_model(folder)[1].tokenizer
    return Tokenizer.train(LINES * 5, 340, folder / "tokenizer")


def test_words_are_those_that_are_shown(tokenizer: Tokenizer) -> None:
    table = WordTable.of(tokenizer)
    for line in LINES:
        ids = tokenizer.encode(line)
        unknown = [tokenizer.unk_id] if tokenizer.kind == "huggingface" else []
        shown = group_words(ids, tokenizer.pieces(ids), unknown)
        begins = [True, *(one.word != before.word for before, one in zip(shown.pieces, shown.pieces[1:], strict=False))]
        assert table.begins(np.array(ids)).tolist() == begins
        assert 1 < sum(begins) < len(ids)


def test_wordpiece_words_are_bert_s(tmp_path: Path) -> None:
    # BERT's whole-word masking: a piece with ## belongs to the word before it, any other begins one.
    tokenizer = vector_model(tmp_path)[1].tokenizer
    table, raw = WordTable.of(tokenizer), tokenizer.raw_pieces()
    for line in LINES:
        ids = tokenizer.encode(line)
        wanted = [place == 0 or not raw[i].startswith("##") for place, i in enumerate(ids)]
        assert table.begins(np.array(ids)).tolist() == wanted
        assert not all(wanted)


# Words of 1, 2, 3 and 12 tokens over an alphabet in which ids below 1,000 begin a word.
SIZES = (1, 1, 2, 3, 1, 12, 2)
TABLE = WordTable(*(np.arange(2000) < 1000, *np.zeros((3, 2000), np.bool_)))
OTHERS = np.arange(100, 200)
MASKING = Masking(0.15, MASK, OTHERS, seed=1, words=TABLE)


def document(words: int) -> list[int]:
    return [i for n in range(words) for i in (500 + n % 400, *range(1500, 1499 + SIZES[n % len(SIZES)]))]


def pieces_of(documents: list[list[int]], length: int = 130) -> TextPieces:
    return TextPieces(column_of(documents), [CorpusRange("x", 1.0, 0, len(documents))], length, (1,), (2,))


def words_of(pieces: TextPieces, count: int) -> tuple[np.ndarray, np.ndarray]:
    """The word of each row, -1 for frames, and whether the word is longer than LONGEST_WORD."""
    ids, lengths = pieces.gather(np.arange(count))
    content = pieces.is_content(lengths)
    begins = content & ((ids < 1000) | ~np.roll(content, 1))
    word = np.where(content, begins.cumsum() - 1, -1)
    return word, np.bincount(word[content])[word] > LONGEST_WORD


def masked_rows(masked: MaskedPieces) -> np.ndarray:
    chosen = np.zeros(len(masked.ids), np.bool_)
    chosen[masked.places] = True
    return chosen


def test_all_tokens_of_a_word_are_chosen_or_none() -> None:
    pieces = pieces_of([document(40), document(31), [600], document(90)])
    count = len(pieces.costs)
    plain, _ = pieces.gather(np.arange(count))
    word, is_long = words_of(pieces, count)
    whole = parts = 0
    for epoch in range(20):
        masked = MASKING.mask(pieces, np.arange(count), epoch)
        assert masked.labels.tolist() == plain[masked.places].tolist()
        chosen = masked_rows(masked)
        assert not chosen[word < 0].any()
        for n in np.unique(word[(word >= 0) & ~is_long]):
            assert len(set(chosen[word == n])) == 1
            whole += bool(chosen[word == n][0]) and int((word == n).sum()) > 1
        for n in np.unique(word[is_long]):  # counts as several
            inside = chosen[word == n]
            assert len(set(inside[:LONGEST_WORD])) == len(set(inside[LONGEST_WORD:])) == 1
            parts += bool(inside.any() and not inside.all())
    assert whole > 20 and parts > 5


def test_a_share_of_the_words_is_masked_however_long_they_are() -> None:
    pieces = pieces_of([document(70)] * 80, length=300)  # 80 words, counting the parts of long ones: 12 are chosen
    count = len(pieces.costs)
    word, _ = words_of(pieces, count)
    size = np.bincount(word[word >= 0])[word] * (word >= 0)
    kinds, chosen_of_size = np.zeros(3), np.zeros(20)
    epochs = 25
    for epoch in range(epochs):
        masked = MASKING.mask(pieces, np.arange(count), epoch)
        now = masked.ids[masked.places]
        kinds += [(now == MASK).sum(), (now == masked.labels).sum(), np.isin(now, OTHERS).sum()]
        chosen_of_size += np.bincount(size[masked_rows(masked)], minlength=20)
    assert kinds.sum() / (epochs * (pieces.costs - 2).sum()) == pytest.approx(0.15, abs=0.005)
    assert (kinds / kinds.sum()).tolist() == pytest.approx([0.8, 0.1, 0.1], abs=0.01)
    rates = chosen_of_size[[1, 2, 3, 12]] / (epochs * np.bincount(size, minlength=20)[[1, 2, 3, 12]])
    assert rates == pytest.approx(np.full(4, 0.15), abs=0.01)


def test_each_piece_has_its_share_of_words_and_at_least_one() -> None:
    pieces = pieces_of([[500 + n for n in range(size)] for size in (1, 3, 10, 40)])  # words of one token
    masked = MASKING.mask(pieces, np.arange(4), epoch=0)
    _, lengths = pieces.gather(np.arange(4))
    counts = np.add.reduceat(masked_rows(masked), lengths.cumsum() - lengths)
    assert counts.tolist() == [1, 1, 2, 6]


def test_words_are_drawn_from_seed_epoch_and_record_alone() -> None:
    pieces = pieces_of([document(20)] * 30)

    def chosen(records: list[int], epoch: int) -> list[tuple[int, ...]]:
        masked = MASKING.mask(pieces, np.array(records), epoch)
        ends = masked.lengths.cumsum()
        return [
            tuple((masked.places[(masked.places >= start) & (masked.places < end)] - start).tolist())
            for start, end in zip((ends - masked.lengths).tolist(), ends.tolist(), strict=True)
        ]

    together = chosen(list(range(30)), 4)
    assert chosen([17, 3], 4) == [together[17], together[3]]
    assert len(set(together)) > 20
    again = chosen(list(range(30)), 5)
    assert sum(one == other for one, other in zip(together, again, strict=True)) < 5


def test_labels_that_exceed_the_slots_are_left_unmasked() -> None:
    pieces = pieces_of([document(20)] * 6)
    masked = MASKING.mask(pieces, np.arange(6), epoch=0)
    few = masked.with_at_most(5)
    plain, _ = pieces.gather(np.arange(6))
    assert len(few.labels) == 5 and few.places.tolist() == masked.places[:5].tolist()
    rest = np.setdiff1d(np.arange(len(plain)), few.places)
    assert few.ids[rest].tolist() == plain[rest].tolist()
    assert masked.with_at_most(len(masked.labels)) is masked


@pytest.mark.parametrize("with_slots", [False, True])
def test_the_count_is_that_of_all_micro_batches_also_of_other_processes(with_slots: bool) -> None:
    pieces = pieces_of([document(5 + n % 9) for n in range(40)])
    slots = fit_masked_slots(pieces, MASKING, 400, 130) if with_slots else None
    packing = MaskedPacking(pieces, MASKING, slots)
    sampler = Sampler(pieces.costs, 400, 7, pieces.corpora, slots, noun="piece")
    parts = [Part(np.arange(start, start + 10), 3) for start in (0, 10, 20, 30)]

    def labels(part: Any) -> int:
        batch = slots.unpack(part) if slots is not None else part
        return int((batch.labels >= 0).sum())

    whole = packing.pack(parts, slice(0, 4), sampler)
    halves = [packing.pack(parts, own, sampler) for own in (slice(0, 2), slice(2, 4))]
    assert sum(map(labels, whole.parts)) == whole.count == halves[0].count == halves[1].count
    assert [labels(part) for half in halves for part in half.parts] == [labels(part) for part in whole.parts]
