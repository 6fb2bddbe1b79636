"""Muon (Jordan, 2024) for the matrices of the layers, AdamW for everything else: embeddings, norms and biases.

Muon replaces the momentum of a matrix's gradient by approximately the nearest orthogonal matrix: five steps of a Newton-Schulz
iteration bring all singular values close to 1. Its step is scaled to the size of AdamW's (0.2 sqrt(max(rows, columns)),
Liu et al., 2025), so that one learning rate serves both.

`torch.optim.Muon` computes the same (a test compares them), but one matrix at a time and with the learning rate on the host.
Here matrices of one shape are orthogonalised together, and the rate may be on the device, so that a CUDA graph can capture the
step. Projections that share one tensor, such as queries, keys and values, are treated as separate matrices.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from regard.nn.attention import CrossAttention, SelfAttention
from regard.nn.block import FeedForward

MOMENTUM = 0.95
NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)  # coefficients of the iteration, as published with Muon
NEWTON_SCHULZ_STEPS = 5
EPS = 1e-7


class MuonWithAdamW(torch.optim.Optimizer):
    """Muon for the first parameter group, AdamW for the others."""

    def __init__(
        self,
        matrices: dict[Tensor, list[int]],
        others: list[dict[str, Any]],
        dtype: torch.dtype,
        weight_decay: float,
        **options: Any,
    ) -> None:
        """`matrices` maps each parameter to the row counts of the matrices stacked in it; `dtype` is that of the iteration;
        `options` are AdamW's, with the learning rate as a float or a tensor on the device."""
        self._rows, self._dtype = list(matrices.values()), dtype
        first = {"params": list(matrices), "weight_decay": weight_decay}
        super().__init__([first, *others], {"lr": options["lr"]})
        self._adamw = torch.optim.AdamW(self.param_groups[1:], **options)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        self._muon_step(self.param_groups[0])
        # load_state_dict replaces both objects.
        self._adamw.state, self._adamw.param_groups = self.state, self.param_groups[1:]
        self._adamw.step()

    def _muon_step(self, group: dict[str, Any]) -> None:
        parameters: list[Tensor] = group["params"]
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        assert len(gradients) == len(parameters)  # every weight has a gradient
        momenta = [self._momentum(parameter) for parameter in parameters]
        torch._foreach_lerp_(momenta, gradients, 1.0 - MOMENTUM)
        directions = torch._foreach_lerp(gradients, momenta, MOMENTUM)  # Nesterov momentum
        torch._foreach_mul_(parameters, 1.0 - group["lr"] * group["weight_decay"])
        by_shape: dict[torch.Size, list[tuple[Tensor, Tensor]]] = {}
        for parameter, direction, rows in zip(parameters, directions, self._rows, strict=True):
            for pair in zip(parameter.split(rows), direction.split(rows), strict=True):
                by_shape.setdefault(pair[0].shape, []).append(pair)
        for shape, pairs in by_shape.items():
            # (matrices, rows, columns)
            steps = orthogonalised(torch.stack([direction.to(self._dtype) for _, direction in pairs]))
            scaled = steps.to(pairs[0][0].dtype) * (group["lr"] * 0.2 * math.sqrt(max(shape)))
            torch._foreach_sub_([block for block, _ in pairs], list(scaled.unbind()))

    def _momentum(self, parameter: Tensor) -> Tensor:
        state = self.state[parameter]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(parameter)
        momentum: Tensor = state["momentum_buffer"]
        return momentum


def orthogonalised(matrices: Tensor) -> Tensor:
    """(matrices, rows, columns) -> the same shape, each matrix with singular values close to 1."""
    a, b, c = NEWTON_SCHULZ
    is_tall = matrices.shape[1] > matrices.shape[2]
    x = matrices.transpose(1, 2) if is_tall else matrices
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=EPS)
    for _ in range(NEWTON_SCHULZ_STEPS):
        gram = x @ x.transpose(1, 2)
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.transpose(1, 2) if is_tall else x


def layer_matrices(model: nn.Module) -> dict[Tensor, list[int]]:
    """The weight matrices of the layers, each with the row counts of the matrices stacked in it."""
    found: dict[Tensor, list[int]] = {}
    for module in model.modules():
        for projection, rows in _projections(module):
            found[projection.weight] = rows
    return found


def _projections(module: nn.Module) -> Iterator[tuple[nn.Linear, list[int]]]:
    if isinstance(module, (SelfAttention, CrossAttention)):
        d_query, d_key = module.num_heads * module.d_head, module.kv_heads * module.d_head
        if isinstance(module, SelfAttention):
            yield module.qkv, [d_query, d_key, d_key]
        else:
            yield module.q, [d_query]
            yield module.kv, [d_key, d_key]
        yield module.out, [module.out.out_features]
    elif isinstance(module, FeedForward):
        d_ff = module.outer.in_features
        yield module.inner, [d_ff] * (module.inner.out_features // d_ff)
        yield module.outer, [module.outer.out_features]
