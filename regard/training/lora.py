"""LoRA (Hu et al., 2021): fine-tuning that changes each matrix of the layers by a product of two thin ones, and nothing else.

The optimizer holds the factors. It turns a matrix's gradient into theirs, by the chain rule, takes AdamW's step on them and adds
the change of their product to the matrix itself. So the model stays as it is, on every path of training, and its weights are the
merged ones at each step. That saves the optimizer's memory, two numbers for each weight, but not that of the gradients.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

SCALE = 2.0  # of the product: alpha / rank, as most set it
_A, _B = "lora_a", "lora_b"


class LoraAdamW(torch.optim.Optimizer):
    """AdamW on thin factors of the change of some matrices; other parameters stay as they are."""

    def __init__(self, matrices: dict[Tensor, list[int]], others: Sequence[Tensor], rank: int, **options: Any) -> None:
        """`matrices` maps each parameter to the row counts of the matrices stacked in it, which have factors of their own; `others`
        stay as they are; `options` are AdamW's. The change begins as zero."""
        self._rows = list(matrices.values())
        factors = [_factors(parameter, rows, rank) for parameter, rows in matrices.items()]
        changed = {"params": list(matrices), "lr": options["lr"]}
        # Of each parameter a and b, (matrices * rank, d_in) and (d_out, rank).
        thin = {"params": [each for pair in factors for each in pair], "weight_decay": 0.0}
        # The others are here for `zero_grad` alone.
        super().__init__([changed, thin, {"params": list(others)}], {"lr": options["lr"]})
        self._adamw = torch.optim.AdamW(self.param_groups[1:2], **options)
        for parameter, (a, b) in zip(matrices, factors, strict=True):
            self.state[parameter] = {_A: a.data, _B: b.data}

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        parameters: list[Tensor] = self.param_groups[0]["params"]
        before = []
        for number, parameter in enumerate(parameters):
            a, b = self._pair(number)
            assert parameter.grad is not None  # every weight has a gradient
            before.append(self._product(number))
            a.grad, b.grad = torch.empty_like(a), torch.empty_like(b)
            for rows, thin in self._places(number):
                # (rows, d_in) gradient of the sum: of b (rows, rank), of a (rank, d_in)
                torch.mm(parameter.grad[rows], a[thin].T, out=b.grad[rows]).mul_(SCALE)
                torch.mm(b[rows].T, parameter.grad[rows], out=a.grad[thin]).mul_(SCALE)
        # load_state_dict replaces both objects.
        self._adamw.state, self._adamw.param_groups = self.state, self.param_groups[1:2]
        self._adamw.step()
        for number, parameter in enumerate(parameters):
            parameter += self._product(number) - before[number]

    def load_state_dict(self, state_dict: Any) -> None:
        """Also the factors, which are parameters of the optimizer and not of the model."""
        super().load_state_dict(state_dict)
        for number, parameter in enumerate(self.param_groups[0]["params"]):
            for name, factor in zip((_A, _B), self._pair(number), strict=True):
                factor.data.copy_(self.state[parameter][name])
                self.state[parameter][name] = factor.data

    def _pair(self, number: int) -> tuple[nn.Parameter, nn.Parameter]:
        a, b = self.param_groups[1]["params"][2 * number : 2 * number + 2]
        return a, b

    def _places(self, number: int) -> list[tuple[slice, slice]]:
        """The rows of each matrix in a parameter and in its b, and the rows of its a."""
        rank, found, start = self._pair(number)[1].shape[1], [], 0
        for index, rows in enumerate(self._rows[number]):
            found.append((slice(start, start + rows), slice(index * rank, (index + 1) * rank)))
            start += rows
        return found

    def _product(self, number: int) -> Tensor:
        """The change of a parameter so far: (d_out, d_in)."""
        a, b = self._pair(number)
        return torch.cat([b[rows] @ a[thin] for rows, thin in self._places(number)]).mul_(SCALE)


def _factors(parameter: Tensor, rows: list[int], rank: int) -> tuple[nn.Parameter, nn.Parameter]:
    """a as a linear layer begins, b zero."""
    d_out, d_in = parameter.shape
    assert sum(rows) == d_out
    # On the host, so that all devices draw the same.
    a = torch.empty(len(rows) * rank, d_in).uniform_(-1 / math.sqrt(d_in), 1 / math.sqrt(d_in))
    return nn.Parameter(a.to(parameter.device)), nn.Parameter(torch.zeros(d_out, rank, device=parameter.device))
