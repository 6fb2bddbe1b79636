"""Small models and packed batches that several tests start from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from regard.config import ModelConfig
from regard.layout import SequenceLayout
from regard.models.transformer import Transformer

# Every switch that ModelConfig has, each on its own, and two of the ways in which people combine them.
SWITCHES: dict[str, dict[str, Any]] = {
    "paper": {},
    "pre-norm": {"norm_position": "pre"},
    "rms": {"norm": "rms"},
    "gelu": {"activation": "gelu"},
    "silu": {"activation": "silu"},
    "swiglu": {"activation": "swiglu"},
    "learned": {"positions": "learned", "max_positions": 64},
    "rotary": {"positions": "rotary"},
    "grouped": {"num_kv_heads": 2},
    "one-kv-head": {"num_kv_heads": 1},
    "deep-encoder": {"encoder_layers": 3, "decoder_layers": 1},
    "untied": {"tie_embeddings": False},
    "output-bias": {"output_bias": True},
    "modern": {
        "norm_position": "pre",
        "norm": "rms",
        "activation": "swiglu",
        "positions": "rotary",
        "num_kv_heads": 2,
        "tie_embeddings": False,
    },
    "post-norm-modern": {"norm": "rms", "activation": "swiglu", "positions": "learned", "num_kv_heads": 1},
}


# What came with other families, each on its own and as they combine it, in models of two stacks. Exporters refuse most of it.
LATER: dict[str, dict[str, Any]] = {
    "tanh-gelu": {"activation": "gelu_tanh"},
    "geglu": {"activation": "geglu"},
    "tanh-geglu": {"activation": "geglu_tanh"},
    "wide-heads": {"d_head": 12},
    "narrow-heads": {"d_head": 6, "num_kv_heads": 1},
    "no-attention-bias": {"attention_bias": "none"},
    "qkv-bias": {"attention_bias": "qkv"},
    "no-key-bias": {"attention_bias": "no_key"},
    "no-feed-forward-bias": {"feed_forward_bias": False},
    "no-norm-bias": {"norm_bias": False},
    "final-norm": {"final_norm": True},
    "no-embedding-scale": {"embedding_scale": False},
    "embedding-norm": {"embedding_norm": True},
    "no-positions": {"positions": "none"},
    "position-offset": {"positions": "learned", "max_positions": 64, "position_offset": 2},
    "rotary-base": {"positions": "rotary", "rotary_base": 100.0},
    "rotary-halves": {"positions": "rotary", "rotary_pairing": "halves"},
    "rotary-part": {"positions": "rotary", "rotary_dim": 4},
    "rotary-linear": {"positions": "rotary", "rotary_scaling": {"kind": "linear", "factor": 4.0}},
    "rotary-llama3": {
        "positions": "rotary",
        "rotary_scaling": {
            "kind": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_positions": 64,
        },
    },
    "relative": {"positions": "relative", "relative_buckets": 8, "relative_max_distance": 6},
    "score-scale": {"score_scale": 1.0},
    "logit-scale": {"head": {"logit_scale": 0.25}},
    "shared-layers": {"share_layers": True},
    "parallel-encoder": {"norm_position": "pre", "encoder": {"parallel": True}},
    "different-stacks": {"encoder": {"d_ff": 24, "num_heads": 2, "positions": "learned"}, "decoder": {"norm": "rms"}},
    "t5": {
        "norm_position": "pre",
        "norm": "rms",
        "activation": "geglu_tanh",
        "positions": "relative",
        "relative_buckets": 8,
        "relative_max_distance": 6,
        "d_head": 12,
        "attention_bias": "none",
        "feed_forward_bias": False,
        "embedding_scale": False,
        "score_scale": 1.0,
        "head": {"logit_scale": 0.125},
    },
    "bart": {
        "activation": "gelu",
        "positions": "learned",
        "max_positions": 64,
        "position_offset": 2,
        "embedding_norm": True,
        "embedding_scale": False,
        "output_bias": True,
        "encoder": {"num_heads": 2, "d_ff": 24},
    },
}
# Models of one stack.
_BERT: dict[str, Any] = {
    "decoder_layers": 0,
    "activation": "gelu",
    "positions": "learned",
    "max_positions": 64,
    "embedding_norm": True,
    "embedding_scale": False,
    "norm_eps": 1e-12,
}
_DECODER: dict[str, Any] = {"encoder_layers": 0, "norm_position": "pre", "embedding_scale": False}
ONE_STACK: dict[str, dict[str, Any]] = {
    "encoder": {"decoder_layers": 0},
    "decoder": {"encoder_layers": 0},
    "bert": {**_BERT, "front": {"token_types": 2}, "head": {"transform": True}, "output_bias": True},
    "roberta": {**_BERT, "position_offset": 2, "head": {"transform": True}, "output_bias": True},
    "albert": {
        **_BERT,
        "activation": "gelu_tanh",
        "share_layers": True,
        "front": {"token_types": 2, "d_embedding": 12},
        "head": {"transform": True},
        "output_bias": True,
    },
    "gpt2": {**_DECODER, "activation": "gelu_tanh", "positions": "learned", "max_positions": 64},
    "gptj": {
        **_DECODER,
        "activation": "gelu_tanh",
        "positions": "rotary",
        "rotary_dim": 4,
        "attention_bias": "none",
        "parallel": True,
        "tie_embeddings": False,
        "output_bias": True,
    },
    "llama": {
        **_DECODER,
        "norm": "rms",
        "activation": "swiglu",
        "positions": "rotary",
        "rotary_pairing": "halves",
        "d_head": 12,
        "num_kv_heads": 2,
        "attention_bias": "none",
        "feed_forward_bias": False,
        "tie_embeddings": False,
    },
    "palm": {
        **_DECODER,
        "activation": "swiglu",
        "norm_bias": False,
        "positions": "rotary",
        "num_kv_heads": 1,
        "attention_bias": "none",
        "feed_forward_bias": False,
        "parallel": True,
        "head": {"logit_scale": 0.25},
    },
}
# What heads of an encoder answer, beside tokens.
HEADS: dict[str, dict[str, Any]] = {
    "classes": {**_BERT, "head": {"kind": "classes", "labels": ["a", "b", "c"], "pooling": "tanh-first"}},
    "classes-of-the-mean": {**_BERT, "head": {"kind": "classes", "labels": ["a", "b"], "pooling": "mean"}},
    "tags": {**_BERT, "head": {"kind": "tags", "labels": ["a", "b", "c"]}},
    "vector": {**_BERT, "head": {"kind": "vector", "pooling": "mean"}},
    "vector-of-length-1": {**_BERT, "head": {"kind": "vector", "pooling": "tanh-first", "normalize": True}},
    "first-vector": {**_BERT, "head": {"kind": "vector"}},
    "states": {**_BERT, "head": {"kind": "none"}},
}


def tiny_config(**changes: Any) -> ModelConfig:
    shape: dict[str, Any] = {
        "vocab_size": 53,
        "d_model": 32,
        "d_ff": 48,
        "num_heads": 4,
        "encoder_layers": 2,
        "decoder_layers": 2,
        "dropout": 0.0,
    }
    return ModelConfig(**{**shape, **changes})


def build(config: ModelConfig, seed: int = 0) -> Transformer:
    """A model in which no two parameters are alike: biases and norms that are zero and one would hide a mix-up."""
    torch.manual_seed(seed)
    model = Transformer(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.randn_like(parameter), alpha=0.3)
    return model.eval()


def random_sentences(lengths: Sequence[int], vocab_size: int = 53, seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(vocab_size, (length,), generator=generator) for length in lengths]


def pack(sentences: Sequence[Tensor]) -> tuple[Tensor, SequenceLayout]:
    return torch.cat(list(sentences)), SequenceLayout.from_lengths([len(sentence) for sentence in sentences])


def pad(sentences: Sequence[Tensor], filler: int = 0) -> tuple[Tensor, Tensor]:
    """(sentences, longest) ids, and which of the places hold a token: how other implementations take a batch."""
    longest = max(len(sentence) for sentence in sentences)
    ids = torch.full((len(sentences), longest), filler)
    for row, sentence in zip(ids, sentences, strict=True):
        row[: len(sentence)] = sentence
    lengths = torch.tensor([len(sentence) for sentence in sentences])
    return ids, torch.arange(longest) < lengths[:, None]
