"""The simple model to compare with: it finds the optimum, and learns what words say."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from regard.settings import Answer
from regard.tasks.bag_of_words import BagOfWords, Vocabulary, WordTags, label_targets
from regard.tasks.regression import STRENGTH, fit_linear

TEXTS = [
    "a good film", "good and very good", "what a bad film", "bad bad bad", "the good one", "not so bad", "a fine day",
    "no day like it",
]  # fmt: skip
LABELS: dict[Answer, list[str]] = {
    "one": ["0", "0", "1", "1", "0", "1", "2", "2"],
    "several": ["0", "0 1", "2", "2", "-", "2", "1", "1"],
    "number": ["=4.5", "=5.0", "=1.0", "=0.5", "=4.0", "=2.0", "=3.5", "=3.0"],
}


@pytest.mark.parametrize("answer", LABELS)
def test_the_weights_are_at_the_optimum(answer: Answer) -> None:
    """The gradient of the loss, which torch computes from the formula, is zero there."""
    rows = [text.split() for text in TEXTS]
    vocabulary = Vocabulary(rows, with_rarity=True, num_classes=3)
    classes = 1 if answer == "number" else 3
    targets = label_targets(LABELS[answer], answer, classes)
    weights, bias = fit_linear(vocabulary.bags(rows), targets, answer, classes)
    weights, bias = weights.clone().requires_grad_(), bias.clone().requires_grad_()
    dense = torch.zeros(len(rows), len(vocabulary))
    for number, row in enumerate(rows):
        ids, values = vocabulary.vector(row)
        dense[number, ids] = torch.tensor(values)
    logits = dense @ weights + bias
    if answer == "one":
        loss = F.cross_entropy(logits, targets)
    elif answer == "several":
        loss = F.binary_cross_entropy_with_logits(logits, targets, reduction="sum") / len(rows)
    else:
        loss = 0.5 * ((logits[:, 0] - targets) ** 2).mean()
    (loss + (weights**2).sum() / (2 * STRENGTH * len(rows))).backward()
    assert weights.grad is not None and bias.grad is not None
    assert weights.grad.abs().max() < 1e-4 and bias.grad.abs().max() < 1e-4


@pytest.mark.parametrize("answer", LABELS)
def test_it_learns_its_training_texts(answer: Answer) -> None:
    labels = ("score",) if answer == "number" else ("a", "b", "c")
    records = list(zip(TEXTS, LABELS[answer], strict=True))
    assert BagOfWords.train(records, answer, len(labels)).scores(records, labels).metrics[0].score > 95


def test_pairs_of_texts_are_compared() -> None:
    same = [(f"one {word}\tone {word}", "1") for word in "abcdefgh"]
    other = [(f"one {a}\ttwo {b} three", "0") for a, b in zip("abcdefgh", "hgfedcba", strict=True)]
    model = BagOfWords.train(same + other, "one", 2)
    assert (
        model.scores([("some zebra\tsome zebra", "1"), ("some zebra\ttwo cows three", "0")], ("no", "yes"))[
            "accuracy"
        ].score
        == 100
    )


def test_tags_are_learnt_from_words_and_neighbours() -> None:
    train = [("the\tdog\truns", "0\t1\t2"), ("a\tcat\tsleeps", "0\t1\t2"), ("the\truns\tend", "0\t1\t2")] * 5
    asked = [("the\tdog\tsleeps", "0\t1\t2"), ("a\truns\tend", "0\t1\t2")]
    scores = WordTags.train(train, 3).scores(asked, ("D", "N", "V"))
    assert scores["accuracy"].score == 100
