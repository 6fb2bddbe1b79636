"""Learning rates and the moving average against their formulas."""

from __future__ import annotations

import dataclasses
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.recipe import TrainRecipe
from regard.training.optimizer import MovingAverage, learning_rate, make_optimizer, paper_rate, warmup_steps


@given(st.integers(1, 200_000), st.sampled_from([128, 512, 1024]), st.integers(1, 10_000))
def test_the_papers_rate_is_the_papers_formula(step: int, d_model: int, warmup: int) -> None:
    expected = d_model**-0.5 * min(step**-0.5, step * warmup**-1.5)
    rate = learning_rate(TrainRecipe(steps=200_000, warmup=warmup), d_model, step, warmup, step / 200_000, False)
    assert rate == pytest.approx(expected)


def test_the_papers_rate_peaks_where_the_warm_up_ends() -> None:
    rates = [paper_rate(step, 512, 4000) for step in range(1, 20_000)]
    assert max(range(len(rates)), key=rates.__getitem__) + 1 == 4000
    assert max(rates) == pytest.approx(6.9877e-4, rel=1e-4)


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_a_decaying_schedule_rises_to_its_peak_and_falls_to_nothing(schedule: str) -> None:
    recipe = TrainRecipe(steps=1000, lr=1e-3, schedule=schedule)
    warmup = warmup_steps(recipe, 1000)
    rates = [learning_rate(recipe, 512, step, warmup, step / 1000, False) for step in range(1, 1001)]
    assert warmup == 100
    assert rates[49] == pytest.approx(0.5e-3)
    assert 0.85e-3 < max(rates) <= 1e-3
    peak = rates.index(max(rates))
    assert rates[: peak + 1] == sorted(rates[: peak + 1])
    assert rates[peak:] == sorted(rates[peak:], reverse=True)
    assert max(abs(one - other) for one, other in pairwise(rates)) < 2e-5  # no jump anywhere
    assert rates[-1] == pytest.approx(0.0, abs=1e-12)
    if schedule == "linear":
        assert rates[499] == pytest.approx(0.5e-3)


def test_a_run_by_the_clock_warms_up_for_a_tenth_of_its_time() -> None:
    recipe = TrainRecipe(minutes=10, lr=1e-3, schedule="linear")
    assert learning_rate(recipe, 512, 30, 4000, 0.05, True) == pytest.approx(0.5e-3)
    assert learning_rate(recipe, 512, 60, 4000, 0.2, True) == pytest.approx(0.8e-3)


def test_the_papers_schedule_warms_up_by_the_clock_too() -> None:
    recipe = TrainRecipe(minutes=10)
    peak = paper_rate(4000, 512, 4000)
    assert learning_rate(recipe, 512, 30, 4000, 0.05, True) == pytest.approx(peak / 2)
    assert learning_rate(recipe, 512, 60, 4000, 0.4, True) == pytest.approx(peak / 2)


def test_the_paper_schedule_takes_a_peak_of_ones_own() -> None:
    recipe = TrainRecipe(steps=10_000, lr=5e-4, warmup=100)
    assert learning_rate(recipe, 512, 100, 100, 0.01, False) == pytest.approx(5e-4)
    assert learning_rate(recipe, 512, 400, 100, 0.04, False) == pytest.approx(2.5e-4)
    assert learning_rate(recipe, 512, 50, 100, 0.005, False) == pytest.approx(2.5e-4)


def test_warm_up_defaults_to_the_smaller_of_4000_and_a_tenth() -> None:
    assert warmup_steps(TrainRecipe(steps=1), 100_000) == 4000
    assert warmup_steps(TrainRecipe(steps=1), 5000) == 500
    assert warmup_steps(TrainRecipe(steps=1, warmup=77), 5000) == 77


def test_adam_has_the_papers_settings() -> None:
    optimizer = make_optimizer(torch.nn.Linear(2, 2), TrainRecipe(steps=1))
    assert type(optimizer) is torch.optim.Adam
    assert optimizer.defaults["betas"] == (0.9, 0.98)
    assert optimizer.defaults["eps"] == 1e-9


def test_adamw_decays_matrices_and_leaves_vectors_alone() -> None:
    model = torch.nn.Linear(2, 2)
    recipe = dataclasses.replace(TrainRecipe(steps=1), optimizer="adamw", weight_decay=0.1)
    decays = {
        id(parameter): group["weight_decay"]
        for group in make_optimizer(model, recipe).param_groups
        for parameter in group["params"]
    }
    assert decays == {id(model.weight): 0.1, id(model.bias): 0.0}


def test_the_moving_average_is_the_formula() -> None:
    torch.manual_seed(0)
    model, average = torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)
    expected = average.weight.detach().double()
    moving = MovingAverage(average, 0.9)
    for step in range(1, 200):
        with torch.no_grad():
            model.weight.copy_(torch.randn(3, 3))
        moving.update(model, step)
        decay = min(0.9, (1 + step) / (10 + step))
        expected = decay * expected + (1 - decay) * model.weight.detach().double()
    torch.testing.assert_close(average.weight.double(), expected, atol=1e-5, rtol=1e-5)
