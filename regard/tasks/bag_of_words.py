"""A baseline: logistic regression on words, word bigrams and character n-grams, weighted by tf-idf; for tags, on a word, its
affixes and its neighbours. Trained in seconds by L-BFGS."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from regard.accuracy import score_numbers, score_one, score_several, score_tags
from regard.data.corpus import Texts
from regard.data.labelled import BETWEEN, NONE, NUMBER
from regard.evaluate import Scores
from regard.settings import Answer
from regard.tasks.regression import Bags, fit_linear
from regard.understanding.answers import find_spans, has_spans

TAG_STRENGTH = 1.0
MAX_FEATURES = 1 << 18
MAX_WEIGHTS = 1 << 23  # features times classes; more would take minutes to train
MAX_TEXTS = 150_000  # training texts or, for tags, words
TAG_ITERATIONS = 25  # of L-BFGS
NGRAMS = (3, 4, 5)  # characters
_WORD = re.compile(r"\w+|[^\w\s]")


class Vocabulary:
    """The most frequent features of the training text, numbered, with their inverse document frequencies."""

    def __init__(self, rows: Sequence[Iterable[str]], with_rarity: bool, num_classes: int, least: int = 1) -> None:
        """`least` is how often a feature must occur. Without `with_rarity` all features have weight 1."""
        counts = Counter(feature for row in rows for feature in set(row))
        most = min(MAX_FEATURES, MAX_WEIGHTS // num_classes)
        frequent = (feature for feature, count in counts.items() if count >= least)
        kept = sorted(frequent, key=lambda feature: (-counts[feature], feature))[:most]
        self.numbers = {feature: number for number, feature in enumerate(kept)}
        self._rarity = (
            [math.log((1 + len(rows)) / (1 + counts[feature])) + 1.0 for feature in kept] if with_rarity else []
        )

    def __len__(self) -> int:
        return len(self.numbers)

    def vector(self, row: Iterable[str]) -> tuple[list[int], list[float]]:
        """The known features of a row: as tf-idf of length 1, or each with weight 1."""
        if not self._rarity:
            ids = [self.numbers[feature] for feature in row if feature in self.numbers]
            return ids, [1.0] * len(ids)
        counts = Counter(self.numbers[feature] for feature in row if feature in self.numbers)
        values = [(1.0 + math.log(count)) * self._rarity[number] for number, count in counts.items()]
        size = math.sqrt(sum(value * value for value in values)) or 1.0
        return list(counts), [value / size for value in values]

    def bags(self, rows: Sequence[Iterable[str]]) -> Bags:
        return Bags.of([self.vector(row) for row in rows], len(self))


def text_features(text: str) -> list[str]:
    """The words, word bigrams and character n-grams of a text; for a pair, those in one text only and those in both."""
    first, _, second = text.partition(BETWEEN)
    if not second:
        words = _WORD.findall(first.lower())
        pairs = [f"{a} {b}" for a, b in pairwise(words)]
        return [*words, *pairs, *(part for word in words for part in character_ngrams(word))]
    one, other = (set(text_features(part)) for part in (first, second))
    share = len(one & other) / max(1, len(one | other))
    marked = [
        f"{mark}{word}" for mark, some in (("<", one - other), (">", other - one), ("&", one & other)) for word in some
    ]
    return [*marked, *(f"common {tenth}" for tenth in range(int(10 * share) + 1) for _ in range(3))]


def character_ngrams(word: str) -> list[str]:
    """The character n-grams of a word and the spaces around it.

    >>> character_ngrams("ox")
    ['# ox', '#ox ', '# ox ']
    """
    padded = f" {word} "
    return [f"#{padded[i : i + n]}" for n in NGRAMS for i in range(len(padded) - n + 1)]


@dataclass(frozen=True)
class BagOfWords:
    """The trained baseline for texts."""

    vocabulary: Vocabulary
    weights: Tensor
    bias: Tensor
    answer: Answer

    @classmethod
    def train(cls, records: Sequence[Texts], answer: Answer, num_labels: int) -> BagOfWords:
        step = -(-len(records) // MAX_TEXTS)
        records = records[::step]
        rows = [text_features(text) for text, _ in records]
        vocabulary = Vocabulary(rows, True, num_labels)
        targets = label_targets([label for _, label in records], answer, num_labels)
        weights, bias = fit_linear(vocabulary.bags(rows), targets, answer, num_labels)
        return cls(vocabulary, weights, bias, answer)

    def scores(self, records: Sequence[Texts], labels: Sequence[str]) -> Scores:
        bags = self.vocabulary.bags([text_features(text) for text, _ in records])
        logits = (bags.times(self.weights) + self.bias).numpy().astype(np.float64)
        wanted = label_targets([label for _, label in records], self.answer, len(labels)).numpy()
        if self.answer == "number":
            return score_numbers(logits[:, 0], wanted)
        if self.answer == "several":
            return score_several(logits >= 0, wanted > 0.5)
        return score_one(logits.argmax(axis=1), wanted, labels)


def label_targets(labels: Sequence[str], answer: Answer, num_labels: int) -> Tensor:
    """The labels of records as targets."""
    if answer == "number":
        return torch.tensor([float(label.removeprefix(NUMBER)) for label in labels])
    if answer == "one":
        return torch.tensor([int(label) for label in labels])
    wanted = torch.zeros(len(labels), num_labels)
    for row, label in enumerate(labels):
        wanted[row, [] if label == NONE else [int(number) for number in label.split()]] = 1.0
    return wanted


# --- tags ---


def word_features(words: Sequence[str], place: int) -> list[str]:
    """A word, its shape and affixes, and its neighbours."""
    word = words[place]
    shape = re.sub(r"\d", "0", re.sub(r"[a-z]", "x", re.sub(r"[A-Z]", "X", word)))
    shape = re.sub(r"(.)\1{2,}", r"\1\1", shape)
    near = [
        f"{offset}:{words[place + offset].lower() if 0 <= place + offset < len(words) else ''}"
        for offset in (-2, -1, 1, 2)
    ]
    lower = word.lower()
    return [f"w:{lower}", f"W:{word}", f"s:{shape}", f"e3:{lower[-3:]}", f"e2:{lower[-2:]}", f"b3:{lower[:3]}", *near,
            f"{near[1]} {lower}", f"{lower} {near[2]}"]  # fmt: skip


@dataclass(frozen=True)
class WordTags:
    """The trained baseline for tags, which reads a word and its neighbours."""

    vocabulary: Vocabulary
    weights: Tensor
    bias: Tensor

    @classmethod
    def train(cls, records: Sequence[Texts], num_labels: int) -> WordTags:
        step = -(-sum(text.count(BETWEEN) + 1 for text, _ in records) // MAX_TEXTS)
        rows, tags = _word_rows(records[::step])
        vocabulary = Vocabulary(rows, False, num_labels, least=2)
        fitted = fit_linear(vocabulary.bags(rows), torch.tensor(tags), "one", num_labels, TAG_STRENGTH, TAG_ITERATIONS)
        return cls(vocabulary, *fitted)

    def scores(self, records: Sequence[Texts], labels: Sequence[str]) -> Scores:
        asked, wanted = _word_rows(records)
        predicted = (self.vocabulary.bags(asked).times(self.weights) + self.bias).argmax(dim=1).tolist()
        sides: list[list[list[str]]] = [[], []]
        start = 0
        for text, _ in records:
            stop = start + text.count(BETWEEN) + 1
            for side, numbers in zip(sides, (predicted, wanted), strict=True):
                side.append([labels[number] for number in numbers[start:stop]])
            start = stop
        spans = [(find_spans(a), find_spans(b)) for a, b in zip(*sides, strict=True)] if has_spans(labels) else None
        return score_tags(sides[0], sides[1], spans, labels)


def _word_rows(records: Sequence[Texts]) -> tuple[list[list[str]], list[int]]:
    rows, tags = [], list[int]()
    for text, numbers in records:
        words = text.split(BETWEEN)
        rows += [word_features(words, place) for place in range(len(words))]
        tags += [int(number) for number in numbers.split(BETWEEN)]
    return rows, tags
