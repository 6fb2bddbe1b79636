"""Attention for short packed sequences, in Triton: several sequences share one tile.

A group is a run of neighbouring sequences that fit into one tile on both sides. Each program takes one group and one head:

    keys      s s | t t t | u          a group of three sequences; x: may attend.
    row s0    x x | . . . | .          The mask is block-diagonal, made from each row's sequence id
    row t0    . . | x x x | .          (and from the order of rows if `causal`)
    row t1    . . | x x x | .
    row u0    . . | . . . | x

Nearly all sentences are shorter than a tile, so forward and backward are one load, a few products of whole tiles and one
store. A longer sequence is a group of its own, processed tile by tile. The layout decides on the groups
(`SlotLayout.groups`); the result is the same for any grouping. Sums have a fixed order, so results are reproducible. The
plain version is `regard.nn.kernels.dense`.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from regard.layout import GROUP_ROWS

FORWARD: dict[str, Any] = {"BLOCK": GROUP_ROWS, "num_warps": 4, "num_stages": 1}
BACKWARD: dict[str, Any] = {"BLOCK": GROUP_ROWS, "num_warps": 4, "num_stages": 1}
LOG2_E = 1.4426950408889634


@triton.jit
def _load(base, rows, end, stride, head, D: tl.constexpr, BLOCK_D: tl.constexpr):
    """A tile of one head, (BLOCK, BLOCK_D); zero from row `end` on."""
    d = tl.arange(0, BLOCK_D)
    at = base + rows[:, None] * stride + head * D + d[None, :]
    return tl.load(at, mask=(rows[:, None] < end) & (d[None, :] < D), other=0.0)


@triton.jit
def _store(base, rows, end, stride, head, tile, D: tl.constexpr, BLOCK_D: tl.constexpr):
    d = tl.arange(0, BLOCK_D)
    at = base + rows[:, None] * stride + head * D + d[None, :]
    tl.store(at, tile.to(base.dtype.element_ty), mask=(rows[:, None] < end) & (d[None, :] < D))


@triton.jit
def _store_zeros(base, used, num_rows, stride, head, D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK: tl.constexpr):
    """Zero the rows that belong to no group, divided among the programs of a head."""
    for start in range(used + tl.program_id(1) * BLOCK, num_rows, tl.num_programs(1) * BLOCK):
        rows = start + tl.arange(0, BLOCK)
        _store(base, rows, num_rows, stride, head, tl.zeros((BLOCK, BLOCK_D), tl.float32), D, BLOCK_D)


@triton.jit
def _visible(queries, q_numbers, keys, k_numbers, CAUSAL: tl.constexpr):
    """Which keys each query may attend to; rows outside the group have the ids -1 and -2, which never match."""
    visible = q_numbers[:, None] == k_numbers[None, :]
    if CAUSAL:
        visible = visible & (queries[:, None] >= keys[None, :])
    return visible


@triton.jit
def _attention_kernel(
    q, k, v, out, lse, q_ids, k_ids, q_groups, k_groups, q_stride, k_stride, v_stride, out_stride, q_rows, scale,
    GROUP: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr, CAUSAL: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    head, group = tl.program_id(0), tl.program_id(1)
    kv_head = head // GROUP
    q_begin, q_end = tl.load(q_groups + group), tl.load(q_groups + group + 1)
    k_begin, k_end = tl.load(k_groups + group), tl.load(k_groups + group + 1)
    for q_start in range(q_begin, q_end, BLOCK):
        queries = q_start + tl.arange(0, BLOCK)
        q_numbers = tl.load(q_ids + queries, mask=queries < q_end, other=-1)
        q_tile = _load(q, queries, q_end, q_stride, head, D, BLOCK_D)
        highest = tl.full((BLOCK,), float("-inf"), tl.float32)
        total = tl.zeros((BLOCK,), tl.float32)
        mixed = tl.zeros((BLOCK, BLOCK_D), tl.float32)
        last = tl.minimum(k_end, q_start + BLOCK) if CAUSAL else k_end
        for k_start in range(k_begin, last, BLOCK):
            keys = k_start + tl.arange(0, BLOCK)
            k_numbers = tl.load(k_ids + keys, mask=keys < k_end, other=-2)
            k_tile = _load(k, keys, k_end, k_stride, kv_head, D, BLOCK_D)
            v_tile = _load(v, keys, k_end, v_stride, kv_head, D, BLOCK_D)
            scores = tl.dot(q_tile, tl.trans(k_tile), input_precision="ieee") * scale
            scores = tl.where(_visible(queries, q_numbers, keys, k_numbers, CAUSAL), scores, float("-inf"))
            higher = tl.maximum(highest, tl.max(scores, 1))
            shift = tl.where(higher == float("-inf"), 0.0, higher)  # a row without any visible key so far
            weights = tl.exp2(scores - shift[:, None])
            fade = tl.exp2(highest - shift)
            total = total * fade + tl.sum(weights, 1)
            mixed = mixed * fade[:, None] + tl.dot(weights.to(v_tile.dtype), v_tile, input_precision="ieee")
            highest = higher
        has_keys = total > 0.0
        total = tl.where(has_keys, total, 1.0)
        _store(out, queries, q_end, out_stride, head, mixed / total[:, None], D, BLOCK_D)
        normaliser = tl.where(has_keys, highest + tl.log2(total), 0.0)
        tl.store(lse + head * q_rows + queries, normaliser, mask=queries < q_end)
    _store_zeros(out, tl.load(q_groups + tl.num_programs(1)), q_rows, out_stride, head, D, BLOCK_D, BLOCK)


@triton.jit
def _weights(
    q_tile, k_tile, normaliser, queries, q_numbers, keys, k_numbers, scale, CAUSAL: tl.constexpr
):  # fmt: skip
    """Recompute the attention weights of a tile of queries and a tile of keys from the normalisers."""
    scores = tl.dot(q_tile, tl.trans(k_tile)) * scale
    return tl.where(_visible(queries, q_numbers, keys, k_numbers, CAUSAL), tl.exp2(scores - normaliser[:, None]), 0.0)


@triton.jit
def _attention_backward_kernel(
    q, k, v, out, d_out, lse, d_q, d_k, d_v, q_ids, k_ids, q_groups, k_groups, q_stride, k_stride, v_stride,
    out_stride, d_q_stride, d_k_stride, d_v_stride, q_rows, k_rows, scale, scale_e,
    GROUP: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr, CAUSAL: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """With P the weights: dV = P^T dO, dP = dO V^T, dS = P (dP - rowsum(O dO)), dQ = dS K and dK = dS^T Q."""
    kv_head, group = tl.program_id(0), tl.program_id(1)
    q_begin, q_end = tl.load(q_groups + group), tl.load(q_groups + group + 1)
    k_begin, k_end = tl.load(k_groups + group), tl.load(k_groups + group + 1)
    # dK and dV, and in the same pass dQ if there is only one tile of keys.
    is_one_tile = k_end - k_begin <= BLOCK
    for k_start in range(k_begin, k_end, BLOCK):
        keys = k_start + tl.arange(0, BLOCK)
        k_numbers = tl.load(k_ids + keys, mask=keys < k_end, other=-2)
        k_tile = _load(k, keys, k_end, k_stride, kv_head, D, BLOCK_D)
        v_tile = _load(v, keys, k_end, v_stride, kv_head, D, BLOCK_D)
        k_gradient = tl.zeros((BLOCK, BLOCK_D), tl.float32)
        v_gradient = tl.zeros((BLOCK, BLOCK_D), tl.float32)
        for member in range(GROUP):
            head = kv_head * GROUP + member
            first = q_begin + (k_start - k_begin) if CAUSAL else q_begin
            for q_start in range(first, q_end, BLOCK):
                queries = q_start + tl.arange(0, BLOCK)
                q_numbers = tl.load(q_ids + queries, mask=queries < q_end, other=-1)
                normaliser = tl.load(lse + head * q_rows + queries, mask=queries < q_end, other=0.0)
                q_tile = _load(q, queries, q_end, q_stride, head, D, BLOCK_D)
                out_tile = _load(out, queries, q_end, out_stride, head, D, BLOCK_D)
                d_out_tile = _load(d_out, queries, q_end, out_stride, head, D, BLOCK_D)
                weights = _weights(q_tile, k_tile, normaliser, queries, q_numbers, keys, k_numbers, scale, CAUSAL)
                v_gradient += tl.dot(tl.trans(weights.to(d_out_tile.dtype)), d_out_tile)
                delta = tl.sum(out_tile.to(tl.float32) * d_out_tile.to(tl.float32), 1)
                d_scores = weights * (tl.dot(d_out_tile, tl.trans(v_tile)) - delta[:, None])
                d_scores = d_scores.to(q_tile.dtype)
                k_gradient += tl.dot(tl.trans(d_scores), q_tile)
                if is_one_tile:
                    _store(d_q, queries, q_end, d_q_stride, head, tl.dot(d_scores, k_tile) * scale_e, D, BLOCK_D)
        _store(d_k, keys, k_end, d_k_stride, kv_head, k_gradient * scale_e, D, BLOCK_D)
        _store(d_v, keys, k_end, d_v_stride, kv_head, v_gradient, D, BLOCK_D)
    # dQ of groups with several tiles of keys.
    last_query = tl.where(is_one_tile & (k_end > k_begin), q_begin, q_end)
    for q_start in range(q_begin, last_query, BLOCK):
        queries = q_start + tl.arange(0, BLOCK)
        q_numbers = tl.load(q_ids + queries, mask=queries < q_end, other=-1)
        for member in range(GROUP):
            head = kv_head * GROUP + member
            normaliser = tl.load(lse + head * q_rows + queries, mask=queries < q_end, other=0.0)
            q_tile = _load(q, queries, q_end, q_stride, head, D, BLOCK_D)
            out_tile = _load(out, queries, q_end, out_stride, head, D, BLOCK_D)
            d_out_tile = _load(d_out, queries, q_end, out_stride, head, D, BLOCK_D)
            delta = tl.sum(out_tile.to(tl.float32) * d_out_tile.to(tl.float32), 1)
            gradient = tl.zeros((BLOCK, BLOCK_D), tl.float32)
            last = tl.minimum(k_end, q_start + BLOCK) if CAUSAL else k_end
            for k_start in range(k_begin, last, BLOCK):
                keys = k_start + tl.arange(0, BLOCK)
                k_numbers = tl.load(k_ids + keys, mask=keys < k_end, other=-2)
                k_tile = _load(k, keys, k_end, k_stride, kv_head, D, BLOCK_D)
                v_tile = _load(v, keys, k_end, v_stride, kv_head, D, BLOCK_D)
                weights = _weights(q_tile, k_tile, normaliser, queries, q_numbers, keys, k_numbers, scale, CAUSAL)
                d_scores = weights * (tl.dot(d_out_tile, tl.trans(v_tile)) - delta[:, None])
                gradient += tl.dot(d_scores.to(k_tile.dtype), k_tile)
            _store(d_q, queries, q_end, d_q_stride, head, gradient * scale_e, D, BLOCK_D)
    for member in range(GROUP):
        head = kv_head * GROUP + member
        _store_zeros(d_q, tl.load(q_groups + tl.num_programs(1)), q_rows, d_q_stride, head, D, BLOCK_D, BLOCK)
    k_used = tl.load(k_groups + tl.num_programs(1))
    _store_zeros(d_k, k_used, k_rows, d_k_stride, kv_head, D, BLOCK_D, BLOCK)
    _store_zeros(d_v, k_used, k_rows, d_v_stride, kv_head, D, BLOCK_D, BLOCK)


def _shape(d_head: int) -> dict[str, Any]:
    return {"D": d_head, "BLOCK_D": max(16, triton.next_power_of_2(d_head))}


def _forward(
    q: Tensor, k: Tensor, v: Tensor, q_ids: Tensor, k_ids: Tensor, q_groups: Tensor, k_groups: Tensor,
    num_heads: int, kv_heads: int, causal: bool, scale: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Outputs (q_tokens, num_heads * d_head), and log2 of the normalisers (num_heads, q_tokens)."""
    rows, d_head = q.shape[0], q.shape[1] // num_heads
    for name, tensor in (("query", q), ("key", k)):
        if tensor.shape[0] * tensor.stride(0) >= 2**31:
            raise ValueError(f"{tensor.shape[0]} {name} rows are too many for one kernel; increase train.accumulate")
    out = torch.empty((rows, num_heads * d_head), dtype=q.dtype, device=q.device)
    lse = torch.empty((num_heads, rows), dtype=torch.float32, device=q.device)
    _attention_kernel[(num_heads, q_groups.shape[0] - 1)](
        q, k, v, out, lse, q_ids, k_ids, q_groups, k_groups, q.stride(0), k.stride(0), v.stride(0), out.stride(0),
        rows, LOG2_E * scale, GROUP=num_heads // kv_heads, CAUSAL=causal, **_shape(d_head), **FORWARD,
    )  # fmt: skip
    return out, lse


def _backward(
    d_out: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, d_q: Tensor, d_k: Tensor, d_v: Tensor,
    q_ids: Tensor, k_ids: Tensor, q_groups: Tensor, k_groups: Tensor, num_heads: int, kv_heads: int, causal: bool, scale: float,
) -> None:  # fmt: skip
    """Write the gradients into d_q, d_k and d_v."""
    d_out = d_out.contiguous()
    d_head = q.shape[1] // num_heads
    _attention_backward_kernel[(kv_heads, q_groups.shape[0] - 1)](
        q, k, v, out, d_out, lse, d_q, d_k, d_v, q_ids, k_ids, q_groups, k_groups, q.stride(0), k.stride(0),
        v.stride(0), out.stride(0), d_q.stride(0), d_k.stride(0), d_v.stride(0), q.shape[0], k.shape[0],
        LOG2_E * scale, scale, GROUP=num_heads // kv_heads, CAUSAL=causal, **_shape(d_head), **BACKWARD,
    )  # fmt: skip


def _split_qkv(qkv: Tensor, num_heads: int, kv_heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """(tokens, (num_heads + 2 kv_heads) * d_head) -> its columns for q, k and v."""
    d_head = qkv.shape[1] // (num_heads + 2 * kv_heads)
    q, k, v = torch.split(qkv, [num_heads * d_head, kv_heads * d_head, kv_heads * d_head], dim=1)
    return q, k, v


def _split_kv(kv: Tensor) -> tuple[Tensor, Tensor]:
    k, v = torch.chunk(kv, 2, dim=1)
    return k, v


@torch.library.custom_op("regard::self_attention", mutates_args=())
def self_attention_op(
    qkv: Tensor, ids: Tensor, groups: Tensor, num_heads: int, kv_heads: int, causal: bool, scale: float
) -> tuple[Tensor, Tensor]:
    """qkv (tokens, (num_heads + 2 kv_heads) * d_head) -> outputs (tokens, num_heads * d_head) and log2 of the normalisers."""
    q, k, v = _split_qkv(qkv, num_heads, kv_heads)
    return _forward(q, k, v, ids, ids, groups, groups, num_heads, kv_heads, causal, scale)


@self_attention_op.register_fake
def _(
    qkv: Tensor, ids: Tensor, groups: Tensor, num_heads: int, kv_heads: int, causal: bool, scale: float
) -> tuple[Tensor, Tensor]:
    d_head = qkv.shape[1] // (num_heads + 2 * kv_heads)
    out = qkv.new_empty((qkv.shape[0], num_heads * d_head))
    return out, qkv.new_empty((num_heads, qkv.shape[0]), dtype=torch.float32)


@torch.library.custom_op("regard::self_attention_backward", mutates_args=())
def self_attention_backward_op(
    d_out: Tensor, qkv: Tensor, out: Tensor, lse: Tensor, ids: Tensor, groups: Tensor,
    num_heads: int, kv_heads: int, causal: bool, scale: float,
) -> Tensor:  # fmt: skip
    """The gradient of qkv, in its shape."""
    gradient = torch.empty_like(qkv)
    _backward(
        d_out, *_split_qkv(qkv, num_heads, kv_heads), out, lse, *_split_qkv(gradient, num_heads, kv_heads),
        ids, ids, groups, groups, num_heads, kv_heads, causal, scale,
    )  # fmt: skip
    return gradient


@self_attention_backward_op.register_fake
def _(
    d_out: Tensor, qkv: Tensor, out: Tensor, lse: Tensor, ids: Tensor, groups: Tensor,
    num_heads: int, kv_heads: int, causal: bool, scale: float,
) -> Tensor:  # fmt: skip
    return torch.empty_like(qkv)


def _save_self(ctx: Any, inputs: Any, output: Any) -> None:
    qkv, ids, groups, ctx.num_heads, ctx.kv_heads, ctx.causal, ctx.scale = inputs
    ctx.set_materialize_grads(False)  # nothing differentiates the normalisers
    ctx.save_for_backward(qkv, *output, ids, groups)


def _differentiate_self(ctx: Any, d_out: Tensor, _: Any) -> Any:
    settings = ctx.num_heads, ctx.kv_heads, ctx.causal, ctx.scale
    return self_attention_backward_op(d_out, *ctx.saved_tensors, *settings), None, None, None, None, None, None


self_attention_op.register_autograd(_differentiate_self, setup_context=_save_self)


@torch.library.custom_op("regard::cross_attention", mutates_args=())
def cross_attention_op(
    q: Tensor, kv: Tensor, q_ids: Tensor, k_ids: Tensor, q_groups: Tensor, k_groups: Tensor,
    num_heads: int, kv_heads: int, scale: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """q (q_tokens, num_heads * d_head) over kv (k_tokens, 2 kv_heads * d_head) -> outputs shaped like q and log2 of the
    normalisers."""
    k, v = _split_kv(kv)
    return _forward(q, k, v, q_ids, k_ids, q_groups, k_groups, num_heads, kv_heads, False, scale)


@cross_attention_op.register_fake
def _(
    q: Tensor, kv: Tensor, q_ids: Tensor, k_ids: Tensor, q_groups: Tensor, k_groups: Tensor,
    num_heads: int, kv_heads: int, scale: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    return q.new_empty(q.shape), q.new_empty((num_heads, q.shape[0]), dtype=torch.float32)


@torch.library.custom_op("regard::cross_attention_backward", mutates_args=())
def cross_attention_backward_op(
    d_out: Tensor, q: Tensor, kv: Tensor, out: Tensor, lse: Tensor, q_ids: Tensor, k_ids: Tensor, q_groups: Tensor,
    k_groups: Tensor, num_heads: int, kv_heads: int, scale: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The gradients of q and kv, in their shapes."""
    d_q, d_kv = torch.empty_like(q), torch.empty_like(kv)
    _backward(
        d_out, q, *_split_kv(kv), out, lse, d_q, *_split_kv(d_kv),
        q_ids, k_ids, q_groups, k_groups, num_heads, kv_heads, False, scale,
    )  # fmt: skip
    return d_q, d_kv


@cross_attention_backward_op.register_fake
def _(
    d_out: Tensor, q: Tensor, kv: Tensor, out: Tensor, lse: Tensor, q_ids: Tensor, k_ids: Tensor, q_groups: Tensor,
    k_groups: Tensor, num_heads: int, kv_heads: int, scale: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    return torch.empty_like(q), torch.empty_like(kv)


def _save_cross(ctx: Any, inputs: Any, output: Any) -> None:
    q, kv, q_ids, k_ids, q_groups, k_groups, ctx.num_heads, ctx.kv_heads, ctx.scale = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(q, kv, *output, q_ids, k_ids, q_groups, k_groups)


def _differentiate_cross(ctx: Any, d_out: Tensor, _: Any) -> Any:
    d_q, d_kv = cross_attention_backward_op(d_out, *ctx.saved_tensors, ctx.num_heads, ctx.kv_heads, ctx.scale)
    return d_q, d_kv, None, None, None, None, None, None, None


cross_attention_op.register_autograd(_differentiate_cross, setup_context=_save_cross)
