"""Attention of one query a row over a cache, in Triton: each row reads as many places as it has, from wherever they lie.

The twin is `regard.nn.slots.gathered_attention`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 32  # places read at a time


@triton.jit
def _decode_attention_kernel(
    q, keys, values, out, lengths, holders, scale, capacity,
    NUM_HEADS: tl.constexpr, GROUP: tl.constexpr, SHARED: tl.constexpr, WITH_HOLDERS: tl.constexpr,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row, head = tl.program_id(0), tl.program_id(1)
    d = tl.arange(0, BLOCK_D)
    in_head = d < D
    at_q = (row * NUM_HEADS + head) * D + d
    query = tl.load(q + at_q, mask=in_head, other=0.0).to(tl.float32) * scale
    owner = row // SHARED
    length = tl.load(lengths + owner)
    highest = tl.full((), -1e30, tl.float32)
    total = tl.zeros((), tl.float32)
    mixed = tl.zeros((BLOCK_D,), tl.float32)
    for start in range(0, length, BLOCK):
        places = start + tl.arange(0, BLOCK)
        there = places < length
        if WITH_HOLDERS:
            holder = tl.load(holders + row * capacity + places, mask=there, other=0).to(tl.int64)
        else:
            holder = tl.zeros((BLOCK,), tl.int64) + owner
        at = ((holder * capacity + places) * (NUM_HEADS // GROUP) + head // GROUP) * D
        mask = there[:, None] & in_head[None, :]
        key = tl.load(keys + at[:, None] + d[None, :], mask=mask, other=0.0).to(tl.float32)
        value = tl.load(values + at[:, None] + d[None, :], mask=mask, other=0.0).to(tl.float32)
        scores = tl.where(there, tl.sum(key * query[None, :], 1), -1e30)
        higher = tl.maximum(highest, tl.max(scores, 0))
        weights = tl.where(there, tl.exp2(scores - higher), 0.0)
        fade = tl.exp2(highest - higher)
        total = total * fade + tl.sum(weights, 0)
        mixed = mixed * fade + tl.sum(weights[:, None] * value, 0)
        highest = higher
    total = tl.where(total > 0.0, total, 1.0)
    tl.store(out + at_q, (mixed / total).to(out.dtype.element_ty), mask=in_head)


def decode_attention(
    q: Tensor, keys: Tensor, values: Tensor, lengths: Tensor, holders: Tensor | None, shared: int
) -> Tensor:
    """q (rows, num_heads, d_head) over keys and values (slots, capacity, kv_heads, d_head).

    Row r belongs to owner r // shared, which has `lengths` places. Place t of a row lies in slot `holders[r, t]`, or
    without holders in the slot of its owner.
    """
    rows, num_heads, d_head = q.shape
    _, capacity, kv_heads, _ = keys.shape
    q = q.contiguous()
    out = torch.empty_like(q)
    _decode_attention_kernel[(rows, num_heads)](
        q, keys, values, out, lengths, lengths if holders is None else holders, 1.4426950408889634 * d_head**-0.5,
        capacity, NUM_HEADS=num_heads, GROUP=num_heads // kv_heads, SHARED=shared, WITH_HOLDERS=holders is not None,
        D=d_head, BLOCK_D=max(16, triton.next_power_of_2(d_head)), BLOCK=BLOCK, num_warps=2,
    )  # fmt: skip
    return out
