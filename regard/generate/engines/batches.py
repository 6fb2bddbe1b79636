"""What the engines have in common: sentences cut into batches, and how long a translation may be. No torch here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from regard.config import ModelConfig
from regard.errors import UserError
from regard.generate.options import Constraints, SearchOptions


def cut_batches(
    order: Sequence[int], lengths: Sequence[int], most: int, room: int, alike: bool = False
) -> Iterator[list[int]]:
    """Sentences in this order, at most so many at a time, and not more than `room` tokens, counted at the longest one's length
    with its end; `alike`: all of one length.

    >>> list(cut_batches([2, 0, 1], [3, 9, 3], most=2, room=100)), list(cut_batches([2, 0, 1], [3, 9, 3], most=9, room=12))
    ([[2, 0], [1]], [[2, 0], [1]])
    """
    batch: list[int] = []
    longest = 0
    for number in order:
        longest = max(longest, lengths[number] + 1)
        is_full = len(batch) == most or (len(batch) + 1) * longest > room
        if batch and (is_full or (alike and lengths[number] != lengths[batch[0]])):
            yield batch
            batch, longest = [], lengths[number] + 1
        batch.append(number)
    if batch:
        yield batch


def length_limit(
    sentence: Sequence[int], options: SearchOptions, config: ModelConfig, constraint: Constraints | None = None
) -> int:
    """Tokens that a translation may have at most, its end not counted: a table of learned positions has an end."""
    constraint = constraint or Constraints()
    limit = len(sentence) + options.max_extra if constraint.max_tokens is None else constraint.max_tokens
    least = len(constraint.prefix) + sum(phrase.min_length for phrase in constraint.phrases)
    limit = max(limit, least)
    if config.positions != "learned":
        return limit
    if least >= config.max_positions:
        raise UserError(
            f"a prefix and what must appear must have fewer than {config.max_positions} tokens, which is all that this model can "
            f"write, but have {least}; give less"
        )
    return min(limit, config.max_positions - 1)
