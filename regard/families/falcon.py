"""Falcon 7B: attention and feed-forward side by side under one norm, one key/value head, one matrix for queries, key and value."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from regard.config import ModelConfig
from regard.families.family import ACTIVATION_NAMES, ACTIVATIONS, Family, Fields
from regard.families.rope import read_rope, write_rope
from regard.families.table import Entry, LayerNames, layer_entries, norm_entries
from regard.settings import HeadKind

_LAYER = LayerNames(
    {
        "qkv": "self_attention.query_key_value",
        "out": "self_attention.dense",
        "inner": "mlp.dense_h_to_4h",
        "outer": "mlp.dense_4h_to_h",
        "norm": "input_layernorm",
    },
    halves=True,
)


def _read(fields: Fields, head: HeadKind) -> ModelConfig:
    width = fields.whole("hidden_size")
    return ModelConfig(
        vocab_size=fields.whole("vocab_size"),
        d_model=width,
        d_ff=fields.whole("ffn_hidden_size", 4 * width),
        num_heads=fields.whole("num_attention_heads"),
        num_kv_heads=1,
        encoder_layers=0,
        decoder_layers=fields.whole("num_hidden_layers"),
        dropout=fields.number("hidden_dropout"),
        attention_dropout=fields.number("attention_dropout"),
        norm_position="pre",
        norm_eps=fields.number("layer_norm_epsilon"),
        activation=fields.choice("activation", ACTIVATIONS),
        max_positions=fields.whole("max_position_embeddings"),
        attention_bias="none",
        feed_forward_bias=False,
        embedding_scale=False,
        parallel=True,
        tie_embeddings=fields.flag("tie_word_embeddings"),
        **read_rope(fields),
    )


def _write(config: ModelConfig) -> dict[str, Any]:
    stack = config.stacks["decoder"]
    return {
        "vocab_size": config.vocab_size,
        "hidden_size": config.d_model,
        "ffn_hidden_size": stack.d_ff,
        "num_attention_heads": stack.num_heads,
        "num_hidden_layers": stack.layers,
        "hidden_dropout": stack.dropout,
        "attention_dropout": stack.attention_dropout,
        "layer_norm_epsilon": stack.norm_eps,
        "activation": ACTIVATION_NAMES[stack.activation],
        "max_position_embeddings": stack.max_positions,
        "rope_parameters": write_rope(stack),
        "multi_query": True,
        "parallel_attn": True,
        "new_decoder_architecture": False,
        "alibi": False,
        "bias": False,
        "tie_word_embeddings": config.tie_embeddings,
    }


def _entries(config: ModelConfig) -> Iterator[Entry]:
    stack = config.stacks["decoder"]
    yield Entry("embedding.weight", ("transformer.word_embeddings.weight",))
    for number in range(stack.layers):
        yield from layer_entries(_LAYER, stack, f"decoder.layers.{number}", f"transformer.h.{number}")
    yield from norm_entries(stack, "decoder.final_norm", "transformer.ln_f")
    if not config.tie_embeddings:
        yield Entry("output.weight", ("lm_head.weight",))


FALCON = Family(
    name="Falcon",
    model_type="falcon",
    heads={"FalconForCausalLM": "tokens"},
    read=_read,
    write=_write,
    entries=_entries,
    defaults={
        "vocab_size": 65024,
        "hidden_size": 4544,
        "num_hidden_layers": 32,
        "num_attention_heads": 71,
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
        "layer_norm_epsilon": 1e-5,
        "activation": "gelu",
        "max_position_embeddings": 2048,
        "tie_word_embeddings": True,
        "multi_query": True,
        "parallel_attn": True,
        "new_decoder_architecture": False,
        "alibi": False,
        "bias": False,
    },
    fixed={
        "multi_query": True,
        "parallel_attn": True,
        "new_decoder_architecture": False,
        "alibi": False,
        "bias": False,
    },
    prefix="transformer.",
)
