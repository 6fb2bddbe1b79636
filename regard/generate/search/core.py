"""Beam search over a step function: the steps that advance its state (`state.py`), and the loop around them.

Every sentence has `beam` live hypotheses and a pool of the `beam` best finished ones. A step extends each live hypothesis by
every token and sorts the best extensions into candidates (`candidates.py`):

    live hypotheses  ->  candidates  ->  those that end, if among the first `beam`:  the pool
                                     ->  the first `beam` that do not end:           the next live hypotheses

A sentence is done when no live hypothesis can still enter the `nbest` best of the pool: since the length penalty
((5 + |Y|) / 6)^alpha grows with |Y|, a score is at most the present log-probability at the maximum length. Which tokens may come
next at all is decided in `allowed.py`, and where required phrases belong in `steering.py`.

The search knows nothing of models. It asks `step` for logits and tells `select` which rows to keep. An `observer` sees what
each step keeps and drops.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.errors import InputError, RegardError
from regard.generate.options import NO_CONTINUATION, NOTHING_FOUND, Hypothesis, SearchOptions
from regard.generate.search.allowed import (
    end_at_limit,
    follow_prefixes,
    forbid,
    forbid_loops,
    forbid_repeated_ngrams,
    merge_ends,
    penalise_repeated,
    require_phrases,
)
from regard.generate.search.candidates import (
    OVERDUE_PENALTY,
    Candidates,
    PhraseProgress,
    extend,
    extend_in_groups,
    first_unfinished,
    sample_extensions,
)
from regard.generate.search.coverage import coverage_penalty, start_attended
from regard.generate.search.prompts import all_stop, counted_length, end_complete, padded_prompts
from regard.generate.search.seeds import sentence_rng
from regard.generate.search.state import BeamState, SearchSpec
from regard.generate.search.steering import advance_phrases, phrase_progress, steer_phrases

StepFunction = Callable[[Tensor], Tensor]  # newest tokens (rows,) -> logits (rows, vocab_size)
SelectFunction = Callable[[Tensor, list[int] | None], None]  # rows to keep, in order; sentences, if some are done


def length_penalty(length: Tensor | int, alpha: float) -> Tensor:
    """((5 + |Y|) / 6)^alpha, of Wu et al. (2016).

    >>> length_penalty(7, 1.0).item()
    2.0
    """
    return ((5.0 + torch.as_tensor(length, dtype=torch.float32)) / 6.0) ** alpha


@dataclass(frozen=True)
class SearchStep:
    """What one step did. C candidates in order: for the plain beam, the best 2 * beam one-token extensions."""

    sentences: list[int]  # (U) the input sentence of each unit
    log_probs: Tensor  # (U, C) of the candidates; -inf: not a candidate
    parents: Tensor  # (U, C) the live hypotheses that they extend
    tokens: Tensor  # (U, C)
    pooled: Tensor  # (U, W) where the pool's new entries come from: below W an old pool entry, from W on a candidate
    pool_scores: Tensor  # (U, W) of the new pool; -inf: empty
    kept: Tensor  # (U, W) the candidates that are the new live hypotheses
    live_log_probs: Tensor  # (U, W) of these; -inf: there is none


Observer = Callable[[SearchStep], None]


def start_state(spec: SearchSpec, device: torch.device) -> BeamState:
    """The state before the first step: one empty hypothesis per unit, or a full beam of them for sampling."""
    groups, width = spec.options.groups, spec.options.beam // spec.options.groups
    is_alone = spec.options.sample or width == 1
    sentences = [number for number in range(len(spec.limits)) for _ in range(groups)]
    units = len(sentences)
    # All hypotheses start out equal, so only the first may live: the others would be copies. Samples diverge by themselves.
    log_probs = torch.full((units, width), 0.0 if spec.options.sample else -math.inf, device=device)
    log_probs[:, 0] = 0.0
    has_phrases = any(spec.phrases)
    lengths = [len(spec.src[number]) for number in sentences] if spec.options.coverage else []
    return BeamState(
        sentences=sentences,
        limits=torch.tensor([spec.limits[number] for number in sentences], device=device),
        tokens=torch.empty((units, width, 0), dtype=torch.int64, device=device),
        log_probs=log_probs,
        pool_tokens=torch.empty((units, width, 0), dtype=torch.int64, device=device),
        pool_lengths=torch.zeros((units, width), dtype=torch.int64, device=device),
        pool_log_probs=torch.full((units, width), -math.inf, device=device),
        pool_scores=torch.full((units, width), -math.inf, device=device),
        phrase_states=torch.zeros((units, width), dtype=torch.int64, device=device) if has_phrases else None,
        overdue=torch.zeros((units, width), dtype=torch.bool, device=device) if has_phrases else None,
        steered=torch.zeros((units, width), dtype=torch.bool, device=device) if has_phrases and is_alone else None,
        attended=start_attended(lengths, width, device) if spec.options.coverage else None,
        prompts=padded_prompts(spec, sentences, device) if spec.prompts and spec.options.counts_text else None,
    )


# --- which tokens may come next ---


def token_log_probs(logits: Tensor, state: BeamState, spec: SearchSpec) -> tuple[Tensor, PhraseProgress | None]:
    """Logits (rows, V) -> log-probabilities of the next token (U, W, V), -inf where it is not allowed, and how far the phrases
    are."""
    units, width, length = state.tokens.shape
    options, eos_id = spec.options, spec.eos_id
    # (rows, V) -> (U, W, V)
    logits = logits.float().view(units, width, -1)
    text = state.text if options.counts_text else state.tokens
    if options.repetition_penalty != 1.0:
        logits = penalise_repeated(logits, text, options.repetition_penalty)
    log_probs = torch.log_softmax(logits, dim=-1)
    merge_ends(log_probs, eos_id, spec.stop_ids, options.sample)
    unmasked = log_probs.clone() if spec.prefixes or state.phrase_states is not None else log_probs
    forbid(log_probs, spec.forbidden)
    ending = log_probs[:, :, eos_id].clone()
    if options.no_repeat:
        forbid_repeated_ngrams(log_probs, text, options.no_repeat)
    if options.max_repeat:
        forbid_loops(log_probs, text, options.max_repeat)
    log_probs[:, :, eos_id] = ending  # a prompt may have end tokens: they do not keep the output from ending
    progress = None if state.phrase_states is None else phrase_progress(state, spec, log_probs.shape[-1])
    if progress is not None:
        may_end = options.sample or width == 1
        places_left = state.limits - length
        require_phrases(log_probs, unmasked, progress.missing, progress.missing_after, places_left, eos_id, may_end)
    end_at_limit(log_probs, state.limits, length, eos_id, is_free=bool(spec.prompts))
    if spec.ends and length:
        end_complete(log_probs, state, spec)
    if spec.prefixes:
        too_early = None if progress is None else progress.missing > 0
        follow_prefixes(log_probs, unmasked, state.sentences, spec.prefixes, length, eos_id, too_early)
    if progress is not None:
        steer_phrases(progress, state, spec, log_probs, unmasked)
    return log_probs, progress


# --- one step ---


def make_candidates(
    state: BeamState,
    log_probs: Tensor,
    progress: PhraseProgress | None,
    spec: SearchSpec,
    rngs: Sequence[random.Random],
) -> Candidates:
    """The candidates of this step, in order, from the log-probabilities of the next token (U, W, V)."""
    options = spec.options
    total = state.log_probs[:, :, None] + log_probs
    if options.sample:
        draws = [[rngs[number].random() for _ in range(options.beam)] for number in state.sentences]
        uniform = torch.tensor(draws, dtype=torch.float64, device=total.device)
        return sample_extensions(total, log_probs, progress, uniform, options, spec.eos_id)
    if options.groups > 1:
        return extend_in_groups(total, progress, spec.eos_id, options.groups, options.diversity)
    return extend(total, progress, spec.eos_id)


def collect_finished(state: BeamState, candidates: Candidates, spec: SearchSpec) -> Tensor:
    """Let the candidates that end compete for the pool. Returns where its entries come from, as `SearchStep.pooled`."""
    width, length = state.tokens.shape[1:]
    ends = candidates.tokens == spec.eos_id
    ends[:, width:] = False  # a hypothesis may only finish while it is among the first `beam`
    parents = candidates.parents
    log_probs = candidates.log_probs.masked_fill(~ends, -math.inf)
    scores = log_probs / length_penalty(counted_length(state, spec, length), spec.options.alpha).to(log_probs.device)
    if state.attended is not None:
        scores = scores + coverage_penalty(state.attended, spec.options.coverage).gather(1, parents)
    if state.overdue is not None:
        scores = scores - OVERDUE_PENALTY * state.overdue.gather(1, parents)
    # (U, W + C): old pool and candidates -> (U, W): the new pool
    state.pool_scores, kept = torch.cat((state.pool_scores, scores), dim=1).topk(width, dim=1)
    state.pool_log_probs = torch.cat((state.pool_log_probs, log_probs), dim=1).gather(1, kept)
    lengths = torch.full_like(parents, length)
    state.pool_lengths = torch.cat((state.pool_lengths, lengths), dim=1).gather(1, kept)
    # (U, W, shorter) -> (U, W, T), then with the candidates' tokens (U, C, T) -> (U, W + C, T)
    tokens = state.tokens.gather(1, parents[:, :, None].expand(-1, -1, length))
    padding = state.pool_tokens.new_full(
        (*state.pool_tokens.shape[:2], length - state.pool_tokens.shape[2]), spec.eos_id
    )
    both = torch.cat((torch.cat((state.pool_tokens, padding), dim=2), tokens), dim=1)
    state.pool_tokens = both.gather(1, kept[:, :, None].expand(-1, -1, length))
    return kept


def advance_live(
    state: BeamState, candidates: Candidates, progress: PhraseProgress | None, spec: SearchSpec
) -> tuple[Tensor, Tensor]:
    """Make the first candidates that do not end the live hypotheses. Returns which candidates these are, and their parents,
    each (U, W)."""
    width, length = state.tokens.shape[1:]
    if spec.options.sample:  # each sample stays in its row, even when it has ended
        kept = torch.arange(width, device=state.tokens.device).expand(len(state.sentences), -1)
    else:
        kept = first_unfinished(candidates, spec.eos_id, width)
    chosen = candidates.at(kept)
    state.log_probs = chosen.log_probs.masked_fill(chosen.tokens == spec.eos_id, -math.inf)
    # (U, W, T) and (U, W, 1) -> (U, W, T + 1)
    prefixes = state.tokens.gather(1, chosen.parents[:, :, None].expand(-1, -1, length))
    state.tokens = torch.cat((prefixes, chosen.tokens[:, :, None]), dim=2)
    if state.attended is not None:
        state.attended = state.attended.gather(1, chosen.parents[:, :, None].expand(-1, -1, state.attended.shape[2]))
    if state.phrase_states is not None and progress is not None:
        state.overdue = progress.overdue.gather(1, chosen.parents)
        state.steered = None if state.steered is None else progress.steered.gather(1, chosen.parents)
        before = state.phrase_states.gather(1, chosen.parents)
        state.phrase_states = advance_phrases(before, chosen.tokens, state.sentences, spec)
    return kept, chosen.parents


# --- the end of a search ---


def is_done(state: BeamState, options: SearchOptions) -> Tensor:
    """(U,) whether no live hypothesis can still enter the best `nbest` of the pool; a search of width 1 ends with its first
    ending."""
    width = state.tokens.shape[1]
    best = state.log_probs.amax(dim=1)
    nothing_lives = ~(best > -math.inf)  # also true for NaN, which would never end
    if options.sample:
        return nothing_lives
    if width == 1:
        return ~torch.isneginf(state.pool_scores[:, 0]) | nothing_lives
    bound = best / length_penalty(state.limits + 1, options.alpha)
    return (state.pool_scores[:, min(options.nbest, width) - 1] >= bound) | nothing_lives


def hypotheses_of(state: BeamState, units: Sequence[int], spec: SearchSpec) -> list[Hypothesis]:
    """The best of one sentence's pools: first the best of each group, then the second best of each, and so on, without
    duplicates between groups. Samples may repeat."""
    nbest, limit = spec.options.nbest, int(state.limits[units[0]])
    hypotheses: list[Hypothesis] = []
    for rank in range(state.tokens.shape[1]):
        for unit in sorted(units, key=lambda unit: -float(state.pool_scores[unit, rank])):
            score = float(state.pool_scores[unit, rank])
            if score > -math.inf:
                ids = tuple(state.pool_tokens[unit, rank, : int(state.pool_lengths[unit, rank])].tolist())
                if len(units) == 1 or all(ids != other.ids for other in hypotheses):
                    ended = not spec.prompts or len(ids) < limit
                    hypotheses.append(Hypothesis(ids, float(state.pool_log_probs[unit, rank]), score, ended))
        if len(hypotheses) >= nbest:
            break
    return sorted(hypotheses[:nbest], key=lambda one: -one.score)


def keep_units(state: BeamState, units: list[int]) -> None:
    """Drop all other units; their sentences are done."""
    state.sentences = [state.sentences[unit] for unit in units]
    for name in ("limits", "tokens", "log_probs", "pool_tokens", "pool_lengths", "pool_log_probs", "pool_scores"):
        setattr(state, name, getattr(state, name)[units])
    for name in ("phrase_states", "overdue", "steered", "attended", "prompts"):
        if getattr(state, name) is not None:
            setattr(state, name, getattr(state, name)[units])


# --- the loop ---


def search_steps(
    step: StepFunction,
    select: SelectFunction,
    spec: SearchSpec,
    device: torch.device | str = "cpu",
    observer: Observer | None = None,
) -> Generator[BeamState, None, list[list[Hypothesis]]]:
    """The search step by step: yields the state after each step and returns the `nbest` best hypotheses of every sentence."""
    options, groups, beam = spec.options, spec.options.groups, spec.options.beam
    width = beam // groups
    state = start_state(spec, torch.device(device))
    results: list[list[Hypothesis]] = [[] for _ in spec.limits]
    rngs = [sentence_rng(options.seed, src) for src in spec.prompts or spec.src] if options.sample else []
    newest = torch.tensor(spec.first_tokens, dtype=torch.int64, device=device).repeat_interleave(beam)
    vocab_size = 0
    while state.sentences:
        if vocab_size and all_stop(state, spec):
            logits = torch.zeros((len(newest), vocab_size), device=device)
        else:
            logits = step(newest)
            vocab_size = logits.shape[1]
        log_probs, progress = token_log_probs(logits, state, spec)
        if state.attended is not None:
            assert spec.attention is not None
            weights = spec.attention()[:, : state.attended.shape[2]]  # as wide as the longest source that is left
            state.attended[:, :, : weights.shape[1]] += weights.view(*state.attended.shape[:2], -1)
        candidates = make_candidates(state, log_probs, progress, spec, rngs)
        pooled = collect_finished(state, candidates, spec)
        kept, parents = advance_live(state, candidates, progress, spec)
        if observer is not None:
            extensions = candidates.log_probs, candidates.parents, candidates.tokens
            observer(SearchStep(state.sentences, *extensions, pooled, state.pool_scores, kept, state.log_probs))
        rows = torch.arange(len(state.sentences), device=device)[:, None] * width + parents  # (U, W)
        units_done = is_done(state, options)
        if groups > 1:  # a group that is done waits for the others, and no longer keeps tokens from them
            state.log_probs.masked_fill_(units_done[:, None], -math.inf)
            units_done = units_done.view(-1, groups).all(dim=1)
        yield state
        done = units_done.tolist()
        if any(done):
            for sentence, sentence_is_done in enumerate(done):
                if sentence_is_done:
                    own_units = range(sentence * groups, (sentence + 1) * groups)
                    hypotheses = hypotheses_of(state, own_units, spec)
                    if not hypotheses:
                        raise _nothing_found(log_probs, spec, state.sentences[own_units[0]])
                    results[state.sentences[own_units[0]]] = hypotheses
            remaining = [sentence for sentence, sentence_is_done in enumerate(done) if not sentence_is_done]
            units = [sentence * groups + group for sentence in remaining for group in range(groups)]
            keep_units(state, units)
            if remaining:
                select(rows[units].flatten(), remaining)
        elif beam > 1 and not options.sample:
            select(rows.flatten(), None)
        # (U, W) -> (rows,)
        newest = state.tokens[:, :, -1].flatten()
    return results


def _nothing_found(log_probs: Tensor, spec: SearchSpec, sentence: int) -> RegardError:
    """Why a sentence has no hypothesis. Log-probabilities (U, W, V) of excluded tokens are -inf, so that only NaN shows that the
    model has failed."""
    if not bool(log_probs.isnan().any()):
        if any(spec.phrases) and spec.phrases[sentence] is not None:
            what = "continuation" if spec.prompts else "translation"
            return InputError(
                f"no {what} can have all required phrases and terms with this prefix and length; leave some of them out"
            )
        if spec.prompts and spec.options.counts_text:
            return InputError(
                "no token may follow that no_repeat and max_repeat allow, and this model has no end token; allow fewer tokens"
            )
    return RegardError(NO_CONTINUATION if spec.prompts else NOTHING_FOUND)


def beam_search(
    step: StepFunction,
    select: SelectFunction,
    spec: SearchSpec,
    device: torch.device | str = "cpu",
    observer: Observer | None = None,
) -> list[list[Hypothesis]]:
    """The `nbest` best hypotheses of every sentence."""
    steps = search_steps(step, select, spec, device, observer)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            results: list[list[Hypothesis]] = end.value
            return results
