"""How sentences enter a model before a search, and the end token where a model has none."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from regard.layout import SequenceLayout
from regard.models.transformer import Transformer
from regard.nn.cache import DecoderCache


def start(
    model: Transformer,
    ids: Sequence[Sequence[int]],
    eos_id: int,
    beam: int,
    capacity: int,
    bucket: int,
    device: torch.device,
) -> DecoderCache:
    """The cache before the first step: sources are encoded. Of prompts all but the last token is read; the first step reads that,
    as it reads the start token of a translation."""
    if model.config.encoder_layers:
        return model.start(*encode(model, ids, eos_id, device), beam, capacity, bucket)
    flat = torch.tensor([token for prompt in ids for token in prompt[:-1]], dtype=torch.int64, device=device)
    layout = SequenceLayout.from_lengths([len(prompt) - 1 for prompt in ids], device)
    return model.prefill(flat, layout, beam, capacity, bucket)


def encode(
    model: Transformer, ids: Sequence[Sequence[int]], eos_id: int, device: torch.device
) -> tuple[Tensor, SequenceLayout]:
    """Encode sentences, with the end token: memory (src_tokens, d_model) and its layout."""
    flat = torch.tensor([token for sentence in ids for token in (*sentence, eos_id)], device=device)
    layout = SequenceLayout.from_lengths([len(sentence) + 1 for sentence in ids], device)
    return model.encode(flat, layout), layout


def without_end(newest: Tensor, model: Transformer, eos_id: int) -> Tensor:
    """Newest tokens (rows,) with another one in place of an end token that the model does not have: what has ended is not read."""
    last = model.config.vocab_size - 1
    return newest if eos_id <= last else newest.clamp(max=last)


def with_end(logits: Tensor, eos_id: int) -> Tensor:
    """Logits (rows, vocab_size), with a column for the end token if the model has none: it never comes."""
    if eos_id < logits.shape[1]:
        return logits
    return torch.nn.functional.pad(logits, (0, 1), value=-math.inf)
