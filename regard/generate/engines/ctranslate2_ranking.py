"""How many hypotheses to request from CTranslate2, and how to rank them as Regard's own search does."""

from __future__ import annotations

import math

from regard.generate.options import Hypothesis, SearchOptions

RawHypotheses = list[tuple[tuple[int, ...], float]]  # token ids and log-probabilities, of one sentence

# Finished hypotheses, as a multiple of the beam, before a search may stop: for the best one, and for an n-best list. On 5,700
# sentences, half of them out of domain, Regard's search found a better hypothesis for 14 at 1, for 2 at 1.25 and for none at 1.5.
_PATIENCE, _NBEST_PATIENCE = 1.5, 2.0


def number_wanted(options: SearchOptions, steps: int = 0) -> int:
    """How many hypotheses to request. Without a length penalty of its own, CTranslate2 stops when this many have finished and one
    of them was the best candidate of its step. With `steps`, more are requested than can finish, so that it uses all steps."""
    if options.beam == 1:
        return 1
    if steps:
        return options.beam * steps
    if options.nbest > 1:
        return math.ceil(_NBEST_PATIENCE * options.beam)
    return 1 if options.alpha == 0 else math.ceil(_PATIENCE * options.beam)


def _score(length: int, log_prob: float, alpha: float) -> float:
    """Log-probability under the length penalty, which counts the end token."""
    return float(log_prob / ((5.0 + length + 1) / 6.0) ** alpha)


def best_of(hypotheses: RawHypotheses, options: SearchOptions, number: int) -> RawHypotheses:
    """The best `number`, best first."""
    return sorted(hypotheses, key=lambda one: -_score(len(one[0]), one[1], options.alpha))[:number]


def split_at_limit(hypotheses: RawHypotheses, limit: int) -> tuple[RawHypotheses, RawHypotheses]:
    """Finished hypotheses, and those still alive at the limit, whose log-probabilities do not include an end token yet."""
    return [one for one in hypotheses if len(one[0]) < limit], [one for one in hypotheses if len(one[0]) == limit]


def could_win(alive: RawHypotheses, finished: RawHypotheses, options: SearchOptions) -> RawHypotheses:
    """Those alive at the limit that may still be among the best: the end token can only lower their scores."""
    best = best_of(finished, options, options.nbest)
    threshold = _score(len(best[-1][0]), best[-1][1], options.alpha) if len(best) == options.nbest else -math.inf
    return [one for one in alive if _score(len(one[0]), one[1], options.alpha) >= threshold]


def rank(hypotheses: RawHypotheses, options: SearchOptions) -> list[Hypothesis]:
    """The best `nbest`, with their scores."""
    best = best_of(hypotheses, options, options.nbest)
    return [Hypothesis(tokens, log_prob, _score(len(tokens), log_prob, options.alpha)) for tokens, log_prob in best]
