"""Linear layers in int8 on CPUs, for decoding: each row of the input and each row of the weights is scaled to 8-bit integers, whose
products are summed exactly. So a row's result does not depend on the other rows, and a fourth of the memory is read."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

from regard.cpu import adds_int8_exactly

_LARGEST = 127
_ZERO = 128  # inputs are stored as unsigned integers, which is what CPUs multiply with signed ones
_TINY = 1e-30  # the least scale, so that a row of zeros stays zero


class Int8Weight:
    """A weight matrix (d_out, d_in) of 8-bit integers with a scale for each row, laid out for this CPU."""

    def __init__(self, weight: Tensor) -> None:
        rows = weight.float()
        self._scale = rows.abs().amax(dim=1).clamp_min(_TINY) / _LARGEST
        integers = (rows / self._scale[:, None]).round().to(torch.int8)
        self._zeros = torch.zeros(len(rows), dtype=torch.int64)
        self._packed = torch.ops.onednn.qlinear_prepack(integers, None)

    def __deepcopy__(self, memo: dict[int, Any]) -> Int8Weight:
        return self  # nothing changes it, and torch cannot copy this layout

    def __call__(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """x W^T + b, (rows, d_in) -> (rows, d_out)."""
        scale = x.abs().amax(dim=1, keepdim=True).clamp_min(_TINY) / _LARGEST
        integers = (x / scale).round_().add_(_ZERO).to(torch.uint8)
        product: Tensor = torch.ops.onednn.qlinear_pointwise(
            integers, 1.0, _ZERO, self._packed, self._scale, self._zeros, None, 1.0, 0, torch.float32, "none", [], ""
        )
        product.mul_(scale)
        return product if bias is None else product.add_(bias)


@cache
def int8_refusal() -> str | None:
    """Why this machine cannot compute linear layers in int8; None if it can."""
    if not adds_int8_exactly():
        return "this CPU does not add products of 8-bit integers exactly (it has no VNNI)"
    try:
        return None if _is_exact() else "torch does not add products of 8-bit integers exactly here"
    except (AttributeError, RuntimeError) as error:
        return f"this build of torch has no products of 8-bit integers ({str(error).splitlines()[0]})"


@torch.inference_mode()
def _is_exact() -> bool:
    """Whether products of the largest integers are right, in which sums of 16 bits overflow."""
    weight = torch.full((16, 64), 127.0)
    weight[::2, ::3] = -127.0
    x = torch.full((5, 64), 127.0)
    x[1, ::2], x[2] = -127.0, -127.0
    return torch.equal(Int8Weight(weight)(x), x @ weight.T)
