"""Turns the outputs of a head into answers: joins windows, computes probabilities, finds labels, tags and spans."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from regard.settings import Answer

FloatArray = NDArray[np.float32]


@dataclass(frozen=True)
class Classified:
    """The labels that one text was given, and the probability of every label, most likely first."""

    text: str
    labels: tuple[str, ...]  # one; with several labels, those at or above the threshold
    probabilities: dict[str, float]  # by label; empty if the model gives a number
    number: float | None = None  # instead of labels
    windows: int = 1  # that the text was read in

    @property
    def label(self) -> str:
        """The first label; empty if there is none."""
        return self.labels[0] if self.labels else ""


@dataclass(frozen=True)
class Span:
    """A run of words with one name, from B- and I- tags."""

    name: str
    start: int  # the first word
    stop: int  # after the last
    text: str


@dataclass(frozen=True)
class Tagged:
    """The words of a text, the tag of each with its probability, and the spans if there are B- and I- tags."""

    text: str
    words: tuple[str, ...]
    tags: tuple[str, ...]
    probabilities: tuple[float, ...]
    spans: tuple[Span, ...] = ()
    windows: int = 1


def join_windows(windows: Sequence[FloatArray], answer: Answer) -> FloatArray:
    """The logits of a text from those of its windows: for one label the mean of their log-probabilities, for several labels and for
    numbers the mean of the logits."""
    logits = np.stack([np.asarray(one, np.float32) for one in windows])
    if answer == "one" and len(logits) > 1:
        logits = log_softmax(logits)
    joined: FloatArray = logits.mean(axis=0)
    return joined


def log_softmax(logits: FloatArray) -> FloatArray:
    """Over the last dimension."""
    shifted = logits - logits.max(axis=-1, keepdims=True)
    found: FloatArray = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return found


def probabilities(logits: FloatArray, answer: Answer) -> FloatArray:
    """The probability of each class: a softmax, or for several labels a sigmoid each."""
    if answer == "several":
        found: FloatArray = 0.5 * (1.0 + np.tanh(0.5 * logits))
        return found
    return np.exp(log_softmax(logits))


def has_spans(labels: Sequence[str]) -> bool:
    """Whether tags mark spans: each is O, B-NAME or I-NAME, and some begin a span.

    >>> has_spans(["O", "B-PER", "I-PER"]), has_spans(["NOUN", "VERB"])
    (True, False)
    """
    return any(label.startswith("B-") for label in labels) and all(
        label == "O" or label[:2] in ("B-", "I-") for label in labels
    )


def find_spans(tags: Sequence[str]) -> list[tuple[str, int, int]]:
    """(name, start, stop) of each span, as conlleval finds them: an I- tag that continues no span begins one.

    >>> find_spans(["B-PER", "I-PER", "O", "I-LOC", "B-LOC"])
    [('PER', 0, 2), ('LOC', 3, 4), ('LOC', 4, 5)]
    """
    spans: list[tuple[str, int, int]] = []
    name, start = "", 0
    for place, tag in enumerate([*tags, "O"]):
        prefix, _, now = tag.partition("-") if tag != "O" else ("", "", "")
        if name and (prefix != "I" or now != name):
            spans.append((name, start, place))
            name = ""
        if prefix and not name:
            name, start = now, place
    return spans
