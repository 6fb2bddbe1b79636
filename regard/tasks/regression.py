"""Logistic and linear regression by L-BFGS, on sparse features (`Bags`) or on vectors (`Dense`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, Self

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from regard.settings import Answer

STRENGTH = 10.0  # the inverse of the penalty on weights, as scikit-learn's C
ITERATIONS = 60

SparseRows = Sequence[tuple[Sequence[int], Sequence[float]]]  # of each row: ids, values


class Features(Protocol):
    """A matrix of features, (rows, features)."""

    @property
    def num_features(self) -> int: ...

    def times(self, weights: Tensor) -> Tensor:
        """(features, classes) -> (rows, classes)."""
        ...

    def transposed(self) -> Self: ...


@dataclass(frozen=True)
class Dense:
    """Rows of vectors."""

    rows: Tensor  # (rows, features)

    @property
    def num_features(self) -> int:
        return self.rows.shape[1]

    def times(self, weights: Tensor) -> Tensor:
        return self.rows @ weights

    def transposed(self) -> Dense:
        return Dense(self.rows.T)


@dataclass(frozen=True)
class Bags:
    """Rows of sparse features, end to end."""

    ids: Tensor  # (entries,)
    values: Tensor  # (entries,)
    starts: Tensor  # (rows,)
    num_features: int

    @classmethod
    def of(cls, rows: SparseRows, num_features: int) -> Bags:
        lengths = [len(ids) for ids, _ in rows]
        return cls(
            torch.tensor([i for ids, _ in rows for i in ids], dtype=torch.int64),
            torch.tensor([value for _, values in rows for value in values], dtype=torch.float32),
            torch.tensor([0, *np.cumsum(lengths)[:-1].tolist()], dtype=torch.int64),
            num_features,
        )

    def times(self, weights: Tensor) -> Tensor:
        return functional.embedding_bag(
            self.ids, weights, self.starts, mode="sum", per_sample_weights=self.values.to(weights.dtype)
        )

    def transposed(self) -> Bags:
        order = torch.argsort(self.ids, stable=True)
        ends = torch.cat([self.starts[1:], torch.tensor([len(self.ids)])])
        rows = torch.repeat_interleave(torch.arange(len(self.starts)), ends - self.starts)
        counts = torch.bincount(self.ids, minlength=self.num_features)
        starts = torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)[:-1]])
        return Bags(rows[order], self.values[order], starts, len(self.starts))


def fit_linear(
    features: Features,
    targets: Tensor,
    answer: Answer,
    num_classes: int,
    strength: float = STRENGTH,
    iterations: int = ITERATIONS,
    class_weights: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Weights (features, classes) and biases (classes,) of logistic or, for numbers, linear regression, with an L2 penalty on the
    weights, of 1 / strength. `class_weights`, (classes,), mean the same as in `label_loss`."""
    across, count = features.transposed(), len(targets)
    weights = torch.zeros(features.num_features, num_classes)
    bias = targets.mean().reshape(1) if answer == "number" else torch.zeros(num_classes)
    wanted = functional.one_hot(targets, num_classes).float() if answer == "one" else targets.reshape(count, -1)
    importance = torch.ones(1, 1)  # of each answer: broadcasts to (rows, classes)
    if class_weights is not None and answer != "number":
        importance = class_weights[targets][:, None] if answer == "one" else 1.0 + (class_weights - 1.0) * wanted
    optimizer = torch.optim.LBFGS(
        [weights, bias], max_iter=iterations, history_size=10, tolerance_grad=1e-5, line_search_fn="strong_wolfe"
    )

    def closure() -> float:
        logits = features.times(weights) + bias
        if answer == "one":
            log_probs = torch.log_softmax(logits, dim=1)
            total, slope = -(log_probs * wanted * importance).sum(), log_probs.exp() - wanted
        elif answer == "several":
            total = functional.binary_cross_entropy_with_logits(logits, wanted, importance, reduction="sum")
            slope = torch.sigmoid(logits) - wanted
        else:
            total, slope = 0.5 * ((logits - wanted) ** 2).sum(), logits - wanted
        slope = slope * importance
        weights.grad = across.times(slope) / count + weights / (strength * count)
        bias.grad = slope.mean(dim=0)
        return float(total / count + (weights**2).sum() / (2 * strength * count))

    with torch.no_grad():
        optimizer.step(closure)
    return weights, bias
