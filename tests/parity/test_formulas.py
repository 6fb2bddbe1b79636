"""Formulas that transformers has as functions, held to those."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from regard.nn.activations import activate
from regard.nn.relative import bucket
from regard.nn.rotary import Rotary
from tests.build import LATER, tiny_config

transformers = pytest.importorskip("transformers")


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("buckets", "farthest"), [(32, 128), (8, 20), (4, 3), (64, 1000)])
def test_buckets_are_t5s(causal: bool, buckets: int, farthest: int) -> None:
    from transformers.models.t5.modeling_t5 import T5Attention

    distances = torch.arange(-3 * farthest, 3 * farthest + 1)
    expected = T5Attention._relative_position_bucket(distances, not causal, buckets, farthest)
    clamped = distances.clamp(-farthest, farthest)  # as `RelativePositions` looks them up
    assert torch.equal(bucket(clamped, causal, buckets, farthest), expected)


@pytest.mark.parametrize(
    ("ours", "theirs"), [("gelu", "gelu"), ("gelu_tanh", "gelu_new"), ("silu", "silu"), ("relu", "relu")]
)
def test_activations_are_those_of_the_same_name(ours: Any, theirs: str) -> None:
    from transformers.activations import ACT2FN

    x = torch.linspace(-6, 6, 500, dtype=torch.float64)
    torch.testing.assert_close(activate(x.clone(), ours), ACT2FN[theirs](x), atol=1e-12, rtol=0)


@pytest.mark.parametrize("name", ["rotary-halves", "rotary-base", "rotary-linear", "rotary-llama3"])
def test_rotary_positions_are_llamas(name: str) -> None:
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

    stack = tiny_config(**{**LATER[name], "d_head": 64, "rotary_pairing": "halves"}).stacks["decoder"]
    scaling = dict(stack.rotary_scaling)
    names = {"original_max_positions": "original_max_position_embeddings", "kind": "rope_type"}
    rope = {"rope_type": "default", "rope_theta": stack.rotary_base} | {names.get(k, k): v for k, v in scaling.items()}
    config = LlamaConfig(
        hidden_size=256, num_attention_heads=4, head_dim=64, max_position_embeddings=512, rope_parameters=rope
    )
    places, q = torch.arange(300), torch.randn(300, 4, 64)
    cos, sin = LlamaRotaryEmbedding(config)(q, places[None])
    # (tokens, heads, d_head) -> (1, heads, tokens, d_head)
    expected, _ = apply_rotary_pos_emb(q.transpose(0, 1)[None], q.transpose(0, 1)[None], cos, sin)
    torch.testing.assert_close(Rotary(stack)(q, places), expected[0].transpose(0, 1), atol=2e-4, rtol=0)
