"""Learning rates and the moving average against their formulas, Muon against torch's."""

from __future__ import annotations

import dataclasses
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.recipe import TrainRecipe
from regard.training.muon import MuonWithAdamW, layer_matrices, orthogonalised
from regard.training.optimizer import (
    MovingAverage,
    learning_rate,
    make_optimizer,
    paper_rate,
    set_learning_rate,
    warmup_steps,
)
from tests.build import build, tiny_config


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


def test_wsd_warms_up_stays_and_decays() -> None:
    recipe = TrainRecipe(steps=1000, lr=1e-3, schedule="wsd", cooldown=0.25)
    warmup = warmup_steps(recipe, 1000)
    rates = [learning_rate(recipe, 512, step, warmup, step / 1000, False) for step in range(1, 1001)]
    assert rates[49] == pytest.approx(0.5e-3)
    assert set(rates[99:750]) == {1e-3}
    assert rates[874] == pytest.approx(0.5e-3)
    assert rates[-1] == pytest.approx(0.0, abs=1e-12)
    assert max(abs(one - other) for one, other in pairwise(rates)) < 1.1e-5


@pytest.mark.parametrize("switches", [{}, {"activation": "swiglu", "num_kv_heads": 2, "norm_position": "pre"}], ids=str)
def test_muon_is_torchs_on_every_matrix_of_its_own(switches: dict[str, Any]) -> None:
    """torch.optim.Muon gets the projections apart, as parameters of their own; torch.optim.AdamW the rest."""
    model = build(tiny_config(**switches))
    recipe = dataclasses.replace(TrainRecipe(steps=1), optimizer="muon", weight_decay=0.1)
    optimizer = make_optimizer(model, recipe)
    assert isinstance(optimizer, MuonWithAdamW)
    optimizer._dtype = torch.bfloat16  # what torch's computes in, on every machine
    matrices = layer_matrices(model)
    names = {name for name, parameter in model.named_parameters() if parameter in matrices}
    assert names == {n for n, p in model.named_parameters() if p.ndim == 2 and ("encoder." in n or "decoder." in n)}
    blocks = {n: [b.detach().clone().requires_grad_() for b in p.split(matrices[p])]
              for n, p in model.named_parameters() if n in names}  # fmt: skip
    others = {n: p.detach().clone().requires_grad_() for n, p in model.named_parameters() if n not in names}
    theirs = [
        torch.optim.Muon([b for each in blocks.values() for b in each], weight_decay=0.1, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW([{"params": [p for p in others.values() if p.ndim > 1], "weight_decay": 0.1},
                           {"params": [p for p in others.values() if p.ndim == 1], "weight_decay": 0.0}],
                          betas=(0.9, 0.98), eps=1e-9),
    ]  # fmt: skip
    for step in range(1, 6):
        for each in (optimizer, *theirs):
            set_learning_rate(each, 1e-2 / step)
        for name, parameter in model.named_parameters():
            parameter.grad = torch.randn_like(parameter)
            if name in names:
                for block, gradient in zip(blocks[name], parameter.grad.split(matrices[parameter]), strict=True):
                    block.grad = gradient.clone()
            else:
                others[name].grad = parameter.grad.clone()
        for each in (optimizer, *theirs):
            each.step()
    for name, parameter in model.named_parameters():
        expected = torch.cat(blocks[name]) if name in names else others[name]
        torch.testing.assert_close(parameter, expected, rtol=1e-2, atol=2e-3, msg=name)  # bf16, in another order
        if name in names:
            assert torch.stack([(parameter - expected).norm() / expected.norm()]).max() < 1e-3


def test_orthogonalised_matrices_have_singular_values_of_about_one() -> None:
    torch.manual_seed(0)
    for shape in ((3, 20, 50), (2, 50, 20)):
        values = torch.linalg.svdvals(orthogonalised(torch.randn(shape)))
        assert values.min() > 0.5 and values.max() < 1.3


def test_a_short_run_warms_up_sooner_but_not_higher() -> None:
    recipe = TrainRecipe(steps=100)
    warmup = warmup_steps(recipe, 100)
    rates = [learning_rate(recipe, 512, step, warmup, step / 100, False) for step in range(1, 101)]
    assert warmup == 10 and rates.index(max(rates)) == 9
    assert max(rates) == pytest.approx(paper_rate(4000, 512, 4000))
