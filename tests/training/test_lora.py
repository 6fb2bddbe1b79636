"""LoRA against the same with its factors in the model, as autograd differentiates them; and through runs."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from regard.bundle import load_bundle, load_weights
from regard.config import ModelConfig
from regard.errors import UserError
from regard.models.transformer import Transformer
from regard.recipe import TrainRecipe, recipe_from_dict
from regard.training.checkpoint import list_checkpoints
from regard.training.lora import SCALE, LoraAdamW
from regard.training.muon import layer_matrices
from regard.training.optimizer import make_optimizer, set_learning_rate
from tests.tiny import write_recipe
from tests.training.runs import quiet
from tests.training.test_run import assert_same_weights


def test_the_steps_are_those_of_factors_in_the_model() -> None:
    """Two matrices in one parameter, and a bias that stays."""
    torch.manual_seed(1)
    layer, inputs = nn.Linear(6, 8).double(), torch.randn(20, 6).double()
    goal = torch.randn(20, 8).double()
    options: dict[str, Any] = {"lr": 0.01, "betas": (0.9, 0.98), "eps": 1e-9}
    ours = LoraAdamW({layer.weight: [5, 3]}, [layer.bias], 2, **options)
    a, b = (each for each in ours.param_groups[1]["params"])
    a.data, b.data = a.data.double(), b.data.double()
    start, bias = layer.weight.detach().clone(), layer.bias.detach().clone()
    own = [each.detach().clone().requires_grad_() for each in (a[:2], b[:5], a[2:], b[5:])]
    theirs = torch.optim.AdamW(own, weight_decay=0.0, **options)
    for _ in range(5):
        ours.zero_grad()
        (layer(inputs) - goal).square().sum().backward()
        ours.step()
        theirs.zero_grad()
        weight = start + SCALE * torch.cat([own[1] @ own[0], own[3] @ own[2]])
        (nn.functional.linear(inputs, weight, bias) - goal).square().sum().backward()
        theirs.step()
    weight = start + SCALE * torch.cat([own[1] @ own[0], own[3] @ own[2]])
    torch.testing.assert_close(layer.weight.detach(), weight.detach())
    assert not torch.equal(layer.weight, start) and torch.equal(layer.bias, bias)


def test_only_matrices_of_layers_change_by_a_low_rank() -> None:
    torch.manual_seed(2)
    model = Transformer(ModelConfig(50, d_model=16, d_ff=32, num_heads=2, encoder_layers=1, decoder_layers=1))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    optimizer = make_optimizer(model, TrainRecipe(steps=1, lora=3, init="x", optimizer="adamw"))
    set_learning_rate(optimizer, 0.01)
    for _ in range(3):
        optimizer.zero_grad()
        sum(parameter.square().sum() * 0.5 for parameter in model.parameters()).backward()
        optimizer.step()
    chosen = {id(parameter): rows for parameter, rows in layer_matrices(model).items()}
    for name, parameter in model.named_parameters():
        change = parameter.detach() - before[name]
        if id(parameter) not in chosen:
            assert not change.any(), name
            continue
        for part in torch.split(change, chosen[id(parameter)]):
            assert torch.linalg.matrix_rank(part, rtol=1e-3) == 3, name


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("start")
    quiet(write_recipe(folder / "recipe", steps=10), folder / "run")
    return folder / "run" / "model"


def test_a_run_learns_by_thin_factors_and_resumes_exactly(model: Path, tmp_path: Path) -> None:
    path = write_recipe(tmp_path / "recipe")
    sets = (
        f"train.init={model}",
        "model.preset=init",
        "train.lora=2",
        "train.lr=5e-3",
        "train.steps=20",
        "train.save_every=10",
    )
    lines = path.read_text().splitlines()
    shape = ("d_model", "d_ff", "num_heads", "encoder_layers", "decoder_layers", "vocab_size")
    path.write_text("\n".join(line for line in lines if not line.startswith(shape)))
    said = quiet(path, tmp_path / "whole", *sets)
    assert "nothing was gained" not in said
    before, after = load_weights(load_bundle(model)), load_weights(load_bundle(tmp_path / "whole" / "model"))
    assert torch.equal(before["embedding.weight"], after["embedding.weight"])
    name = "decoder.layers.0.feed_forward.inner.weight"
    assert 0 < torch.linalg.matrix_rank(after[name] - before[name], rtol=1e-2) <= 4  # an average of checkpoints
    stopped = tmp_path / "stopped"
    shutil.copytree(tmp_path / "whole", stopped)
    shutil.rmtree(stopped / "model")
    (stopped / "report.html").unlink()
    shutil.rmtree(list_checkpoints(stopped / "checkpoints")[-1])
    assert "resuming from step 10" in quiet(path, stopped, *sets, resume=True)
    assert_same_weights(tmp_path / "whole", stopped)


@pytest.mark.parametrize(
    ("train", "complaint"),
    [
        ({"lora": 4}, "train.init must name the model to start from with train.lora"),
        ({"lora": 4, "init": "en-de", "optimizer": "muon"}, "train.optimizer must be adam or adamw with train.lora"),
        ({"lora": 4, "init": "en-de", "shard": True}, "train.shard must be false with train.lora"),
        ({"lora": -1, "init": "en-de"}, "train.lora must not be negative"),
    ],
)
def test_lora_where_it_cannot_be_is_refused(train: dict[str, Any], complaint: str) -> None:
    data = {"source": "a", "target": "b", "train": "x", "valid": 1}
    with pytest.raises(UserError, match=complaint):
        recipe_from_dict({"data": data, "train": {"steps": 1, **train}})
