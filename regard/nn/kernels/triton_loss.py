"""Label-smoothed cross-entropy of a block of logits, which are overwritten by their gradient (Triton); the plain version is
`regard.models.loss`. A row of logits is read from memory once: the second pass finds it in the cache."""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 4096  # columns at a time; with 32 warps, as measured on an H200
LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def _cross_entropy_kernel(
    logits,
    labels,
    losses,
    smoothing,
    scale,
    blocks,
    ALIGNED: tl.constexpr,
    BLOCK: tl.constexpr,
    EMPTY: tl.constexpr,
):
    """One row of `blocks * ALIGNED` columns, which tells the compiler that every row starts at a whole vector. The last
    EMPTY of them are beyond the vocabulary."""
    row = tl.program_id(0).to(tl.int64)
    vocab_size = blocks * ALIGNED - EMPTY
    logits += row * blocks * ALIGNED
    label = tl.load(labels + row)
    used = label >= 0
    picked = tl.load(logits + tl.maximum(label, 0)).to(tl.float32)
    lanes = tl.arange(0, BLOCK)
    unmasked = vocab_size // BLOCK * BLOCK  # up to here no mask is needed
    # Each lane of the block has its own running maximum and sum; -1e30 stands for log(0).
    highest = tl.full((BLOCK,), -1e30, tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    summed = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, unmasked, BLOCK):
        z = tl.load(logits + start + lanes).to(tl.float32)
        summed += z
        z *= LOG2_E
        higher = tl.maximum(highest, z)
        total = total * tl.exp2(highest - higher) + tl.exp2(z - higher)
        highest = higher
    rest = unmasked + lanes
    inside = rest < vocab_size
    z = tl.load(logits + rest, mask=inside, other=0.0).to(tl.float32)
    summed += z
    z = tl.where(inside, z * LOG2_E, -1e30)
    higher = tl.maximum(highest, z)
    total = total * tl.exp2(highest - higher) + tl.exp2(z - higher)
    peak = tl.max(higher, 0)
    normaliser = peak + tl.log2(tl.sum(total * tl.exp2(higher - peak), 0))  # of base 2
    nll = normaliser / LOG2_E - picked
    smooth = normaliser / LOG2_E - tl.sum(summed, 0) / vocab_size  # cross-entropy with the uniform distribution
    tl.store(losses + row * 2, tl.where(used, (1.0 - smoothing) * nll + smoothing * smooth, 0.0))
    tl.store(losses + row * 2 + 1, tl.where(used, nll, 0.0))
    # The gradient comes out scaled: in the exponent that costs nothing.
    factor = tl.load(scale)
    floor = factor * smoothing / vocab_size
    shift = normaliser - tl.log2(factor)
    if used:
        for start in range(0, unmasked, BLOCK):
            z = tl.load(logits + start + lanes).to(tl.float32)
            tl.store(logits + start + lanes, (tl.exp2(z * LOG2_E - shift) - floor).to(logits.dtype.element_ty))
        z = tl.load(logits + rest, mask=inside, other=0.0).to(tl.float32)
        gradient = tl.exp2(z * LOG2_E - shift) - floor
        tl.store(logits + rest, gradient.to(logits.dtype.element_ty), mask=inside)
        tl.debug_barrier()  # the label's own gradient overwrites what was just stored there
        at_label = tl.exp2(picked * LOG2_E - shift) - floor - factor * (1.0 - smoothing)
        tl.store(logits + label, at_label.to(logits.dtype.element_ty))
    else:
        for start in range(0, vocab_size, BLOCK):
            nothing = tl.zeros((BLOCK,), logits.dtype.element_ty)
            tl.store(logits + start + lanes, nothing, mask=start + lanes < vocab_size)


def cross_entropy_(logits: Tensor, labels: Tensor, smoothing: float, scale: Tensor, vocab_size: int) -> Tensor:
    """Logits (rows, columns) and labels (rows,) -> (rows, 2), the smoothed loss and the negative log-likelihood of each row; 0
    where the label is -1. Overwrites `logits` with the gradient of the loss times `scale` (float32, one element, above 0).
    Columns beyond the vocabulary, if there are some, stay as they are."""
    rows, columns = logits.shape
    aligned = math.gcd(columns, 16)
    assert logits.is_contiguous()
    losses = torch.empty((rows, 2), dtype=torch.float32, device=logits.device)
    if rows:
        _cross_entropy_kernel[(rows,)](
            logits, labels, losses, smoothing, scale, columns // aligned,
            ALIGNED=aligned, BLOCK=min(BLOCK, triton.next_power_of_2(vocab_size)), EMPTY=columns - vocab_size, num_warps=32,
        )  # fmt: skip
    return losses
