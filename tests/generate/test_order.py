"""Equally likely tokens: every engine takes them in the same order, so that a seed gives the same text."""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from regard.generate.engines.decoder_jobs import DecoderJob, Row
from regard.generate.engines.next_tokens import TokenChoice
from regard.generate.options import SearchOptions
from regard.generate.search import one_row, sampling
from regard.generate.search.candidates import best_of_each, extend
from regard.generate.search.one_row import TokenRules, next_token
from regard.generate.search.order import likeliest, likeliest_places
from regard.generate.search.sampling import draw

EOS = 2


def tied_logits(vocab_size: int, levels: int, seed: int, rows: int = 1) -> Tensor:
    """Logits with few different values."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, levels, (rows, vocab_size), generator=generator).float() / 4


@pytest.mark.parametrize("count", [1, 2, 7, 40, 299, 300])
@pytest.mark.parametrize("levels", [1, 3, 50, 10_000])
def test_the_order_is_by_value_then_by_id(count: int, levels: int) -> None:
    values = tied_logits(300, levels, seed=count, rows=4)
    values[1, ::3] = -math.inf
    best, places = likeliest(values, count)
    for row in range(len(values)):
        expected = sorted(range(300), key=lambda place: (-float(values[row, place]), place))[:count]
        finite = [place for place in expected if values[row, place].isfinite()]
        assert places[row].tolist()[: len(finite)] == finite
        assert likeliest_places(values[row].numpy(), count).tolist()[: len(finite)] == finite
        assert best[row].tolist() == [float(values[row, place]) for place in expected]


def test_no_host_waits_for_a_gpu() -> None:
    """A value on the device `meta` cannot be read at all."""
    best, places = likeliest(torch.empty(4, 300, device="meta"), 7)
    assert best.shape == places.shape == (4, 7)


OPTIONS: list[dict[str, Any]] = [
    {}, {"top_k": 5}, {"top_p": 0.5}, {"min_p": 0.2}, {"temperature": 0.5, "top_p": 0.9}, {"top_k": 40, "top_p": 0.7},
]  # fmt: skip


def job(options: SearchOptions, place: float) -> DecoderJob:
    class Fixed(random.Random):
        def random(self) -> float:
            return place

    made = DecoderJob([EOS + 1], options)
    made.limit, made.rows, made.rng = 9, [Row()], Fixed()
    return made


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("vocab_size", [60, 5_000])
def test_samplers_draw_the_same_of_equal_tokens(
    options: dict[str, Any], vocab_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampling, "_LIKELIEST", 100)
    monkeypatch.setattr(one_row, "_FEW", 100)
    chosen = SearchOptions(beam=1, sample=True, **options)
    rules, choice = TokenRules((EOS,), ()), TokenChoice(EOS, (EOS,), ())
    for seed in range(30):
        logits = tied_logits(vocab_size, levels=(1, 4, 30)[seed % 3], seed=seed)
        place = random.Random(seed).random()
        drawn = draw(torch.log_softmax(logits, -1), torch.tensor([place], dtype=torch.float64), chosen)
        alone, _ = next_token(logits[0].numpy().copy(), [EOS + 1], chosen, rules, place, None)
        served = job(chosen, place)
        choice.extend([served], logits)
        row = served.rows[0]
        assert (alone, EOS if row.end else row.tokens[0].id) == (int(drawn), int(drawn)), seed


def test_the_likeliest_token_is_the_first_of_equals() -> None:
    chosen = SearchOptions(beam=1)
    for seed in range(20):
        logits = tied_logits(500, levels=3, seed=seed)
        expected = int(np.flatnonzero(logits[0].numpy() == logits.max().item())[0])
        log_probs = torch.log_softmax(logits, -1)[None]
        assert next_token(logits[0].numpy().copy(), [EOS + 1], chosen, TokenRules((EOS,), ()), 0.0, None)[0] == expected
        assert int(extend(log_probs, None, EOS).tokens[0, 0]) == expected
        assert int(best_of_each(log_probs, 3, log_probs).tokens[0, 0]) == expected
        served = job(chosen, 0.0)
        TokenChoice(EOS, (EOS,), ()).extend([served], logits)
        assert (EOS if served.rows[0].end else served.rows[0].tokens[0].id) == expected
