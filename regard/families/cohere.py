"""Cohere's Command R, whose block is PaLM's: attention and feed-forward side by side under one LayerNorm without bias, few
key/value heads, scaled logits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from regard.config import ModelConfig
from regard.families import llama
from regard.families.family import Family, Fields
from regard.families.rope import read_rope, write_rope
from regard.families.table import Entry
from regard.settings import HeadKind

_LAYER = replace(llama.LAYER, halves=False)  # its rotary positions are Regard's pairs


def _read(fields: Fields, head: HeadKind) -> ModelConfig:
    heads = fields.whole("num_attention_heads")
    kv_heads = fields.whole("num_key_value_heads", heads)
    scale = fields.number("logit_scale")
    return ModelConfig(
        vocab_size=fields.whole("vocab_size"),
        d_model=fields.whole("hidden_size"),
        d_ff=fields.whole("intermediate_size"),
        num_heads=heads,
        num_kv_heads=0 if kv_heads == heads else kv_heads,
        encoder_layers=0,
        decoder_layers=fields.whole("num_hidden_layers"),
        dropout=0.0,
        attention_dropout=fields.number("attention_dropout"),
        norm_position="pre",
        norm_eps=fields.number("layer_norm_eps"),
        norm_bias=False,
        activation=fields.choice("hidden_act", {"silu": "swiglu"}),
        max_positions=fields.whole("max_position_embeddings"),
        attention_bias="all" if fields.flag("attention_bias") else "none",
        feed_forward_bias=False,
        embedding_scale=False,
        parallel=True,
        head={} if scale == 1.0 else {"logit_scale": scale},
        **read_rope(fields),
    )


def _write(config: ModelConfig) -> dict[str, Any]:
    stack = config.stacks["decoder"]
    return {
        "vocab_size": config.vocab_size,
        "hidden_size": config.d_model,
        "intermediate_size": stack.d_ff,
        "num_hidden_layers": stack.layers,
        "num_attention_heads": stack.num_heads,
        "num_key_value_heads": stack.num_kv_heads,
        "hidden_act": {"swiglu": "silu"}[stack.activation],
        "max_position_embeddings": stack.max_positions,
        "layer_norm_eps": stack.norm_eps,
        "attention_dropout": stack.attention_dropout,
        "attention_bias": stack.attention_bias == "all",
        "rope_parameters": write_rope(stack),
        "logit_scale": config.head_settings.logit_scale,
        "use_qk_norm": False,
        "tie_word_embeddings": True,
    }


def _entries(config: ModelConfig) -> Iterator[Entry]:
    return llama.entries(config, _LAYER)


COHERE = Family(
    name="Cohere",
    model_type="cohere",
    heads={"CohereForCausalLM": "tokens"},
    read=_read,
    write=_write,
    entries=_entries,
    defaults={
        "vocab_size": 256000,
        "hidden_size": 8192,
        "intermediate_size": 22528,
        "num_hidden_layers": 40,
        "num_attention_heads": 64,
        "hidden_act": "silu",
        "max_position_embeddings": 8192,
        "layer_norm_eps": 1e-5,
        "logit_scale": 0.0625,
        "attention_dropout": 0.0,
        "attention_bias": False,
    },
    fixed={"use_qk_norm": False, "tie_word_embeddings": True},
    prefix="model.",
)
