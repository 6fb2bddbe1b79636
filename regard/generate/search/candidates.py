"""What may become of the hypotheses at a step: one-token extensions in the order in which they get a place in the beam.

There are several ways to find and order them: by log-probability alone (the paper's beam), with the beam shared among hypotheses
that miss more and less of what must appear (after Post and Vilar, 2018), in groups that shun each other's tokens (Vijayakumar et
al., 2016), and drawn at random.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.generate.options import SearchOptions
from regard.generate.search.sampling import draw


@dataclass
class Candidates:
    """U units (a sentence, or one group of its beam), C candidates, in order."""

    log_probs: Tensor  # (U, C) of the whole hypothesis; -inf: not a candidate
    parents: Tensor  # (U, C) the live hypotheses that they extend
    tokens: Tensor  # (U, C)
    ranks: Tensor  # (U, C) what they were found by: log-probabilities, less what a group loses for others' tokens

    def at(self, places: Tensor) -> Candidates:
        """Those at (U, N) places."""
        return Candidates(*(x.gather(1, places) for x in (self.log_probs, self.parents, self.tokens, self.ranks)))


@dataclass
class Missing:
    """Tokens that phrases still take. W hypotheses to a unit, V tokens."""

    now: Tensor  # (U, W)
    after: Tensor  # (U, W, V) after each token
    overdue: Tensor  # (U, W) whether the hypothesis goes on only because of them: the model has wanted to end
    nearer: Tensor  # (U, W, V) tokens that bring a phrase nearer, where it belongs or where it is too late for that
    meant: Tensor  # (U, W) whether the hypothesis is alone and made to begin a phrase, or to go on with one

    def of_group(self, group: int, groups: int) -> Missing:
        own = slice(group, None, groups)
        return Missing(self.now[own], self.after[own], self.overdue[own], self.nearer[own], self.meant[own])


# What an overdue hypothesis loses when candidates are ranked and finished ones are scored: a phrase that is hung on to the end of a
# translation reads worse than one inside it, though a model may find both equally unlikely.
OVERDUE = 20.0


def best_extensions(total: Tensor, count: int, ranked_by: Tensor | None = None) -> Candidates:
    """The `count` best of (U, W, V) by log-probability, or by what they are `ranked_by`, where -inf is none."""
    units, width, vocab_size = total.shape
    flat = total.view(units, -1)
    ranks, place = (flat if ranked_by is None else ranked_by.reshape(units, -1)).topk(min(count, width * vocab_size))
    best = ranks if ranked_by is None else flat.gather(1, place).masked_fill(torch.isneginf(ranks), -math.inf)
    return Candidates(best, place // vocab_size, place % vocab_size, ranks)


def extend(total: Tensor, missing: Missing | None, eos_id: int, ranked_by: Tensor | None = None) -> Candidates:
    """Candidates for every unit from the log-probabilities of all extensions, (U, W, V)."""
    units, width, vocab_size = total.shape
    if missing is None:
        return best_extensions(total, 2 * width, ranked_by)
    rank = (total if ranked_by is None else ranked_by) - OVERDUE * missing.overdue[:, :, None]
    if width == 1:
        tokens = insisted(rank.argmax(dim=2), rank, missing, eos_id)
        values, ranks = (x.gather(2, tokens[:, :, None])[:, :, 0] for x in (total, rank))
        return Candidates(values, torch.zeros_like(tokens), tokens, ranks)
    # What brings a phrase nearer is rarely likely, and so is what comes after it: each hypothesis has candidates of its own, and
    # what brings a phrase nearer has some, or they would never get a turn.
    others = best_of_each(total, 2 * width, rank.masked_fill(missing.nearer, -math.inf))
    advances = best_extensions(total, 2 * width, rank.masked_fill(~missing.nearer, -math.inf))
    both = Candidates(
        torch.cat((others.log_probs, advances.log_probs), dim=1),
        torch.cat((others.parents, advances.parents), dim=1),
        torch.cat((others.tokens, advances.tokens), dim=1),
        torch.cat((others.ranks, advances.ranks), dim=1),
    )
    places = both.parents * vocab_size + both.tokens
    return in_turn(both, missing.after.reshape(units, -1).gather(1, places).long())


def best_of_each(total: Tensor, count: int, ranked_by: Tensor) -> Candidates:
    """The `count` best extensions of each hypothesis."""
    width, vocab_size = total.shape[1:]
    ranks, tokens = ranked_by.topk(min(count, vocab_size), dim=2)  # (U, W, count)
    best = total.gather(2, tokens).masked_fill(torch.isneginf(ranks), -math.inf)
    parents = torch.arange(width, device=total.device)[None, :, None].expand_as(tokens)
    return Candidates(best.flatten(1), parents.flatten(1), tokens.flatten(1), ranks.flatten(1))


def in_turn(candidates: Candidates, missing: Tensor) -> Candidates:
    """Candidates that miss equally much, (U, C), take turns with those that miss more or less: first the best of each sort, the one
    that misses least in front, then the second best of each, and so on."""
    best_first = candidates.ranks.argsort(dim=1, descending=True, stable=True)
    by_sort = best_first.gather(1, missing.gather(1, best_first).argsort(dim=1, stable=True))  # each sort side by side
    sorts = missing.gather(1, by_sort)
    places = torch.arange(sorts.shape[1], device=sorts.device).expand_as(sorts)
    is_first = torch.ones_like(sorts, dtype=torch.bool)
    is_first[:, 1:] = sorts[:, 1:] != sorts[:, :-1]
    first = places.masked_fill(~is_first, 0).cummax(dim=1).values  # where the sort begins
    turn = places - first  # (U, C) how many of the same sort are better
    key = turn * (sorts.amax(dim=1, keepdim=True) + 1) + sorts
    key.masked_fill_(torch.isneginf(candidates.ranks.gather(1, by_sort)), torch.iinfo(torch.int64).max)
    return candidates.at(by_sort.gather(1, key.argsort(dim=1, stable=True)))


def insisted(tokens: Tensor, rank: Tensor, missing: Missing, eos_id: int) -> Tensor:
    """Chosen tokens (U, W); where one would end the hypothesis too early, the likeliest that brings a phrase nearer instead."""
    nearer = missing.after < missing.now[:, :, None]
    instead = rank.masked_fill(~nearer, -math.inf).argmax(dim=2)
    too_early = (tokens == eos_id) & (missing.now > 0)
    missing.meant |= too_early
    return torch.where(too_early, instead, tokens)


def extend_in_groups(total: Tensor, missing: Missing | None, eos_id: int, groups: int, diversity: float) -> Candidates:
    """Each group of a sentence's beam chooses after those before it, and a token loses `diversity` for each hypothesis of
    theirs that goes on with it. That decides who is chosen; log-probabilities stay what they are."""
    units, width, vocab_size = total.shape
    taken = total.new_zeros(units // groups, vocab_size)
    found = []
    for group in range(groups):
        own = slice(group, None, groups)
        part = None if missing is None else missing.of_group(group, groups)
        ranked_by = total[own] - diversity * taken[:, None, :] if group else None
        found.append(extend(total[own], part, eos_id, ranked_by))
        kept = found[-1].at(who_lives_on(found[-1], eos_id, width))
        goes_on = (kept.tokens != eos_id) & ~torch.isneginf(kept.log_probs)
        taken.scatter_add_(1, kept.tokens, goes_on.to(taken.dtype))
    # one after the other -> side by side: (G, S, C) -> (S, G, C) -> (U, C)
    fields = zip(*((one.log_probs, one.parents, one.tokens, one.ranks) for one in found), strict=True)
    return Candidates(*(torch.stack(parts, dim=1).flatten(0, 1) for parts in fields))


def who_lives_on(candidates: Candidates, eos_id: int, width: int) -> Tensor:
    """(U, W) the first candidates that do not end."""
    count = candidates.tokens.shape[1]
    places = torch.arange(count, device=candidates.tokens.device)
    later = places + count * ((candidates.tokens == eos_id) | torch.isneginf(candidates.log_probs))
    return later.argsort(dim=1)[:, :width]


def draw_extensions(
    total: Tensor, log_probs: Tensor, missing: Missing | None, chances: Tensor, options: SearchOptions, eos_id: int
) -> Candidates:
    """One extension for each hypothesis, drawn at random; `log_probs` are of the tokens alone."""
    tokens = draw(log_probs, chances, options)
    if missing is not None:
        tokens = insisted(tokens, log_probs, missing, eos_id)
    parents = torch.arange(total.shape[1], device=total.device).expand(total.shape[0], -1)
    values = total.gather(2, tokens[:, :, None])[:, :, 0]
    return Candidates(values, parents, tokens, values)
