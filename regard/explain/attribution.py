"""Integrated gradients (Sundararajan et al., 2017): how much each token of a text moved a number that a model computes.

The embeddings of the tokens go in a straight line from a baseline to the text; the gradient along the way, times the way, is each
token's part. The parts sum to the difference of the number between text and baseline (completeness), so the integral checks itself:
a piece of the way whose sum is off is halved.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

TOLERANCE = 0.01  # of the difference, and at least that much
_POINTS = 5  # of Gauss-Legendre quadrature on each piece of the way
# Pieces that are computed, by the tokens of the text; what is still off then is reported.
_MOST_PIECES, _FEWEST_PIECES, _PIECE_TOKENS = 24, 5, 3_000
_COPY_TOKENS = 1_024  # that are computed at once
_SHORTEST = 1 / 8  # a piece may be off by its share of the tolerance, and by the share of one this long

Measure = Callable[
    [Tensor], Tensor
]  # embeddings of copies of a text, (copies, tokens, width) -> numbers, (copies, values)


@dataclass(frozen=True)
class IntegratedGradients:
    """The part of each token in each value, (values, tokens), and the values of the text and of the baseline, (values,)."""

    parts: Tensor
    values: Tensor
    baseline: Tensor

    @property
    def error(self) -> Tensor:
        """How much the parts miss the difference that they should sum to, (values,)."""
        return (self.parts.sum(1) - (self.values - self.baseline)).abs()


def integrated_gradients(measure: Measure, embedded: Tensor, baseline: Tensor) -> IntegratedGradients:
    """The parts of tokens with embeddings (tokens, width), against a baseline of the same shape."""
    way = embedded - baseline
    known: dict[float, Tensor] = {}

    def value_at(place: float) -> Tensor:
        if place not in known:
            with torch.no_grad():
                known[place] = measure((baseline + place * way)[None])[0]
        return known[place]

    with torch.inference_mode(False):
        embedded, baseline, way = embedded.clone(), baseline.clone(), way.clone()
        first, last = value_at(0.0), value_at(1.0)
        tolerance = TOLERANCE * (last - first).abs().clamp_min(1.0)
        parts = torch.zeros(len(first), len(embedded))
        waiting, computed = [(0.0, 1.0)], 0
        most = min(_MOST_PIECES, max(_FEWEST_PIECES, _PIECE_TOKENS // len(embedded)))
        while waiting:
            start, stop = waiting.pop(0)
            found = _piece(measure, baseline, way, start, stop)
            computed += 1
            off = (found.sum(1) - (value_at(stop) - value_at(start))).abs()
            is_near = bool((off <= tolerance * max(stop - start, _SHORTEST)).all())
            if is_near or computed + len(waiting) + 2 > most:
                parts += found
            else:
                middle = (start + stop) / 2
                waiting += [(start, middle), (middle, stop)]
    return IntegratedGradients(parts, last, first)


def _piece(measure: Measure, baseline: Tensor, way: Tensor, start: float, stop: float) -> Tensor:
    """The parts on one piece of the way, (values, tokens)."""
    nodes, shares = (torch.tensor(some, dtype=torch.float32) for some in np.polynomial.legendre.leggauss(_POINTS))
    places = start + (stop - start) * (nodes + 1) / 2
    shares = shares * (stop - start) / 2
    copies = max(1, _COPY_TOKENS // len(way))
    found = zip(places.split(copies), shares.split(copies), strict=True)
    return torch.stack([_at_points(measure, baseline, way, *some) for some in found]).sum(0)


def _at_points(measure: Measure, baseline: Tensor, way: Tensor, places: Tensor, shares: Tensor) -> Tensor:
    """The parts from the gradients at some places of the way, (values, tokens)."""
    with torch.enable_grad():
        vectors = (baseline + places[:, None, None] * way).requires_grad_()
        values = measure(vectors)
        parts = []
        for number in range(values.shape[1]):
            [gradient] = torch.autograd.grad(values[:, number].sum(), vectors, retain_graph=True)
            # (points, tokens, width) -> (tokens,)
            parts.append(torch.einsum("p,ptw,tw->t", shares, gradient, way))
    return torch.stack(parts)


def log_odds(logits: Tensor, number: int) -> Tensor:
    """log(p / (1 - p)) of one class among others, (..., classes) -> (...): its logit against all others together. Softmax
    saturates where a model is sure, and log-odds do not."""
    others = torch.cat((logits[..., :number], logits[..., number + 1 :]), dim=-1)
    return logits[..., number] - others.logsumexp(-1)
