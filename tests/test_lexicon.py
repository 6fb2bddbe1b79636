"""What pieces become, learnt from parallel text: against model 1 written out in plain Python."""

from __future__ import annotations

import random
from collections import defaultdict

import pytest

from benchmarks import lexicon
from benchmarks.lexicon import learn

VOCAB = 40


def some_pairs(number: int = 300) -> list[tuple[list[int], list[int]]]:
    """Piece n becomes n + 20, in any order, with noise."""
    chance = random.Random(3)
    pairs = []
    for _ in range(number):
        src = [chance.randrange(1, 20) for _ in range(chance.randrange(1, 8))]
        tgt = [piece + 20 for piece in src if chance.random() < 0.9] + [chance.randrange(20, 40)]
        pairs.append((src, chance.sample(tgt, len(tgt))))
    return pairs


def model_one(pairs: list[tuple[list[int], list[int]]], rounds: int, least: float) -> dict[tuple[int, int], float]:
    """IBM model 1 in plain Python; pairs that are unlikely after the first round are given up."""
    probability: dict[tuple[int, int], float] = defaultdict(lambda: 1.0)
    for number in range(rounds):
        counts: dict[tuple[int, int], float] = defaultdict(float)
        for src, tgt in pairs:
            for target in tgt:
                total = sum(probability[source, target] for source in src)
                for source in src:
                    if total > 0:
                        counts[source, target] += probability[source, target] / total
        totals: dict[int, float] = defaultdict(float)
        for (source, _), count in counts.items():
            totals[source] += count
        found = {pair: count / totals[pair[0]] for pair, count in counts.items() if totals[pair[0]] > 0}
        probability = defaultdict(float, {p: v for p, v in found.items() if number or v >= least})
    return dict(probability)


@pytest.mark.parametrize("chunk", [7, 4_000])
def test_what_is_learnt_is_model_one(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lexicon, "_CHUNK", chunk)
    monkeypatch.setattr(lexicon, "_MERGED", 50)
    monkeypatch.setattr(lexicon, "_LEAST", 0.02)
    monkeypatch.setattr(lexicon, "EACH", 5)
    pairs = some_pairs()
    found = learn(pairs, VOCAB)
    expected = model_one(pairs, lexicon.ROUNDS, 0.02)
    for piece in range(VOCAB):
        likely = {target: value for (source, target), value in expected.items() if source == piece and value > 0}
        best = sorted(likely, key=lambda target: (-round(likely[target], 12), target))[:5]
        assert found.each[piece].tolist() == best + [piece] * (5 - len(best))
    assert all(found.each[piece, 0] == piece + 20 for piece in range(1, 20))


def test_common_pieces_are_the_most_frequent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lexicon, "COMMON", 2)
    found = learn([([1], [5, 5, 7]), ([2, 3], [7, 5, 9])], VOCAB)
    assert found.common.tolist() == [5, 7]
    assert found.candidates([1]) == {1, 5, 7}
    assert found.candidates([2]) >= {2, 5, 7, 9}


def test_nothing_to_learn_from_is_refused() -> None:
    with pytest.raises(SystemExit, match="learnt from parallel text"):
        learn([([], [1])], VOCAB)
