"""The options of generation as people give them, checked. Does not import torch."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from regard.arguments import check_text, check_texts
from regard.bounds import MAX_BEAM, MAX_EXTRA, MAX_TEMPERATURE, check_number, check_whole
from regard.errors import UserError
from regard.generate.options import SearchOptions, refuse_unknown

TEMPERATURE = 0.8  # the default: at 1, small models drift
TOP_P = 0.95
MAX_TOKENS = 200
MAX_STOPS = 16
MAX_STOP_CHARACTERS = 256  # of each: the text is compared with all of them after every token
_SEEDS = 1 << 31

_OF_SAMPLES = ("temperature", "top_k", "top_p", "min_p", "seed")
_OF_BEAMS = ("alpha", "groups", "diversity")
_NAMED = ("max_tokens", "n", "beam", "stop", "prefix", "phrases", "token_log_probs")
_OF_BOTH = ("repetition_penalty", "no_repeat", "max_repeat")


@dataclass(frozen=True)
class WritingOptions:
    """How to continue a prompt."""

    search: SearchOptions
    stop: tuple[str, ...] = ()  # the text ends before the first of these
    prefix: str = ""  # how the text begins
    phrases: tuple[str, ...] = ()  # must appear in the text, as whole words
    token_log_probs: bool = False  # report the log-probability of each token


def writing_options(
    *,
    max_tokens: int = MAX_TOKENS,
    n: int = 1,
    beam: int | None = None,
    stop: str | Sequence[str] = (),
    prefix: str = "",
    phrases: Sequence[str] = (),
    token_log_probs: bool = False,
    **search: Any,
) -> WritingOptions:
    """Options from keyword arguments: `n` samples; greedy search at temperature 0; or, with `beam`, the `n` best of a beam search.
    Without a seed, one is drawn.

    >>> writing_options(temperature=0).search.sample, writing_options(n=3).search.nbest
    (False, 3)
    """
    refuse_unknown(search, (*_OF_SAMPLES, *_OF_BEAMS, *_OF_BOTH, *_NAMED))
    check_whole("max_tokens", max_tokens, 1, MAX_EXTRA)
    check_whole("n", n, 1, MAX_BEAM)
    if beam is not None:
        check_whole("beam", beam, 1, MAX_BEAM)
    given = {name: value for name, value in search.items() if value is not None}
    if "temperature" in given:
        check_number("temperature", given["temperature"], 0, MAX_TEMPERATURE)
    is_greedy = beam is None and given.get("temperature") == 0
    if beam is not None or is_greedy:
        chosen = _without_samples(given, n, beam)
    else:
        if wrong := [name for name in _OF_BEAMS if name in given]:
            raise UserError(f"{wrong[0]} needs a beam; set beam, or leave it out")
        chosen = {"temperature": TEMPERATURE, "top_p": TOP_P, "seed": random.randrange(_SEEDS), **given}
        chosen |= {"sample": True, "beam": n}
    options = SearchOptions(**{"alpha": 0.0, **chosen, "nbest": n, "max_extra": max_tokens})
    wanted = tuple(check_texts("phrases", phrases))
    return WritingOptions(options, _checked_stops(stop), check_text("prefix", prefix), wanted, token_log_probs)


def _without_samples(given: dict[str, Any], n: int, beam: int | None) -> dict[str, Any]:
    """The settings of a beam search, or of greedy search if `beam` is None."""
    wrong = [name for name in _OF_SAMPLES if name in given and not (beam is None and name in ("temperature", "seed"))]
    if wrong:
        instead = "temperature 0 takes the likeliest token each time" if beam is None else "a beam search draws none"
        raise UserError(f"{wrong[0]} is for samples, but {instead}; leave one of them out")
    if beam is None and n > 1:
        raise UserError(
            f"n must be 1 at temperature 0, since all samples would be equal, but is {n}; set a beam or a temperature"
        )
    if beam is not None and n > beam:
        raise UserError(f"n must be at most the beam ({beam}), but is {n}; use a wider beam")
    kept = {name: value for name, value in given.items() if name not in _OF_SAMPLES}
    return {"alpha": 0.6 if beam else 0.0, **kept, "beam": beam or 1}


def _checked_stops(stop: str | Sequence[str]) -> tuple[str, ...]:
    stops = (check_text("stop", stop),) if isinstance(stop, str) else tuple(check_texts("stop", stop))
    if len(stops) > MAX_STOPS:
        raise UserError(f"stop must have at most {MAX_STOPS} texts, but has {len(stops)}")
    if any(len(one) > MAX_STOP_CHARACTERS for one in stops):
        raise UserError(f"stop must have texts of at most {MAX_STOP_CHARACTERS} characters; give the beginning of each")
    if not all(stops):
        raise UserError("stop must not be empty; leave it out, and texts end where the model ends them")
    return stops
