"""The nonlinear functions of feed-forward layers and heads."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.settings import Activation


def silu(x: Tensor) -> Tensor:
    """x / (1 + e^-x). On CPUs torch's own rounds differently at the end of a vector or of a thread's share, so that a row would
    depend on its place in the batch; at inference it is therefore written out."""
    if x.requires_grad or x.device.type != "cpu":
        return F.silu(x)
    return x / (1.0 + torch.exp(-x))


def gelu(x: Tensor, by_tanh: bool) -> Tensor:
    """x times the normal distribution's share below x, which tanh approximates. On CPUs torch's own depends on a row's place in the
    batch, as `silu` does: with tanh always, else where x is a part of a wider tensor."""
    if x.requires_grad or x.device.type != "cpu":
        return F.gelu(x, approximate="tanh" if by_tanh else "none")
    if by_tanh:
        return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x * x * x)))
    return F.gelu(x.contiguous())


def activate(x: Tensor, activation: Activation) -> Tensor:
    """The activation of a hidden layer. A gated one takes gate and value side by side, and returns half the width."""
    if activation == "relu":
        return torch.relu_(x)
    if activation in ("gelu", "gelu_tanh"):
        return gelu(x, activation == "gelu_tanh")
    if activation == "silu":
        return silu(x)
    # (tokens, 2 d_ff) -> twice (tokens, d_ff)
    gate, value = x.chunk(2, dim=-1)
    if activation == "swiglu":
        return silu(gate) * value
    return gelu(gate, activation == "geglu_tanh") * value
