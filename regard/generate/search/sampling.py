"""Sampling: each hypothesis of a sentence is drawn independently, token by token. A sentence's random numbers depend only on the
seed and the sentence, so its samples do not depend on the rest of the batch."""

from __future__ import annotations

import torch
from torch import Tensor

from regard.generate.options import SearchOptions


def draw(log_probs: Tensor, uniform: Tensor, options: SearchOptions) -> Tensor:
    """Sample tokens (...) from log-probabilities (..., V) with uniform numbers (...) in [0, 1): by inverting the cumulative
    distribution over the tokens, likeliest first."""
    scaled = log_probs.double() / options.temperature
    vocab_size = scaled.shape[-1]
    count = min(options.top_k or vocab_size, vocab_size)
    values, tokens = scaled.sort(dim=-1, descending=True, stable=True) if count == vocab_size else scaled.topk(count)
    probs = torch.softmax(values, dim=-1)
    cumulative = probs.cumsum(dim=-1)
    # top_p keeps the likeliest tokens, up to and including the one that reaches it.
    probs = probs.masked_fill(cumulative - probs >= options.top_p, 0.0)
    if options.min_p:
        probs = probs.masked_fill(probs < options.min_p * probs[..., :1], 0.0)
    cumulative = probs.cumsum(dim=-1)
    place = (cumulative <= uniform[..., None] * cumulative[..., -1:]).sum(dim=-1)
    # Rounding must not lead beyond the last token; a hypothesis that has ended may have none to draw from.
    last = ((probs > 0).sum(dim=-1) - 1).clamp_min(0)
    return tokens.gather(-1, torch.minimum(place, last)[..., None])[..., 0]
