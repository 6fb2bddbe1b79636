"""Sampling: each hypothesis of a sentence is drawn independently, token by token. A sentence's random numbers depend only on the
seed and the sentence, so its samples do not depend on the rest of the batch."""

from __future__ import annotations

import torch
from torch import Tensor

from regard.generate.options import SearchOptions
from regard.generate.search.order import likeliest

_LIKELIEST = 1_024  # tokens that are sorted at first: nearly always the drawn one is among them


def draw(log_probs: Tensor, uniform: Tensor, options: SearchOptions) -> Tensor:
    """Sample tokens (...) from log-probabilities (..., V) with uniform numbers (...) in [0, 1): by inverting the cumulative
    distribution over the tokens in the order of `order.py`."""
    vocab_size = log_probs.shape[-1]
    if vocab_size < 4 * _LIKELIEST or options.top_k:  # few to sort
        return draw_sorted(log_probs, uniform, options)
    tokens, is_certain = _draw_likely(log_probs, uniform, options)
    if not bool(is_certain.all()):
        tokens[~is_certain] = draw_sorted(log_probs[~is_certain], uniform[~is_certain], options)
    return tokens


def _draw_likely(log_probs: Tensor, uniform: Tensor, options: SearchOptions) -> tuple[Tensor, Tensor]:
    """As `draw`, but from the likeliest tokens only; and whether the result is certain to be the same, both (...). Sorting a whole
    vocabulary takes about as long as a step of a small model."""
    scaled = log_probs.double() / options.temperature
    values, tokens = likeliest(scaled, _LIKELIEST)
    probs = torch.exp(values - torch.logsumexp(scaled, dim=-1, keepdim=True))
    kept = _kept(probs, options)
    cumulative = kept.cumsum(dim=-1)
    # If the last of them may not be drawn, none after it may. Otherwise all tokens must be allowed, so that the total is known.
    is_closed = kept[..., -1] == 0
    is_open = torch.full_like(is_closed, options.top_p == 1 and not options.min_p)
    wanted = uniform * torch.where(is_closed, cumulative[..., -1], 1.0)
    place = (cumulative <= wanted[..., None]).sum(dim=-1)
    last = ((kept > 0).sum(dim=-1) - 1).clamp_min(0)
    is_certain = is_closed | (is_open & (wanted < cumulative[..., -1]))
    return tokens.gather(-1, torch.minimum(place, last)[..., None])[..., 0], is_certain


def _kept(probs: Tensor, options: SearchOptions) -> Tensor:
    """Probabilities (..., tokens), likeliest first, with 0 for those that may not be drawn."""
    cumulative = probs.cumsum(dim=-1)
    # top_p keeps the likeliest tokens, up to and including the one that reaches it.
    probs = probs.masked_fill(cumulative - probs >= options.top_p, 0.0)
    return probs.masked_fill(probs < options.min_p * probs[..., :1], 0.0) if options.min_p else probs


def draw_sorted(log_probs: Tensor, uniform: Tensor, options: SearchOptions) -> Tensor:
    """`draw`, by sorting all tokens, or the `top_k` likeliest."""
    scaled = log_probs.double() / options.temperature
    vocab_size = scaled.shape[-1]
    count = min(options.top_k or vocab_size, vocab_size)
    values, tokens = likeliest(scaled, count)
    probs = _kept(torch.softmax(values, dim=-1), options)
    cumulative = probs.cumsum(dim=-1)
    place = (cumulative <= uniform[..., None] * cumulative[..., -1:]).sum(dim=-1)
    # Rounding must not lead beyond the last token; a hypothesis that has ended may have none to draw from.
    last = ((probs > 0).sum(dim=-1) - 1).clamp_min(0)
    return tokens.gather(-1, torch.minimum(place, last)[..., None])[..., 0]
