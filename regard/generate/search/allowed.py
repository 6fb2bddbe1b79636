"""Which tokens may come next: each rule is a function that sets the log-probabilities of all others to -inf. Later rules override
earlier ones: forbidden tokens, repetition, phrases that must appear, the length limit, the forced prefix. Two functions come
before these rules: `penalise_repeated` changes logits, and `merge_ends` makes several end tokens one.

Tensors are in place; U units, W hypotheses per unit, T tokens so far, V tokens of the vocabulary (see `state.BeamState`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from regard.generate.options import Prefix

MAX_LOOP_TOKENS = 8  # of a loop that `max_repeat` limits


def penalise_repeated(logits: Tensor, text: Tensor, penalty: float) -> Tensor:
    """Logits (U, W, V) in which tokens of the text so far, (U, W, T), are less likely: positive ones are divided by the penalty,
    negative ones multiplied by it (Keskar et al., 2019)."""
    penalised = torch.where(logits > 0, logits / penalty, logits * penalty)
    # The column after the last takes what stands for no token.
    occurs = torch.zeros((*logits.shape[:2], logits.shape[2] + 1), dtype=torch.bool, device=logits.device)
    occurs.scatter_(2, torch.where(text < 0, logits.shape[2], text), True)
    return torch.where(occurs[:, :, :-1], penalised, logits)


def merge_ends(log_probs: Tensor, eos_id: int, stop_ids: Sequence[int], sample: bool) -> None:
    """Make the end token (U, W, V) stand for all tokens that end an output: as likely as the likeliest of them, or to draw from as
    likely as all of them together."""
    others = [token for token in stop_ids if token != eos_id]
    if others:
        values = log_probs[:, :, [eos_id, *others]]
        log_probs[:, :, eos_id] = torch.logsumexp(values, dim=2) if sample else values.amax(dim=2)
        log_probs[:, :, others] = -math.inf


def forbid(log_probs: Tensor, forbidden: Sequence[int]) -> None:
    """Forbid these tokens everywhere; log_probs are (U, W, V)."""
    if forbidden:
        log_probs[:, :, list(forbidden)] = -math.inf


def forbid_repeated_ngrams(log_probs: Tensor, tokens: Tensor, n: int) -> None:
    """Forbid every token that would repeat an n-gram of its hypothesis, tokens (U, W, T)."""
    length = tokens.shape[2]
    if length < n:
        return
    grams = tokens.unfold(2, n, 1)  # (U, W, T - n + 1, n)
    newest = tokens[:, :, length - n + 1 :]  # (U, W, n - 1)
    seen = (grams[..., : n - 1] == newest[:, :, None, :]).all(dim=-1)  # (U, W, T - n + 1)
    _forbid_where(log_probs, grams[..., n - 1], seen)


def forbid_loops(log_probs: Tensor, tokens: Tensor, times: int) -> None:
    """Forbid repeating the newest 1 to MAX_LOOP_TOKENS tokens of a hypothesis, (U, W, T), more than `times` times in a row."""
    length = tokens.shape[2]
    for n in range(1, MAX_LOOP_TOKENS + 1):
        if length < n * (times + 1) - 1:
            break
        newest = tokens[:, :, length - (n * (times + 1) - 1) :]
        loops = (newest[:, :, n:] == newest[:, :, : newest.shape[2] - n]).all(dim=-1)  # (U, W)
        _forbid_where(log_probs, tokens[:, :, length - n, None], loops[:, :, None])


def _forbid_where(log_probs: Tensor, tokens: Tensor, where: Tensor) -> None:
    """Forbid tokens (U, W, N) where the mask of the same shape is set. Below 0 they stand for no token."""
    where = where & (tokens >= 0)
    tokens = tokens.clamp(min=0)
    values = log_probs.gather(2, tokens).masked_fill(where, -math.inf)
    # amin: a token that occurs twice, once forbidden and once not, is forbidden.
    log_probs.scatter_reduce_(2, tokens, values, reduce="amin")


def require_phrases(
    log_probs: Tensor,
    unmasked: Tensor,
    missing: Tensor,
    missing_after: Tensor,
    places_left: Tensor,
    eos_id: int,
    may_end: bool,
) -> None:
    """Forbid what would leave too few places (U,) for the phrases. They still need `missing` (U, W) tokens, and `missing_after`
    (U, W, V) after each token. A token that advances a phrase is allowed even if an earlier rule forbids it. Unless `may_end`,
    no hypothesis ends before all phrases are complete; with it, the caller handles an early end."""
    advances = missing_after < missing[:, :, None]
    log_probs.copy_(torch.where(advances, unmasked, log_probs))
    ending = log_probs[:, :, eos_id].clone()
    log_probs.masked_fill_(missing_after > places_left[:, None, None] - 1, -math.inf)
    must_continue = (missing > 0) if not may_end else (missing > 0) & (missing >= places_left[:, None])
    log_probs[:, :, eos_id] = ending.masked_fill(must_continue, -math.inf)


def end_at_limit(log_probs: Tensor, limits: Tensor, length: int, eos_id: int, is_free: bool = False) -> None:
    """At the length limit (U,) only the end token is allowed. If it `is_free`, it stands for a stop without an end token, which
    has the probability 1."""
    at_limit = limits <= length
    if bool(at_limit.any()):
        ending = log_probs[at_limit, :, eos_id]
        ending = torch.zeros_like(ending) if is_free else ending
        log_probs[at_limit] = -math.inf
        log_probs[at_limit, :, eos_id] = ending


def follow_prefixes(
    log_probs: Tensor,
    unmasked: Tensor,
    sentences: Sequence[int],
    prefixes: Sequence[Prefix],
    length: int,
    eos_id: int,
    too_early: Tensor | None,
) -> None:
    """Inside a forced prefix only its tokens are allowed. Where it leaves a choice, the end token is excluded if it is too early,
    (U, W)."""
    for unit, number in enumerate(sentences):
        if length < len(prefixes[number]):
            choice = prefixes[number][length]
            tokens = [choice] if isinstance(choice, int) else list(choice)
            values = unmasked[unit][:, tokens]
            if too_early is not None and eos_id in tokens and len(tokens) > 1:
                values[:, tokens.index(eos_id)].masked_fill_(too_early[unit], -math.inf)
            log_probs[unit] = -math.inf
            log_probs[unit][:, tokens] = values
