"""Optimizers, learning-rate schedules and the moving average of the weights."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from regard.device import has_bf16
from regard.recipe import TrainRecipe
from regard.training.lora import LoraAdamW
from regard.training.muon import MuonWithAdamW, layer_matrices
from regard.training.sharded import local_part

WARMUP = 4_000  # the paper's; shorter runs warm up for a tenth of their length
WARMUP_SHARE = 0.1


def make_optimizer(model: nn.Module, recipe: TrainRecipe) -> torch.optim.Optimizer:
    """Adam as in the paper; AdamW, with weight decay on matrices only; or Muon on the layers' matrices and AdamW on the rest. With
    LoRA AdamW on its factors."""
    options: dict[str, Any] = {"lr": 0.0, "betas": (recipe.beta1, recipe.beta2), "eps": recipe.eps}
    device = next(model.parameters()).device
    fused = device.type in ("cpu", "cuda")
    if device.type == "cuda" and not recipe.shard:  # a captured graph reads the learning rate from the device
        options |= {"lr": torch.zeros((), device=device), "capturable": True}
    if recipe.lora:
        changed = layer_matrices(model)
        others = [parameter for parameter in model.parameters() if parameter not in changed]
        return LoraAdamW(changed, others, recipe.lora, fused=fused, **options)
    if recipe.optimizer == "adam":
        return torch.optim.Adam(model.parameters(), weight_decay=recipe.weight_decay, fused=fused, **options)
    orthogonal = layer_matrices(model) if recipe.optimizer == "muon" else {}
    matrices = [p for p in model.parameters() if p.ndim > 1 and p not in orthogonal]
    vectors = [p for p in model.parameters() if p.ndim <= 1]
    groups = [{"params": matrices, "weight_decay": recipe.weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    if orthogonal:
        dtype = torch.bfloat16 if has_bf16(device) else torch.float32
        return MuonWithAdamW(orthogonal, groups, dtype, recipe.weight_decay, fused=fused, **options)
    return torch.optim.AdamW(groups, fused=fused, **options)


def warmup_steps(recipe: TrainRecipe, total_steps: int | None) -> int:
    """`train.warmup`, or the smaller of 4,000 steps and a tenth of the run."""
    if recipe.warmup:
        return recipe.warmup
    return WARMUP if total_steps is None else max(1, min(WARMUP, round(total_steps * WARMUP_SHARE)))


def paper_rate(step: int, d_model: int, warmup: int) -> float:
    """lrate = d_model^-0.5 * min(step^-0.5, step * warmup^-1.5), steps counted from 1.

    >>> round(paper_rate(4000, 512, 4000), 6)
    0.000699
    """
    return float(d_model**-0.5 * min(step**-0.5, step * warmup**-1.5))


def learning_rate(recipe: TrainRecipe, d_model: int, step: int, warmup: int, progress: float, timed: bool) -> float:
    """The learning rate of update `step` (from 1), after which the run is at `progress` (0 to 1).

    `timed`: the run has a time budget and no known number of steps, so it warms up for `warmup` steps or a tenth of the
    budget, whichever is shorter.
    """
    rise = step / warmup
    if timed and not recipe.warmup:
        rise = max(rise, progress / WARMUP_SHARE)
    # A shorter warm-up must not raise the peak.
    peak = recipe.lr or paper_rate(recipe.warmup or WARMUP, d_model, recipe.warmup or WARMUP)
    if recipe.schedule == "paper":
        # With peak = (d_model * warmup)^-0.5 and rise = step / warmup this equals the paper's formula.
        return float(peak * min(rise, rise**-0.5))
    left = max(0.0, 1.0 - progress)
    if recipe.schedule == "wsd":
        decay = min(1.0, left / recipe.cooldown)
    else:
        decay = left if recipe.schedule == "linear" else 0.5 * (1.0 - math.cos(math.pi * left))
    return float(peak * min(rise, decay))


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Set the rate in place where it is a tensor: a captured graph reads that tensor."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


class MovingAverage:
    """An exponential moving average of the weights, kept in a second model. The decay grows from 2/11 to `decay`."""

    def __init__(self, average: nn.Module, decay: float) -> None:
        self.decay = decay
        self.parameters: list[Tensor] = [local_part(parameter.detach()) for parameter in average.parameters()]

    @torch.no_grad()
    def update(self, model: nn.Module, step: int) -> None:
        """Move the average towards the weights after update `step`."""
        decay = min(self.decay, (1 + step) / (10 + step))
        torch._foreach_lerp_(self.parameters, [local_part(each.detach()) for each in model.parameters()], 1.0 - decay)
