"""BART: the paper's Transformer with GELU, learned positions that begin at row 2, and a norm on the embeddings. Its two stacks may
differ in shape."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from regard.config import ModelConfig
from regard.families.family import ACTIVATION_NAMES, ACTIVATIONS, Family, Fields
from regard.families.table import Entry, LayerNames, layer_entries, norm_entries
from regard.settings import HeadKind

_OFFSET = 2
_STACKS = ("encoder", "decoder")
ATTENTION = {"q": "q_proj", "k": "k_proj", "v": "v_proj", "out": "out_proj"}
LAYER = LayerNames(
    {
        **{part: f"self_attn.{name}" for part, name in ATTENTION.items()},
        **{f"cross_{part}": f"encoder_attn.{name}" for part, name in ATTENTION.items()},
        "inner": "fc1",
        "outer": "fc2",
        "norm": "self_attn_layer_norm",
        "cross_norm": "encoder_attn_layer_norm",
        "feed_forward_norm": "final_layer_norm",
    }
)


def _read(fields: Fields, head: HeadKind) -> ModelConfig:
    d_ff, num_heads = fields.whole("encoder_ffn_dim"), fields.whole("encoder_attention_heads")
    decoder = {"d_ff": fields.whole("decoder_ffn_dim"), "num_heads": fields.whole("decoder_attention_heads")}
    both = {"d_ff": d_ff, "num_heads": num_heads}
    return ModelConfig(
        vocab_size=fields.whole("vocab_size"),
        d_model=fields.whole("d_model"),
        d_ff=d_ff,
        num_heads=num_heads,
        encoder_layers=fields.whole("encoder_layers"),
        decoder_layers=fields.whole("decoder_layers"),
        dropout=fields.number("dropout"),
        attention_dropout=fields.number("attention_dropout"),
        activation=fields.choice("activation_function", ACTIVATIONS),
        positions="learned",
        max_positions=fields.whole("max_position_embeddings"),
        position_offset=_OFFSET,
        embedding_scale=fields.flag("scale_embedding"),
        embedding_norm=True,
        output_bias=True,
        decoder={name: value for name, value in decoder.items() if value != both[name]},
    )


def _write(config: ModelConfig) -> dict[str, Any]:
    sides: dict[str, Any] = {}
    for side, stack in config.stacks.items():
        sides |= {f"{side}_layers": stack.layers, f"{side}_ffn_dim": stack.d_ff}
        sides[f"{side}_attention_heads"] = stack.num_heads
    stack = config.stacks["encoder"]
    return {
        "vocab_size": config.vocab_size,
        "d_model": config.d_model,
        **sides,
        "dropout": stack.dropout,
        "attention_dropout": stack.attention_dropout,
        "activation_function": ACTIVATION_NAMES[stack.activation],
        "max_position_embeddings": stack.max_positions,
        "scale_embedding": stack.embedding_scale,
        "is_encoder_decoder": True,
        "tie_word_embeddings": True,
    }


def _entries(config: ModelConfig) -> Iterator[Entry]:
    yield Entry("embedding.weight", ("model.shared.weight",))
    yield Entry("output_bias", ("final_logits_bias",), as_row=True)
    for side, stack in config.stacks.items():
        place = f"model.{side}"
        yield Entry(f"{side}.positions.weight", (f"{place}.embed_positions.weight",))
        yield from norm_entries(stack, f"{side}.embedding_norm", f"{place}.layernorm_embedding")
        for number in range(stack.layers):
            yield from layer_entries(LAYER, stack, f"{side}.layers.{number}", f"{place}.layers.{number}")


BART = Family(
    name="BART",
    model_type="bart",
    heads={"BartForConditionalGeneration": "tokens"},
    read=_read,
    write=_write,
    entries=_entries,
    defaults={
        "vocab_size": 50265,
        "d_model": 1024,
        **{f"{side}_layers": 12 for side in _STACKS},
        **{f"{side}_ffn_dim": 4096 for side in _STACKS},
        **{f"{side}_attention_heads": 16 for side in _STACKS},
        "dropout": 0.1,
        "attention_dropout": 0.0,
        "activation_function": "gelu",
        "max_position_embeddings": 1024,
        "scale_embedding": False,
        "decoder_start_token_id": 2,
        "bos_token_id": 0,
        "pad_token_id": 1,
        "eos_token_id": 2,
    },
    fixed={
        "is_encoder_decoder": True,
        "tie_word_embeddings": True,
        "normalize_before": False,
        "normalize_embedding": True,
        "add_final_layer_norm": False,
        "static_position_embeddings": False,
        "add_bias_logits": False,
        "extra_pos_embeddings": 2,
    },
    prefix="model.",
    tokenizer="roberta",
    aliases=dict.fromkeys(
        ("lm_head.weight", "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight"),
        "model.shared.weight",
    ),
)
