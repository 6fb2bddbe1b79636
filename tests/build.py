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
