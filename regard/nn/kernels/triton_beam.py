"""One step of beam search in three Triton kernels; the plain version is `regard.generate.engines.slot_search.advance`.

The first two find each row's best tokens. A program takes one block of the vocabulary: first only for its best logit; once
the best of all blocks are known, for the few other tokens that can be among the row's best. The third takes one slot: it
merges the blocks of its rows and decides which candidates continue and which end.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

VOCABULARY_BLOCKS = 24  # blocks that the vocabulary is cut into, approximately
_LOWEST = tl.constexpr(-9223372036854775808)  # marks an absent candidate


@triton.jit
def _load_block(logits, allowed, row, block, units, ALIGNED: tl.constexpr, BLOCK: tl.constexpr):
    """Token ids, logits and allowed flags of one block; a row has `units * ALIGNED` logits, which tells the compiler its
    alignment."""
    places = block * BLOCK + tl.arange(0, BLOCK)
    inside = places < units * ALIGNED
    z = tl.load(logits + row * units * ALIGNED + places, mask=inside, other=float("-inf")).to(tl.float32)
    return places, z, tl.load(allowed + places, mask=inside, other=0) != 0


@triton.jit
def _best_kernel(logits, allowed, bests, sums, units, num_blocks, ALIGNED: tl.constexpr, BLOCK: tl.constexpr):
    """The best allowed logit of each block, and the block's maximum and sum of exponentials for the row's normaliser."""
    row, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    _, z, may_follow = _load_block(logits, allowed, row, block, units, ALIGNED, BLOCK)
    peak = tl.max(z, 0)
    at = row * num_blocks + block
    tl.store(sums + at * 2, peak)
    tl.store(sums + at * 2 + 1, tl.sum(tl.exp(z - peak), 0))
    tl.store(bests + at, tl.max(tl.where(may_follow, z, float("-inf")), 0))


@triton.jit
def _top_kernel(
    logits, allowed, bests, keys, units, num_blocks, K: tl.constexpr, BLOCK_K: tl.constexpr, ALIGNED: tl.constexpr,
    BLOCK: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """The tokens of each block that can be among the row's K best: anything below the K-th best block's best cannot.

    Each is one integer that sorts like its logit: the logit's bits above, and below them the distance of the id from the
    largest one, since of equal logits the lower id comes first.
    """
    row, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    n = tl.arange(0, BLOCK_N)
    others = tl.load(bests + row * num_blocks + n, mask=n < num_blocks, other=float("-inf"))
    above = tl.sum(
        (others[None, :] >= others[:, None]).to(tl.int32), 1
    )  # blocks whose best is as good, itself included
    threshold = tl.max(tl.where(above >= K, others, float("-inf")), 0)
    k = tl.arange(0, BLOCK_K)
    best_keys = tl.full((BLOCK_K,), _LOWEST, tl.int64)
    if tl.load(bests + row * num_blocks + block) >= threshold:
        places, z, may_follow = _load_block(logits, allowed, row, block, units, ALIGNED, BLOCK)
        bits = z.to(tl.int32, bitcast=True)
        ordered = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits).to(tl.int64)
        key = (ordered << 32) | (0x7FFFFFFF - places).to(tl.int64)
        key = tl.where(may_follow & (z >= threshold), key, _LOWEST)
        rank = 0
        best = tl.max(key, 0)
        while (rank < K) & (best > _LOWEST):
            best_keys = tl.where(k == rank, best, best_keys)
            key = tl.where(key == best, _LOWEST, key)
            best = tl.max(key, 0)
            rank += 1
    tl.store(keys + (row * num_blocks + block) * K + k, best_keys, mask=k < K)


@triton.jit
def _penalty(length, alpha):
    """((5 + n) / 6)^alpha"""
    return tl.exp2(alpha * tl.log2((5.0 + length.to(tl.float32)) / 6.0))


@triton.jit
def _beam_kernel(
    keys, sums, logits, length, limits, done, log_probs, newest, origin, tokens, parents, pool_scores, pool_log_probs,
    pool_lengths, pool_rows, vocab_size, num_blocks, capacity, alpha, eos_id, nbest,
    B: tl.constexpr, BLOCK_B: tl.constexpr, K: tl.constexpr, WIDTH: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_C: tl.constexpr, IS_FREE: tl.constexpr,
):  # fmt: skip
    """The search step of one slot: B hypotheses, WIDTH candidates. If the end IS_FREE, they stop at the limit without one."""
    slot = tl.program_id(0).to(tl.int64)
    b = tl.arange(0, BLOCK_B)
    in_beam = b < B
    rows = slot * B + b
    minus = float("-inf")
    # The normaliser of each row, from its blocks.
    n = tl.arange(0, BLOCK_N)
    at = (rows[:, None] * num_blocks + n[None, :]) * 2
    there = in_beam[:, None] & (n < num_blocks)[None, :]
    peaks = tl.load(sums + at, mask=there, other=minus)
    peak = tl.where(in_beam, tl.max(peaks, 1), 0.0)
    total = tl.sum(tl.load(sums + at + 1, mask=there, other=0.0) * tl.exp(peaks - peak[:, None]), 1)
    normaliser = peak + tl.log(tl.where(in_beam, total, 1.0))
    # Every candidate of every row, (BLOCK_B, BLOCK_C): its log-probability including the prefix, and its token.
    c = tl.arange(0, BLOCK_C)
    there = in_beam[:, None] & (c < num_blocks * K)[None, :]
    key = tl.load(keys + rows[:, None] * (num_blocks * K) + c[None, :], mask=there, other=_LOWEST)
    ordered = (key >> 32).to(tl.int32)
    logit = tl.where(ordered < 0, ordered ^ 0x7FFFFFFF, ordered).to(tl.float32, bitcast=True)
    token = tl.where(key > _LOWEST, 0x7FFFFFFF - (key & 0xFFFFFFFF).to(tl.int32), 0)
    before = tl.load(log_probs + rows, mask=in_beam, other=minus) - normaliser
    value = logit + before[:, None]
    value = tl.where((key > _LOWEST) & (value == value), value, minus)  # NaN never wins
    size, limit = tl.load(length + slot), tl.load(limits + slot)
    if IS_FREE:
        ending = tl.load(log_probs + rows, mask=in_beam, other=minus)
    else:
        ending = tl.load(logits + rows * vocab_size + eos_id, mask=in_beam, other=minus).to(tl.float32) + before
    at_limit = size >= limit  # only the end token may follow
    value = tl.where(at_limit, tl.where((c == 0)[None, :], ending[:, None], minus), value)
    token = tl.where(at_limit, tl.zeros_like(token) + eos_id, token)
    value, token = tl.reshape(value, (BLOCK_B * BLOCK_C,)), tl.reshape(token, (BLOCK_B * BLOCK_C,))
    place = tl.arange(0, BLOCK_B * BLOCK_C)

    running = tl.load(done + slot) == 0
    at_pool = slot * B + b
    scores = tl.load(
        pool_scores + at_pool, mask=in_beam, other=float("inf")
    )  # lanes beyond the beam are never the worst
    ended_log_probs = tl.load(pool_log_probs + at_pool, mask=in_beam, other=0.0)
    ended_lengths = tl.load(pool_lengths + at_pool, mask=in_beam, other=0)
    ended_rows = tl.load(pool_rows + at_pool, mask=in_beam, other=0)
    counted = size + 1
    if IS_FREE:
        counted = tl.where(at_limit, size, counted)
    penalty = _penalty(counted, alpha)
    live = 0
    new_log_probs = tl.full((BLOCK_B,), minus, tl.float32)
    new_tokens = tl.zeros((BLOCK_B,), tl.int32)
    new_parents = tl.zeros((BLOCK_B,), tl.int32)
    for rank in tl.static_range(WIDTH):
        best = tl.max(value, 0)
        chosen = tl.argmax(value, 0)
        is_it = place == chosen
        next_token = tl.sum(tl.where(is_it, token, 0), 0)
        parent = (chosen // BLOCK_C).to(tl.int32)
        value = tl.where(is_it, minus, value)
        ends = next_token == eos_id
        if rank < B:  # only the B best candidates may finish
            score = best / penalty
            enters = ends & (score > tl.min(scores, 0))
            replaced = (b == tl.argmin(scores, 0)) & enters
            scores = tl.where(replaced, score, scores)
            ended_log_probs = tl.where(replaced, best, ended_log_probs)
            ended_lengths = tl.where(replaced, size, ended_lengths)
            ended_rows = tl.where(replaced, parent, ended_rows)
        goes_on = (b == live) & (ends == 0)
        new_log_probs = tl.where(goes_on, best, new_log_probs)
        new_tokens = tl.where(goes_on, next_token, new_tokens)
        new_parents = tl.where(goes_on, parent, new_parents)
        live += tl.where(ends, 0, 1)
    # Done when no live hypothesis can still enter the best `nbest`; greedy search is done at its first ending.
    likeliest = tl.max(new_log_probs, 0)
    if B == 1:
        finished = tl.max(tl.where(in_beam, scores, minus), 0) > minus
    else:
        bound = likeliest / _penalty(limit + 1, alpha)
        finished = (tl.sum(((scores >= bound) & in_beam).to(tl.int32), 0) >= nbest) | (likeliest == minus)
    tl.store(log_probs + rows, new_log_probs, mask=in_beam)
    tl.store(newest + rows, new_tokens.to(tl.int64), mask=in_beam)
    tl.store(origin + rows, new_parents.to(tl.int64), mask=in_beam)
    history = (slot * capacity + tl.minimum(size, capacity - 1)) * B + b
    tl.store(tokens + history, new_tokens, mask=in_beam)
    tl.store(parents + history, new_parents, mask=in_beam)
    # A finished slot stays as it is until its result is taken.
    in_pool = in_beam & running
    tl.store(pool_scores + at_pool, scores, mask=in_pool)
    tl.store(pool_log_probs + at_pool, ended_log_probs, mask=in_pool)
    tl.store(pool_lengths + at_pool, ended_lengths, mask=in_pool)
    tl.store(pool_rows + at_pool, ended_rows, mask=in_pool)
    tl.store(length + slot, size + 1, mask=running)
    tl.store(done + slot, (finished | (running == 0)).to(tl.int8))


def advance(
    logits: Tensor, allowed: Tensor, length: Tensor, limits: Tensor, done: Tensor, log_probs: Tensor, newest: Tensor,
    tokens: Tensor, parents: Tensor, pool_scores: Tensor, pool_log_probs: Tensor, pool_lengths: Tensor, pool_rows: Tensor,
    width: int, alpha: float, eos_id: int, nbest: int, is_free: bool = False,
) -> Tensor:  # fmt: skip
    """Extend every hypothesis by one token, in place; returns (slots, beam) int64, the hypotheses that they extend.

    The tensors are the fields of `SlotState`. At least `width` tokens must be allowed. If the end `is_free`, hypotheses stop at
    their limit without an end token.
    """
    slots, beam = log_probs.shape
    rows, vocab_size = logits.shape
    logits = logits.contiguous()
    block = max(64, triton.next_power_of_2(triton.cdiv(vocab_size, VOCABULARY_BLOCKS)))
    blocks = triton.cdiv(vocab_size, block)
    bests = torch.empty((rows, blocks), dtype=torch.float32, device=logits.device)
    keys = torch.empty((rows, blocks * width), dtype=torch.int64, device=logits.device)
    sums = torch.empty((rows, blocks, 2), dtype=torch.float32, device=logits.device)
    block_n = triton.next_power_of_2(blocks)
    aligned = math.gcd(vocab_size, 8)
    cut = {"ALIGNED": aligned, "BLOCK": block, "num_warps": 4}
    _best_kernel[(rows, blocks)](logits, allowed, bests, sums, vocab_size // aligned, blocks, **cut)
    _top_kernel[(rows, blocks)](
        logits, allowed, bests, keys, vocab_size // aligned, blocks,
        K=width, BLOCK_K=triton.next_power_of_2(width), BLOCK_N=block_n, **cut,
    )  # fmt: skip
    origin = torch.empty((slots, beam), dtype=torch.int64, device=logits.device)
    _beam_kernel[(slots,)](
        keys, sums, logits, length, limits, done.view(torch.int8), log_probs, newest, origin, tokens, parents, pool_scores,
        pool_log_probs, pool_lengths, pool_rows, vocab_size, blocks, tokens.shape[1], alpha, eos_id, nbest,
        B=beam, BLOCK_B=triton.next_power_of_2(beam), K=width, WIDTH=min(2 * beam, beam * width),
        BLOCK_N=block_n, BLOCK_C=triton.next_power_of_2(blocks * width), IS_FREE=is_free, num_warps=4,
    )  # fmt: skip
    return origin
