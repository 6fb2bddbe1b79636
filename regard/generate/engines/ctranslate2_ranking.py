"""How many hypotheses CTranslate2 is asked for, and who wins among those that it finds: as in Regard's own search."""

from __future__ import annotations

import math

from regard.generate.options import Hypothesis, SearchOptions

RawHypotheses = list[tuple[tuple[int, ...], float]]  # hypotheses of one sentence with their log-probabilities

# Times the beam: hypotheses that must have ended before a search may stop, for the best one and for a list of them. Of 5,700
# sentences, half of them far from what the model knew, torch's search found a better one for 14 at 1, 2 at 1.25, none at 1.5.
_ENDED, _ENDED_LIST = 1.5, 2.0


def number_wanted(options: SearchOptions, steps: int = 0) -> int:
    """How many CTranslate2 is asked for. Without a length penalty it stops when so many have ended and one of them was the best
    candidate of its step. In `steps` steps no more than beam * steps can end, so that it then goes on to the last."""
    if options.beam == 1:
        return 1
    if steps:
        return options.beam * steps
    if options.nbest > 1:
        return math.ceil(_ENDED_LIST * options.beam)
    return 1 if options.alpha == 0 else math.ceil(_ENDED * options.beam)


def _score(length: int, log_prob: float, alpha: float) -> float:
    """What hypotheses are ranked by; the length that counts is with the end token."""
    return float(log_prob / ((5.0 + length + 1) / 6.0) ** alpha)


def best_of(found: RawHypotheses, options: SearchOptions, number: int) -> RawHypotheses:
    return sorted(found, key=lambda one: -_score(len(one[0]), one[1], options.alpha))[:number]


def split_at_limit(found: RawHypotheses, limit: int) -> tuple[RawHypotheses, RawHypotheses]:
    """What has ended, and what was alive at the limit, whose log-probabilities do not count an end yet."""
    return [one for one in found if len(one[0]) < limit], [one for one in found if len(one[0]) == limit]


def could_win(alive: RawHypotheses, ended: RawHypotheses, options: SearchOptions) -> RawHypotheses:
    """Those alive at the limit that may be among the best: an end can only lower their scores."""
    best = best_of(ended, options, options.nbest)
    least = _score(len(best[-1][0]), best[-1][1], options.alpha) if len(best) == options.nbest else -math.inf
    return [one for one in alive if _score(len(one[0]), one[1], options.alpha) >= least]


def rank(found: RawHypotheses, options: SearchOptions) -> list[Hypothesis]:
    best = best_of(found, options, options.nbest)
    return [Hypothesis(tokens, log_prob, _score(len(tokens), log_prob, options.alpha)) for tokens, log_prob in best]
