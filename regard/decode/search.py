"""Beam search over a step function.

Every sentence has `beam` live hypotheses and a pool of the `beam` best finished ones. A step extends each live hypothesis by every
token and looks at the 2 * beam best results: those among the first `beam` that end go to the pool, the best that do not end live
on. A sentence is done when no live hypothesis can still enter the part of the pool that was asked for: since the penalty
((5 + |Y|) / 6)^alpha grows with the length, its score is at most its log-probability at the greatest length allowed.

The search knows nothing of models. It asks `step` for log-probabilities and tells `select` which rows live on. Whoever wants to
see what it keeps and drops passes an `observer`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.decode.options import Hypothesis, Prefix, SearchOptions

Step = Callable[[Tensor], Tensor]  # newest tokens (rows,) -> logits (rows, vocab_size)
Select = Callable[[Tensor, list[int] | None], None]  # rows to keep, in order; sentences to keep when some are done


def length_penalty(length: Tensor | int, alpha: float) -> Tensor:
    """((5 + |Y|) / 6)^alpha.

    >>> length_penalty(7, 1.0).item()
    2.0
    """
    return ((5.0 + torch.as_tensor(length, dtype=torch.float32)) / 6.0) ** alpha


@dataclass
class BeamState:
    """All sentences that are not done. S sentences, B beams, T tokens so far."""

    numbers: list[int]  # (S) which input sentence each is
    limits: Tensor  # (S,) most tokens a translation may have, the end token not counted
    tokens: Tensor  # (S, B, T) of the live hypotheses
    log_probs: Tensor  # (S, B)
    pool_tokens: Tensor  # (S, B, T) of the finished hypotheses; shorter ones are filled up with the end token
    pool_lengths: Tensor  # (S, B) without the end token
    pool_log_probs: Tensor  # (S, B)
    pool_scores: Tensor  # (S, B) under the length penalty, best first; -inf: empty


@dataclass(frozen=True)
class SearchStep:
    """What one step of the search did. C candidates, the best 2 * beam one-token extensions, best first."""

    numbers: list[int]  # (S) which input sentence each is
    log_probs: Tensor  # (S, C) of the candidates; -inf: not a candidate
    parents: Tensor  # (S, C) the live hypotheses that they extend
    tokens: Tensor  # (S, C)
    pooled: Tensor  # (S, B) the pool after the step: below B a place of the pool before it, from B on a candidate
    pool_scores: Tensor  # (S, B) of the pool after the step; -inf: empty
    kept: Tensor  # (S, B) the candidates that are the live hypotheses after the step
    live_log_probs: Tensor  # (S, B) of these; -inf: there is none


Observer = Callable[[SearchStep], None]


def start_state(limits: Sequence[int], beam: int, device: torch.device) -> BeamState:
    count = len(limits)
    # All beams start alike, so only the first may live: the others would be its copies.
    log_probs = torch.full((count, beam), -math.inf, device=device)
    log_probs[:, 0] = 0.0
    return BeamState(
        numbers=list(range(count)),
        limits=torch.tensor(limits, device=device),
        tokens=torch.empty((count, beam, 0), dtype=torch.int64, device=device),
        log_probs=log_probs,
        pool_tokens=torch.empty((count, beam, 0), dtype=torch.int64, device=device),
        pool_lengths=torch.zeros((count, beam), dtype=torch.int64, device=device),
        pool_log_probs=torch.full((count, beam), -math.inf, device=device),
        pool_scores=torch.full((count, beam), -math.inf, device=device),
    )


def token_log_probs(
    logits: Tensor, state: BeamState, eos_id: int, forbidden: Sequence[int], prefixes: Sequence[Prefix] = ()
) -> Tensor:
    """(S, B, V) log-probabilities; forbidden tokens cannot be chosen, at the limit only the end can, and inside a prefix only
    what it says."""
    count, beam, length = state.tokens.shape
    log_probs = torch.log_softmax(logits.float(), dim=-1).view(count, beam, -1)
    forced = []
    for sentence, number in enumerate(state.numbers if prefixes else ()):
        if length < len(prefixes[number]):
            place = prefixes[number][length]
            tokens = [place] if isinstance(place, int) else list(place)
            forced.append((sentence, tokens, log_probs[sentence][:, tokens]))
    if forbidden:
        log_probs[:, :, list(forbidden)] = -math.inf
    at_limit = state.limits <= length
    if bool(at_limit.any()):
        ending = log_probs[at_limit, :, eos_id]
        log_probs[at_limit] = -math.inf
        log_probs[at_limit, :, eos_id] = ending
    for sentence, tokens, values in forced:
        log_probs[sentence] = -math.inf
        log_probs[sentence][:, tokens] = values
    return log_probs


def candidates(state: BeamState, log_probs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The 2 * beam best one-token extensions: their log-probabilities, the beams that they extend and the tokens."""
    count, beam, vocab_size = log_probs.shape
    extended = state.log_probs[:, :, None] + log_probs
    best, place = extended.view(count, -1).topk(min(2 * beam, beam * vocab_size), dim=-1)
    return best, place // vocab_size, place % vocab_size


def collect_finished(
    state: BeamState, best: Tensor, parents: Tensor, ends: Tensor, eos_id: int, alpha: float
) -> Tensor:
    """Let the candidates that end compete for the pool; returns what it is made of, `SearchStep.pooled`."""
    beam, length = state.tokens.shape[1:]
    ends = ends.clone()
    ends[:, beam:] = False  # a hypothesis finishes only while it is among the `beam` best
    log_probs = best.masked_fill(~ends, -math.inf)
    scores = log_probs / length_penalty(length + 1, alpha).to(best.device)
    all_scores = torch.cat((state.pool_scores, scores), dim=1)
    state.pool_scores, kept = all_scores.topk(beam, dim=1)
    state.pool_log_probs = torch.cat((state.pool_log_probs, log_probs), dim=1).gather(1, kept)
    lengths = torch.full_like(parents, length)
    state.pool_lengths = torch.cat((state.pool_lengths, lengths), dim=1).gather(1, kept)
    # (S, 3B, T): pool and candidates, at one length
    tokens = state.tokens.gather(1, parents[:, :, None].expand(-1, -1, length))
    filler = state.pool_tokens.new_full((*state.pool_tokens.shape[:2], length - state.pool_tokens.shape[2]), eos_id)
    both = torch.cat((torch.cat((state.pool_tokens, filler), dim=2), tokens), dim=1)
    state.pool_tokens = both.gather(1, kept[:, :, None].expand(-1, -1, length))
    return kept


def live_on(state: BeamState, best: Tensor, parents: Tensor, tokens: Tensor, ends: Tensor) -> Tensor:
    """Make the best candidates that do not end the new live hypotheses; returns which candidates these are."""
    beam, length = state.tokens.shape[1:]
    state.log_probs, kept = best.masked_fill(ends, -math.inf).topk(beam, dim=1)
    origin = parents.gather(1, kept)
    prefixes = state.tokens.gather(1, origin[:, :, None].expand(-1, -1, length))
    state.tokens = torch.cat((prefixes, tokens.gather(1, kept)[:, :, None]), dim=2)
    return kept


def is_done(state: BeamState, options: SearchOptions) -> Tensor:
    """(S,) whether nothing alive can still enter the best `nbest` of the pool; greedy search ends with the first ending."""
    if options.beam == 1:
        return ~torch.isneginf(state.pool_scores[:, 0])
    bound = state.log_probs[:, 0] / length_penalty(state.limits + 1, options.alpha)
    return (state.pool_scores[:, options.nbest - 1] >= bound) | torch.isneginf(state.log_probs[:, 0])


def hypotheses_of(state: BeamState, sentence: int, nbest: int) -> list[Hypothesis]:
    results = []
    for rank in range(nbest):
        score = float(state.pool_scores[sentence, rank])
        if score == -math.inf:
            break
        ids = state.pool_tokens[sentence, rank, : int(state.pool_lengths[sentence, rank])].tolist()
        results.append(Hypothesis(tuple(ids), float(state.pool_log_probs[sentence, rank]), score))
    return results


def keep_sentences(state: BeamState, sentences: list[int]) -> None:
    state.numbers = [state.numbers[number] for number in sentences]
    for name in ("limits", "tokens", "log_probs", "pool_tokens", "pool_lengths", "pool_log_probs", "pool_scores"):
        setattr(state, name, getattr(state, name)[sentences])


def beam_search(
    step: Step,
    select: Select,
    limits: Sequence[int],
    options: SearchOptions,
    *,
    bos_id: int,
    eos_id: int,
    forbidden: Sequence[int] = (),
    device: torch.device | str = "cpu",
    prefixes: Sequence[Prefix] = (),
    observer: Observer | None = None,
) -> list[list[Hypothesis]]:
    """Search for the best `nbest` translations of every sentence; `limits` are their greatest lengths in tokens. With `prefixes`,
    one for each sentence, translations begin with them; their log-probabilities count as any other's."""
    beam = options.beam
    state = start_state(limits, beam, torch.device(device))
    results: list[list[Hypothesis]] = [[] for _ in limits]
    newest = torch.full((len(limits) * beam,), bos_id, dtype=torch.int64, device=device)
    while state.numbers:
        log_probs = token_log_probs(step(newest), state, eos_id, forbidden, prefixes)
        best, parents, tokens = candidates(state, log_probs)
        ends = tokens == eos_id
        pooled = collect_finished(state, best, parents, ends, eos_id, options.alpha)
        kept = live_on(state, best, parents, tokens, ends)
        if observer is not None:
            observer(SearchStep(state.numbers, best, parents, tokens, pooled, state.pool_scores, kept, state.log_probs))
        rows = torch.arange(len(state.numbers), device=device)[:, None] * beam + parents.gather(1, kept)  # (S, B)
        done = is_done(state, options).tolist()
        if any(done):
            for sentence, finished in enumerate(done):
                if finished:
                    results[state.numbers[sentence]] = hypotheses_of(state, sentence, options.nbest)
            remaining = [sentence for sentence, finished in enumerate(done) if not finished]
            keep_sentences(state, remaining)
            if remaining:
                select(rows[remaining].flatten(), remaining)
        elif beam > 1:
            select(rows.flatten(), None)
        newest = state.tokens[:, :, -1].flatten()
    return results
