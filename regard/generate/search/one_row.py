"""The next token of one text without torch: the rules of `allowed.py` and the draw of `sampling.py` with numpy, for a single row
and options without a beam."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.generate.options import SearchOptions
from regard.generate.search.order import likeliest_places

_Array = NDArray[Any]

MAX_LOOP_TOKENS = 8  # as in `allowed.py`
_FEW = 1024  # tokens that are sorted before all are: `top_p` mostly needs fewer


@dataclass(frozen=True)
class TokenRules:
    """What holds for every text of a model: tokens that end it, and tokens that it may not contain."""

    ends: tuple[int, ...]
    forbidden: tuple[int, ...]


def next_token(
    logits: _Array, text: Sequence[int], options: SearchOptions, rules: TokenRules, uniform: float, forced: int | None
) -> tuple[int, float]:
    """The next token and its log-probability, from logits (V,), which are changed. `text` is the prompt and what follows so far;
    `uniform`, in [0, 1), is for sampling; a `forced` token is taken whatever the rules say."""
    if options.repetition_penalty != 1.0:
        _penalise(logits, text, options.repetition_penalty)
    log_probs = _normalise(logits)
    _merge_ends(log_probs, rules.ends, options.sample)
    if forced is not None:
        return forced, float(log_probs[forced])
    if rules.forbidden:
        log_probs[list(rules.forbidden)] = -np.inf
    _forbid_repetition(log_probs, text, options, rules)
    token = _draw(log_probs, uniform, options) if options.sample else int(log_probs.argmax())
    return token, float(log_probs[token])


def _normalise(logits: _Array) -> _Array:
    """Logits (V,) as log-probabilities, in place, with the roundings of torch's log_softmax: what is equal there is equal here."""
    largest = logits.max()
    if np.isfinite(largest):
        logits -= largest
        logits -= np.float32(math.log(float(np.exp(logits).sum())))
    else:
        logits[:] = np.nan
    return logits


def _penalise(logits: _Array, text: Sequence[int], penalty: float) -> None:
    seen = np.unique(np.asarray(text, dtype=np.int64))
    values = logits[seen]
    logits[seen] = np.where(values > 0, values / np.float32(penalty), values * np.float32(penalty))


def _merge_ends(log_probs: _Array, ends: Sequence[int], is_sampled: bool) -> None:
    """Make the first end token stand for all: as likely as the likeliest, or to draw from as likely as all of them together."""
    if len(ends) < 2:
        return
    values = log_probs[list(ends)]
    largest = values.max()
    merged = largest + np.log(np.exp(values - largest).sum()) if is_sampled and np.isfinite(largest) else largest
    log_probs[list(ends)] = -np.inf
    log_probs[ends[0]] = merged


def _forbid_repetition(log_probs: _Array, text: Sequence[int], options: SearchOptions, rules: TokenRules) -> None:
    repeated = {
        *(_ngram_ends(text, options.no_repeat) if options.no_repeat else ()),
        *(_loop_ends(text, options.max_repeat) if options.max_repeat else ()),
    }.difference(rules.ends[:1])  # a prompt may have end tokens: they do not keep the output from ending
    if repeated:
        log_probs[list(repeated)] = -np.inf


def _ngram_ends(text: Sequence[int], n: int) -> set[int]:
    """Tokens that would repeat n tokens of the text.

    >>> _ngram_ends([1, 2, 3, 1, 2], 3)
    {3}
    """
    newest = tuple(text[len(text) - n + 1 :])
    return {text[i + n - 1] for i in range(len(text) - n + 1) if tuple(text[i : i + n - 1]) == newest}


def _loop_ends(text: Sequence[int], times: int) -> set[int]:
    """Tokens that would repeat the newest ones more than `times` times in a row.

    >>> _loop_ends([7, 5, 5], 2)
    {5}
    """
    found = set()
    for n in range(1, MAX_LOOP_TOKENS + 1):
        newest = text[len(text) - (n * (times + 1) - 1) :] if len(text) >= n * (times + 1) - 1 else ()
        if newest and tuple(newest[n:]) == tuple(newest[: len(newest) - n]):
            found.add(text[len(text) - n])
    return found


def _draw(log_probs: _Array, uniform: float, options: SearchOptions) -> int:
    """As `sampling.draw`: inverts the cumulative distribution over the tokens in the order of `order.py`."""
    scaled = log_probs.astype(np.float64) / options.temperature
    count = min(options.top_k or len(scaled), len(scaled))
    tokens = likeliest_places(scaled, count if count < len(scaled) else _FEW)
    if count < len(scaled):
        probs = _softmax(scaled[tokens])
    else:
        probs = _softmax(scaled)
        if probs[tokens].sum() <= options.top_p:  # more than a few are needed
            tokens = likeliest_places(scaled, len(scaled))
        probs = probs[tokens]
    # top_p keeps the likeliest tokens, up to and including the one that reaches it.
    probs = np.where(np.cumsum(probs) - probs >= options.top_p, 0.0, probs)
    if options.min_p:
        probs = np.where(probs < options.min_p * probs[0], 0.0, probs)
    cumulative = np.cumsum(probs)
    place = int((cumulative <= uniform * cumulative[-1]).sum())
    return int(tokens[min(place, max(0, int((probs > 0).sum()) - 1))])


def _softmax(values: _Array) -> _Array:
    exponentials: _Array = np.exp(values - values.max())
    probs: _Array = exponentials / exponentials.sum()
    return probs
