"""The candidates of a search step: one-token extensions of the live hypotheses, in the order in which they enter the beam.

The order is by log-probability (the paper's beam); with phrases, by turns among hypotheses that miss more and less of them (after
Post and Vilar, 2018); with groups, each group avoids the tokens of those before it (Vijayakumar et al., 2016); or the extensions
are sampled.

U units (a sentence, or one group of its beam), W hypotheses per unit, V tokens of the vocabulary, C candidates.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.generate.options import SearchOptions
from regard.generate.search.order import likeliest
from regard.generate.search.sampling import draw

# Subtracted from an overdue hypothesis when candidates are ranked and finished hypotheses are scored: a phrase appended to the end
# of a translation reads worse than one inside it, though a model may find both equally unlikely.
OVERDUE_PENALTY = 20.0


@dataclass
class Candidates:
    """The candidates of every unit, in order."""

    log_probs: Tensor  # (U, C) of the whole hypothesis; -inf: not a candidate
    parents: Tensor  # (U, C) the live hypotheses that they extend
    tokens: Tensor  # (U, C)
    ranks: Tensor  # (U, C) what they were chosen by: log-probabilities, less a group's penalty for the others' tokens

    def at(self, places: Tensor) -> Candidates:
        """The candidates at these places, (U, N)."""
        return Candidates(*(x.gather(1, places) for x in (self.log_probs, self.parents, self.tokens, self.ranks)))


@dataclass
class PhraseProgress:
    """How far the hypotheses are with the phrases that must appear."""

    missing: Tensor  # (U, W) tokens that the phrases still need
    missing_after: Tensor  # (U, W, V) the same after each token
    overdue: Tensor  # (U, W) whether the hypothesis continues only because of phrases: the model has wanted to end
    advances: Tensor  # (U, W, V) whether a token advances a phrase where it belongs, or where it is late
    steered: Tensor  # (U, W) whether a lone hypothesis is made to start or continue a phrase

    def of_group(self, group: int, groups: int) -> PhraseProgress:
        """The progress of one group's hypotheses."""
        own = slice(group, None, groups)
        return PhraseProgress(
            self.missing[own], self.missing_after[own], self.overdue[own], self.advances[own], self.steered[own]
        )


def best_extensions(total: Tensor, count: int, ranked_by: Tensor | None = None) -> Candidates:
    """The `count` best of all extensions (U, W, V) by log-probability or by `ranked_by`, where -inf excludes one."""
    units, width, vocab_size = total.shape
    # (U, W, V) -> (U, W * V)
    flat = total.view(units, -1)
    ranks, place = likeliest(
        flat if ranked_by is None else ranked_by.reshape(units, -1), min(count, width * vocab_size)
    )
    best = ranks if ranked_by is None else flat.gather(1, place).masked_fill(torch.isneginf(ranks), -math.inf)
    return Candidates(best, place // vocab_size, place % vocab_size, ranks)


def best_of_each(total: Tensor, count: int, ranked_by: Tensor) -> Candidates:
    """The `count` best extensions of each hypothesis, W * count per unit."""
    width, vocab_size = total.shape[1:]
    ranks, tokens = likeliest(ranked_by, min(count, vocab_size))  # (U, W, count)
    best = total.gather(2, tokens).masked_fill(torch.isneginf(ranks), -math.inf)
    parents = torch.arange(width, device=total.device)[None, :, None].expand_as(tokens)
    # (U, W, count) -> (U, C)
    return Candidates(best.flatten(1), parents.flatten(1), tokens.flatten(1), ranks.flatten(1))


def extend(total: Tensor, progress: PhraseProgress | None, eos_id: int, ranked_by: Tensor | None = None) -> Candidates:
    """Candidates for every unit from the log-probabilities of all extensions, (U, W, V)."""
    units, width, vocab_size = total.shape
    if progress is None:
        return best_extensions(total, 2 * width, ranked_by)
    rank = (total if ranked_by is None else ranked_by) - OVERDUE_PENALTY * progress.overdue[:, :, None]
    if width == 1:
        tokens = postpone_end(rank.argmax(dim=2), rank, progress, eos_id)
        values, ranks = (x.gather(2, tokens[:, :, None])[:, :, 0] for x in (total, rank))
        return Candidates(values, torch.zeros_like(tokens), tokens, ranks)
    # A token that advances a phrase is rarely likely, and neither is what follows it. So each hypothesis gets candidates of its
    # own, and so do the tokens that advance phrases; otherwise they would never have a turn.
    others = best_of_each(total, 2 * width, rank.masked_fill(progress.advances, -math.inf))
    advances = best_extensions(total, 2 * width, rank.masked_fill(~progress.advances, -math.inf))
    both = Candidates(
        torch.cat((others.log_probs, advances.log_probs), dim=1),
        torch.cat((others.parents, advances.parents), dim=1),
        torch.cat((others.tokens, advances.tokens), dim=1),
        torch.cat((others.ranks, advances.ranks), dim=1),
    )
    places = both.parents * vocab_size + both.tokens
    return round_robin(both, progress.missing_after.reshape(units, -1).gather(1, places).long())


def round_robin(candidates: Candidates, missing: Tensor) -> Candidates:
    """Banks of candidates that miss equally many tokens, (U, C), take turns: first the best of each bank, the one that misses
    least in front, then the second best of each, and so on."""
    best_first = candidates.ranks.argsort(dim=1, descending=True, stable=True)
    by_bank = best_first.gather(1, missing.gather(1, best_first).argsort(dim=1, stable=True))  # banks side by side
    banks = missing.gather(1, by_bank)
    places = torch.arange(banks.shape[1], device=banks.device).expand_as(banks)
    is_first = torch.ones_like(banks, dtype=torch.bool)
    is_first[:, 1:] = banks[:, 1:] != banks[:, :-1]
    first = places.masked_fill(~is_first, 0).cummax(dim=1).values  # where the bank begins
    turn = places - first  # (U, C) how many of the same bank are better
    key = turn * (banks.amax(dim=1, keepdim=True) + 1) + banks
    key.masked_fill_(torch.isneginf(candidates.ranks.gather(1, by_bank)), torch.iinfo(torch.int64).max)
    return candidates.at(by_bank.gather(1, key.argsort(dim=1, stable=True)))


def postpone_end(tokens: Tensor, rank: Tensor, progress: PhraseProgress, eos_id: int) -> Tensor:
    """Chosen tokens (U, W), where an end that comes too early is replaced by the likeliest token that advances a phrase, or by the
    likeliest other token where none of those is allowed."""
    advances = progress.missing_after < progress.missing[:, :, None]
    advancing = rank.masked_fill(~advances, -math.inf)
    others = rank.clone()
    others[:, :, eos_id] = -math.inf
    can_advance = ~torch.isneginf(advancing).all(dim=2)
    instead = torch.where(can_advance, advancing.argmax(dim=2), others.argmax(dim=2))
    too_early = (tokens == eos_id) & (progress.missing > 0)
    progress.steered |= too_early & can_advance
    return torch.where(too_early, instead, tokens)


def extend_in_groups(
    total: Tensor, progress: PhraseProgress | None, eos_id: int, groups: int, diversity: float
) -> Candidates:
    """Diverse beam search: each group of a sentence's beam chooses after those before it, and a token loses `diversity` for each
    of their hypotheses that continues with it. The penalty decides what is chosen; log-probabilities stay as they are."""
    units, width, vocab_size = total.shape
    taken = total.new_zeros(units // groups, vocab_size)
    by_group = []
    for group in range(groups):
        own = slice(group, None, groups)
        own_progress = None if progress is None else progress.of_group(group, groups)
        ranked_by = total[own] - diversity * taken[:, None, :] if group else None
        by_group.append(extend(total[own], own_progress, eos_id, ranked_by))
        kept = by_group[-1].at(first_unfinished(by_group[-1], eos_id, width))
        is_live = (kept.tokens != eos_id) & ~torch.isneginf(kept.log_probs)
        taken.scatter_add_(1, kept.tokens, is_live.to(taken.dtype))
    # G groups of (S, C) -> (S, G, C) -> (U, C)
    fields = zip(*((one.log_probs, one.parents, one.tokens, one.ranks) for one in by_group), strict=True)
    return Candidates(*(torch.stack(parts, dim=1).flatten(0, 1) for parts in fields))


def first_unfinished(candidates: Candidates, eos_id: int, width: int) -> Tensor:
    """(U, W) the places of the first candidates that do not end."""
    count = candidates.tokens.shape[1]
    places = torch.arange(count, device=candidates.tokens.device)
    later = places + count * ((candidates.tokens == eos_id) | torch.isneginf(candidates.log_probs))
    return later.argsort(dim=1)[:, :width]


def sample_extensions(
    total: Tensor,
    log_probs: Tensor,
    progress: PhraseProgress | None,
    uniform: Tensor,
    options: SearchOptions,
    eos_id: int,
) -> Candidates:
    """One sampled extension per hypothesis, from uniform numbers (U, W). `log_probs` (U, W, V) are of the next token, `total` of
    the whole hypothesis."""
    tokens = draw(log_probs, uniform, options)
    if progress is not None:
        tokens = postpone_end(tokens, log_probs, progress, eos_id)
    parents = torch.arange(total.shape[1], device=total.device).expand(total.shape[0], -1)
    values = total.gather(2, tokens[:, :, None])[:, :, 0]
    return Candidates(values, parents, tokens, values)
