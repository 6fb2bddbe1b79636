"""The likeliest tokens of each row and the row's normaliser, from one reading of the logits (Triton); the twin is
`regard.decode.slot_search.top_tokens`.

A program takes a piece of the vocabulary and finds its best tokens one by one: a token's logit and number are packed into
one integer that sorts like the logit, so that a maximum is all it needs. The pieces' best are few, and torch sorts them.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 2048
_LAST = 0x7FFFFFFF  # numbers are stored as their distance from this: of equal logits the lower number comes first


@triton.jit
def _top_kernel(logits, allowed, keys, sums, vocab_size, num_blocks, K: tl.constexpr, BLOCK: tl.constexpr):
    row, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    places = block * BLOCK + tl.arange(0, BLOCK)
    inside = places < vocab_size
    z = tl.load(logits + row * vocab_size + places, mask=inside, other=float("-inf")).to(tl.float32)
    peak = tl.max(z, 0)
    total = tl.sum(tl.exp(z - peak), 0)  # of all tokens, also those that may not be chosen
    at = row * num_blocks + block
    tl.store(sums + at * 2, peak)
    tl.store(sums + at * 2 + 1, total)
    bits = z.to(tl.int32, bitcast=True)
    ordered = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits).to(tl.int64)  # sorts like the float
    key = (ordered << 32) | (0x7FFFFFFF - places).to(tl.int64)
    may_follow = tl.load(allowed + places, mask=inside, other=0) != 0
    lowest = tl.full((BLOCK,), -9223372036854775808, tl.int64)
    key = tl.where(may_follow, key, lowest)
    for rank in range(K):
        best = tl.max(key, 0)
        tl.store(keys + at * K + rank, best)
        key = tl.where(key == best, lowest, key)


def top_tokens(logits: Tensor, allowed: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Normalisers (rows, 1), logits (rows, count) and numbers (rows, count) of the best allowed tokens, best first.

    `allowed` is (vocab_size,), 1 or 0; there must be at least `count` of them.
    """
    rows, vocab_size = logits.shape
    logits = logits.contiguous()
    blocks = triton.cdiv(vocab_size, BLOCK)
    keys = torch.empty((rows, blocks * count), dtype=torch.int64, device=logits.device)
    sums = torch.empty((rows, blocks, 2), dtype=torch.float32, device=logits.device)
    _top_kernel[(rows, blocks)](logits, allowed, keys, sums, vocab_size, blocks, K=count, BLOCK=BLOCK, num_warps=4)
    normaliser = torch.logsumexp(sums[:, :, 0] + sums[:, :, 1].log(), dim=-1, keepdim=True)
    best = keys.topk(count, dim=-1).values
    tokens = _LAST - (best & 0xFFFFFFFF)
    return normaliser, logits.gather(1, tokens).float(), tokens
