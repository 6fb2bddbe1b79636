"""The settings of a model: resolved for each stack, refused by name where they are wrong or would do nothing."""

from __future__ import annotations

import dataclasses
import json
import re
from typing import Any

import pytest

from regard.config import ModelConfig
from regard.errors import UserError
from regard.recipe import recipe_from_dict
from regard.settings import STACK_FIELDS, TABLES
from tests.build import tiny_config


def stacks(**settings: Any) -> tuple[Any, Any]:
    config = tiny_config(**settings)
    return config.encoder_stack, config.decoder_stack


def test_every_stack_setting_is_a_field_of_the_model() -> None:
    assert set(STACK_FIELDS) <= {field.name for field in dataclasses.fields(ModelConfig)}


def test_flat_fields_set_both_stacks_and_tables_one() -> None:
    encoder, decoder = stacks(d_ff=48, encoder={"num_heads": 2, "positions": "learned"}, decoder={"d_ff": 80})
    assert (encoder.d_ff, decoder.d_ff) == (48, 80)
    assert (encoder.num_heads, decoder.num_heads) == (2, 4)
    assert (encoder.d_head, decoder.d_head) == (16, 8)
    assert (encoder.positions, decoder.positions) == ("learned", "sinusoidal")
    assert (encoder.causal, decoder.causal, encoder.cross, decoder.cross) == (False, True, False, True)


def test_a_model_may_have_one_stack() -> None:
    encoder, decoder = stacks(decoder_layers=0)
    assert decoder is None and encoder.layers == 2
    encoder, decoder = stacks(encoder_layers=0)
    assert encoder is None and decoder.causal and not decoder.cross


def test_defaults_are_resolved() -> None:
    encoder, _ = stacks(norm_position="pre", positions="rotary")
    assert (encoder.d_head, encoder.num_kv_heads, encoder.rotary_dim, encoder.final_norm) == (8, 4, 8, True)
    assert stacks(final_norm=True)[0].final_norm and not stacks(norm_position="pre", final_norm=False)[0].final_norm


def test_settings_survive_json() -> None:
    head = {"kind": "classes", "labels": ["a", "b"], "pooling": "mean"}
    config = tiny_config(decoder_layers=0, encoder={"activation": "gelu"}, head=head, front={"token_types": 2})
    read = ModelConfig(**json.loads(json.dumps(config.to_dict())))
    assert read == config and read.head_settings.labels == ("a", "b")


def test_settings_at_their_defaults_are_left_out_of_files_so_that_earlier_versions_read_them() -> None:
    assert list(tiny_config().to_dict()) == [
        "vocab_size", "d_model", "d_ff", "num_heads", "encoder_layers", "decoder_layers", "dropout", "norm_position", "norm",
        "activation", "positions", "num_kv_heads", "tie_embeddings", "max_positions", "norm_eps",
    ]  # fmt: skip


def test_a_choice_that_an_exporter_does_not_know_is_named() -> None:
    config = tiny_config(activation="geglu")
    assert config.unsupported(choices={"activation": ("relu", "geglu")}) is None
    assert config.unsupported(choices={"activation": ("relu",)}) == "model.activation = 'geglu'"


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({}, None),
        ({"norm": "rms"}, None),
        ({"encoder": {"d_ff": 48}, "d_ff": 48}, None),
        ({"encoder": {"d_ff": 49}, "d_ff": 48}, "model.encoder.d_ff = 49"),
        ({"output_bias": True}, "model.output_bias = True"),
        ({"decoder_layers": 0}, "model.decoder_layers = 0"),
        ({"embedding_scale": False}, "model.embedding_scale = False"),
        ({"final_norm": True}, "model.final_norm = True"),
        ({"head": {"logit_scale": 0.5}}, "model.head.logit_scale = 0.5"),
    ],
)
def test_what_an_exporter_does_not_know_is_named(settings: dict[str, Any], named: str | None) -> None:
    config = tiny_config(**settings)
    assert config.unsupported() == named
    if named is not None:
        assert config.unsupported([named.split(" ")[0].removeprefix("model.")]) is None


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"encoder_layers": 0, "decoder_layers": 0}, "must not both be 0"),
    ({"encoder_layers": 0, "encoder": {"d_ff": 8}}, "model.encoder must be empty, since model.encoder_layers is 0, but sets d_ff"),
    ({"encoder": {"d_fff": 8}}, "model.encoder.d_fff is not known; did you mean d_ff?"),
    ({"encoder": {"d_model": 8}}, "model.encoder.d_model is not known"),
    ({"encoder": {"d_ff": "8"}}, "model.encoder.d_ff must be a whole number, but is '8'"),
    ({"decoder": {"dropout": 1.0}}, "model.decoder.dropout must be at least 0 and below 1, but is 1.0"),
    ({"decoder": {"norm": "batch"}}, "model.decoder.norm must be one of layer, rms, but is 'batch'"),
    ({"decoder": {"num_heads": 5}}, r"model.d_model must be a multiple of model.decoder.num_heads (5), but is 32"),
    ({"decoder": {"num_kv_heads": 3}}, "model.decoder.num_kv_heads must divide model.num_heads (4), but is 3"),
    ({"decoder": []}, "model.decoder must be a table, but is []"),
    ({"attention_dropout": 1.5}, "model.attention_dropout must be at least 0 and below 1"),
    ({"score_scale": -1.0}, "model.score_scale must not be negative"),
    ({"rotary_base": 5000.0}, "model.rotary_base needs model.positions = 'rotary'"),
    ({"rotary_dim": 4}, "model.rotary_dim needs model.positions = 'rotary'"),
    ({"positions": "rotary", "rotary_dim": 10}, "model.rotary_dim must be even and at most d_head (8), but is 10"),
    ({"positions": "rotary", "rotary_dim": 3}, "model.rotary_dim must be even"),
    ({"positions": "rotary", "rotary_base": 0.5}, "model.rotary_base must be above 1"),
    ({"positions": "rotary", "rotary_scaling": {"kind": "yarn"}}, "model.rotary_scaling.kind must be one of linear, llama3"),
    ({"positions": "rotary", "rotary_scaling": {"kind": "linear"}}, "model.rotary_scaling.factor is missing"),
    ({"positions": "rotary", "rotary_scaling": {"kind": "linear", "factor": 2.0, "x": 1}}, "model.rotary_scaling.x is not known"),
    ({"positions": "rotary", "rotary_scaling": {"kind": "linear", "factor": 0}}, "model.rotary_scaling.factor must be above 0"),
    ({"position_offset": 2}, "model.position_offset needs model.positions = 'learned'"),
    ({"decoder": {"position_offset": 2}}, "model.decoder.position_offset needs positions = 'learned' there"),
    ({"positions": "relative", "relative_buckets": 6}, "model.relative_buckets must be a multiple of 4, but is 6"),
    ({"positions": "relative", "relative_max_distance": 16}, "model.relative_max_distance must be above 16, but is 16"),
    ({"parallel": True}, "model.parallel needs model.norm_position = 'pre'"),
    ({"parallel": True, "norm_position": "pre"}, "model.parallel must be false in a decoder that attends to an encoder"),
    ({"norm": "rms", "norm_bias": False}, "model.norm_bias must be true with RMSNorm"),
    ({"front": {"token_types": 2}}, "model.front.token_types needs a model without a decoder"),
    ({"front": {"d_embedding": 8}}, "model.front.d_embedding needs a model without a decoder"),
    ({"decoder_layers": 0, "front": {"d_embedding": 8}}, "model.front.d_embedding needs model.embedding_scale = false"),
    ({"decoder_layers": 0, "front": {"d_embedding": 8}, "embedding_scale": False}, "needs model.tie_embeddings and"),
    ({"decoder_layers": 0, "activation": "geglu", "head": {"transform": True}}, "needs model.activation without a gate"),
    ({"front": {"kind": "sounds"}}, "model.front.kind must be one of tokens, but is 'sounds'"),
    ({"head": {"kind": "classes", "labels": ["a"]}}, "model.head.kind must be 'tokens' in a model with a decoder"),
    ({"decoder_layers": 0, "head": {"kind": "classes"}}, "model.head.labels must name the classes, but is empty"),
    ({"decoder_layers": 0, "head": {"kind": "tags", "labels": ["a", "a"]}}, "model.head.labels must be different"),
    ({"decoder_layers": 0, "head": {"labels": ["a"]}}, "model.head.labels needs model.head.kind = 'classes' or 'tags'"),
    ({"decoder_layers": 0, "head": {"pooling": "mean"}}, "model.head.pooling needs model.head.kind = 'classes' or 'vector'"),
    ({"decoder_layers": 0, "head": {"kind": "vector", "transform": True}}, "model.head.transform needs model.head.kind"),
    ({"head": {"transform": True}}, "model.head.transform needs a model without a decoder"),
    ({"head": {"logit_scale": 0.5}, "output_bias": True}, "model.head.logit_scale must be 1 with model.output_bias"),
    ({"decoder_layers": 0, "head": {"kind": "none"}, "tie_embeddings": False}, "model.tie_embeddings must be true with"),
]  # fmt: skip


@pytest.mark.parametrize(("settings", "message"), REFUSED, ids=[str(settings)[:60] for settings, _ in REFUSED])
def test_wrong_settings_are_refused_by_name(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=re.escape(message)):
        tiny_config(**settings)


def recipe(**model: Any) -> Any:
    data = {"source": "en", "target": "de", "train": "a.{en,de}", "valid": 10}
    return recipe_from_dict({"data": data, "train": {"steps": 1}, "model": model})


def test_a_recipe_sets_each_stack_in_a_table_of_its_own() -> None:
    read = recipe(preset="tiny", encoder={"d_ff": 48}, head={"logit_scale": 0.5})
    config = read.model.config(1000)
    assert config.encoder_stack.d_ff == 48 and config.decoder_stack.d_ff == 768
    assert (
        "\n[model.encoder]\nd_ff = 48\n" in read.to_toml() and "\n[model.head]\nlogit_scale = 0.5\n" in read.to_toml()
    )


def test_a_recipe_with_tables_is_read_back_as_it_was_written() -> None:
    import tomllib

    scaling = {"kind": "linear", "factor": 2.0}
    written = recipe(
        preset="tiny", positions="rotary", rotary_scaling=scaling, decoder={"d_ff": 48, "rotary_scaling": scaling}
    )
    assert recipe_from_dict(tomllib.loads(written.to_toml())) == written


@pytest.mark.parametrize("table", TABLES)
def test_an_unknown_key_of_a_table_is_refused_with_the_nearest(table: str) -> None:
    with pytest.raises(
        UserError, match=rf"recipe: model\.{table}\.\w+ is not known; did you mean (d_ff|token_types|pooling)\?"
    ):
        recipe(
            **{
                table: {
                    "encoder": {"d_f": 1},
                    "decoder": {"d_f": 1},
                    "front": {"token_type": 1},
                    "head": {"poling": 1},
                }[table]
            }
        )


def test_set_reaches_into_tables() -> None:
    from regard.recipe import apply_overrides

    values: dict[str, Any] = {}
    apply_overrides(values, ["model.encoder.d_ff=48", "model.head.kind=tokens"])
    assert values == {"model": {"encoder": {"d_ff": 48}, "head": {"kind": "tokens"}}}
    with pytest.raises(UserError, match=r"--set model\.encoder\.d_f is not known; did you mean d_ff\?"):
        apply_overrides(values, ["model.encoder.d_f=48"])


def test_translation_needs_both_stacks() -> None:
    with pytest.raises(UserError, match=r"model\.encoder_layers must be at least 1 for translation, but is 0"):
        recipe(encoder_layers=0)
