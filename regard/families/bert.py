"""BERT and RoBERTa: encoders with learned positions, token types, a norm on their embeddings and several heads. RoBERTa's positions
start after the padding's id, and it names its heads differently."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from regard.config import ModelConfig
from regard.families.family import ACTIVATION_NAMES, ACTIVATIONS, Family, Fields
from regard.families.table import Entry, LayerNames, layer_entries, linear_entries, norm_entries
from regard.settings import HeadKind

_LAYER = LayerNames(
    {
        "q": "attention.self.query",
        "k": "attention.self.key",
        "v": "attention.self.value",
        "out": "attention.output.dense",
        "norm": "attention.output.LayerNorm",
        "inner": "intermediate.dense",
        "outer": "output.dense",
        "feed_forward_norm": "output.LayerNorm",
    }
)


_ANSWERS = {"single_label_classification": "one", "multi_label_classification": "several", "regression": "number"}


def read_head(fields: Fields, kind: HeadKind, dropout: float) -> dict[str, Any]:
    """The table `head`, for the heads that encoders share."""
    if kind == "tokens":
        return {"transform": True}
    if kind == "vector":
        pooling = fields.given.get("pooling", "tanh-first")
        normalize = {"normalize": True} if fields.flag("normalize", False) else {}
        return {"kind": "vector", "pooling": pooling, **normalize}
    head = {"kind": kind, "labels": fields.labels, "dropout": dropout}
    if kind != "classes":
        return head
    answer = _ANSWERS.get(str(fields.given.get("problem_type", "")))
    if answer is None:  # transformers takes one output for a number
        answer = "number" if len(fields.labels) == 1 else "one"
    return {**head, "pooling": "tanh-first", **({} if answer == "one" else {"answer": answer})}


def write_head(config: ModelConfig) -> dict[str, Any]:
    """What config.json says about a head."""
    head = config.head_settings
    if head.kind == "vector":
        return {"pooling": head.pooling, "normalize": head.normalize}
    labels = {str(i): label for i, label in enumerate(head.labels)}
    if not labels:
        return {}
    problem = next(name for name, answer in _ANSWERS.items() if answer == head.answer)
    return {
        "id2label": labels,
        "label2id": {label: int(i) for i, label in labels.items()},
        **({"problem_type": problem} if head.answer != "one" else {}),
    }


def _read(fields: Fields, head: HeadKind, after_padding: bool) -> ModelConfig:
    offset = fields.whole("pad_token_id") + 1 if after_padding else 0
    dropout = fields.number("hidden_dropout_prob")
    if after_padding and head == "tokens":  # its head has GELU whatever the layers have
        fields.refuse({"hidden_act": "gelu"})
    return ModelConfig(
        vocab_size=fields.whole("vocab_size"),
        d_model=fields.whole("hidden_size"),
        d_ff=fields.whole("intermediate_size"),
        num_heads=fields.whole("num_attention_heads"),
        encoder_layers=fields.whole("num_hidden_layers"),
        decoder_layers=0,
        dropout=dropout,
        attention_dropout=fields.number("attention_probs_dropout_prob"),
        activation=fields.choice("hidden_act", ACTIVATIONS),
        positions="learned",
        max_positions=fields.whole("max_position_embeddings") - offset,
        position_offset=offset,
        norm_eps=fields.number("layer_norm_eps"),
        embedding_scale=False,
        embedding_norm=True,
        output_bias=head == "tokens",
        front={"token_types": fields.whole("type_vocab_size")},
        head=read_head(fields, head, fields.number("classifier_dropout", dropout)),
    )


def _write(config: ModelConfig, after_padding: bool) -> dict[str, Any]:
    stack = config.stacks["encoder"]
    padding = {"pad_token_id": stack.position_offset - 1} if after_padding else {}
    return {
        "vocab_size": config.vocab_size,
        "hidden_size": config.d_model,
        "intermediate_size": stack.d_ff,
        "num_attention_heads": stack.num_heads,
        "num_hidden_layers": stack.layers,
        "hidden_dropout_prob": stack.dropout,
        "attention_probs_dropout_prob": stack.attention_dropout,
        "hidden_act": ACTIVATION_NAMES[stack.activation],
        "max_position_embeddings": stack.max_positions + stack.position_offset,
        "layer_norm_eps": stack.norm_eps,
        "type_vocab_size": config.front_settings.token_types,
        **padding,
        **write_head(config),
    }


def _body(config: ModelConfig, prefix: str) -> Iterator[Entry]:
    stack, embeddings = config.stacks["encoder"], f"{prefix}embeddings"
    yield Entry("embedding.weight", (f"{embeddings}.word_embeddings.weight",))
    yield Entry("encoder.positions.weight", (f"{embeddings}.position_embeddings.weight",))
    yield Entry("front.token_types.weight", (f"{embeddings}.token_type_embeddings.weight",))
    yield from norm_entries(stack, "encoder.embedding_norm", f"{embeddings}.LayerNorm")
    for number in range(stack.layers):
        yield from layer_entries(_LAYER, stack, f"encoder.layers.{number}", f"{prefix}encoder.layer.{number}")


def _bert_entries(config: ModelConfig) -> Iterator[Entry]:
    head = config.head_settings
    prefix = "" if head.kind == "vector" else "bert."
    yield from _body(config, prefix)
    if head.kind == "tokens":
        yield from linear_entries("head.transform", "cls.predictions.transform.dense")
        yield from linear_entries("head.transform_norm", "cls.predictions.transform.LayerNorm")
        yield Entry("output_bias", ("cls.predictions.bias",))
    if head.kind in ("classes", "vector") and head.pooling == "tanh-first":
        yield from linear_entries("head.pooler", f"{prefix}pooler.dense")
    if head.kind in ("classes", "tags"):
        yield from linear_entries("head.output", "classifier")


def _roberta_entries(config: ModelConfig) -> Iterator[Entry]:
    head = config.head_settings
    prefix = "" if head.kind == "vector" else "roberta."
    yield from _body(config, prefix)
    if head.kind == "tokens":
        yield from linear_entries("head.transform", "lm_head.dense")
        yield from linear_entries("head.transform_norm", "lm_head.layer_norm")
        yield Entry("output_bias", ("lm_head.bias",))
    elif head.kind == "classes":
        yield from linear_entries("head.pooler", "classifier.dense")
        yield from linear_entries("head.output", "classifier.out_proj")
    elif head.kind == "tags":
        yield from linear_entries("head.output", "classifier")
    elif head.pooling == "tanh-first":
        yield from linear_entries("head.pooler", "pooler.dense")


_DEFAULTS: dict[str, Any] = {
    "vocab_size": 30522,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-12,
    "pad_token_id": 0,
}
FIXED: dict[str, Any] = {
    "position_embedding_type": "absolute",
    "is_decoder": False,
    "add_cross_attention": False,
    "tie_word_embeddings": True,
}

BERT = Family(
    name="BERT",
    model_type="bert",
    heads={
        "BertForMaskedLM": "tokens",
        "BertModel": "vector",
        "BertForSequenceClassification": "classes",
        "BertForTokenClassification": "tags",
        "BertForPreTraining": "tokens",
    },
    read=partial(_read, after_padding=False),
    write=partial(_write, after_padding=False),
    entries=_bert_entries,
    defaults=_DEFAULTS,
    fixed=FIXED,
    prefix="bert.",
    tokenizer="bert",
    ignored=("embeddings.position_ids", "cls.predictions.decoder.weight", "cls.predictions.decoder.bias"),
    unused=("pooler.", "cls."),
)
ROBERTA = Family(
    name="RoBERTa",
    model_type="roberta",
    heads={
        "RobertaForMaskedLM": "tokens",
        "RobertaModel": "vector",
        "RobertaForSequenceClassification": "classes",
        "RobertaForTokenClassification": "tags",
    },
    read=partial(_read, after_padding=True),
    write=partial(_write, after_padding=True),
    entries=_roberta_entries,
    defaults={**_DEFAULTS, "vocab_size": 50265, "pad_token_id": 1},
    fixed=FIXED,
    prefix="roberta.",
    tokenizer="roberta",
    ignored=("embeddings.position_ids", "lm_head.decoder.weight", "lm_head.decoder.bias"),
    unused=("pooler.", "lm_head."),
)
