"""Sampling: each of a sentence's hypotheses is drawn on its own, token by token. Which random numbers a sentence gets hangs on the
seed and the sentence alone, so that it does not matter what shares its batch."""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch
from torch import Tensor

from regard.generate.options import SearchOptions


def sentence_rng(seed: int, src: Sequence[int]) -> random.Random:
    """The random numbers of one sentence."""
    return random.Random(f"{seed} {' '.join(map(str, src))}")


def draw(log_probs: Tensor, chances: Tensor, options: SearchOptions) -> Tensor:
    """(..., V) log-probabilities and one number of [0, 1) for each -> (...) tokens. Tokens are laid side by side, the likeliest
    first, each as wide as its probability; the number says where to look."""
    scaled = log_probs.double() / options.temperature
    vocab_size = scaled.shape[-1]
    count = min(options.top_k or vocab_size, vocab_size)
    values, tokens = scaled.sort(dim=-1, descending=True, stable=True) if count == vocab_size else scaled.topk(count)
    probs = torch.softmax(values, dim=-1)
    widths = probs.cumsum(dim=-1)
    # The likeliest tokens that have `top_p` together: those before which it is not reached yet.
    probs = probs.masked_fill(widths - probs >= options.top_p, 0.0)
    widths = probs.cumsum(dim=-1)
    place = (widths <= chances[..., None] * widths[..., -1:]).sum(dim=-1)
    # Rounding must not lead beyond the last; a hypothesis that has ended may have nothing to draw from.
    last = ((probs > 0).sum(dim=-1) - 1).clamp_min(0)
    return tokens.gather(-1, torch.minimum(place, last)[..., None])[..., 0]
