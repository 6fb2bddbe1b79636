"""Dropout, residual sum and norm in one go: s = x + dropout(y + y_bias), n = norm(s). This is the plain version and the rule for
its random bits; `triton_residual` is the fused one and draws the same."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

_MASK = 0xFFFFFFFF


def _hash(x: Tensor) -> Tensor:
    """32 bits to 32 well-mixed bits, a bijection (constants by Ellis and Wellons, "lowbias32")."""
    x = (x ^ (x >> 16)) * 0x7FEB352D & _MASK
    x = (x ^ (x >> 15)) * 0x846CA68B & _MASK
    return x ^ (x >> 16)


def threshold(probability: float) -> int:
    """An element is dropped if its 31 random bits are below this."""
    return round(probability * (1 << 31))


def keep_mask(shape: tuple[int, int], seed: Tensor, probability: float) -> Tensor:
    """Which elements stay: a function of the seed (64 bits) and the element's number alone."""
    index = torch.arange(shape[0] * shape[1], device=seed.device).view(shape)
    bits = _hash((_hash(index & _MASK ^ seed & _MASK) + (seed >> 32 & _MASK)) & _MASK)
    return bits >> 1 >= threshold(probability)


def add_norm(
    x: Tensor,
    y: Tensor,
    y_bias: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    seed: Tensor,
    probability: float,
    eps: float,
) -> tuple[Tensor, Tensor]:
    """s and n; RMSNorm where there is no bias. The norm is computed in float32 and both come in the type of x."""
    y = y + y_bias.to(y.dtype)
    if probability:
        y = torch.where(keep_mask((x.shape[0], x.shape[1]), seed, probability), y / (1.0 - probability), 0.0)
    added = x + y
    wide = added.float()
    if bias is None:
        normed = F.rms_norm(wide, wide.shape[-1:], weight, eps)
    else:
        normed = F.layer_norm(wide, wide.shape[-1:], weight, bias, eps)
    return added, normed.to(x.dtype)
