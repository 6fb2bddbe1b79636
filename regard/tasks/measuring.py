"""What validations of all tasks share: the loss of a model on batches, without gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch

from regard.models.loss import Loss
from regard.models.token_loss import TokenLoss
from regard.models.transformer import Transformer
from regard.nn.attention import set_kernel
from regard.nn.linear import set_row_tile

BATCH_TOKENS = 4_000  # of a validation batch


@torch.no_grad()
def sum_nll(
    loss: Callable[[Transformer, Any, TokenLoss], Loss],
    model: Transformer,
    batches: Iterable[Any],
    device: torch.device,
    autocast: torch.dtype | None,
) -> tuple[float, int]:
    """The negative log-likelihood of all labels, without smoothing, and their number. Leaves the model in evaluation mode."""
    model.eval()
    set_kernel(model, "auto")
    set_row_tile(model, 0)
    total, count = 0.0, 0
    for batch in batches:
        with torch.autocast(device.type, autocast, enabled=autocast is not None):
            measured = loss(model, batch.to(device), TokenLoss())
        total += float(measured.nll)
        count += measured.count
    return total, count


def perplexity(loss: float) -> float:
    """exp(loss), which must not overflow before a model has learnt anything."""
    return math.exp(min(loss, 50.0))
