"""Dropout. On CPUs torch draws a float per element on a single thread, which costs more than the matrix products around it;
here 64 random bits serve four elements."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

_LEVELS = 1 << 16  # the probability is rounded to a multiple of 1 / 65,536, and the scale uses the rounded value


class _BitDropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, probability: float) -> Tensor:
        dropped = min(round(probability * _LEVELS), _LEVELS - 1)
        words = torch.empty((x.numel() + 3) // 4, dtype=torch.int64).random_(-(2**63), None)
        # int64 (numel / 4,) -> int16 (numel,), uniform over -32768 ... 32767 -> the shape of x
        draws = words.view(torch.int16)[: x.numel()].view(x.shape)
        scale = (draws >= dropped - _LEVELS // 2).to(x.dtype).mul_(_LEVELS / (_LEVELS - dropped))
        ctx.save_for_backward(scale)
        return x * scale

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (scale,) = ctx.saved_tensors
        return gradient * scale, None


def dropout(x: Tensor, probability: float, training: bool) -> Tensor:
    """x with each element zeroed with this probability and the rest scaled up, so that the mean stays the same."""
    if not training or probability == 0.0:
        return x
    if x.device.type == "cpu" and not torch.compiler.is_compiling():  # compiled code draws on all threads
        dropped: Tensor = _BitDropout.apply(x, probability)  # type: ignore[no-untyped-call]
        return dropped
    return F.dropout(x, probability)


class Dropout(nn.Module):
    """`dropout` as a module."""

    def __init__(self, probability: float) -> None:
        super().__init__()
        self.probability = probability

    def forward(self, x: Tensor) -> Tensor:
        return dropout(x, self.probability, self.training)

    def extra_repr(self) -> str:
        return f"p={self.probability}"
