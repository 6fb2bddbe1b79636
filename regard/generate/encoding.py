"""What engines for models without a decoder take and give: token ids in, what the head says of them out. No torch here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from regard.generate.options import OnFinished
from regard.progress import OnProgress
from regard.settings import HeadKind

Answer = NDArray[Any]  # float32
Answers = list[Answer] | NDArray[Any]  # one for each input: the rows of one array where all have the same shape


@dataclass(frozen=True)
class EncoderInput:
    """One sequence, framed as the model was trained to read it (`Tokenizer.frame`)."""

    ids: Sequence[int]
    types: Sequence[int] = ()  # the kind of each token; empty: all of kind 0
    places: Sequence[int] = ()  # with a head of tokens: where their logits are wanted

    def __len__(self) -> int:
        return len(self.ids)


class EncoderEngine(Protocol):
    """Runs an encoder and its head. The answer to each input depends on its head:

    vector    (d_model,), not yet scaled to length 1: parts of a long text are joined before that
    classes   (classes,) logits
    tags      (tokens, tags) logits
    tokens    (places, vocab_size) logits
    """

    batch: int  # most sequences computed together
    parallel: int  # calls of `answers` worth running at once, each in its own thread
    max_length: int  # tokens of a sequence, with those that frame it

    def answers(self, inputs: Sequence[EncoderInput], on_finished: OnFinished | None = None) -> Answers:
        """The answer to each input, in their order. It does not depend on what else is asked for, but for rounding."""
        ...


def counting(on_progress: OnProgress | None) -> OnFinished | None:
    """Calls `on_progress` with the number of inputs newly done."""
    return None if on_progress is None else lambda numbers: on_progress(len(numbers))


def no_answers(count: int, kind: HeadKind, width: int) -> Answers:
    """Room for `count` answers of a head, each of `width` numbers where they all have the same shape."""
    if kind in ("vector", "classes"):
        return np.empty((count, width), np.float32)
    return [np.empty(0, np.float32)] * count


def put_answers(found: Answers, numbers: Sequence[int], answers: Answers) -> None:
    """Put the answers of a batch, the inputs of these numbers, into their places in what `no_answers` made."""
    if isinstance(found, np.ndarray):
        found[numbers] = answers
        return
    for number, answer in zip(numbers, answers, strict=True):
        found[number] = answer


def token_batches(lengths: Sequence[int], most: int, most_tokens: int) -> Iterator[list[int]]:
    """Batches of sequence numbers, the longest sequences first: at most `most` in one, and `most_tokens`, counted with padding.

    >>> list(token_batches([3, 9, 4, 3], most=9, most_tokens=12))
    [[1], [2, 0, 3]]
    """
    order = sorted(range(len(lengths)), key=lambda number: -lengths[number])
    first = 0
    while first < len(order):
        longest = max(1, lengths[order[first]])
        last = first + max(1, min(most, most_tokens // longest))
        yield order[first:last]
        first = last
