"""GPT-2: a decoder with learned positions, whose matrices are transposed in its files (Conv1D)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from regard.config import ModelConfig
from regard.families.family import ACTIVATION_NAMES, ACTIVATIONS, Family, Fields
from regard.families.table import Entry, LayerNames, layer_entries, norm_entries
from regard.settings import HeadKind

_LAYER = LayerNames(
    {
        "qkv": "attn.c_attn",
        "out": "attn.c_proj",
        "inner": "mlp.c_fc",
        "outer": "mlp.c_proj",
        "norm": "ln_1",
        "feed_forward_norm": "ln_2",
    },
    transposed=True,
)


def _read(fields: Fields, head: HeadKind) -> ModelConfig:
    width = fields.whole("n_embd")
    return ModelConfig(
        vocab_size=fields.whole("vocab_size"),
        d_model=width,
        d_ff=fields.whole("n_inner", 4 * width),
        num_heads=fields.whole("n_head"),
        encoder_layers=0,
        decoder_layers=fields.whole("n_layer"),
        dropout=fields.number("resid_pdrop"),
        attention_dropout=fields.number("attn_pdrop"),
        norm_position="pre",
        activation=fields.choice("activation_function", ACTIVATIONS),
        positions="learned",
        max_positions=fields.whole("n_positions"),
        norm_eps=fields.number("layer_norm_epsilon"),
        embedding_scale=False,
        tie_embeddings=fields.flag("tie_word_embeddings"),
    )


def _write(config: ModelConfig) -> dict[str, Any]:
    return {
        "vocab_size": config.vocab_size,
        "n_embd": config.d_model,
        "n_inner": config.d_ff,
        "n_head": config.num_heads,
        "n_layer": config.decoder_layers,
        "n_positions": config.max_positions,
        "activation_function": ACTIVATION_NAMES[config.activation],
        "resid_pdrop": config.dropout,
        "embd_pdrop": config.dropout,
        "attn_pdrop": config.attention_dropout,
        "layer_norm_epsilon": config.norm_eps,
        "tie_word_embeddings": config.tie_embeddings,
    }


def _entries(config: ModelConfig) -> Iterator[Entry]:
    stack = config.stacks["decoder"]
    yield Entry("embedding.weight", ("transformer.wte.weight",))
    yield Entry("decoder.positions.weight", ("transformer.wpe.weight",))
    for number in range(stack.layers):
        yield from layer_entries(_LAYER, stack, f"decoder.layers.{number}", f"transformer.h.{number}")
    yield from norm_entries(stack, "decoder.final_norm", "transformer.ln_f")
    if not config.tie_embeddings:
        yield Entry("output.weight", ("lm_head.weight",))


GPT2 = Family(
    name="GPT-2",
    model_type="gpt2",
    heads={"GPT2LMHeadModel": "tokens"},
    read=_read,
    write=_write,
    entries=_entries,
    defaults={
        "vocab_size": 50257,
        "n_embd": 768,
        "n_layer": 12,
        "n_head": 12,
        "n_positions": 1024,
        "activation_function": "gelu_new",
        "resid_pdrop": 0.1,
        "attn_pdrop": 0.1,
        "layer_norm_epsilon": 1e-5,
        "tie_word_embeddings": True,
    },
    fixed={"scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False, "add_cross_attention": False},
    prefix="transformer.",
    tokenizer="gpt2",
    ignored=(".attn.bias", ".attn.masked_bias"),
)
