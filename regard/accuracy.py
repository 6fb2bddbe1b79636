"""Scores of labels: accuracy, F1, correlations and calibration, with plain numpy. Running models is left to the callers."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.data.arrays import Int64Array
from regard.evaluate import Metric, Scores

FloatArray = NDArray[np.float64]
Spans = Sequence[tuple[str, int, int]]
CALIBRATION_BINS = 10


def score_one(predicted: Int64Array, wanted: Int64Array, labels: Sequence[str], loss: float | None = None) -> Scores:
    """Accuracy with its 95% interval, and macro F1, the mean over the labels that occur."""
    share = float(np.mean(predicted == wanted))
    metrics = [_accuracy(share, len(wanted), f"labels:{len(labels)}|texts:{len(wanted)}")]
    macro = macro_f1(scores_by_label(predicted, wanted, labels))
    metrics.append(Metric("macro F1", macro, f"labels:{len(labels)}|mean:occurring"))
    return Scores((*metrics, *_loss(loss, len(wanted))), len(wanted))


def score_tags(
    predicted: Sequence[Sequence[str]], wanted: Sequence[Sequence[str]], spans: Sequence[tuple[Spans, Spans]] | None,
    labels: Sequence[str], loss: float | None = None,
) -> Scores:  # fmt: skip
    """F1 of spans, of the predicted and the wanted ones of each sentence, if there are some; and the accuracy of the tags."""
    numbers = {label: number for number, label in enumerate(labels)}
    found, right = (np.array([numbers[tag] for tags in side for tag in tags], np.int64) for side in (predicted, wanted))
    words = len(right)
    share = float(np.mean(found == right)) if words else 0.0
    metrics = [_accuracy(share, words, f"tags:{len(labels)}|words:{words}")]
    if spans is None:
        macro = macro_f1(scores_by_label(found, right, labels))
        metrics.append(Metric("macro F1", macro, f"tags:{len(labels)}|mean:occurring"))
    else:
        every = total(spans_by_label(spans))
        signature = f"spans:{every.given}|found:{every.found}|right:{every.right}|match:exact"
        metrics.insert(0, Metric("F1", every.f1, signature))
    return Scores((*metrics, *_loss(loss, words)), len(wanted))


def score_several(predicted: NDArray[np.bool_], wanted: NDArray[np.bool_], loss: float | None = None) -> Scores:
    """F1 over all labels of all texts, macro F1, and the share of texts with exactly the right labels."""
    texts, labels = wanted.shape
    by_label = scores_of_several(predicted, wanted, [""] * labels)
    exact = float(np.mean((predicted == wanted).all(axis=1)))
    metrics = (
        Metric("F1", total(by_label).f1, f"labels:{labels}|mean:micro"),
        Metric("macro F1", macro_f1(by_label), f"labels:{labels}|mean:occurring"),
        _accuracy(exact, texts, f"texts:{texts}|match:all labels"),
    )
    return Scores((*metrics, *_loss(loss, texts)), texts)


def score_numbers(predicted: FloatArray, wanted: FloatArray, loss: float | None = None) -> Scores:
    """Spearman's and Pearson's correlation, times 100."""
    signature = f"texts:{len(wanted)}"
    metrics = (
        Metric("Spearman", 100 * spearman(predicted, wanted), signature),
        Metric("Pearson", 100 * pearson(predicted, wanted), signature),
    )
    return Scores((*metrics, *_loss(loss, len(wanted), "mean squared error")), len(wanted))


def _accuracy(share: float, count: int, signature: str) -> Metric:
    """With half of its 95% interval, by the normal approximation."""
    half = 1.96 * math.sqrt(share * (1 - share) / max(1, count))
    return Metric("accuracy", 100 * share, signature, 100 * share, 100 * half)


def _loss(loss: float | None, count: int, what: str = "nats") -> list[Metric]:
    return [] if loss is None else [Metric("loss", loss, f"{what}|count:{count}")]


def f1(right: float, found: float, given: float) -> float:
    """Times 100; 0 where there is nothing.

    >>> f1(right=1, found=2, given=2)
    50.0
    """
    return 200.0 * float(right) / float(found + given) if found + given else 0.0


@dataclass(frozen=True)
class LabelScore:
    """How well one label is found: how often it is the right one, how often it was the answer, and how often it was both."""

    label: str
    given: int
    found: int
    right: int

    @property
    def precision(self) -> float:
        return 100.0 * self.right / self.found if self.found else 0.0

    @property
    def recall(self) -> float:
        return 100.0 * self.right / self.given if self.given else 0.0

    @property
    def f1(self) -> float:
        return f1(self.right, self.found, self.given)

    def to_json(self) -> dict[str, Any]:
        scores = {"precision": self.precision, "recall": self.recall, "f1": self.f1}
        return {"label": self.label, "count": self.given, "found": self.found, "right": self.right} | scores


def scores_by_label(predicted: Int64Array, wanted: Int64Array, labels: Sequence[str]) -> list[LabelScore]:
    """Of texts or words with one label each; a label that occurs on neither side is left out."""
    size = len(labels)
    given, found = np.bincount(wanted, minlength=size), np.bincount(predicted, minlength=size)
    return _label_scores(labels, given, found, np.bincount(wanted[predicted == wanted], minlength=size))


def scores_of_several(
    predicted: NDArray[np.bool_], wanted: NDArray[np.bool_], labels: Sequence[str]
) -> list[LabelScore]:
    """Of texts with any number of labels; a label that occurs on neither side is left out."""
    return _label_scores(labels, wanted.sum(axis=0), predicted.sum(axis=0), (predicted & wanted).sum(axis=0))


def _label_scores(labels: Sequence[str], *counts: Int64Array) -> list[LabelScore]:
    rows = zip(labels, *(each.tolist() for each in counts), strict=True)
    return [LabelScore(label, given, found, right) for label, given, found, right in rows if given or found]


def spans_by_label(spans: Sequence[tuple[Spans, Spans]]) -> list[LabelScore]:
    """Of the predicted and the wanted spans of each sentence, by name."""
    found = Counter(span[0] for one, _ in spans for span in one)
    given = Counter(span[0] for _, other in spans for span in other)
    right = Counter(span[0] for one, other in spans for span in set(one) & set(other))
    names = sorted(found | given)
    return [LabelScore(name, given[name], found[name], right[name]) for name in names]


def total(scores: Sequence[LabelScore]) -> LabelScore:
    """All labels taken together."""
    return LabelScore("", *(sum(getattr(one, name) for one in scores) for name in ("given", "found", "right")))


def macro_f1(scores: Sequence[LabelScore]) -> float:
    """The mean over the labels that occur."""
    return float(np.mean([one.f1 for one in scores])) if scores else 0.0


def pearson(a: FloatArray, b: FloatArray) -> float:
    a, b = np.asarray(a, np.float64) - np.mean(a), np.asarray(b, np.float64) - np.mean(b)
    size = math.sqrt(float(a @ a) * float(b @ b))
    return float(a @ b) / size if size > 0 else 0.0


def spearman(a: FloatArray, b: FloatArray) -> float:
    """Pearson's correlation of the ranks; equal values share theirs.

    >>> round(spearman(np.array([1.0, 2.0, 3.0, 3.0]), np.array([10.0, 30.0, 20.0, 40.0])), 4)
    0.6325
    """
    return pearson(ranks(a), ranks(b))


def ranks(values: FloatArray) -> FloatArray:
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    found: FloatArray = (ends - (counts - 1) / 2)[places]
    return found


@dataclass(frozen=True)
class CalibrationBin:
    """Answers of about the same confidence: how sure the model was on average, and how often it was right."""

    count: int
    confidence: float
    accuracy: float


def calibration(confidence: FloatArray, right: NDArray[np.bool_]) -> tuple[list[CalibrationBin], float]:
    """Bins of equal width, those that hold something, and the expected calibration error: the mean difference between how sure the
    model was and how often it was right."""
    places = np.clip((np.asarray(confidence) * CALIBRATION_BINS).astype(np.int64), 0, CALIBRATION_BINS - 1)
    bins = []
    for number in range(CALIBRATION_BINS):
        chosen = places == number
        if chosen.any():
            bins.append(
                CalibrationBin(int(chosen.sum()), float(confidence[chosen].mean()), float(right[chosen].mean()))
            )
    total = sum(one.count for one in bins)
    return bins, sum(one.count * abs(one.confidence - one.accuracy) for one in bins) / max(1, total)
