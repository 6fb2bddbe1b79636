"""Attention of new tokens to keys and values that a cache has kept, as batched products whose bits do not depend on how many others
are in the batch. Queries are (batch, kv_heads, queries, d_head), where the query heads that share a key/value head lie side by
side."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from regard.nn.kernels.scores import PositionBias
from regard.nn.places import StepGroup
from regard.nn.shared_keys import SentenceGroup


def attend(q: Tensor, keys: Tensor, values: Tensor, bias: Tensor | None, scale: float) -> Tensor:
    """q (batch, kv_heads, queries, d_head) over keys and values (batch, kv_heads, length, d_head), with a bias on the scores,
    (batch or 1, kv_heads or 1, queries or 1, length)."""
    scores = _scores(q, keys, scale)
    return _product(torch.softmax(scores if bias is None else scores + bias, dim=-1), values)


def _scores(q: Tensor, keys: Tensor, scale: float) -> Tensor:
    """(batch, kv_heads, queries, d_head) and (batch, kv_heads, length, d_head) -> (batch, kv_heads, queries, length)."""
    copies = _copies(q)
    if copies == 1:
        return torch.matmul(q * scale, keys.transpose(-2, -1))
    repeated = (q * scale).repeat(copies, 1, 1, 1)
    return torch.matmul(repeated, keys.repeat(copies, 1, 1, 1).transpose(-2, -1))[: q.shape[0]]


def _product(weights: Tensor, values: Tensor) -> Tensor:
    """(batch, kv_heads, queries, length) and (batch, kv_heads, length, d_head) -> (batch, kv_heads, queries, d_head)."""
    copies = _copies(weights)
    if copies == 1:
        return torch.matmul(weights, values)
    return torch.matmul(weights.repeat(copies, 1, 1, 1), values.repeat(copies, 1, 1, 1))[: weights.shape[0]]


def _copies(batch: Tensor) -> int:
    """How often to repeat a batch of products (batch, kv_heads, ...) so that each is computed as in a larger batch.

    MKL gives each matrix to one thread if there are enough matrices, and splits matrices if there are few, which changes the
    last bits. The threads that compute the copies would be idle otherwise.
    """
    if batch.device.type != "cpu":
        return 1
    return -(-max(2, torch.get_num_threads()) // (batch.shape[0] * batch.shape[1]))


def attention_weights(q: Tensor, keys: Tensor, bias: Tensor | None, scale: float) -> Tensor:
    """The attention weights inside `attend`, (batch, kv_heads, queries, length)."""
    scores = torch.matmul(q * scale, keys.transpose(-2, -1))
    return torch.softmax(scores if bias is None else scores + bias, dim=-1)


def attend_with_prompt(
    group: StepGroup,
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    prompts: SentenceGroup,
    scale: float,
    bias: PositionBias | None,
) -> Tensor:
    """Attention of queries (rows, kv_heads, count * shared, d_head) to their prompts and to the rows' own keys and values (rows,
    kv_heads, length, d_head). The rows of a sentence, side by side, share its prompt."""
    (sentences, kv_heads), rows = prompts.keys.shape[:2], queries.shape[0]

    def by_sentence(x: Tensor) -> Tensor:
        """(rows, kv_heads, n, d) -> (sentences, kv_heads, beam * n, d)"""
        return x.view(sentences, -1, *x.shape[1:]).transpose(1, 2).reshape(sentences, kv_heads, -1, x.shape[3])

    def by_row(x: Tensor) -> Tensor:
        """(sentences, kv_heads, beam * n, d) -> (rows, kv_heads, n, d)"""
        split = x.view(sentences, kv_heads, rows // sentences, -1, x.shape[3])
        return split.transpose(1, 2).reshape(rows, kv_heads, -1, x.shape[3])

    to_prompt = by_row(_scores(by_sentence(queries), prompts.keys, scale) + prompts.padding)
    if bias is not None:
        to_prompt = to_prompt + prompt_bias(group, bias, to_prompt)
    to_own, added = _scores(queries, keys, scale), own_bias(group, queries, bias)
    to_own = to_own if added is None else to_own + added
    weights = torch.softmax(torch.cat((to_prompt, to_own), dim=-1), dim=-1)
    on_prompt, on_own = weights.split((group.prompt, group.length), dim=-1)
    return by_row(_product(by_sentence(on_prompt), prompts.values)) + _product(on_own, values)


def own_bias(group: StepGroup, queries: Tensor, bias: PositionBias | None) -> Tensor | None:
    """What to add to the scores of tokens that a row has read since its prompt, (1, kv_heads or 1, count * shared, length): later
    tokens of the same step are hidden."""
    if bias is None and group.count == 1:
        return None
    kv_heads, places = queries.shape[1], torch.arange(group.length, device=queries.device)
    hidden = places > places[-group.count :, None]  # (count, length)
    if bias is None:
        added = torch.zeros(hidden.shape, dtype=queries.dtype, device=queries.device).masked_fill(hidden, -math.inf)
        # (count, length) -> (1, 1, count * shared, length)
        return added.repeat_interleave(queries.shape[2] // group.count, dim=0)[None, None]
    # The prompt comes before all of these, so that their distances are those of their positions.
    added = bias(places[-group.count :], places).to(queries.dtype).masked_fill(hidden, -math.inf)
    # (num_heads, count, length) -> (1, kv_heads, count * shared, length)
    return added.view(kv_heads, -1, *hidden.shape).transpose(1, 2).reshape(1, kv_heads, -1, group.length)


def prompt_bias(group: StepGroup, bias: PositionBias, scores: Tensor) -> Tensor:
    """What positions add to the scores of prompts, (rows, kv_heads, count * shared, length); of the same shape."""
    sentences, device = len(group.starts), scores.device
    queries = torch.tensor(group.starts, device=device)[:, None] + torch.arange(group.count, device=device)
    keys = torch.arange(group.prompt, device=device).expand(sentences, -1)
    # (sentences, num_heads, count, length) -> (sentences, kv_heads, count, shared, length)
    added = bias(queries, keys).to(scores.dtype)
    added = added.view(sentences, scores.shape[1], -1, group.count, group.prompt).transpose(2, 3)
    # -> (sentences, kv_heads, count * shared, length) -> (rows, ...)
    return added.flatten(2, 3).repeat_interleave(scores.shape[0] // sentences, dim=0)
