"""New heads that are fitted to the encoder's vectors before the first step."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

from regard.bundle import load_bundle, load_weights
from regard.data.labelled_batch import LabelledTexts
from regard.errors import UserError
from regard.generate.engines.encoder_engine import TorchEncoder
from regard.recipe import load_recipe, recipe_from_dict
from regard.tasks.head_fitting import ITERATIONS, STRENGTHS, _fit
from regard.tasks.regression import Bags, Dense, fit_linear
from regard.training.fine_tuning import resolve_recipe
from regard.training.metrics import read_metrics
from tests.commands import together
from tests.tasks.test_labels import each_task, recipe_values
from tests.training.runs import quiet


def fitted_recipe(folder: Path, task: str, encoder: Path, **train: Any) -> Path:
    """A recipe of one step that changes next to nothing."""
    values = recipe_values(folder, task, **{"init": str(encoder), "fit_head": True, "lr": 1e-9, "steps": 1, **train})
    values["model"] = {"preset": "init"}
    del values["tokenizer"]
    (folder / "recipe.toml").write_text(recipe_from_dict(values).to_toml(), encoding="utf-8")
    return folder / "recipe.toml"


def head_of(run: Path) -> dict[str, torch.Tensor]:
    return {name: t for name, t in load_weights(load_bundle(run / "model")).items() if name.startswith("head.")}


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A masked language model with random weights: its vectors tell words apart, and no more."""
    folder = tmp_path_factory.mktemp("encoder")
    recipe = recipe_values(folder, "classify")
    lines = [line.split("\t")[1] for line in (folder / "train.tsv").read_text(encoding="utf-8").splitlines()]
    (folder / "text.txt").write_text("\n".join(lines), encoding="utf-8")
    values = {
        **recipe,
        "task": "fill",
        "data": {"root": str(folder), "train": "text.txt", "valid": 10, "documents": "line", "max_length": 32},
        "train": {**recipe["train"], "steps": 1},
    }
    (folder / "fill.toml").write_text(recipe_from_dict(values).to_toml(), encoding="utf-8")
    quiet(folder / "fill.toml", folder / "run")
    return folder / "run"


@each_task
def test_a_fitted_head_answers_before_the_first_step(encoder: Path, task: str, tmp_path: Path) -> None:
    scores = {}
    for fitted in (True, False):
        recipe = fitted_recipe(tmp_path / str(fitted), task, encoder, fit_head=fitted)
        said = quiet(recipe, recipe.parent / "run")
        wanted = rf"head: fitted to the vectors of {re.escape(str(encoder))}\S* by regression, in \d+ seconds? \(train.fit_head\)"
        assert bool(re.search(wanted, said)) == fitted
        first = next(record for record in read_metrics(recipe.parent / "run" / "metrics.jsonl") if "best" in record)
        assert first["step"] == 0
        scores[fitted] = first["accuracy"] if task == "classify" else first["f1"]
    assert scores[True] > {"classify": 90, "tag": 40}[task] and scores[False] < scores[True] - 30, scores


def test_a_fitted_head_that_no_step_beats_is_the_model(encoder: Path, tmp_path: Path) -> None:
    recipe = fitted_recipe(tmp_path, "classify", encoder, lr=0.5, warmup=1, steps=3)  # steps that destroy it
    said = quiet(recipe, tmp_path / "run")
    assert "no step beat the encoder in train.init with a fitted head on the validation set (accuracy" in said
    assert "(the encoder in train.init with a fitted head)" in said and "bag of words" in said
    assert "nothing was gained" not in said
    bundle = load_bundle(tmp_path / "run" / "model")
    first = read_metrics(tmp_path / "run" / "metrics.jsonl")
    start = next(record["accuracy"] for record in first if record["kind"] == "valid")
    assert bundle.facts["test"]["metrics"]["accuracy"]["score"] == pytest.approx(start)  # both are the same texts


@each_task
def test_processes_start_with_the_same_fitted_head(encoder: Path, task: str, tmp_path: Path) -> None:
    recipe = fitted_recipe(tmp_path, task, encoder)
    quiet(recipe, tmp_path / "one")
    codes, said = together(2, "train", str(recipe), "--out", str(tmp_path / "two"))
    assert codes == [0, 0], said
    one, two = head_of(tmp_path / "one"), head_of(tmp_path / "two")
    for name, tensor in one.items():
        assert torch.allclose(two[name], tensor, rtol=1e-3, atol=1e-4), name


def test_a_head_that_comes_with_the_labels_is_not_fitted_again(encoder: Path, tmp_path: Path) -> None:
    first = fitted_recipe(tmp_path / "first", "classify", encoder)
    quiet(first, tmp_path / "run")
    again = fitted_recipe(tmp_path / "again", "classify", tmp_path / "run")
    lines = (tmp_path / "again" / "train.tsv").read_text(encoding="utf-8").splitlines()
    (tmp_path / "again" / "train.tsv").write_text("\n".join(lines[:60]), encoding="utf-8")  # would give another head
    quiet(again, tmp_path / "goes-on")
    before, after = head_of(tmp_path / "run"), head_of(tmp_path / "goes-on")
    assert all(torch.allclose(after[name], tensor, atol=1e-6) for name, tensor in before.items())
    assert not load_recipe(tmp_path / "goes-on" / "recipe.toml").train.fit_head  # settled once, also for a resumed run
    started = load_recipe(tmp_path / "goes-on" / "recipe.toml")
    assert resolve_recipe(load_recipe(again), started).train == started.train


def test_of_much_text_an_even_part_is_read(encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regard.tasks.head_fitting.MAX_TOKENS", 200)
    read: list[int] = []
    answers = TorchEncoder.answers

    def counted(self: TorchEncoder, inputs: Any, *others: Any) -> Any:
        read.append(sum(len(one.ids) for one in inputs))
        return answers(self, inputs, *others)

    monkeypatch.setattr(TorchEncoder, "answers", counted)
    quiet(fitted_recipe(tmp_path, "classify", encoder), tmp_path / "run")
    assert 100 < read[0] <= 250 < read[1]  # the head first, then the validation set


def test_without_an_encoder_there_is_nothing_to_fit_to(tmp_path: Path) -> None:
    values = recipe_values(tmp_path, "classify", fit_head=True)
    with pytest.raises(UserError, match=r"train\.fit_head needs train\.init"):
        recipe_from_dict(values)


def test_all_rows_of_a_text_are_on_the_same_side_when_the_strength_is_chosen() -> None:
    """Rows of a text are alike: a held-out row would be known from the others, and the weakest penalty would win."""
    draw = torch.Generator().manual_seed(3)
    targets = torch.randint(2, (100,), generator=draw).repeat_interleave(3)  # nothing to learn but the texts themselves
    vectors = torch.randn(100, 90, generator=draw).repeat_interleave(3, dim=0)
    texts = SimpleNamespace(answer="one", num_labels=2)
    records = torch.arange(100).repeat_interleave(3)
    found, _ = _fit(vectors, targets, records, cast(LabelledTexts, texts), torch.ones(2))
    wanted, _ = fit_linear(Dense(vectors), targets, "one", 2, STRENGTHS[0], ITERATIONS, torch.ones(2))
    assert torch.allclose(found, wanted, atol=1e-5)


def test_a_few_long_texts_do_not_choose_the_strength(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many words they have: one held-out text would decide."""
    draw = torch.Generator().manual_seed(3)
    targets = torch.randint(2, (12,), generator=draw).repeat_interleave(25)
    vectors = torch.randn(12, 20, generator=draw).repeat_interleave(25, dim=0)
    texts = cast(LabelledTexts, SimpleNamespace(answer="one", num_labels=2))
    given = vectors, targets, torch.arange(12).repeat_interleave(25), texts, torch.ones(2)
    found, _ = _fit(*given)
    wanted, _ = fit_linear(Dense(vectors), targets, "one", 2, STRENGTHS[1], ITERATIONS, torch.ones(2))
    assert torch.allclose(found, wanted, atol=1e-5)
    monkeypatch.setattr("regard.tasks.head_fitting.FEWEST", 12)
    assert not torch.allclose(_fit(*given)[0], wanted, atol=1e-2)


@pytest.mark.parametrize(("answer", "seed", "best"), [("one", 4, 2), ("several", 1, 1)])
def test_the_strength_is_chosen_by_the_loss_in_which_classes_have_weights(answer: Any, seed: int, best: int) -> None:
    """A tenth of the texts is of a class that counts twelve times; without weights another strength predicts best."""
    draw = torch.Generator().manual_seed(seed)
    signal = torch.randn(200, generator=draw)
    vectors = torch.randn(200, 20, generator=draw)
    vectors[:, 0] = signal + 0.3 * torch.randn(200, generator=draw)
    vectors *= 0.05
    is_rare = signal > signal.quantile(0.9)
    targets = is_rare.long() if answer == "one" else torch.stack([~is_rare, is_rare], dim=1).float()
    weights = torch.tensor([1.0, 12.0])
    texts = cast(LabelledTexts, SimpleNamespace(answer=answer, num_labels=2))
    found, _ = _fit(vectors, targets, torch.arange(200), texts, weights)
    wanted, _ = fit_linear(Dense(vectors), targets, answer, 2, STRENGTHS[best], ITERATIONS, weights)
    assert torch.allclose(found, wanted, atol=1e-4)


ANSWERS = {"one": 3, "several": 4, "number": 1}


def example(answer: str) -> tuple[torch.Tensor, torch.Tensor]:
    draw = np.random.default_rng(5)
    rows = torch.tensor(draw.normal(size=(60, 5)), dtype=torch.float32)
    signal = rows @ torch.tensor(draw.normal(size=(5, ANSWERS[answer])), dtype=torch.float32)
    noisy = signal + torch.tensor(draw.normal(size=signal.shape), dtype=torch.float32)
    return rows, {"one": noisy.argmax(1), "several": (noisy > 0).float(), "number": noisy[:, 0]}[answer]


@pytest.mark.parametrize("answer", list(ANSWERS))
def test_dense_and_sparse_features_give_the_same_regression(answer: Any) -> None:
    rows, targets = example(answer)
    sparse = Bags.of([(range(5), row) for row in rows.tolist()], 5)
    one, other = (fit_linear(features, targets, answer, ANSWERS[answer]) for features in (Dense(rows), sparse))
    for found, wanted in zip(one, other, strict=True):
        assert torch.allclose(found, wanted, atol=1e-3)


@pytest.mark.parametrize("answer", ["one", "several"])
def test_the_weight_of_a_class_counts_its_rows_that_often(answer: Any) -> None:
    rows, targets = example(answer)
    classes = ANSWERS[answer]
    weights = torch.ones(classes)
    weights[1] = 3.0
    found = fit_linear(Dense(rows), targets, answer, classes, class_weights=weights, iterations=200)

    # The gradient of the weighted loss, computed another way, is zero there.
    parameters = [part.clone().requires_grad_() for part in found]
    logits = rows @ parameters[0] + parameters[1]
    if answer == "one":
        loss = torch.nn.functional.cross_entropy(logits, targets, weights, reduction="sum")
    else:
        loss = torch.nn.functional.binary_cross_entropy_with_logits(
            logits, targets, pos_weight=weights, reduction="sum"
        )
    (loss + (parameters[0] ** 2).sum() / 20).backward()
    for part in parameters:
        assert part.grad is not None and part.grad.abs().max() < 0.02
    plain = fit_linear(Dense(rows), targets, answer, classes, iterations=200)
    assert not torch.allclose(plain[0], found[0], atol=0.05)
