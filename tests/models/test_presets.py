"""Presets of language models against transformers' own configurations, and the one number that sets a size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from regard.errors import UserError
from regard.models.presets import depth_settings
from regard.models.transformer import Transformer
from regard.recipe import ModelRecipe, Recipe, recipe_from_dict
from regard.tasks.text_plan import GPU_TIERS

transformers = pytest.importorskip("transformers")


def num_parameters(preset: str, vocab_size: int) -> int:
    with torch.device("meta"):
        return Transformer(ModelRecipe(preset).config(vocab_size)).num_parameters()


def num_parameters_there(config: Any) -> int:
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    return sum({id(tensor): tensor.numel() for tensor in model.parameters()}.values())


@pytest.mark.parametrize(
    ("preset", "kind", "fields"),
    [
        ("gpt2", "GPT2Config", {}),  # its defaults are GPT-2 Small
        ("gpt2-medium", "GPT2Config", {"n_embd": 1024, "n_layer": 24, "n_head": 16}),
        (
            "llama-small",
            "LlamaConfig",
            {
                "vocab_size": 32_000, "hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 12,
                "num_attention_heads": 12,
            },
        ),
        (
            "palm-small",
            "CohereConfig",
            {
                "vocab_size": 32_000, "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12,
                "num_attention_heads": 12, "num_key_value_heads": 1, "pad_token_id": 0,
            },
        ),
    ],
)  # fmt: skip
def test_presets_have_the_parameters_of_their_families(preset: str, kind: str, fields: dict[str, Any]) -> None:
    config = getattr(transformers, kind)(**fields)
    assert num_parameters(preset, config.vocab_size) == num_parameters_there(config)


def test_gpt2_has_its_published_size() -> None:
    assert num_parameters("gpt2", 50_257) == 124_439_808 and num_parameters("gpt2-medium", 50_257) == 354_823_168


def made(task: str = "generate", **sections: dict[str, Any]) -> Recipe:
    data = {"train": "x", "valid": 1, **({"source": "a", "target": "b"} if task == "translate" else {})}
    train = {"steps": 1, **sections.pop("train", {})}
    return recipe_from_dict({"task": task, "data": data, "train": train, **sections})


def test_depth_sets_the_size_and_the_rates() -> None:
    recipe = made(model={"depth": 12})
    config = recipe.model.config(1000)
    assert (config.encoder_layers, config.decoder_layers, config.d_model, config.num_heads) == (0, 12, 768, 12)
    assert (config.d_ff, recipe.train.batch_tokens, recipe.train.lr) == (3072, 500_000, 6e-4)
    smaller = made(model={"depth": 6})
    assert smaller.train.batch_tokens < 500_000 and smaller.train.lr == pytest.approx(8.5e-4)
    both = made("translate", model={"depth": 3}).model.config(1000)
    assert (both.encoder_layers, both.decoder_layers, both.d_model) == (3, 3, 192)


def test_the_rate_of_a_depth_is_that_of_its_optimizer() -> None:
    adam, adamw, muon = (made(model={"depth": 4}, train={"optimizer": name}) for name in ("adam", "adamw", "muon"))
    assert adam.train.lr == adamw.train.lr == pytest.approx(1e-3)
    assert muon.train.lr == pytest.approx(2.1e-3)
    tier = next(tier for tier in GPU_TIERS if tier.model["d_model"] == 768)
    assert made(model={"depth": 12}, train={"optimizer": "muon"}).train.lr == tier.train["lr"]
    with pytest.raises(UserError, match=r"train\.optimizer must be one of"):
        made(model={"depth": 4}, train={"optimizer": "sgd"})


def test_what_is_given_takes_precedence_over_depth() -> None:
    recipe = made(model={"depth": 4, "d_model": 128, "num_heads": 4}, train={"lr": 0.01})
    config = recipe.model.config(1000)
    assert (config.decoder_layers, config.d_model, config.num_heads, recipe.train.lr) == (4, 128, 4, 0.01)
    gated = made(model={"depth": 6, "preset": "llama-small"}).model.config(1000)
    assert (gated.d_model, gated.d_ff, gated.norm) == (384, 1024, "rms")


def test_a_written_recipe_has_what_depth_stands_for() -> None:
    recipe = made(model={"depth": 5})
    assert "depth" not in recipe.to_dict()["model"]
    assert recipe_from_dict(recipe.to_dict()) == recipe


@pytest.mark.parametrize("depth", [-1, 201, 1.5, "deep", True])
def test_impossible_depths_are_refused(depth: Any) -> None:
    with pytest.raises(UserError, match=r"model\.depth must be"):
        made(model={"depth": depth})
    with pytest.raises(UserError, match=r"model\.depth must not be set with model\.preset = 'init'"):
        made(model={"depth": 2, "preset": "init"}, train={"init": "en-de"})


def test_presets_of_one_stack_are_refused_for_translation() -> None:
    with pytest.raises(UserError, match=r"model\.encoder_layers must be at least 1 for translation"):
        made("translate", model={"preset": "gpt2"})


def test_the_guide_shows_what_depths_stand_for() -> None:
    guide = (Path(__file__).parents[2] / "docs" / "guide.md").read_text(encoding="utf-8")
    rows = [line.strip("| ").split(" | ") for line in guide.partition("| depth | width, heads |")[2].splitlines()[2:6]]
    assert [int(row[0]) for row in rows] == [2, 4, 8, 12]
    for depth, shape, adam, muon, batch in rows:
        made_of = depth_settings(int(depth))
        assert shape == f"{made_of['model']['d_model']}, {made_of['model']['num_heads']}"
        assert (float(adam), int(batch.replace(",", ""))) == (made_of["train"]["lr"], made_of["train"]["batch_tokens"])
        assert float(muon) == depth_settings(int(depth), optimizer="muon")["train"]["lr"]
