"""What the engines have in common: how sentences are batched, and how long an output may be. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from regard.bounds import MAX_REQUIRED
from regard.config import ModelConfig
from regard.errors import InputError, UserError
from regard.generate.options import Constraints, SearchOptions

_MAX_CELLS = 1 << 26  # scores of a search step, 256 MB as fp32; a search has several such tensors at a time


def cut_batches(
    order: Sequence[int],
    lengths: Sequence[int],
    max_sentences: int,
    max_tokens: int,
    same_length: bool = False,
) -> Iterator[list[int]]:
    """Batches of sentence numbers in this order, each of at most `max_sentences` and `max_tokens`, counted with padding and the
    end token; with `same_length`, each of sentences of one length.

    >>> list(cut_batches([2, 0, 1], [3, 9, 3], max_sentences=2, max_tokens=100))
    [[2, 0], [1]]
    >>> list(cut_batches([2, 0, 1], [3, 9, 3], max_sentences=9, max_tokens=12))
    [[2, 0], [1]]
    """
    batch: list[int] = []
    longest = 0
    for number in order:
        longest = max(longest, lengths[number] + 1)
        is_full = len(batch) == max_sentences or (len(batch) + 1) * longest > max_tokens
        if batch and (is_full or (same_length and lengths[number] != lengths[batch[0]])):
            yield batch
            batch, longest = [], lengths[number] + 1
        batch.append(number)
    if batch:
        yield batch


def beam_batch(options: SearchOptions, config: ModelConfig, batch: int) -> int:
    """How many sentences to search together, at most `batch`: a step scores every piece of the vocabulary for every hypothesis. A
    beam that is too wide for one sentence is refused."""
    widest = _MAX_CELLS // config.vocab_size
    if options.beam > max(1, widest):
        raise UserError(
            f"beam must be at most {widest:,} with this model's {config.vocab_size:,} pieces, but is {options.beam:,}"
        )
    return max(1, min(batch, widest // options.beam))


def check_constraints(constraints: Sequence[Constraints]) -> None:
    """Refuse more required tokens than a search can be made to write in reasonable time: each costs a step and a longer cache."""
    for constraint in constraints:
        required = len(constraint.prefix) + sum(max(map(len, phrase.variants)) for phrase in constraint.phrases)
        if required > MAX_REQUIRED:
            raise InputError(
                f"the prefix, phrases and terms of a sentence must have at most {MAX_REQUIRED:,} tokens together, but have "
                f"{required:,}; shorten them"
            )


def length_limit(
    sentence: Sequence[int],
    options: SearchOptions,
    config: ModelConfig,
    constraint: Constraints | None = None,
    context: int | None = None,
) -> int:
    """The maximum number of output tokens, not counting the end token; without an encoder, the sentence is a prompt that they
    continue, and together they have at most `context` tokens. Learned positions add a limit of the model's own."""
    constraint = constraint or Constraints()
    is_prompt = not config.encoder_layers
    longest = options.max_extra if is_prompt else len(sentence) + options.max_extra
    least = len(constraint.prefix) + sum(phrase.min_length for phrase in constraint.phrases)
    limit = max(longest if constraint.max_tokens is None else constraint.max_tokens, least)
    stack = config.decoder_stack
    table = stack.max_positions if stack is not None and stack.positions == "learned" else None
    if is_prompt:
        most = min((one for one in (table, context) if one is not None), default=None)
        return limit if most is None else min(limit, _room(len(sentence), least, most))
    if stack is None or table is None:
        return limit
    if least >= stack.max_positions:
        raise UserError(
            f"the prefix and the phrases together must have fewer than {stack.max_positions} tokens, the limit of this model, "
            f"but have {least}; shorten them"
        )
    return min(limit, stack.max_positions - 1)


def _room(prompt: int, least: int, most: int) -> int:
    """How many tokens may follow a prompt of this many, if a text has at most `most`; at least 1, and `least`."""
    if prompt >= most:
        raise InputError(
            f"a prompt must have fewer than {most:,} tokens, the limit of this model, but has {prompt:,}; shorten it"
        )
    if prompt + least > most:
        raise InputError(
            f"a prompt with the prefix and phrases that follow must have at most {most:,} tokens, the limit of this model, but "
            f"has {prompt + least:,}; shorten them"
        )
    return most - prompt
