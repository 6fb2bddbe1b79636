"""T5 and T5 1.1: relative positions as a bias of the scores, RMSNorm, no biases, scores that are not scaled. T5 scales its logits
and shares one matrix; 1.1 has gated GELU and mostly an output matrix of its own."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from regard.config import ModelConfig
from regard.families.family import Family, Fields
from regard.families.table import Entry, LayerNames, layer_entries, norm_entries
from regard.settings import HeadKind, Side, StackConfig

_ACTIVATIONS = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "silu": "silu",
    "gated-gelu": "geglu_tanh",  # transformers means gelu_new by it
    "gated-silu": "swiglu",
}
_NAMES = {ours: theirs for theirs, ours in _ACTIVATIONS.items()}


def _read(fields: Fields, head: HeadKind) -> ModelConfig:
    width, layers = fields.whole("d_model"), fields.whole("num_layers")
    num_heads, d_head = fields.whole("num_heads"), fields.whole("d_kv")
    dropout = fields.number("dropout_rate")
    tied = fields.flag("tie_word_embeddings")
    is_scaled = tied and fields.flag("scale_decoder_outputs", True)
    return ModelConfig(
        vocab_size=fields.whole("vocab_size"),
        d_model=width,
        d_ff=fields.whole("d_ff"),
        num_heads=num_heads,
        d_head=0 if num_heads * d_head == width else d_head,
        encoder_layers=layers,
        decoder_layers=fields.whole("num_decoder_layers", layers),
        dropout=dropout,
        attention_dropout=dropout,
        norm_position="pre",
        norm="rms",
        norm_eps=fields.number("layer_norm_epsilon"),
        activation=fields.choice("feed_forward_proj", _ACTIVATIONS),
        positions="relative",
        relative_buckets=fields.whole("relative_attention_num_buckets"),
        relative_max_distance=fields.whole("relative_attention_max_distance"),
        attention_bias="none",
        feed_forward_bias=False,
        embedding_scale=False,
        score_scale=1.0,
        tie_embeddings=tied,
        head={"logit_scale": width**-0.5} if is_scaled else {},
    )


def _write(config: ModelConfig) -> dict[str, Any]:
    stack = config.stacks["encoder"]
    scale = config.head_settings.logit_scale
    is_scaled = config.tie_embeddings and math.isclose(scale, config.d_model**-0.5, rel_tol=1e-9)
    return {
        "vocab_size": config.vocab_size,
        "d_model": config.d_model,
        "d_kv": stack.d_head,
        "d_ff": stack.d_ff,
        "num_heads": stack.num_heads,
        "num_layers": stack.layers,
        "num_decoder_layers": config.decoder_layers,
        "dropout_rate": stack.dropout,
        "layer_norm_epsilon": stack.norm_eps,
        "feed_forward_proj": _NAMES[stack.activation],
        "relative_attention_num_buckets": stack.relative_buckets,
        "relative_attention_max_distance": stack.relative_max_distance,
        "tie_word_embeddings": config.tie_embeddings,
        "scale_decoder_outputs": is_scaled,
        "is_encoder_decoder": True,
    }


def _layer(stack: StackConfig, side: Side) -> LayerNames:
    last = 1 if side == "encoder" else 2
    attention = {"q": "q", "k": "k", "v": "v", "out": "o"}
    parts = {part: f"layer.0.SelfAttention.{name}" for part, name in attention.items()}
    if side == "decoder":
        parts |= {f"cross_{part}": f"layer.1.EncDecAttention.{name}" for part, name in attention.items()}
        parts["cross_norm"] = "layer.1.layer_norm"
    inner = {"gate": "wi_0", "inner": "wi_1"} if stack.gated else {"inner": "wi"}
    parts |= {part: f"layer.{last}.DenseReluDense.{name}" for part, name in {**inner, "outer": "wo"}.items()}
    return LayerNames(parts | {"norm": "layer.0.layer_norm", "feed_forward_norm": f"layer.{last}.layer_norm"})


def _entries(config: ModelConfig) -> Iterator[Entry]:
    if config.tie_embeddings:
        yield Entry("embedding.weight", ("shared.weight",))
    else:
        yield Entry("src_embedding.weight", ("shared.weight",))
        yield Entry("tgt_embedding.weight", ("shared.weight",), only_read=True)
        yield Entry("output.weight", ("lm_head.weight",))
    for side, stack in config.stacks.items():
        table = f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
        yield Entry(f"{side}.relative.weight", (table,))
        for number in range(stack.layers):
            yield from layer_entries(_layer(stack, side), stack, f"{side}.layers.{number}", f"{side}.block.{number}")
        yield from norm_entries(stack, f"{side}.final_norm", f"{side}.final_layer_norm")


T5 = Family(
    name="T5",
    model_type="t5",
    heads={"T5ForConditionalGeneration": "tokens"},
    read=_read,
    write=_write,
    entries=_entries,
    defaults={
        "vocab_size": 32128,
        "d_model": 512,
        "d_kv": 64,
        "d_ff": 2048,
        "num_layers": 6,
        "num_heads": 8,
        "relative_attention_num_buckets": 32,
        "relative_attention_max_distance": 128,
        "dropout_rate": 0.1,
        "layer_norm_epsilon": 1e-6,
        "feed_forward_proj": "relu",
        "tie_word_embeddings": True,
        "decoder_start_token_id": 0,
        "pad_token_id": 0,
        "eos_token_id": 1,
    },
    fixed={"is_encoder_decoder": True, "is_decoder": False},
    aliases={"encoder.embed_tokens.weight": "shared.weight", "decoder.embed_tokens.weight": "shared.weight"},
    # Early checkpoints have a table in the cross-attention, which T5 has never used.
    ignored=("EncDecAttention.relative_attention_bias.weight",),
)
