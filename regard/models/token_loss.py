"""The loss of tasks that predict tokens, as a training run wants it: plain, with R-Drop, or with its backward pass at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from regard.models.loss import Loss, backward_linear_cross_entropy, linear_cross_entropy
from regard.models.rdrop import rdrop_cross_entropy
from regard.models.transformer import Transformer


@dataclass(frozen=True)
class TokenLoss:
    """From states and labels to a loss. A task calls it; the update or the validation that calls the task chooses it."""

    smoothing: float = 0.0
    rdrop: float = 0.0  # alpha of R-Drop; 0: a single pass
    # With Triton's kernel: the gradient of `backward_scale` times the loss is computed at once, and the loss has none any more.
    backward_scale: Tensor | None = None

    def __call__(self, model: Transformer, states: Callable[[], Tensor], labels: Tensor) -> Loss:
        """`states()` runs the model: (tokens, d_model). Labels are (tokens,); one of -1 does not count."""
        hidden = states()
        weight = model.output_weight  # of a sharded model, all of it is here only after it ran
        if self.rdrop:
            return rdrop_cross_entropy(hidden, states(), weight, labels, self.smoothing, self.rdrop)
        if self.backward_scale is not None:
            return backward_linear_cross_entropy(hidden, weight, labels, self.smoothing, self.backward_scale)
        return linear_cross_entropy(hidden, weight, labels, self.smoothing)
