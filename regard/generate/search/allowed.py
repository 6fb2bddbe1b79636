"""Which tokens may come next: each rule is a function that sets the log-probabilities of others to -inf. Later ones win:
forbidden tokens, repetitions, phrases that must appear, the greatest length, the prefix."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from regard.generate.options import Prefix

LONGEST_LOOP = 8  # tokens of what may not be repeated too often


def forbid(log_probs: Tensor, forbidden: Sequence[int]) -> None:
    """Tokens that stand for nothing in a text."""
    if forbidden:
        log_probs[:, :, list(forbidden)] = -math.inf


def forbid_repeated_ngrams(log_probs: Tensor, tokens: Tensor, n: int) -> None:
    """No n tokens may stand twice in a row of tokens, (S, B, T)."""
    length = tokens.shape[2]
    if length < n:
        return
    grams = tokens.unfold(2, n, 1)  # (S, B, T - n + 1, n)
    newest = tokens[:, :, length - n + 1 :]  # (S, B, n - 1)
    seen = (grams[..., : n - 1] == newest[:, :, None, :]).all(dim=-1)  # (S, B, T - n + 1)
    _forbid_where(log_probs, grams[..., n - 1], seen)


def forbid_loops(log_probs: Tensor, tokens: Tensor, times: int) -> None:
    """The same 1 to LONGEST_LOOP tokens may follow each other at most so many times; tokens are (S, B, T)."""
    length = tokens.shape[2]
    for n in range(1, LONGEST_LOOP + 1):
        if length < n * (times + 1) - 1:
            break
        newest = tokens[:, :, length - (n * (times + 1) - 1) :]
        loops = (newest[:, :, n:] == newest[:, :, : newest.shape[2] - n]).all(dim=-1)  # (S, B)
        _forbid_where(log_probs, tokens[:, :, length - n, None], loops[:, :, None])


def _forbid_where(log_probs: Tensor, tokens: Tensor, where: Tensor) -> None:
    """Tokens (S, B, N) cannot be chosen where `where` says so."""
    values = log_probs.gather(2, tokens).masked_fill(where, -math.inf)
    # A token that is there twice, once forbidden and once not, is forbidden.
    log_probs.scatter_reduce_(2, tokens, values, reduce="amin")


def insist_on_phrases(
    log_probs: Tensor, raw: Tensor, missing: Tensor, after: Tensor, left: Tensor, eos_id: int, may_end: bool
) -> None:
    """Phrases must fit into the places left (S,). `missing` (S, B) are tokens that phrases still take, `after` (S, B, V) likewise
    after each token. What brings a phrase nearer may come, whatever else forbids it. Unless `may_end`, nothing ends before
    all phrases stand; with it, the caller sees to what ends too early."""
    nearer = after < missing[:, :, None]
    log_probs.copy_(torch.where(nearer, raw, log_probs))
    ending = log_probs[:, :, eos_id].clone()
    log_probs.masked_fill_(after > left[:, None, None] - 1, -math.inf)
    must_go_on = (missing > 0) if not may_end else (missing > 0) & (missing >= left[:, None])
    log_probs[:, :, eos_id] = ending.masked_fill(must_go_on, -math.inf)


def end_at_limit(log_probs: Tensor, limits: Tensor, length: int, eos_id: int) -> None:
    """At the greatest length, (S,), only the end can come."""
    at_limit = limits <= length
    if bool(at_limit.any()):
        ending = log_probs[at_limit, :, eos_id]
        log_probs[at_limit] = -math.inf
        log_probs[at_limit, :, eos_id] = ending


def follow_prefixes(
    log_probs: Tensor,
    raw: Tensor,
    numbers: Sequence[int],
    prefixes: Sequence[Prefix],
    length: int,
    eos_id: int,
    too_early: Tensor | None,
) -> None:
    """Inside a prefix only what it says can come. Where it leaves a choice, the end is none where it comes too early, (U, W)."""
    for unit, number in enumerate(numbers):
        if length < len(prefixes[number]):
            place = prefixes[number][length]
            tokens = [place] if isinstance(place, int) else list(place)
            values = raw[unit][:, tokens]
            if too_early is not None and eos_id in tokens and len(tokens) > 1:
                values[:, tokens.index(eos_id)].masked_fill_(too_early[unit], -math.inf)
            log_probs[unit] = -math.inf
            log_probs[unit][:, tokens] = values
