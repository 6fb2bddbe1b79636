"""ALBERT: BERT with one layer that all layers share, and narrow embeddings with a projection to the width of the layers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from regard.config import ModelConfig
from regard.families.bert import FIXED, read_head, write_head
from regard.families.family import ACTIVATION_NAMES, ACTIVATIONS, Family, Fields
from regard.families.table import Entry, LayerNames, layer_entries, linear_entries, norm_entries
from regard.settings import HeadKind

_LAYER = LayerNames(
    {
        "q": "attention.query",
        "k": "attention.key",
        "v": "attention.value",
        "out": "attention.dense",
        "norm": "attention.LayerNorm",
        "inner": "ffn",
        "outer": "ffn_output",
        "feed_forward_norm": "full_layer_layer_norm",
    }
)


def _read(fields: Fields, head: HeadKind) -> ModelConfig:
    width, narrow = fields.whole("hidden_size"), fields.whole("embedding_size")
    return ModelConfig(
        vocab_size=fields.whole("vocab_size"),
        d_model=width,
        d_ff=fields.whole("intermediate_size"),
        num_heads=fields.whole("num_attention_heads"),
        encoder_layers=fields.whole("num_hidden_layers"),
        decoder_layers=0,
        dropout=fields.number("hidden_dropout_prob"),
        attention_dropout=fields.number("attention_probs_dropout_prob"),
        activation=fields.choice("hidden_act", ACTIVATIONS),
        positions="learned",
        max_positions=fields.whole("max_position_embeddings"),
        norm_eps=fields.number("layer_norm_eps"),
        embedding_scale=False,
        embedding_norm=True,
        share_layers=True,
        output_bias=head == "tokens",
        front={"token_types": fields.whole("type_vocab_size"), "d_embedding": narrow},
        head=read_head(fields, head, fields.number("classifier_dropout_prob")),
    )


def _write(config: ModelConfig) -> dict[str, Any]:
    stack = config.stacks["encoder"]
    return {
        "vocab_size": config.vocab_size,
        "embedding_size": config.front_settings.d_embedding,
        "hidden_size": config.d_model,
        "intermediate_size": stack.d_ff,
        "num_attention_heads": stack.num_heads,
        "num_hidden_layers": stack.layers,
        "num_hidden_groups": 1,
        "inner_group_num": 1,
        "hidden_dropout_prob": stack.dropout,
        "attention_probs_dropout_prob": stack.attention_dropout,
        "classifier_dropout_prob": config.head_settings.dropout,
        "hidden_act": ACTIVATION_NAMES[stack.activation],
        "max_position_embeddings": stack.max_positions,
        "layer_norm_eps": stack.norm_eps,
        "type_vocab_size": config.front_settings.token_types,
        **write_head(config),
    }


def _entries(config: ModelConfig) -> Iterator[Entry]:
    stack, head = config.stacks["encoder"], config.head_settings
    prefix = "" if head.kind == "vector" else "albert."
    yield Entry("embedding.weight", (f"{prefix}embeddings.word_embeddings.weight",))
    yield Entry("encoder.positions.weight", (f"{prefix}embeddings.position_embeddings.weight",))
    yield Entry("front.token_types.weight", (f"{prefix}embeddings.token_type_embeddings.weight",))
    yield from norm_entries(stack, "encoder.embedding_norm", f"{prefix}embeddings.LayerNorm")
    yield from linear_entries("front.projection", f"{prefix}encoder.embedding_hidden_mapping_in")
    shared = f"{prefix}encoder.albert_layer_groups.0.albert_layers.0"
    yield from layer_entries(_LAYER, stack, "encoder.layers.0", shared)
    if head.kind == "tokens":
        yield from linear_entries("head.transform", "predictions.dense")
        yield from linear_entries("head.transform_norm", "predictions.LayerNorm")
        yield Entry("output_bias", ("predictions.bias",))
    if head.kind in ("classes", "vector") and head.pooling == "tanh-first":
        yield from linear_entries("head.pooler", f"{prefix}pooler")
    if head.kind in ("classes", "tags"):
        yield from linear_entries("head.output", "classifier")


ALBERT = Family(
    name="ALBERT",
    model_type="albert",
    heads={
        "AlbertForMaskedLM": "tokens",
        "AlbertModel": "vector",
        "AlbertForSequenceClassification": "classes",
        "AlbertForTokenClassification": "tags",
        "AlbertForPreTraining": "tokens",
    },
    read=_read,
    write=_write,
    entries=_entries,
    defaults={
        "vocab_size": 30000,
        "embedding_size": 128,
        "hidden_size": 4096,
        "num_hidden_layers": 12,
        "num_attention_heads": 64,
        "intermediate_size": 16384,
        "hidden_act": "gelu_new",
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "classifier_dropout_prob": 0.1,
        "max_position_embeddings": 512,
        "type_vocab_size": 2,
        "layer_norm_eps": 1e-12,
    },
    fixed={**FIXED, "num_hidden_groups": 1, "inner_group_num": 1},
    prefix="albert.",
    ignored=("embeddings.position_ids", "predictions.decoder.weight", "predictions.decoder.bias"),
    unused=("pooler.", "predictions.", "sop_classifier."),
)
