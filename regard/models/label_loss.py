"""The losses of heads for labels: cross-entropy of one class or tag, binary cross-entropy of several classes, the squared error
of a number. Each is a sum and a count."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from regard.models.loss import Loss
from regard.settings import Answer


def label_loss(logits: Tensor, targets: Tensor, answer: Answer, weights: Tensor, smoothing: float = 0.0) -> Loss:
    """The loss of logits (rows, classes), each class with its weight (classes,).

    `one`: targets (rows,) are classes, -1 does not count; smoothing spreads its share over all classes. `several`: targets (rows,
    classes) are 0 or 1, and a row counts the mean over its classes, where the weight is that of a 1. `number`: targets (rows,)."""
    logits = logits.float()
    if answer == "number":
        squared = (logits[:, 0] - targets) ** 2
        return Loss(squared.sum() * weights[0], squared.detach().sum(), len(targets))
    if answer == "several":
        wanted = targets * (1.0 - smoothing) + 0.5 * smoothing
        total = functional.binary_cross_entropy_with_logits(logits, wanted, pos_weight=weights, reduction="none")
        plain = functional.binary_cross_entropy_with_logits(logits.detach(), targets, reduction="none")
        # Weights of zero are those of a batch that must add nothing.
        return Loss(total.mean(dim=1).sum() * (weights.max() > 0), plain.mean(dim=1).sum(), len(targets))
    used = targets >= 0
    labels = targets.clamp(min=0)
    log_probs = torch.log_softmax(logits, dim=-1)
    nll = -log_probs.gather(1, labels[:, None])[:, 0] * used
    smoothed = (1.0 - smoothing) * nll - smoothing * log_probs.mean(dim=-1) * used if smoothing else nll
    return Loss((smoothed * weights[labels]).sum(), nll.detach().sum(), int(used.sum()))


def balanced_weights(counts: Tensor, answer: Answer, num_rows: int) -> Tensor:
    """What a target of each class counts so that all classes count alike, by how often each occurs, (classes,): rows / (classes *
    count) of one class, whose mean over the rows is 1; (rows - count) / count of several. A class that never occurs counts 1."""
    counts = counts.double()
    alike = torch.count_nonzero(counts) * counts / counts.sum()
    weights = (num_rows - counts) / counts if answer == "several" else 1.0 / alike
    return torch.where(counts > 0, weights, 1.0).clamp(min=1e-6).float()
