"""Prompts during decoding: read at once, packed, and kept once for each sentence; hypotheses that continue a prompt share it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from regard.layout import SequenceLayout
from regard.nn.kernels import Kernel, attention
from regard.nn.kernels.scores import PositionBias
from regard.nn.places import StepGroup
from regard.nn.shared_keys import SharedKeys, attention_scores, weighted_sum

if TYPE_CHECKING:
    from regard.nn.cache import SelfCache


class PromptCache:
    """In the place of a `SelfCache` while prompts are read at once, packed: attends within each prompt, and keeps its keys and
    values for the steps that follow."""

    def __init__(self, cache: SelfCache, layout: SequenceLayout, kernel: Kernel) -> None:
        self._cache, self._layout, self._kernel = cache, layout, kernel

    def extend(self, q: Tensor, k: Tensor, v: Tensor, scale: float, bias: PositionBias | None = None) -> Tensor:
        """q (tokens, num_heads, d_head), k and v (tokens, kv_heads, d_head) -> (tokens, num_heads, d_head)."""
        self._cache.prompts = SharedKeys(k, v, self._layout, self._cache.places.bucket)
        return attention(q, k, v, self._layout, self._layout, True, self._kernel, scale=scale, bias=bias)


class PromptCrossCache:
    """In the place of a `CrossCache` while prompts are read: attends from each prompt to its source."""

    def __init__(
        self, k: Tensor, v: Tensor, layout: SequenceLayout, memory_layout: SequenceLayout, kernel: Kernel
    ) -> None:
        self._k, self._v, self._layout, self._memory_layout, self._kernel = k, v, layout, memory_layout, kernel

    def attend(self, q: Tensor, scale: float) -> Tensor:
        """Queries (tokens, num_heads, d_head) -> the same shape."""
        return attention(q, self._k, self._v, self._layout, self._memory_layout, False, self._kernel, scale=scale)


@dataclass
class PromptLayerCache:
    """In the place of a `LayerCache` while prompts are read."""

    self_attention: PromptCache
    cross_attention: PromptCrossCache | None = None


def attend_with_prompt(
    prompts: SharedKeys,
    beam: int,
    group: StepGroup,
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    own_bias: Tensor | None,
    scale: float,
    bias: PositionBias | None,
) -> Tensor:
    """Attention of queries (rows, kv_heads, count * shared, d_head) to their prompts and to the row's own keys and values
    (rows, kv_heads, length, d_head); the rows of a sentence share its prompt."""
    [prompt] = [one for one in prompts.groups if one.keys.shape[2] == group.prompt]
    prompt_keys, prompt_values, padding = prompt.keys, prompt.values, prompt.bias
    assert padding is not None
    if group.members is not None:
        prompt_keys, prompt_values = prompt_keys[group.members], prompt_values[group.members]
        padding = padding[group.members]
    sentences, rows, kv_heads = prompt_keys.shape[0], *queries.shape[:2]

    def by_sentence(x: Tensor) -> Tensor:
        """(rows, kv_heads, n, d) -> (sentences, kv_heads, beam * n, d)"""
        split = x.view(sentences, beam, *x.shape[1:]).transpose(1, 2)
        return split.reshape(sentences, kv_heads, -1, x.shape[3])

    def by_row(x: Tensor) -> Tensor:
        """(sentences, kv_heads, beam * n, d) -> (rows, kv_heads, n, d)"""
        split = x.view(sentences, kv_heads, beam, -1, x.shape[3]).transpose(1, 2)
        return split.reshape(rows, kv_heads, -1, x.shape[3])

    to_prompt = by_row(attention_scores(by_sentence(queries), prompt_keys, scale) + padding)
    if bias is not None:
        to_prompt = to_prompt + _prompt_bias(group, beam, bias, to_prompt)
    to_own = attention_scores(queries, keys, scale)
    to_own = to_own if own_bias is None else to_own + own_bias
    weights = torch.softmax(torch.cat((to_prompt, to_own), dim=-1), dim=-1)
    on_prompt, on_own = weights.split((group.prompt, group.length), dim=-1)
    return by_row(weighted_sum(by_sentence(on_prompt), prompt_values)) + weighted_sum(on_own, values)


def _prompt_bias(group: StepGroup, beam: int, bias: PositionBias, scores: Tensor) -> Tensor:
    """What positions add to the scores of prompts (rows, kv_heads, count * shared, length); of the same shape."""
    device = scores.device
    firsts = torch.tensor(group.starts, device=device)
    queries = firsts[:, None] + torch.arange(group.count, device=device)  # (sentences, count)
    keys = torch.arange(group.prompt, device=device).expand(len(group.starts), -1)
    # (sentences, num_heads, count, length) -> (sentences, kv_heads, count, shared, length)
    added = bias(queries, keys).to(scores.dtype)
    added = added.view(len(group.starts), scores.shape[1], -1, group.count, group.prompt).transpose(2, 3)
    # -> (sentences, kv_heads, count * shared, length) -> (rows, ...)
    return added.flatten(2, 3).repeat_interleave(beam, dim=0)
