"""Beam search against a plain-Python search over all sequences, and its options."""

from __future__ import annotations

import itertools
import math
import random
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from regard.errors import UserError
from regard.generate.engines.torch_engine import TorchEngine
from regard.generate.options import SearchOptions
from regard.generate.search.core import beam_search, length_penalty
from regard.generate.search.sampling import draw, draw_sorted
from regard.generate.search.state import SearchSpec
from tests.build import SWITCHES, build, tiny_config

BOS, EOS, VOCAB = 0, 1, 5


class Table:
    """A language model as a table of random logits for every prefix; a stand-in for a network."""

    def __init__(self, seed: int, sentences: int, beam: int) -> None:
        self.seed = seed
        self.prefixes: list[tuple[int, ...]] = [(number,) for number in range(sentences) for _ in range(beam)]
        self.calls = 0

    def logits(self, prefix: tuple[int, ...]) -> list[float]:
        draw = random.Random(hash((self.seed, prefix)))
        return [draw.gauss(0.0, 2.0) for _ in range(VOCAB)]

    def step(self, newest: Tensor) -> Tensor:
        self.calls += 1
        self.prefixes = [(*p, token) for p, token in zip(self.prefixes, newest.tolist(), strict=True)]
        return torch.tensor([self.logits(prefix) for prefix in self.prefixes])

    def select(self, rows: Tensor, sentences: list[int] | None) -> None:
        self.prefixes = [self.prefixes[row] for row in rows.tolist()]

    def log_prob(self, sentence: int, tokens: tuple[int, ...]) -> float:
        total = 0.0
        prefix: tuple[int, ...] = (sentence, BOS)
        for token in (*tokens, EOS):
            logits = self.logits(prefix)
            total += logits[token] - math.log(sum(math.exp(value) for value in logits))
            prefix = (*prefix, token)
        return total


def run(seed: int, limits: list[int], options: SearchOptions, forbidden: tuple[int, ...] = (BOS,)) -> list:
    table = Table(seed, len(limits), options.beam)
    return beam_search(table.step, table.select, SearchSpec(limits, options, BOS, EOS, forbidden))


def all_sequences(limit: int) -> list[tuple[int, ...]]:
    tokens = [token for token in range(VOCAB) if token not in (BOS, EOS)]
    return [sequence for length in range(limit + 1) for sequence in itertools.product(tokens, repeat=length)]


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000), st.lists(st.integers(0, 3), min_size=1, max_size=3), st.sampled_from([0.0, 0.6, 1.0]))
def test_a_wide_beam_finds_the_best_of_all_sequences(seed: int, limits: list[int], alpha: float) -> None:
    # With a beam as wide as the number of sequences nothing is ever dropped.
    options = SearchOptions(beam=64, alpha=alpha, nbest=5)
    found = run(seed, limits, options)
    for sentence, (limit, hypotheses) in enumerate(zip(limits, found, strict=True)):
        table = Table(seed, 1, 1)
        scored = [
            (table.log_prob(sentence, tokens) / ((6 + len(tokens)) / 6) ** alpha, tokens)
            for tokens in all_sequences(limit)
        ]
        expected = sorted(scored, reverse=True)[:5]
        assert [h.ids for h in hypotheses] == [tokens for _, tokens in expected]
        assert [h.score for h in hypotheses] == pytest.approx([score for score, _ in expected], abs=1e-4)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000), st.integers(0, 12), st.sampled_from([0.0, 0.6]))
def test_beam_one_takes_the_likeliest_token_each_time(seed: int, limit: int, alpha: float) -> None:
    [[hypothesis]] = run(seed, [limit], SearchOptions(beam=1, alpha=alpha))
    table = Table(seed, 1, 1)
    prefix: tuple[int, ...] = (0, BOS)
    expected: list[int] = []
    while len(expected) < limit:
        logits = table.logits(prefix)
        best = max((token for token in range(VOCAB) if token != BOS), key=logits.__getitem__)
        if best == EOS:
            break
        expected.append(best)
        prefix = (*prefix, best)
    assert hypothesis.ids == tuple(expected)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 6), st.integers(0, 8))
def test_scores_are_those_of_the_tokens_and_best_come_first(seed: int, beam: int, limit: int) -> None:
    options = SearchOptions(beam=beam, alpha=0.6, nbest=beam)
    [hypotheses] = run(seed, [limit], options)
    table = Table(seed, 1, 1)
    assert hypotheses
    assert len({h.ids for h in hypotheses}) == len(hypotheses)
    assert [h.score for h in hypotheses] == sorted((h.score for h in hypotheses), reverse=True)
    for h in hypotheses:
        assert len(h.ids) <= limit
        assert h.log_prob == pytest.approx(table.log_prob(0, h.ids), abs=1e-4)
        assert h.score == pytest.approx(h.log_prob / length_penalty(len(h.ids) + 1, 0.6).item(), abs=1e-4)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 4))
def test_sentences_do_not_see_each_other(seed: int, beam: int) -> None:
    options = SearchOptions(beam=beam, alpha=0.6)
    together = run(seed, [6, 2, 0, 6], options)
    for number, limit in enumerate([6, 2, 0, 6]):
        table = Table(seed, 1, beam)
        table.prefixes = [(number,)] * beam
        alone = beam_search(table.step, table.select, SearchSpec([limit], options, BOS, EOS, (BOS,)))
        assert alone[0] == together[number]


def test_forbidden_tokens_never_appear() -> None:
    for seed in range(20):
        [hypotheses] = run(seed, [6], SearchOptions(beam=4, nbest=4), forbidden=(BOS, 3))
        assert all(3 not in h.ids and BOS not in h.ids for h in hypotheses)


def test_the_length_penalty_is_the_papers() -> None:
    assert length_penalty(torch.tensor([1, 10, 25]), 0.6).tolist() == pytest.approx([1.0, 2.5**0.6, 5.0**0.6])
    assert length_penalty(12, 0.0).item() == 1.0


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"beam": 0}, "beam must be at least 1"),
        ({"beam": 2, "nbest": 3}, "nbest must be between 1 and the beam"),
        ({"alpha": -0.1}, "alpha must not be negative"),
        ({"max_extra": -1}, "max_extra must not be negative"),
    ],
)
def test_impossible_options_are_refused_by_name(fields: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        SearchOptions(**fields)


@pytest.mark.parametrize("switches", ["paper", "modern", "learned"])
@pytest.mark.parametrize("beam", [1, 4])
def test_the_engine_gives_a_sentence_the_same_translation_in_any_batch(switches: str, beam: int) -> None:
    model = build(tiny_config(**SWITCHES[switches]))
    draw = random.Random(5)
    ids = [[draw.randrange(4, 53) for _ in range(draw.randrange(1, 25))] for _ in range(23)]
    options = SearchOptions(beam=beam, max_extra=12)
    together = TorchEngine(model, 1, 2, batch=23).translate(ids, options)
    assert TorchEngine(model, 1, 2, batch=4).translate(ids, options) == together
    assert [TorchEngine(model, 1, 2).translate([one], options)[0] for one in ids] == together
    shuffled = draw.sample(range(23), 23)
    again = TorchEngine(model, 1, 2, batch=7).translate([ids[number] for number in shuffled], options)
    assert again == [together[number] for number in shuffled]


def test_the_engines_log_probability_is_that_of_scoring_its_translation() -> None:
    engine = TorchEngine(build(tiny_config()), 1, 2)
    ids = [[5, 6, 7], [9], [11, 12, 13, 14, 15, 16]]
    found = engine.translate(ids, SearchOptions(beam=3, max_extra=9))
    scored = engine.score(ids, [hypotheses[0].ids for hypotheses in found])
    for hypotheses, tokens in zip(found, scored, strict=True):
        assert len(tokens) == len(hypotheses[0].ids) + 1
        assert sum(tokens) == pytest.approx(hypotheses[0].log_prob, abs=1e-4)


@pytest.mark.parametrize(
    "chosen",
    [
        {},
        {"temperature": 2.0},
        {"top_p": 0.9},
        {"top_p": 0.999},
        {"min_p": 0.05},
        {"min_p": 1e-7},
        {"top_k": 50},
        {"top_k": 3_000},
    ],
    ids=str,
)
@pytest.mark.parametrize("spread", [0.1, 2.0, 9.0])
def test_drawing_among_the_likeliest_is_drawing_among_all(chosen: dict[str, Any], spread: float) -> None:
    """Flat distributions, where most tokens lie beyond the likeliest, and steep ones; some tokens may not come at all."""
    options = SearchOptions(beam=1, sample=True, **chosen)
    generator = torch.Generator().manual_seed(4)
    log_probs = torch.log_softmax(spread * torch.randn(64, 1, 5_000, generator=generator), dim=-1)
    log_probs[5, 0, 10:] = -math.inf
    log_probs[:, 0, ::7] = -math.inf
    uniform = torch.rand(64, 1, dtype=torch.float64, generator=generator)
    uniform[0], uniform[1] = 0.0, 1 - 1e-12
    assert torch.equal(draw(log_probs, uniform, options), draw_sorted(log_probs, uniform, options))
