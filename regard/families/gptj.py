"""GPT-J: attention and feed-forward side by side under one norm, rotary positions on a part of each head, biases in the
feed-forward layers only."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from regard.config import ModelConfig
from regard.families.family import ACTIVATION_NAMES, ACTIVATIONS, Family, Fields
from regard.families.table import Entry, LayerNames, layer_entries, norm_entries
from regard.settings import HeadKind

_LAYER = LayerNames(
    {
        "q": "attn.q_proj",
        "k": "attn.k_proj",
        "v": "attn.v_proj",
        "out": "attn.out_proj",
        "inner": "mlp.fc_in",
        "outer": "mlp.fc_out",
        "norm": "ln_1",
    }
)


def _read(fields: Fields, head: HeadKind) -> ModelConfig:
    width, heads = fields.whole("n_embd"), fields.whole("n_head")
    rotated = fields.whole("rotary_dim", 0)
    return ModelConfig(
        vocab_size=fields.whole("vocab_size"),
        d_model=width,
        d_ff=fields.whole("n_inner", 4 * width),
        num_heads=heads,
        encoder_layers=0,
        decoder_layers=fields.whole("n_layer"),
        dropout=fields.number("resid_pdrop"),
        attention_dropout=fields.number("attn_pdrop"),
        norm_position="pre",
        activation=fields.choice("activation_function", ACTIVATIONS),
        positions="rotary",
        rotary_dim=0 if heads and rotated == width // heads else rotated,
        max_positions=fields.whole("n_positions"),
        norm_eps=fields.number("layer_norm_epsilon"),
        attention_bias="none",
        embedding_scale=False,
        parallel=True,
        tie_embeddings=False,
        output_bias=True,
    )


def _write(config: ModelConfig) -> dict[str, Any]:
    return {
        "vocab_size": config.vocab_size,
        "n_embd": config.d_model,
        "n_inner": config.d_ff,
        "n_head": config.num_heads,
        "n_layer": config.decoder_layers,
        "n_positions": config.max_positions,
        "rotary_dim": config.stacks["decoder"].rotary_dim,
        "activation_function": ACTIVATION_NAMES[config.activation],
        "resid_pdrop": config.dropout,
        "embd_pdrop": config.dropout,
        "attn_pdrop": config.attention_dropout,
        "layer_norm_epsilon": config.norm_eps,
        "tie_word_embeddings": False,
    }


def _entries(config: ModelConfig) -> Iterator[Entry]:
    stack = config.stacks["decoder"]
    yield Entry("embedding.weight", ("transformer.wte.weight",))
    for number in range(stack.layers):
        yield from layer_entries(_LAYER, stack, f"decoder.layers.{number}", f"transformer.h.{number}")
    yield from norm_entries(stack, "decoder.final_norm", "transformer.ln_f")
    yield Entry("output.weight", ("lm_head.weight",))
    yield Entry("output_bias", ("lm_head.bias",))


GPTJ = Family(
    name="GPT-J",
    model_type="gptj",
    heads={"GPTJForCausalLM": "tokens"},
    read=_read,
    write=_write,
    entries=_entries,
    defaults={
        "vocab_size": 50400,
        "n_embd": 4096,
        "n_layer": 28,
        "n_head": 16,
        "n_positions": 2048,
        "rotary_dim": 64,
        "activation_function": "gelu_new",
        "resid_pdrop": 0.0,
        "attn_pdrop": 0.0,
        "layer_norm_epsilon": 1e-5,
    },
    fixed={"tie_word_embeddings": False},
    prefix="transformer.",
    tokenizer="gpt2",
    ignored=(".attn.bias", ".attn.masked_bias", ".attn.embed_positions"),
)
