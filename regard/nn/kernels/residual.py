"""Dropout, residual sum and norm: s = x + dropout(y + y_bias), n = norm(s). This is the plain version, which also defines the
random bits; `triton_residual` is the fused one and drops the same elements."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

_MASK = 0xFFFFFFFF


def _hash(x: Tensor) -> Tensor:
    """Mix 32 bits, bijectively (Ellis and Wellons, "lowbias32")."""
    x = (x ^ (x >> 16)) * 0x7FEB352D & _MASK
    x = (x ^ (x >> 15)) * 0x846CA68B & _MASK
    return x ^ (x >> 16)


def threshold(probability: float) -> int:
    """An element is dropped if its 31 random bits are below this number."""
    return round(probability * (1 << 31))


def keep_mask(shape: tuple[int, int], seed: Tensor, probability: float) -> Tensor:
    """Which elements to keep, (rows, d_model) bool: a function of the 64-bit seed and the element's index alone."""
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
    """s and n, each (tokens, d_model) in the type of x; the norm is computed in float32. Without a bias it is RMSNorm."""
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
