"""Marian, the paper's Transformer in Hugging Face's transformers, such as OPUS-MT's models.

Its sinusoids are all sines and then all cosines, where the paper interleaves them. The dimensions of the residual stream may have
any order as long as everything that reads or writes it agrees, so the weights are copied with those dimensions permuted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from regard.config import ModelConfig
from regard.errors import UserError
from regard.families.bart import LAYER
from regard.families.table import Entry, layer_entries

SHARED = "model.shared.weight"
SRC_EMBEDDING, TGT_EMBEDDING = "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight"
OUTPUT, OUTPUT_BIAS = "lm_head.weight", "final_logits_bias"

DEFAULTS: dict[str, Any] = {  # of fields that config.json lacks
    "vocab_size": 58101,
    "decoder_vocab_size": None,
    "d_model": 1024,
    "encoder_layers": 12,
    "decoder_layers": 12,
    "encoder_ffn_dim": 4096,
    "decoder_ffn_dim": 4096,
    "encoder_attention_heads": 16,
    "decoder_attention_heads": 16,
    "activation_function": "gelu",
    "dropout": 0.1,
    "scale_embedding": False,
    "max_position_embeddings": 1024,
    "share_encoder_decoder_embeddings": True,
    "tie_word_embeddings": True,
    "decoder_start_token_id": 58100,
    "eos_token_id": 0,
    "pad_token_id": 58100,
}
# Fields of older models, and the one value of each that Regard supports.
FIXED: dict[str, Any] = {
    "model_type": "marian",
    "is_encoder_decoder": True,
    "normalize_before": False,
    "normalize_embedding": False,
    "layernorm_embedding": False,
    "add_final_layer_norm": False,
    "static_position_embeddings": True,
}
_ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "silu": "silu", "swish": "silu"}
_ACTIVATION_NAMES = {"relu": "relu", "gelu": "gelu", "silu": "swish"}
# The values of each setting that Marian supports.
_KNOWN: dict[str, tuple[Any, ...]] = {
    "norm_position": ("post",),
    "norm": ("layer",),
    "activation": tuple(_ACTIVATION_NAMES),
    "positions": ("sinusoidal",),
    "norm_eps": (1e-5,),
}
# The rows and columns of Regard's matrices that belong to the residual stream.
_READERS = ("self_attention.qkv", "cross_attention.q", "cross_attention.kv", "feed_forward.inner")


def read_settings(settings: Mapping[str, Any], vocab_size: int, tied: bool, output_bias: bool) -> ModelConfig:
    """The settings of a model; those that Regard does not support are refused by name."""
    for name in ("attention_heads", "ffn_dim"):
        ours, other = settings[f"encoder_{name}"], settings[f"decoder_{name}"]
        if ours != other:
            raise UserError(
                f"encoder_{name} and decoder_{name} must be equal, but are {ours} and {other}; "
                "a bundle has one value for both"
            )
    activation = _ACTIVATIONS.get(settings["activation_function"])
    if activation is None:
        raise UserError(
            f"activation_function must be one of {', '.join(_ACTIVATIONS)}, but is {settings['activation_function']!r}"
        )
    return ModelConfig(
        vocab_size=vocab_size,
        d_model=settings["d_model"],
        d_ff=settings["encoder_ffn_dim"],
        num_heads=settings["encoder_attention_heads"],
        encoder_layers=settings["encoder_layers"],
        decoder_layers=settings["decoder_layers"],
        dropout=settings["dropout"],
        activation=activation,  # type: ignore[arg-type]
        tie_embeddings=tied,
        output_bias=output_bias,
    )


def unsupported(config: ModelConfig) -> str | None:
    """The first setting that Marian does not have, as "model.norm = 'rms'"; None if it has all."""
    unknown = [name for name, choices in _KNOWN.items() if getattr(config, name) not in choices]
    if config.kv_heads != config.num_heads:
        unknown.append("num_kv_heads")
    return f"model.{unknown[0]} = {getattr(config, unknown[0])!r}" if unknown else config.unsupported(("output_bias",))


def write_settings(config: ModelConfig, max_positions: int) -> dict[str, Any]:
    """The inverse of `read_settings`, for settings that Marian has."""
    return {
        "vocab_size": config.vocab_size,
        "d_model": config.d_model,
        "encoder_layers": config.encoder_layers,
        "decoder_layers": config.decoder_layers,
        "encoder_ffn_dim": config.d_ff,
        "decoder_ffn_dim": config.d_ff,
        "encoder_attention_heads": config.num_heads,
        "decoder_attention_heads": config.num_heads,
        "activation_function": _ACTIVATION_NAMES[config.activation],
        "dropout": config.dropout,
        "scale_embedding": True,
        "max_position_embeddings": max_positions,
        "share_encoder_decoder_embeddings": config.tie_embeddings,
        "tie_word_embeddings": config.tie_embeddings,
    }


def entries(config: ModelConfig) -> Iterator[Entry]:
    """All tensors of a model."""
    order = _order(config.d_model)
    if config.tie_embeddings:
        yield Entry("embedding.weight", (SHARED,), columns=order)
    else:
        yield Entry("src_embedding.weight", (SRC_EMBEDDING,), columns=order)
        yield Entry("tgt_embedding.weight", (TGT_EMBEDDING,), columns=order)
        yield Entry("output.weight", (OUTPUT,), columns=order)
    for side, stack in config.stacks.items():
        for number in range(stack.layers):
            place = f"{side}.layers.{number}"
            for entry in layer_entries(LAYER, stack, place, f"model.{place}"):
                yield _permuted(entry, entry.ours.removeprefix(f"{place}."), order)
    if config.output_bias:
        yield Entry("output_bias", (OUTPUT_BIAS,), as_row=True)


def _order(d_model: int) -> tuple[int, ...]:
    """The dimension of Marian's residual stream behind each of Regard's: sine, cosine, sine, ..."""
    return tuple(place for i in range(d_model // 2) for place in (i, i + d_model // 2))


def _permuted(entry: Entry, name: str, order: tuple[int, ...]) -> Entry:
    """Readers of the residual stream have one column for each of its dimensions, writers and norms one row."""
    if name.removesuffix(".weight") in _READERS:
        return Entry(entry.ours, entry.theirs, entry.sizes, columns=order)
    if name.removesuffix(".bias") in _READERS:
        return entry
    return Entry(entry.ours, entry.theirs, entry.sizes, rows=order)
