"""From what a head says to answers: windows joined, probabilities, labels, tags of words and spans."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from regard.settings import Answer

FloatArray = NDArray[np.float32]


@dataclass(frozen=True)
class Classified:
    """The labels of one text: those that it has, and the probability of every label, the likeliest first."""

    text: str
    labels: tuple[str, ...]  # one; of several labels those above the threshold
    probabilities: dict[str, float]  # by label; empty for a number
    number: float | None = None  # in place of labels
    windows: int = 1  # in how many parts the text was read

    @property
    def label(self) -> str:
        """The one label; empty if there is none."""
        return self.labels[0] if self.labels else ""


@dataclass(frozen=True)
class Span:
    """Words with one name: those of B- and I- tags that belong together."""

    name: str
    start: int  # the first word
    stop: int  # after the last
    text: str


@dataclass(frozen=True)
class Tagged:
    """The words of a text, each with its tag and its probability; and the spans, if the tags are B- and I-."""

    text: str
    words: tuple[str, ...]
    tags: tuple[str, ...]
    probabilities: tuple[float, ...]
    spans: tuple[Span, ...] = ()
    windows: int = 1


def join_windows(windows: Sequence[FloatArray], answer: Answer) -> FloatArray:
    """The logits of a text from those of its windows: the mean of their log-probabilities. Of several labels and of numbers that is
    the mean itself."""
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
    """Of each class: softmax, or of several labels the sigmoid of each."""
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
    """Name, first word and the one after the last of each span, as conlleval finds them: an I- that continues nothing begins one.

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
