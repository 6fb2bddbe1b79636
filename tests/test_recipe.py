"""Recipes: what is written is what is read, and mistakes are named."""

from __future__ import annotations

import math
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.config import ModelConfig
from regard.errors import UserError
from regard.models.presets import PRESETS
from regard.recipe import FAST_PARTS, DecodeRecipe, load_recipe, recipe_from_dict
from regard.toml import dump_toml
from scripts.recipe_reference import DOCUMENT, EXAMPLE, field_comments, render

GOOD: dict[str, Any] = {
    "data": {"source": "en", "target": "de", "train": "a.{en,de}", "valid": "b.{en,de}"},
    "train": {"steps": 10},
}


def changed(section: str, **values: Any) -> dict[str, Any]:
    return {**GOOD, section: {**GOOD.get(section, {}), **values}}


def test_a_recipe_survives_being_written_and_read(tmp_path: Path) -> None:
    values = changed("data", train=["a.{en,de}", {"path": 'b "quoted".tsv', "weight": 2.5}], root="/somewhere")
    recipe = recipe_from_dict({**values, "model": {"preset": "big", "norm": "rms"}})
    path = tmp_path / "recipe.toml"
    path.write_text(recipe.to_toml(), encoding="utf-8")
    assert load_recipe(path) == recipe


@given(
    st.dictionaries(
        st.from_regex(r"[a-z_]{1,8}", fullmatch=True), st.text() | st.integers(-(2**62), 2**62) | st.booleans()
    )
)
def test_any_text_survives_toml(values: dict[str, Any]) -> None:
    import tomllib

    assert tomllib.loads(dump_toml({"section": values}))["section"] == values


def test_an_override_wins_over_the_file_and_the_file_over_the_preset(tmp_path: Path) -> None:
    path = tmp_path / "recipe.toml"
    path.write_text(dump_toml({**GOOD, "model": {"preset": "tiny", "d_ff": 512}}), encoding="utf-8")
    recipe = load_recipe(path, ["train.steps=99", "data.source=fr", "model.dropout=0.25"])
    config = recipe.model.config(1000)
    assert (recipe.train.steps, recipe.data.source) == (99, "fr")
    assert (config.d_model, config.d_ff, config.dropout) == (PRESETS["tiny"]["d_model"], 512, 0.25)


def test_paths_are_relative_to_the_recipe(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    path = tmp_path / "sub" / "recipe.toml"
    path.write_text(dump_toml(changed("data", root="../text")), encoding="utf-8")
    assert load_recipe(path).data.root == str((tmp_path / "text").resolve())


def test_a_root_said_on_the_command_line_is_meant_from_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sub").mkdir()
    path = tmp_path / "sub" / "recipe.toml"
    path.write_text(dump_toml(GOOD), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert load_recipe(path).data.root == str((tmp_path / "sub").resolve())
    assert load_recipe(path, ["data.root=elsewhere"]).data.root == str((tmp_path / "elsewhere").resolve())


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({**GOOD, "trian": {}}, "trian is not known; did you mean train?"),
        (changed("train", batch_token=1), "train.batch_token is not known; did you mean batch_tokens?"),
        (changed("model", d_modle=64), "model.d_modle is not known; did you mean d_model?"),
        (changed("model", preset="huge"), "model.preset must be one of"),
        (changed("model", norm="batch"), "model.norm must be one of layer, rms, but is 'batch'"),
        (changed("model", d_model=100, num_heads=8), "model.d_model must be a multiple of model.num_heads"),
        (changed("train", steps="many"), "train.steps must be a whole number, but is 'many'"),
        (changed("train", steps=True), "train.steps must be a whole number, but is True"),
        (changed("train", minutes=3), "exactly one of train.steps, train.epochs and train.minutes"),
        (changed("train", steps=0), "set exactly one of train.steps, train.epochs and train.minutes, not none"),
        (changed("train", steps=-5), "train.steps must not be negative, but is -5"),
        (changed("train", label_smoothing=1.0), "train.label_smoothing must be at least 0 and below 1"),
        (changed("train", bpe_dropout=1.0), "train.bpe_dropout must be at least 0 and below 1"),
        (changed("train", schedule="wsd", cooldown=0.0), "train.cooldown must be above 0 and at most 1, but is 0.0"),
        (changed("train", cooldown=0.5), "train.cooldown needs train.schedule = 'wsd', but that is 'paper'"),
        (changed("train", optimizer="adams"), "train.optimizer must be one of adam, adamw, muon, but is 'adams'"),
        (changed("train", shard=True, optimizer="muon"), "train.optimizer = 'muon' needs unsharded matrices"),
        (changed("train", shard=True, monitor="bleu"), "train.monitor must be 'loss' with train.shard"),
        (changed("train", rdrop=-1.0), "train.rdrop must not be negative"),
        ({**changed("train", rdrop=5.0), "model": {"dropout": 0.0}}, "train.rdrop needs model.dropout above 0"),
        (changed("tokenizer", vocab_size=0), "tokenizer.vocab_size must be at least 1, but is 0"),
        (
            changed("tokenizer", vocab_size=10**12),
            "tokenizer.vocab_size must be at most 10,000,000, but is 1000000000000",
        ),
        (changed("train", workers=10**9), "train.workers must be at most 1,024, but is 1000000000"),
        (changed("train", batch_tokens=0), "train.batch_tokens must be at least 1"),
        (changed("train", fast="slots, grpah,x"), "graph with commas, but has 'grpah'"),
        (changed("train", fast="auto,slots"), "train.fast must be auto, off, or some of slots, attention,"),
        (changed("train", fast=""), "but has ''"),
        (changed("data", valid=0), "data.valid must be a corpus or a positive number of pairs to hold out"),
        (changed("data", train=[]), "data.train must name at least one corpus"),
        (changed("data", train=[{"path": "x", "wieght": 2}]), "did you mean weight?"),
        (
            changed("data", train=[{"path": "x", "weight": math.nan}]),
            "the weight of x must be a number above 0, but is nan",
        ),
        (
            changed("data", train=[{"path": "x", "weight": math.inf}]),
            "the weight of x must be a number above 0, but is inf",
        ),
        (changed("data", max_ratio=math.nan), "data.max_ratio must be at least 1, but is nan"),
        (
            changed("data", source="a/b"),
            "data.source must be a language code or a label that fits into a file name, but is 'a/b'",
        ),
        (
            changed("data", target=".."),
            "data.target must be a language code or a label that fits into a file name, but is '..'",
        ),
        (changed("data", root="/home/d\udcff"), "data.root must be valid UTF-8"),
        (changed("data", train="d\udcff.tsv"), "data.train must be valid UTF-8"),
        (changed("model", preset=["base"]), "model.preset must be one of"),
        (changed("model", norm_eps=-1.0), "model.norm_eps must be above 0 and below 1, but is -1.0"),
        (changed("train", seed=10**20), "train.seed must be a number that fits 64 bits"),
        (changed("train", steps=10**400), "train.steps must be a number that fits 64 bits"),
        (changed("train", lr=10**400), "train.lr must be a number that fits 64 bits"),
        ({"train": {"steps": 1}}, "[data] is missing"),
        ({"data": {"source": "en", "target": "de", "train": "x"}, "train": {"steps": 1}}, "data.valid is missing"),
        # An unknown key is reported before anything that is missing.
        ({"data": {"sorce": "en"}}, "data.sorce is not known; did you mean source?"),
    ],
)
def test_a_mistake_is_named_with_its_field(values: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as raised:
        recipe_from_dict(values)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("fast", ["auto", "off", *FAST_PARTS, "slots, compile", ",".join(FAST_PARTS)])
def test_parts_of_the_fast_path_are_taken_by_their_names(fast: str) -> None:
    assert recipe_from_dict(changed("train", fast=fast)).train.fast == fast


def test_broken_toml_is_refused_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "broken.toml"
    path.write_text("[data]\nsource = \n", encoding="utf-8")
    with pytest.raises(UserError, match=r"broken\.toml: must be valid TOML, but is not: .*line 2"):
        load_recipe(path)


def test_the_shipped_recipes_are_valid() -> None:
    for path in sorted((Path(__file__).parents[1] / "recipes").glob("*.toml")):
        assert isinstance(load_recipe(path).model.config(1000), ModelConfig)


def test_the_papers_presets_have_none_of_the_later_switches_on() -> None:
    paper = ModelConfig(vocab_size=1)
    for name in ("base", "big"):
        config = ModelConfig(vocab_size=1, **PRESETS[name])
        for switch in ("norm_position", "norm", "activation", "positions", "num_kv_heads", "tie_embeddings"):
            assert getattr(config, switch) == getattr(paper, switch)
    assert (paper.norm_position, paper.norm, paper.activation, paper.positions) == (
        "post",
        "layer",
        "relu",
        "sinusoidal",
    )


def test_the_reference_of_recipes_is_up_to_date() -> None:
    assert DOCUMENT.read_text(encoding="utf-8") == render(), "run: python -m scripts.recipe_reference"


def test_a_field_without_a_meaning_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    comments = field_comments(DecodeRecipe)
    assert comments["beam"] == "beam size"
    assert comments["guard"].startswith("Keep source lines") and comments["guard"].endswith("init model's setting.")
    del comments["alpha"]
    monkeypatch.setattr("scripts.recipe_reference.field_comments", lambda _: comments)
    monkeypatch.setattr("scripts.recipe_reference.SECTIONS", {"decode": (DecodeRecipe,)})
    with pytest.raises(SystemExit, match=r"DecodeRecipe\.alpha must have a comment"):
        render()


def test_the_example_of_the_reference_is_a_valid_recipe() -> None:
    assert recipe_from_dict(tomllib.loads(EXAMPLE)).train.steps == 100_000
