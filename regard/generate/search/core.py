"""Search over a step function: a state, and the loop that advances it.

Every sentence has `beam` live hypotheses and a pool of the `beam` best finished ones. A step extends each live hypothesis by every
token and puts the best results in an order (`candidates.py`): those among the first `beam` that end go to the pool, the first
`beam` that do not end live on. A sentence is done when no live hypothesis can still enter the part of the pool that was asked for:
since the penalty ((5 + |Y|) / 6)^alpha grows with the length, its score is at most its log-probability at the greatest length
allowed. What may come at all is in `allowed.py`.

The search knows nothing of models. It asks `step` for log-probabilities and tells `select` which rows live on. Whoever wants to
see what it keeps and drops passes an `observer`.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.errors import RegardError
from regard.generate.options import Hypothesis, Prefix, SearchOptions
from regard.generate.search.allowed import (
    end_at_limit,
    follow_prefixes,
    forbid,
    forbid_loops,
    forbid_repeated_ngrams,
    insist_on_phrases,
)
from regard.generate.search.candidates import (
    OVERDUE,
    Candidates,
    Missing,
    draw_extensions,
    extend,
    extend_in_groups,
    who_lives_on,
)
from regard.generate.search.coverage import coverage_penalty, start_attended
from regard.generate.search.phrases import Phrases
from regard.generate.search.sampling import sentence_rng

StepFunction = Callable[[Tensor], Tensor]  # newest tokens (rows,) -> logits (rows, vocab_size)
Select = Callable[[Tensor, list[int] | None], None]  # rows to keep, in order; sentences to keep when some are done
Attention = Callable[[], Tensor]  # what the rows of the last step attended to, (rows, longest source or more)


# Whatever is asked for, some translation has it: there is none only where the model computes what is not a number.
NOTHING_FOUND = "no translation was found: the model's numbers are not finite"
MOST = 0.5  # of the attention: a hypothesis that is alone begins a phrase where so much of it goes to what the phrase translates


def length_penalty(length: Tensor | int, alpha: float) -> Tensor:
    """((5 + |Y|) / 6)^alpha.

    >>> length_penalty(7, 1.0).item()
    2.0
    """
    return ((5.0 + torch.as_tensor(length, dtype=torch.float32)) / 6.0) ** alpha


@dataclass(frozen=True)
class Task:
    """What is to be found, and by which rules."""

    limits: Sequence[int]  # most tokens that each sentence's translation may have, the end token not counted
    options: SearchOptions
    bos_id: int
    eos_id: int
    forbidden: Sequence[int] = ()
    prefixes: Sequence[Prefix] = ()  # what translations begin with, one for each sentence or none at all
    phrases: Sequence[Phrases | None] = ()  # what must appear in them, likewise
    src: Sequence[Sequence[int]] = ()  # the sources, for chance and coverage
    attention: Attention | None = None  # for coverage and for phrases that have a place


@dataclass
class BeamState:
    """All sentences that are not done. U units: sentences, or groups of a sentence's beam, side by side. W hypotheses to a unit,
    T tokens so far, K tokens of the longest source."""

    numbers: list[int]  # (U) which input sentence each belongs to
    limits: Tensor  # (U,) most tokens a translation may have, the end token not counted
    tokens: Tensor  # (U, W, T) of the live hypotheses
    log_probs: Tensor  # (U, W)
    pool_tokens: Tensor  # (U, W, T) of the finished hypotheses; shorter ones are filled up with the end token
    pool_lengths: Tensor  # (U, W) without the end token
    pool_log_probs: Tensor  # (U, W)
    pool_scores: Tensor  # (U, W) under the length penalty, best first; -inf: empty
    places: Tensor | None = None  # (U, W) where each hypothesis is in its sentence's `Phrases`
    overdue: Tensor | None = None  # (U, W) whether it goes on only because of phrases
    begun: Tensor | None = None  # (U, W) whether, being alone, it was just made to begin a phrase or to go on with one
    attended: Tensor | None = None  # (U, W, K) what each source token has got so far, for coverage


@dataclass(frozen=True)
class SearchStep:
    """What one step of the search did. C candidates in their order, for the plain beam the best 2 * beam one-token extensions."""

    numbers: list[int]  # (U) which input sentence each is
    log_probs: Tensor  # (U, C) of the candidates; -inf: not a candidate
    parents: Tensor  # (U, C) the live hypotheses that they extend
    tokens: Tensor  # (U, C)
    pooled: Tensor  # (U, W) the pool after the step: below W a place of the pool before it, from W on a candidate
    pool_scores: Tensor  # (U, W) of the pool after the step; -inf: empty
    kept: Tensor  # (U, W) the candidates that are the live hypotheses after the step
    live_log_probs: Tensor  # (U, W) of these; -inf: there is none


Observer = Callable[[SearchStep], None]


def start_state(task: Task, device: torch.device) -> BeamState:
    groups, width = task.options.groups, task.options.beam // task.options.groups
    is_alone = task.options.sample or width == 1
    numbers = [number for number in range(len(task.limits)) for _ in range(groups)]
    units = len(numbers)
    # All hypotheses start alike, so only the first may live: the others would be its copies. Samples part by themselves.
    log_probs = torch.full((units, width), 0.0 if task.options.sample else -math.inf, device=device)
    log_probs[:, 0] = 0.0
    return BeamState(
        numbers=numbers,
        limits=torch.tensor([task.limits[number] for number in numbers], device=device),
        tokens=torch.empty((units, width, 0), dtype=torch.int64, device=device),
        log_probs=log_probs,
        pool_tokens=torch.empty((units, width, 0), dtype=torch.int64, device=device),
        pool_lengths=torch.zeros((units, width), dtype=torch.int64, device=device),
        pool_log_probs=torch.full((units, width), -math.inf, device=device),
        pool_scores=torch.full((units, width), -math.inf, device=device),
        places=torch.zeros((units, width), dtype=torch.int64, device=device) if any(task.phrases) else None,
        overdue=torch.zeros((units, width), dtype=torch.bool, device=device) if any(task.phrases) else None,
        begun=torch.zeros((units, width), dtype=torch.bool, device=device) if any(task.phrases) and is_alone else None,
        attended=start_attended([len(task.src[n]) for n in numbers], width, device) if task.options.coverage else None,
    )


def token_log_probs(logits: Tensor, state: BeamState, task: Task) -> tuple[Tensor, Missing | None]:
    """(U, W, V) log-probabilities of what may come next, -inf for what may not, and how far off phrases are."""
    units, width, length = state.tokens.shape
    options, eos_id = task.options, task.eos_id
    log_probs = torch.log_softmax(logits.float(), dim=-1).view(units, width, -1)
    raw = log_probs.clone() if task.prefixes or state.places is not None else log_probs
    forbid(log_probs, task.forbidden)
    if options.no_repeat:
        forbid_repeated_ngrams(log_probs, state.tokens, options.no_repeat)
    if options.max_repeat:
        forbid_loops(log_probs, state.tokens, options.max_repeat)
    missing = None if state.places is None else missing_tokens(state, task, log_probs.shape[-1])
    if missing is not None:
        may_end = options.sample or width == 1
        insist_on_phrases(log_probs, raw, missing.now, missing.after, state.limits - length, eos_id, may_end)
    end_at_limit(log_probs, state.limits, length, eos_id)
    if task.prefixes:
        too_early = None if missing is None else missing.now > 0
        follow_prefixes(log_probs, raw, state.numbers, task.prefixes, length, eos_id, too_early)
    if missing is not None:
        look_for_places(missing, state, task, log_probs, raw)
    return log_probs, missing


def look_for_places(missing: Missing, state: BeamState, task: Task, log_probs: Tensor, raw: Tensor) -> None:
    """Find out which hypotheses are overdue, and which phrases belong where the others are. A phrase that belongs to a source token
    is begun where that is attended to most; if it never was, once the hypothesis is overdue or just enough places are left."""
    assert state.places is not None
    length = state.tokens.shape[2]
    others = log_probs.clone()
    others[:, :, task.eos_id] = -math.inf
    wants_to_end = (raw[:, :, task.eos_id] > others.amax(dim=2)) & (missing.now > 0)
    is_free = [not task.prefixes or length >= len(task.prefixes[number]) for number in state.numbers]
    wants_to_end &= torch.tensor(is_free, device=wants_to_end.device)[:, None]
    missing.overdue |= wants_to_end
    is_late = (missing.overdue | (missing.now >= (state.limits - length)[:, None])).tolist()
    weights = None if task.attention is None else task.attention().view(*state.places.shape, -1)
    for unit, (number, places) in enumerate(zip(state.numbers, state.places.tolist(), strict=True)):
        phrases = task.phrases[number]
        if phrases is None or not is_free[unit]:
            continue
        shares, attended = [0.0] * len(places), [-1] * len(places)
        if weights is not None and phrases.has_places:
            shares, attended = (values.tolist() for values in weights[unit, :, : len(task.src[number])].max(dim=1))
        for row, place in enumerate(places):
            here, elsewhere = phrases.begun_at(place, attended[row])
            if not is_late[unit][row] and attended[row] >= 0:
                missing.nearer[unit, row, list(elsewhere)] = False
            if state.begun is not None:
                due = here if shares[row] > MOST and not is_late[unit][row] else frozenset()
                take_in_hand(missing, state.begun, task, log_probs, (unit, row), phrases, place, due)


def take_in_hand(
    missing: Missing,
    begun: Tensor,
    task: Task,
    log_probs: Tensor,
    which: tuple[int, int],
    phrases: Phrases,
    place: int,
    due: frozenset[int],
) -> None:
    """A hypothesis that has no others beside it, to weigh places with, goes on with a phrase that it was made to begin, ends the
    word after it, and begins one that is due."""
    going_on = phrases.going_on(place) if begun[which] else frozenset()
    following = phrases.following(place) if begun[which] else frozenset()
    for tokens, is_meant in ((going_on, True), (following and following | {task.eos_id}, False), (due, True)):
        values = log_probs[which][list(tokens)]
        if tokens and not bool(torch.isneginf(values).all()):
            log_probs[which] = -math.inf
            log_probs[which][list(tokens)] = values
            missing.meant[which] = is_meant
            return


def missing_tokens(state: BeamState, task: Task, vocab_size: int) -> Missing:
    assert state.places is not None and state.overdue is not None
    now = torch.zeros(state.places.shape, dtype=torch.int16)
    after = torch.zeros((*now.shape, vocab_size), dtype=torch.int16)
    for unit, (number, places) in enumerate(zip(state.numbers, state.places.tolist(), strict=True)):
        if (phrases := task.phrases[number]) is not None:
            for row, place in enumerate(places):
                now[unit, row] = phrases.missing(place)
                after[unit, row] = torch.from_numpy(phrases.missing_after(place, vocab_size))
    after[:, :, task.eos_id] = now
    now, after = now.to(state.places.device), after.to(state.places.device)
    return Missing(now, after, state.overdue.clone(), after < now[:, :, None], torch.zeros_like(state.overdue))


def propose(
    state: BeamState, log_probs: Tensor, missing: Missing | None, task: Task, chances: Sequence[random.Random]
) -> Candidates:
    """The candidates of this step, in order."""
    options = task.options
    total = state.log_probs[:, :, None] + log_probs
    if options.sample:
        drawn = [[chances[number].random() for _ in range(options.beam)] for number in state.numbers]
        uniform = torch.tensor(drawn, dtype=torch.float64, device=total.device)
        return draw_extensions(total, log_probs, missing, uniform, options, task.eos_id)
    if options.groups > 1:
        return extend_in_groups(total, missing, task.eos_id, options.groups, options.diversity)
    return extend(total, missing, task.eos_id)


def collect_finished(state: BeamState, candidates: Candidates, task: Task) -> Tensor:
    """Let the candidates that end compete for the pool; returns what it is made of, `SearchStep.pooled`."""
    width, length = state.tokens.shape[1:]
    ends = candidates.tokens == task.eos_id
    ends[:, width:] = False  # a hypothesis finishes only while it is among the first
    parents = candidates.parents
    log_probs = candidates.log_probs.masked_fill(~ends, -math.inf)
    scores = log_probs / length_penalty(length + 1, task.options.alpha).to(log_probs.device)
    if state.attended is not None:
        scores = scores + coverage_penalty(state.attended, task.options.coverage).gather(1, parents)
    if state.overdue is not None:
        scores = scores - OVERDUE * state.overdue.gather(1, parents)
    state.pool_scores, kept = torch.cat((state.pool_scores, scores), dim=1).topk(width, dim=1)
    state.pool_log_probs = torch.cat((state.pool_log_probs, log_probs), dim=1).gather(1, kept)
    lengths = torch.full_like(parents, length)
    state.pool_lengths = torch.cat((state.pool_lengths, lengths), dim=1).gather(1, kept)
    # (U, W + C, T): pool and candidates, at one length
    tokens = state.tokens.gather(1, parents[:, :, None].expand(-1, -1, length))
    filler = state.pool_tokens.new_full(
        (*state.pool_tokens.shape[:2], length - state.pool_tokens.shape[2]), task.eos_id
    )
    both = torch.cat((torch.cat((state.pool_tokens, filler), dim=2), tokens), dim=1)
    state.pool_tokens = both.gather(1, kept[:, :, None].expand(-1, -1, length))
    return kept


def live_on(state: BeamState, candidates: Candidates, missing: Missing | None, task: Task) -> tuple[Tensor, Tensor]:
    """Make the first candidates that do not end the new live hypotheses; returns which candidates these are, and their parents."""
    width, length = state.tokens.shape[1:]
    if task.options.sample:  # each stays in its place, also when it has ended
        kept = torch.arange(width, device=state.tokens.device).expand(len(state.numbers), -1)
    else:
        kept = who_lives_on(candidates, task.eos_id, width)
    chosen = candidates.at(kept)
    state.log_probs = chosen.log_probs.masked_fill(chosen.tokens == task.eos_id, -math.inf)
    prefixes = state.tokens.gather(1, chosen.parents[:, :, None].expand(-1, -1, length))
    state.tokens = torch.cat((prefixes, chosen.tokens[:, :, None]), dim=2)
    if state.attended is not None:
        state.attended = state.attended.gather(1, chosen.parents[:, :, None].expand(-1, -1, state.attended.shape[2]))
    if state.places is not None and missing is not None:
        state.overdue = missing.overdue.gather(1, chosen.parents)
        state.begun = None if state.begun is None else missing.meant.gather(1, chosen.parents)
        state.places = moved(state.places.gather(1, chosen.parents), chosen.tokens, state.numbers, task)
    return kept, chosen.parents


def moved(places: Tensor, tokens: Tensor, numbers: Sequence[int], task: Task) -> Tensor:
    """(U, W) where hypotheses are in their `Phrases` after one more token."""
    rows = [
        [place if phrases is None else phrases.after(place, token) for place, token in zip(*row, strict=True)]
        for phrases, row in zip(
            (task.phrases[number] for number in numbers),
            zip(places.tolist(), tokens.tolist(), strict=True),
            strict=True,
        )
    ]
    return torch.tensor(rows, device=places.device)


def is_done(state: BeamState, options: SearchOptions) -> Tensor:
    """(U,) whether nothing alive can still enter the best `nbest` of the pool; a search of width 1 ends with the first ending."""
    width = state.tokens.shape[1]
    best = state.log_probs.amax(dim=1)
    nothing = ~(best > -math.inf)  # not a number is nothing, either: it would never end
    if options.sample:
        return nothing
    if width == 1:
        return ~torch.isneginf(state.pool_scores[:, 0]) | nothing
    bound = best / length_penalty(state.limits + 1, options.alpha)
    return (state.pool_scores[:, min(options.nbest, width) - 1] >= bound) | nothing


def hypotheses_of(state: BeamState, units: Sequence[int], nbest: int) -> list[Hypothesis]:
    """The best of a sentence's pools: from each group the best, then from each the second best, and so on, each text once;
    samples may be alike."""
    found: list[Hypothesis] = []
    for rank in range(state.tokens.shape[1]):
        for unit in sorted(units, key=lambda unit: -float(state.pool_scores[unit, rank])):
            score = float(state.pool_scores[unit, rank])
            if score > -math.inf:
                ids = tuple(state.pool_tokens[unit, rank, : int(state.pool_lengths[unit, rank])].tolist())
                if len(units) == 1 or all(ids != other.ids for other in found):
                    found.append(Hypothesis(ids, float(state.pool_log_probs[unit, rank]), score))
        if len(found) >= nbest:
            break
    return sorted(found[:nbest], key=lambda one: -one.score)


def keep_units(state: BeamState, units: list[int]) -> None:
    state.numbers = [state.numbers[unit] for unit in units]
    for name in ("limits", "tokens", "log_probs", "pool_tokens", "pool_lengths", "pool_log_probs", "pool_scores"):
        setattr(state, name, getattr(state, name)[units])
    for name in ("places", "overdue", "begun", "attended"):
        if getattr(state, name) is not None:
            setattr(state, name, getattr(state, name)[units])


def search_steps(
    step: StepFunction, select: Select, task: Task, device: torch.device | str = "cpu", observer: Observer | None = None
) -> Generator[BeamState, None, list[list[Hypothesis]]]:
    """The search step by step: yields the state after each and returns the best `nbest` translations of every sentence."""
    options, groups, beam = task.options, task.options.groups, task.options.beam
    width = beam // groups
    state = start_state(task, torch.device(device))
    results: list[list[Hypothesis]] = [[] for _ in task.limits]
    chances = [sentence_rng(options.seed, src) for src in task.src] if options.sample else []
    newest = torch.full((len(task.limits) * beam,), task.bos_id, dtype=torch.int64, device=device)
    while state.numbers:
        log_probs, missing = token_log_probs(step(newest), state, task)
        if state.attended is not None:
            assert task.attention is not None
            seen = task.attention()[:, : state.attended.shape[2]]  # as wide as the longest source that is left
            state.attended[:, :, : seen.shape[1]] += seen.view(*state.attended.shape[:2], -1)
        candidates = propose(state, log_probs, missing, task, chances)
        pooled = collect_finished(state, candidates, task)
        kept, parents = live_on(state, candidates, missing, task)
        if observer is not None:
            found = candidates.log_probs, candidates.parents, candidates.tokens
            observer(SearchStep(state.numbers, *found, pooled, state.pool_scores, kept, state.log_probs))
        rows = torch.arange(len(state.numbers), device=device)[:, None] * width + parents  # (U, W)
        units_done = is_done(state, options)
        if groups > 1:  # a group that is done waits for the others, and is no longer in their way
            state.log_probs.masked_fill_(units_done[:, None], -math.inf)
            units_done = units_done.view(-1, groups).all(dim=1)
        yield state
        done = units_done.tolist()
        if any(done):
            for sentence, finished in enumerate(done):
                if finished:
                    own = range(sentence * groups, (sentence + 1) * groups)
                    found_now = hypotheses_of(state, own, options.nbest)
                    if not found_now:
                        raise RegardError(NOTHING_FOUND)
                    results[state.numbers[own[0]]] = found_now
            remaining = [sentence for sentence, finished in enumerate(done) if not finished]
            units = [sentence * groups + group for sentence in remaining for group in range(groups)]
            keep_units(state, units)
            if remaining:
                select(rows[units].flatten(), remaining)
        elif beam > 1 and not options.sample:
            select(rows.flatten(), None)
        newest = state.tokens[:, :, -1].flatten()
    return results


def beam_search(
    step: StepFunction, select: Select, task: Task, device: torch.device | str = "cpu", observer: Observer | None = None
) -> list[list[Hypothesis]]:
    """Search for the best `nbest` translations of every sentence."""
    steps = search_steps(step, select, task, device, observer)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            results: list[list[Hypothesis]] = end.value
            return results
