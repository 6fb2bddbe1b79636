"""R-Drop's loss and gradients beside the formula in torch's own functions."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from regard.models import loss as loss_module
from regard.models.loss import linear_cross_entropy
from regard.models.rdrop import rdrop_cross_entropy


def formula(one: Tensor, two: Tensor, weight: Tensor, labels: Tensor, smoothing: float, alpha: float) -> Tensor:
    used = labels >= 0
    logits = [(hidden @ weight.t())[used] for hidden in (one, two)]
    target = labels[used].long()
    entropies = [F.cross_entropy(each, target, label_smoothing=smoothing, reduction="sum") for each in logits]
    log_p = [each.log_softmax(-1) for each in logits]
    divergences = [F.kl_div(log_p[b], log_p[a], log_target=True, reduction="sum") for a, b in ((0, 1), (1, 0))]
    return 0.5 * (entropies[0] + entropies[1]) + alpha / 2 * 0.5 * (divergences[0] + divergences[1])


def inputs() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    one, two = (torch.randn(150, 8, dtype=torch.float64, requires_grad=True) for _ in range(2))
    weight = torch.randn(23, 8, dtype=torch.float64, requires_grad=True)
    labels = torch.randint(23, (150,))
    labels[140:] = -1
    return one, two, weight, labels


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("alpha", [0.0, 5.0])
def test_loss_and_gradients_are_the_formulas(smoothing: float, alpha: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(loss_module.CHUNK_ELEMENTS, "cpu", 64 * 23)  # several chunks
    one, two, weight, labels = inputs()
    expected = formula(one, two, weight, labels, smoothing, alpha)
    gradients = torch.autograd.grad(expected, (one, two, weight))
    found = rdrop_cross_entropy(one, two, weight, labels, smoothing, alpha)
    torch.testing.assert_close(found.total, expected)
    found.total.mul(3.0).backward()
    for tensor, gradient in zip((one, two, weight), gradients, strict=True):
        torch.testing.assert_close(tensor.grad, 3.0 * gradient)
    singles = [linear_cross_entropy(each, weight, labels).nll for each in (one, two)]
    torch.testing.assert_close(found.nll, (singles[0] + singles[1]) / 2)


def test_equal_passes_are_the_loss_without_it() -> None:
    one, _, weight, labels = inputs()
    torch.testing.assert_close(
        rdrop_cross_entropy(one, one, weight, labels, 0.1, 5.0).total,
        linear_cross_entropy(one, weight, labels, 0.1).total,
    )
