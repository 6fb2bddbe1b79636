"""Attention of one query per row over the slot cache, in Triton: each row reads the positions of its own prefix, from whichever
rows hold them.

`decode_attention` only reads the cache; `extend_attention` first writes the row's own key and value. The plain version of both
is `regard.nn.slot_cache.gathered_attention`. `put` writes the keys and values of source sentences, as `index_put_` does.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK, WARPS = 16, 1  # positions read at a time, and warps per program; measured on an H200
_LOG2_E = 1.4426950408889634  # exponentials are of base 2


@triton.jit
def _decode_attention_kernel(
    q, keys, values, out, lengths, ancestors, new_k, new_v, q_stride, k_stride, v_stride, scale, capacity,
    NUM_HEADS: tl.constexpr, GROUP: tl.constexpr, BEAM: tl.constexpr, WITH_ANCESTORS: tl.constexpr, EXTEND: tl.constexpr,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    kv_head = head // GROUP
    d = tl.arange(0, BLOCK_D)
    in_head = d < D
    query = tl.load(q + row * q_stride + head * D + d, mask=in_head, other=0.0).to(tl.float32) * scale
    slot = row // BEAM
    length = tl.load(lengths + slot).to(tl.int32)
    if EXTEND:
        # The row's own key and value are not in the cache yet: write them at position `length`.
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
        positions = start + tl.arange(0, BLOCK)
        inside = positions < length
        if WITH_ANCESTORS:
            entry = tl.load(ancestors + row * capacity + positions, mask=inside, other=0).to(tl.int64)
        else:
            entry = tl.zeros((BLOCK,), tl.int64) + slot
        at = ((entry * capacity + positions) * (NUM_HEADS // GROUP) + kv_head) * D
        mask = inside[:, None] & in_head[None, :]
        key = tl.load(keys + at[:, None] + d[None, :], mask=mask, other=0.0).to(tl.float32)
        value = tl.load(values + at[:, None] + d[None, :], mask=mask, other=0.0).to(tl.float32)
        scores = tl.where(inside, tl.sum(key * query[None, :], 1), -1e30)
        higher = tl.maximum(highest, tl.max(scores, 0))
        weights = tl.where(inside, tl.exp2(scores - higher), 0.0)
        fade = tl.exp2(highest - higher)
        total = total * fade + tl.sum(weights, 0)
        mixed = mixed * fade + tl.sum(weights[:, None] * value, 0)
        highest = higher
    total = tl.where(total > 0.0, total, 1.0)
    tl.store(out + (row * NUM_HEADS + head) * D + d, (mixed / total).to(out.dtype.element_ty), mask=in_head)


def _launch(
    q: Tensor, keys: Tensor, values: Tensor, lengths: Tensor, ancestors: Tensor | None, beam: int,
    new: tuple[Tensor, Tensor] | None, scale: float,
) -> Tensor:  # fmt: skip
    rows, num_heads, d_head = q.shape
    _, capacity, kv_heads, _ = keys.shape
    q, new_k, new_v = (
        tensor if tensor.stride()[1:] == (d_head, 1) else tensor.contiguous() for tensor in (q, *(new or (q, q)))
    )
    out = torch.empty((rows, num_heads, d_head), dtype=q.dtype, device=q.device)
    _decode_attention_kernel[(rows, num_heads)](
        q, keys, values, out, lengths, lengths if ancestors is None else ancestors, new_k, new_v,
        q.stride(0), new_k.stride(0), new_v.stride(0), _LOG2_E * scale, capacity,
        NUM_HEADS=num_heads, GROUP=num_heads // kv_heads, BEAM=beam, WITH_ANCESTORS=ancestors is not None,
        EXTEND=new is not None, D=d_head, BLOCK_D=max(16, triton.next_power_of_2(d_head)), BLOCK=BLOCK, num_warps=WARPS,
    )  # fmt: skip
    return out


def decode_attention(
    q: Tensor, keys: Tensor, values: Tensor, lengths: Tensor, ancestors: Tensor | None, beam: int, scale: float
) -> Tensor:
    """q (rows, num_heads, d_head) over keys and values (entries, capacity, kv_heads, d_head); returns the shape of q.

    Row r belongs to slot r // beam and sees the first `lengths[slot]` positions. Position t is read from entry
    `ancestors[r, t]`, or without ancestors from entry `slot`.
    """
    return _launch(q, keys, values, lengths, ancestors, beam, None, scale)


def extend_attention(
    q: Tensor, k: Tensor, v: Tensor, keys: Tensor, values: Tensor, positions: Tensor, ancestors: Tensor, beam: int, scale: float
) -> Tensor:  # fmt: skip
    """Write k and v, (rows, kv_heads, d_head), to position `positions[r // beam]` of row r, and attend to that position and,
    through the ancestors, to all before it."""
    return _launch(q, keys, values, positions, ancestors, beam, (k, v), scale)


@triton.jit
def _put_kernel(kv, keys, values, slots, positions, capacity, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    d = tl.arange(0, BLOCK)
    at = (tl.load(slots + token).to(tl.int64) * capacity + tl.load(positions + token)) * SIZE + d
    source = kv + token * (2 * SIZE) + d
    tl.store(keys + at, tl.load(source, mask=d < SIZE), mask=d < SIZE)
    tl.store(values + at, tl.load(source + SIZE, mask=d < SIZE), mask=d < SIZE)


def put(kv: Tensor, keys: Tensor, values: Tensor, slots: Tensor, positions: Tensor) -> None:
    """Write packed keys and values, side by side as (tokens, 2 kv_heads, d_head), to position `positions[t]` of slot
    `slots[t]`."""
    _, capacity, kv_heads, d_head = keys.shape
    size = kv_heads * d_head
    _put_kernel[(kv.shape[0],)](
        kv.contiguous(), keys, values, slots, positions, capacity,
        SIZE=size, BLOCK=triton.next_power_of_2(size), num_warps=2,
    )  # fmt: skip
