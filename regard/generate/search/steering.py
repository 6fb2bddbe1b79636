"""Steering a search towards phrases that must appear: how far each hypothesis is, where phrases belong, and the automata's next
states. The tokens themselves are required in `allowed.py`, and hypotheses that are further and less far share the beam in
`candidates.py`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from regard.generate.search.candidates import PhraseProgress
from regard.generate.search.phrases import PhraseAutomaton
from regard.generate.search.state import BeamState, SearchSpec

ATTENTION_MAJORITY = 0.5  # a lone hypothesis starts a phrase when more attention than this is on the phrase's source


def phrase_progress(state: BeamState, spec: SearchSpec, vocab_size: int) -> PhraseProgress:
    """How many tokens the phrases of each hypothesis still need, now and after every possible token."""
    assert state.phrase_states is not None and state.overdue is not None
    missing = torch.zeros(state.phrase_states.shape, dtype=torch.int16)
    missing_after = torch.zeros((*missing.shape, vocab_size), dtype=torch.int16)
    for unit, (number, row_states) in enumerate(zip(state.sentences, state.phrase_states.tolist(), strict=True)):
        if (phrases := spec.phrases[number]) is not None:
            for row, phrase_state in enumerate(row_states):
                missing[unit, row] = phrases.missing(phrase_state)
                missing_after[unit, row] = torch.from_numpy(phrases.missing_after(phrase_state, vocab_size))
    missing_after[:, :, spec.eos_id] = missing
    device = state.phrase_states.device
    missing, missing_after = missing.to(device), missing_after.to(device)
    advances = missing_after < missing[:, :, None]
    return PhraseProgress(missing, missing_after, state.overdue.clone(), advances, torch.zeros_like(state.overdue))


def steer_phrases(
    progress: PhraseProgress, state: BeamState, spec: SearchSpec, log_probs: Tensor, unmasked: Tensor
) -> None:
    """Mark the hypotheses that are overdue, and start phrases where they belong: a phrase that translates given source tokens
    starts where one of them gets the most attention or, if that never happens, once the hypothesis is overdue or the places
    left are just enough."""
    assert state.phrase_states is not None
    length = state.tokens.shape[2]
    others = log_probs.clone()
    others[:, :, spec.eos_id] = -math.inf
    wants_to_end = (unmasked[:, :, spec.eos_id] > others.amax(dim=2)) & (progress.missing > 0)
    is_free = [not spec.prefixes or length >= len(spec.prefixes[number]) for number in state.sentences]
    wants_to_end &= torch.tensor(is_free, device=wants_to_end.device)[:, None]
    progress.overdue |= wants_to_end
    is_late = (progress.overdue | (progress.missing >= (state.limits - length)[:, None])).tolist()
    weights = None if spec.attention is None else spec.attention().view(*state.phrase_states.shape, -1)
    for unit, (number, row_states) in enumerate(zip(state.sentences, state.phrase_states.tolist(), strict=True)):
        phrases = spec.phrases[number]
        if phrases is None or not is_free[unit]:
            continue
        shares, attended = [0.0] * len(row_states), [-1] * len(row_states)
        if weights is not None and phrases.has_sources:
            shares, attended = (values.tolist() for values in weights[unit, :, : len(spec.src[number])].max(dim=1))
        for row, phrase_state in enumerate(row_states):
            here, elsewhere = phrases.starts_at(phrase_state, attended[row])
            if not is_late[unit][row] and attended[row] >= 0:
                progress.advances[unit, row, list(elsewhere)] = False
            if state.steered is not None:
                due = here if shares[row] > ATTENTION_MAJORITY and not is_late[unit][row] else frozenset()
                steer_alone(progress, state.steered, spec, log_probs, (unit, row), phrases, phrase_state, due)


def steer_alone(
    progress: PhraseProgress,
    steered: Tensor,
    spec: SearchSpec,
    log_probs: Tensor,
    which: tuple[int, int],
    phrases: PhraseAutomaton,
    phrase_state: int,
    due: frozenset[int],
) -> None:
    """A lone hypothesis has no others in its beam to try out places with. So it is made to continue a phrase that it was made to
    start, then to end the word, and to start a phrase that is due."""
    continuations = phrases.continuations(phrase_state) if steered[which] else frozenset()
    followers = phrases.followers(phrase_state) if steered[which] else frozenset()
    choices = ((continuations, True), (followers and followers | {spec.eos_id}, False), (due, True))
    for tokens, is_in_phrase in choices:
        values = log_probs[which][list(tokens)]
        if tokens and not bool(torch.isneginf(values).all()):
            log_probs[which] = -math.inf
            log_probs[which][list(tokens)] = values
            progress.steered[which] = is_in_phrase
            return


def advance_phrases(states: Tensor, tokens: Tensor, sentences: Sequence[int], spec: SearchSpec) -> Tensor:
    """The states of the phrase automata after one more token, all (U, W)."""
    rows = []
    for number, row_states, row_tokens in zip(sentences, states.tolist(), tokens.tolist(), strict=True):
        phrases = spec.phrases[number]
        pairs = zip(row_states, row_tokens, strict=True)
        rows.append([state if phrases is None else phrases.after(state, token) for state, token in pairs])
    return torch.tensor(rows, device=states.device)
