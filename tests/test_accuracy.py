"""Scores of labels, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from regard.accuracy import (
    LabelScore,
    calibration,
    macro_f1,
    pearson,
    score_several,
    score_tags,
    scores_by_label,
    spans_by_label,
    spearman,
)
from regard.tasks.label_evaluation import label_lines
from regard.understanding.answers import find_spans


def test_macro_f1_is_the_mean_over_the_labels_that_occur() -> None:
    predicted, wanted = np.array([0, 0, 1, 1, 2]), np.array([0, 1, 1, 1, 1])
    # 0: 1 right of 2 found, 1 given; 1: 2 right of 2 found, 4 given; 2: found once, never given; 3: never there.
    assert macro_f1(scores_by_label(predicted, wanted, list("0123"))) == pytest.approx(100 * (2 / 3 + 4 / 6 + 0.0) / 3)


def test_a_span_counts_with_its_name_and_both_of_its_ends() -> None:
    wanted = [["B-X", "I-X", "O", "B-Y"], ["O", "B-X"]]
    predicted = [["B-X", "O", "O", "B-Y"], ["B-X", "B-X"]]
    spans = [(find_spans(a), find_spans(b)) for a, b in zip(predicted, wanted, strict=True)]
    scores = score_tags(predicted, wanted, spans, ["B-X", "B-Y", "I-X", "O"])
    assert scores["F1"].score == pytest.approx(100 * 2 * 2 / (4 + 3))  # 2 right of 4 found, 3 given
    assert scores["accuracy"].score == pytest.approx(100 * 4 / 6)
    assert scores.metrics[0].name == "F1"


def test_several_labels_are_counted_together_and_each() -> None:
    wanted = np.array([[1, 0, 0], [1, 1, 0], [0, 0, 0]]).astype(bool)
    predicted = np.array([[1, 1, 0], [1, 0, 0], [0, 0, 0]]).astype(bool)
    scores = score_several(predicted, wanted)
    assert scores["F1"].score == pytest.approx(100 * 2 * 2 / 6)
    assert scores["macro F1"].score == pytest.approx(100 * (1.0 + 0.0) / 2)
    assert scores["accuracy"].score == pytest.approx(100 / 3)


def test_each_label_has_the_scores_that_scikit_learn_documents() -> None:
    """The example of classification_report in scikit-learn's documentation, rounded there to two digits."""
    wanted, predicted = np.array([0, 1, 2, 2, 2]), np.array([0, 0, 2, 2, 1])
    found = scores_by_label(predicted, wanted, ["class 0", "class 1", "class 2", "class 3"])
    shown = [(one.label, *(round(x / 100, 2) for x in (one.precision, one.recall, one.f1)), one.given) for one in found]
    assert shown == [("class 0", 0.5, 1.0, 0.67, 1), ("class 1", 0.0, 0.0, 0.0, 1), ("class 2", 1.0, 0.67, 0.8, 3)]


def test_each_kind_of_span_has_the_scores_that_seqeval_documents() -> None:
    """The example of classification_report in seqeval's README."""
    wanted = [["O", "O", "O", "B-MISC", "I-MISC", "I-MISC", "O"], ["B-PER", "I-PER", "O"]]
    predicted = [["O", "O", "B-MISC", "I-MISC", "I-MISC", "I-MISC", "O"], ["B-PER", "I-PER", "O"]]
    found = spans_by_label([(find_spans(a), find_spans(b)) for a, b in zip(predicted, wanted, strict=True)])
    assert [(one.label, one.precision, one.recall, one.f1, one.given) for one in found] == [
        ("MISC", 0.0, 0.0, 0.0, 1),
        ("PER", 100.0, 100.0, 100.0, 1),
    ]


def test_a_terminal_shows_all_labels_or_the_worst_ones() -> None:
    few = [LabelScore("rain", 4, 2, 2), LabelScore("sun", 1_000, 1_002, 1_000)]
    assert label_lines(few) == [
        "label    count  precision  recall      F1",
        "rain         4     100.00   50.00   66.67",
        "sun      1,000      99.80  100.00   99.90",
    ]
    many = [LabelScore(f"label {number}", 100, 100, number) for number in reversed(range(30))]
    lines = label_lines(many)
    assert lines[0] == "the 20 of 30 labels with the lowest F1 (--json has all)"
    assert [line.split("  ")[0] for line in lines[2:]] == [f"label {number}" for number in range(20)]
    assert label_lines([]) == []


def test_correlations() -> None:
    a, b = np.array([1.0, 2.0, 4.0, 8.0]), np.array([3.0, 5.0, 9.0, 17.0])
    assert pearson(a, b) == pytest.approx(1.0) and pearson(a, -b) == pytest.approx(-1.0)
    assert spearman(a, np.exp(b)) == pytest.approx(1.0)
    assert spearman(np.array([1.0, 2.0, 2.0, 3.0]), np.array([1.0, 3.0, 2.0, 4.0])) == pytest.approx(0.9486833)
    assert pearson(a, np.zeros(4)) == 0.0


def test_calibration_is_the_distance_between_sure_and_right() -> None:
    confidence = np.array([0.95, 0.95, 0.95, 0.95, 0.55, 0.55])
    right = np.array([True, True, True, False, True, False])
    bins, error = calibration(confidence, right)
    assert [(one.count, one.accuracy) for one in bins] == [(2, 0.5), (4, 0.75)]
    assert error == pytest.approx((2 * 0.05 + 4 * 0.2) / 6)
