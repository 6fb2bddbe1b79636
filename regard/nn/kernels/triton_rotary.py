"""Rotary positions of queries and keys in place, as one kernel (Triton); the plain version is `regard.nn.rotary.rotate`. It has no
backward pass: it is for decoding, where the many small operations of the plain version would cost more than all the rest."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _rotate_kernel(
    heads, positions, frequencies, stride, num_rotated,
    D: tl.constexpr, HALF: tl.constexpr, BLOCK_HEADS: tl.constexpr, BLOCK_HALF: tl.constexpr, HALVES: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    head, pair = tl.arange(0, BLOCK_HEADS), tl.arange(0, BLOCK_HALF)
    angle = tl.load(positions + token).to(tl.float32) * tl.load(frequencies + pair, mask=pair < HALF, other=0.0)
    # Rounded as the plain version rounds them.
    cos = tl.cos(angle).to(heads.dtype.element_ty).to(tl.float32)[None, :]
    sin = tl.sin(angle).to(heads.dtype.element_ty).to(tl.float32)[None, :]
    inside = (head[:, None] < num_rotated) & (pair[None, :] < HALF)
    if HALVES:
        at = heads + token * stride + head[:, None] * D + pair[None, :]
        apart = HALF
    else:
        at = heads + token * stride + head[:, None] * D + 2 * pair[None, :]
        apart = 1
    first = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(at + apart, mask=inside, other=0.0).to(tl.float32)
    tl.store(at, (first * cos - second * sin).to(heads.dtype.element_ty), mask=inside)
    tl.store(at + apart, (first * sin + second * cos).to(heads.dtype.element_ty), mask=inside)


def rotate_(heads: Tensor, rotated: int, positions: Tensor, frequencies: Tensor, halves: bool) -> Tensor:
    """Rotates the first `rotated` heads of (tokens, heads, d_head), in dimensions up to twice the number of frequencies; returns
    `heads`."""
    tokens, _, d_head = heads.shape
    assert heads.stride()[1:] == (d_head, 1)
    if tokens:
        half = frequencies.shape[0]
        _rotate_kernel[(tokens,)](
            heads, positions, frequencies, heads.stride(0), rotated,
            D=d_head, HALF=half, BLOCK_HEADS=triton.next_power_of_2(rotated), BLOCK_HALF=triton.next_power_of_2(half),
            HALVES=halves, num_warps=4,
        )  # fmt: skip
    return heads
