"""Attention of one query a row over a cache, in Triton: each row reads as many places as it has, from wherever they lie.

`decode_attention` reads a cache; `extend_attention` also writes the row's own key and value into it. The twins are
`regard.nn.slot_cache.gathered_attention` and the same after the two are put in their place. `put` writes the keys and values of
source sentences; its twin is `index_put_`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK, WARPS = 16, 1  # places read at a time, and by how many warps; measured on an H200
_LOG2_E = 1.4426950408889634  # scores are of base 2


@triton.jit
def _decode_attention_kernel(
    q, keys, values, out, lengths, holders, new_k, new_v, q_stride, k_stride, v_stride, scale, capacity,
    NUM_HEADS: tl.constexpr, GROUP: tl.constexpr, SHARED: tl.constexpr, WITH_HOLDERS: tl.constexpr, EXTEND: tl.constexpr,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    kv_head = head // GROUP
    d = tl.arange(0, BLOCK_D)
    in_head = d < D
    query = tl.load(q + row * q_stride + head * D + d, mask=in_head, other=0.0).to(tl.float32) * scale
    owner = row // SHARED
    length = tl.load(lengths + owner).to(tl.int32)
    if EXTEND:
        # The row's own key and value come as they are and stand at place `length` from now on.
        own_key = tl.load(new_k + row * k_stride + kv_head * D + d, mask=in_head, other=0.0)
        own_value = tl.load(new_v + row * v_stride + kv_head * D + d, mask=in_head, other=0.0)
        if head % GROUP == 0:
            own = ((row * capacity + length) * (NUM_HEADS // GROUP) + kv_head) * D + d
            tl.store(keys + own, own_key, mask=in_head)
            tl.store(values + own, own_value, mask=in_head)
        highest = tl.sum(own_key.to(tl.float32) * query, 0)
        total = tl.full((), 1.0, tl.float32)
        mixed = own_value.to(tl.float32)
    else:
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
        at = ((holder * capacity + places) * (NUM_HEADS // GROUP) + kv_head) * D
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
    tl.store(out + (row * NUM_HEADS + head) * D + d, (mixed / total).to(out.dtype.element_ty), mask=in_head)


def _launch(
    q: Tensor, keys: Tensor, values: Tensor, lengths: Tensor, holders: Tensor | None, shared: int,
    new: tuple[Tensor, Tensor] | None,
) -> Tensor:  # fmt: skip
    rows, num_heads, d_head = q.shape
    _, capacity, kv_heads, _ = keys.shape
    q, new_k, new_v = (
        tensor if tensor.stride()[1:] == (d_head, 1) else tensor.contiguous() for tensor in (q, *(new or (q, q)))
    )
    out = torch.empty((rows, num_heads, d_head), dtype=q.dtype, device=q.device)
    _decode_attention_kernel[(rows, num_heads)](
        q, keys, values, out, lengths, lengths if holders is None else holders, new_k, new_v,
        q.stride(0), new_k.stride(0), new_v.stride(0), _LOG2_E * d_head**-0.5, capacity,
        NUM_HEADS=num_heads, GROUP=num_heads // kv_heads, SHARED=shared, WITH_HOLDERS=holders is not None,
        EXTEND=new is not None, D=d_head, BLOCK_D=max(16, triton.next_power_of_2(d_head)), BLOCK=BLOCK, num_warps=WARPS,
    )  # fmt: skip
    return out


def decode_attention(
    q: Tensor, keys: Tensor, values: Tensor, lengths: Tensor, holders: Tensor | None, shared: int
) -> Tensor:
    """q (rows, num_heads, d_head) over keys and values (slots, capacity, kv_heads, d_head).

    Row r belongs to owner r // shared, which has `lengths` places. Place t of a row lies in slot `holders[r, t]`, or
    without holders in the slot of its owner.
    """
    return _launch(q, keys, values, lengths, holders, shared, None)


def extend_attention(
    q: Tensor, k: Tensor, v: Tensor, keys: Tensor, values: Tensor, positions: Tensor, holders: Tensor, shared: int
) -> Tensor:
    """The same after k and v, (rows, kv_heads, d_head), are written to place `positions[r // shared]` of their row's slot:
    each row sees the places before it as its holders say, and its own."""
    return _launch(q, keys, values, positions, holders, shared, (k, v))


@triton.jit
def _put_kernel(kv, keys, values, slots, positions, capacity, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    d = tl.arange(0, BLOCK)
    at = (tl.load(slots + token).to(tl.int64) * capacity + tl.load(positions + token)) * SIZE + d
    source = kv + token * (2 * SIZE) + d
    tl.store(keys + at, tl.load(source, mask=d < SIZE), mask=d < SIZE)
    tl.store(values + at, tl.load(source + SIZE, mask=d < SIZE), mask=d < SIZE)


def put(kv: Tensor, keys: Tensor, values: Tensor, slots: Tensor, positions: Tensor) -> None:
    """Packed keys and values side by side, (tokens, 2 kv_heads, d_head), to place `positions[t]` of slot `slots[t]`."""
    _, capacity, kv_heads, d_head = keys.shape
    size = kv_heads * d_head
    _put_kernel[(kv.shape[0],)](
        kv.contiguous(), keys, values, slots, positions, capacity,
        SIZE=size, BLOCK=triton.next_power_of_2(size), num_warps=2,
    )  # fmt: skip
