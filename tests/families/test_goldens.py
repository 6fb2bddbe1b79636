"""Staged checkpoints, real and made with transformers: their golden logits, and how each setting shows in them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from regard.bundle import load_bundle
from regard.config import ModelConfig
from regard.export import export
from regard.importing.transformers import import_model
from regard.models.transformer import Transformer
from regard.settings import STACK_FIELDS
from tests.families.checkpoints import Golden, find_goldens, golden_distance, read_golden

GOLDENS = find_goldens()
NAMES = [
    "bart-g2p-us",
    "bart-g2p-gb",
    "roberta-sapiens-vh",
    "roberta-sapiens-vl",
    "albert-rxnmapper",
    *(
        f"made-here/{name}"
        for name in ("gpt2", "llama", "gptj", "falcon", "cohere-as-palm", "bert", "roberta", "t5", "t5v11")
    ),
]
LIMIT = 1e-4  # of the golden's standard deviation

pytestmark = pytest.mark.skipif(
    GOLDENS is None, reason="there are no staged checkpoints; $REGARD_GOLDENS may name them"
)


@cache
def golden_of(name: str) -> Golden:
    assert GOLDENS is not None
    return read_golden(GOLDENS / name)


def build(config: ModelConfig, weights: Mapping[str, Tensor]) -> Transformer:
    model = Transformer(config)
    model.load_state_dict(dict(weights))
    return model.eval()


@pytest.mark.parametrize("name", NAMES)
def test_logits_are_those_of_the_golden(name: str) -> None:
    golden = golden_of(name)
    assert golden_distance(build(golden.config, golden.weights), golden) <= LIMIT


def test_padded_and_two_segment_goldens_are_among_them() -> None:
    inputs = [case for name in NAMES for case, _ in golden_of(name).cases]
    assert sum(not bool(one.mask.all()) for one in inputs) >= 4
    assert any(one.types is not None and bool(one.types.any()) for one in inputs)


@pytest.mark.parametrize("name", NAMES)
def test_imported_and_exported_again_the_tensors_are_the_same_to_the_bit(name: str, tmp_path: Path) -> None:
    assert GOLDENS is not None
    imported = import_model(GOLDENS / name, tmp_path / "bundle")
    assert imported.difference is not None and imported.difference.largest <= LIMIT
    export(load_bundle(tmp_path / "bundle"), "transformers", tmp_path / "back")
    before, after = (load_file(folder / "model.safetensors") for folder in (GOLDENS / name, tmp_path / "back"))
    assert before.keys() == after.keys() and all(torch.equal(before[one], after[one]) for one in before)


# --- each setting shows ---

Flips = list[dict[str, Any]]

_ANY: Flips = [{"embedding_scale": True}, {"norm_eps": 1e-3}]
_ATTENTION: Flips = [{"score_scale": 1.0}]
_BIASES: Flips = [
    {"attention_bias": "none"},
    {"attention_bias": "qkv"},
    {"feed_forward_bias": False},
    {"norm_bias": False},
]
_ENCODER: Flips = [
    *_ANY, *_ATTENTION, *_BIASES, {"activation": "gelu_tanh"}, {"norm_position": "pre"}, {"embedding_norm": False},
    {"output_bias": False}, {"norm": "rms"},
]  # fmt: skip
_ROTARY: Flips = [{"rotary_base": 5000.0}, {"rotary_pairing": "halves"}, {"rotary_dim": 8}]
_PRE: Flips = [*_ANY, *_ATTENTION, {"final_norm": False}]
FLIPS: dict[str, Flips] = {
    "bart-g2p-us": [
        *_ANY, *_ATTENTION, *_BIASES, {"activation": "gelu_tanh"}, {"norm_position": "pre"}, {"embedding_norm": False},
        {"position_offset": 0}, {"decoder": {"positions": "none"}}, {"encoder": {"positions": "none"}},
    ],
    "roberta-sapiens-vh": [*_ENCODER, {"position_offset": 0}, {"head": {}}],
    "albert-rxnmapper": [*_ENCODER[1:], {"position_offset": 1}, {"encoder_layers": 11}, {"share_layers": False}],
    "made-here/bert": [*_ENCODER, {"position_offset": 1}, {"head": {}}, {"front": {}}, {"positions": "none"}],
    "made-here/roberta": [*_ENCODER, {"position_offset": 0}, {"head": {}}, {"front": {}}],
    "made-here/gpt2": [
        *_PRE, *_BIASES, {"activation": "gelu"}, {"norm_position": "post"}, {"positions": "none"}, {"position_offset": 1},
        {"norm": "rms"},
    ],
    "made-here/gptj": [
        *_PRE, *_ROTARY, {"activation": "gelu"}, {"parallel": False}, {"rotary_dim": 0}, {"feed_forward_bias": False},
        {"norm_bias": False}, {"output_bias": False}, {"tie_embeddings": True},
    ],
    "made-here/falcon": [
        *_PRE, *_ROTARY, {"activation": "gelu_tanh"}, {"parallel": False}, {"norm_bias": False}, {"norm": "rms"},
        {"num_kv_heads": 2},
    ],
    "made-here/llama": [
        *_PRE, *_ROTARY, {"activation": "geglu"}, {"norm_position": "post"}, {"tie_embeddings": True}, {"num_kv_heads": 1},
    ],
    "made-here/cohere-as-palm": [*_PRE, *_ROTARY, {"activation": "geglu"}, {"parallel": False}, {"head": {}}, {"num_kv_heads": 2}],
    "made-here/t5": [
        *_ANY, {"score_scale": 0.0}, {"relative_max_distance": 20}, {"activation": "gelu"}, {"final_norm": False}, {"head": {}},
        {"norm_position": "post"},
    ],
    "made-here/t5v11": [*_ANY, {"score_scale": 0.0}, {"activation": "geglu"}, {"activation": "swiglu"}],
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "flip"), [(name, flip) for name, flips in FLIPS.items() for flip in flips], ids=lambda value: str(value)
)
def test_a_setting_that_is_changed_breaks_the_golden(name: str, flip: dict[str, Any]) -> None:
    golden = golden_of(name)
    changed = dataclasses.replace(golden.config, **flip)
    assert changed != golden.config
    model = Transformer(changed)
    model.load_state_dict({key: fitting(key, value, golden.weights) for key, value in model.state_dict().items()})
    assert golden_distance(model.eval(), golden) > 2 * LIMIT


# Settings that no flip can show: widths, which weights of another shape would have to have; and what only training has. The
# scalings of rotary positions and free widths of heads are in test_against_transformers.py, where the models are made.
NOT_FLIPPED = {
    "d_model", "d_ff", "num_heads", "d_head", "max_positions", "relative_buckets", "dropout", "attention_dropout", "rotary_scaling",
}  # fmt: skip


def test_every_setting_of_a_stack_is_changed_in_some_golden() -> None:
    changed = {key for flips in FLIPS.values() for flip in flips for key in flip}
    assert set(STACK_FIELDS) - changed == NOT_FLIPPED
    assert {"front", "head", "output_bias", "tie_embeddings"} <= changed


def fitting(name: str, wanted: Tensor, weights: Mapping[str, Tensor]) -> Tensor:
    """The checkpoint's tensor, or for one that only the changed model has: a shorter or longer table of positions, the other norm
    of a parallel layer, a norm or bias that does nothing."""
    if name in weights and weights[name].shape == wanted.shape:
        return weights[name]
    if name in weights:
        rows = min(len(wanted), len(weights[name]))
        return torch.cat((weights[name][:rows], torch.zeros_like(wanted[rows:])))
    if (other := name.replace("feed_forward_residual", "self_residual")) in weights:
        return weights[other]
    return torch.ones_like(wanted) if name.endswith("norm.weight") else torch.zeros_like(wanted)
