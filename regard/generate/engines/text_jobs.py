"""Shared by the engines that continue texts without torch: prompts with their limits, and the resulting hypotheses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from regard.bundle import Bundle
from regard.errors import InputError, UserError
from regard.generate.engines.batches import length_limit
from regard.generate.options import Constraints, Hypothesis, SearchOptions


@dataclass(frozen=True)
class TextJob:
    """One prompt to continue."""

    number: int
    prompt: tuple[int, ...]  # with its forced prefix
    prefix: tuple[int, ...]
    limit: int  # tokens that may follow the prefix
    ends: Callable[[Sequence[int]], bool] | None


def make_job(bundle: Bundle, number: int, prompt: Sequence[int], wish: Constraints, options: SearchOptions) -> TextJob:
    """The job of a non-empty prompt and a prefix without alternatives."""
    prefix = tuple(one for one in wish.prefix if isinstance(one, int))
    limit = length_limit(prompt, options, bundle.config, wish, bundle.max_length)
    return TextJob(number, (*prompt, *prefix), prefix, limit - len(prefix), wish.ends)


def opened(prompts: Sequence[Sequence[int]], first: int) -> list[Sequence[int]]:
    """Prompts, with empty ones replaced by the token that begins a text (-1 if there is none)."""
    if first < 0 and not all(prompts):
        raise UserError("a prompt must not be empty with this model, which has no token that begins a text")
    return [prompt or (first,) for prompt in prompts]


def make_hypothesis(job: TextJob, ids: Sequence[int], log_prob: float, options: SearchOptions) -> Hypothesis:
    """The hypothesis of the prefix and these tokens; `log_prob` includes the prefix."""
    ended = len(ids) < job.limit
    tokens = (*job.prefix, *ids)
    length = len(tokens) + (1 if ended else 0)
    return Hypothesis(tokens, log_prob, float(log_prob / ((5.0 + length) / 6.0) ** options.alpha), ended)


def check_length(texts: Sequence[Sequence[int]], most: int) -> None:
    """Refuse texts that, with their prompts, exceed the table of positions."""
    longest = max(map(len, texts), default=0)
    if longest > most:
        raise InputError(
            f"a text with its prompt must have at most {most:,} tokens, the limit of this model, but has {longest:,}; shorten it"
        )
