"""The key/value cache of decoding, so that no token is computed twice.

A decoding step works on rows: `beam` hypotheses for each sentence, side by side. What they have in common is kept once for
each sentence and never copied: the keys and values of its source (`shared_keys.py`) and of its prompt, which is read at once
(`prompts.py`). What a row reads after that is kept for each row and reordered as hypotheses replace each other
(`SelfCache`). Sentences may stand at different places (`places.py`): their prompts differ in length, and a step may take
several tokens. Attention works at lengths that are a function of the sentence alone, so that its bits do not depend on the rest of
the batch. The cache of fixed shape for CUDA graphs is `slot_cache.py`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from regard.nn.kernels.scores import PositionBias
from regard.nn.places import Places, StepGroup
from regard.nn.prompts import attend_with_prompt
from regard.nn.shared_keys import CrossCache, SharedKeys, attend


class SelfCache:
    """Keys and values of the tokens that each row has read since its prompt, (rows, kv_heads, capacity, d_head), which grow as
    needed; and those of the prompts."""

    def __init__(self, places: Places, kv_heads: int, d_head: int, capacity: int, like: Tensor) -> None:
        self.places = places
        rows = len(places.read) * places.beam
        self.keys = like.new_empty(rows, kv_heads, capacity, d_head)
        self.values = like.new_empty(rows, kv_heads, capacity, d_head)
        self.prompts: SharedKeys | None = None

    def extend(self, q: Tensor, k: Tensor, v: Tensor, scale: float, bias: PositionBias | None = None) -> Tensor:
        """Append the keys and values of a step's tokens, each (tokens, kv_heads, d_head), and let their queries (tokens,
        num_heads, d_head) attend to all before them and to themselves: (tokens, num_heads, d_head)."""
        longest = max(group.length for group in self.places.groups)
        while longest > self.keys.shape[2]:
            self.keys = torch.cat((self.keys, torch.empty_like(self.keys)), dim=2)
            self.values = torch.cat((self.values, torch.empty_like(self.values)), dim=2)
        output = None
        for group in self.places.groups:
            if group.tokens is None:
                return self._extend(group, q, k, v, scale, bias)
            output = torch.empty_like(q) if output is None else output
            output[group.tokens] = self._extend(group, q[group.tokens], k[group.tokens], v[group.tokens], scale, bias)
        assert output is not None
        return output

    def _extend(
        self, group: StepGroup, q: Tensor, k: Tensor, v: Tensor, scale: float, bias: PositionBias | None
    ) -> Tensor:
        """`extend` for the tokens of one group."""
        num_heads, d_head = q.shape[1:]
        kv_heads, count = k.shape[1], group.count
        rows = q.shape[0] // count
        # (tokens, kv_heads, d_head) -> (rows, kv_heads, count, d_head)
        new_keys, new_values = (x.view(rows, count, kv_heads, d_head).transpose(1, 2) for x in (k, v))
        own = slice(group.length - count, group.length)
        if group.rows is None:
            self.keys[:, :, own], self.values[:, :, own] = new_keys, new_values
            keys, values = self.keys[:, :, : group.length], self.values[:, :, : group.length]
        else:
            self.keys[group.rows, :, own], self.values[group.rows, :, own] = new_keys, new_values
            keys, values = self.keys[group.rows, :, : group.length], self.values[group.rows, :, : group.length]
        # (tokens, num_heads, d_head) -> (rows, kv_heads, count * shared, d_head): `shared` query heads share a key/value head
        queries = q.view(rows, count, kv_heads, num_heads // kv_heads, d_head).transpose(1, 2)
        queries = queries.reshape(rows, kv_heads, -1, d_head)
        own_bias = self._own_bias(group, queries, kv_heads, bias)
        if group.prompt:
            assert self.prompts is not None
            heads = attend_with_prompt(
                self.prompts, self.places.beam, group, queries, keys, values, own_bias, scale, bias
            )
        else:
            heads = attend(queries, keys, values, own_bias, scale)
        # (rows, kv_heads, count * shared, d_head) -> (tokens, num_heads, d_head)
        return heads.view(rows, kv_heads, count, -1, d_head).transpose(1, 2).reshape(q.shape)

    def _own_bias(self, group: StepGroup, queries: Tensor, kv_heads: int, bias: PositionBias | None) -> Tensor | None:
        """What to add to the scores of a row's own tokens, (1, kv_heads or 1, count * shared, length): later tokens of the same
        step are hidden."""
        if bias is None and group.count == 1:
            return None
        places = torch.arange(group.length, device=queries.device)
        hidden = places > places[-group.count :, None]  # (count, length)
        added = torch.zeros(hidden.shape, dtype=queries.dtype, device=queries.device)[None]
        if bias is not None:
            # Distances are those between positions, since the prompt comes before all of these.
            added = bias(places[-group.count :], places).to(queries.dtype)  # (num_heads, count, length)
        added = added.masked_fill(hidden, -math.inf)
        if bias is None:
            # (1, count, length) -> (1, 1, count * shared, length)
            return added.repeat_interleave(queries.shape[2] // group.count, dim=1)[None]
        # (num_heads, count, length) -> (1, kv_heads, count * shared, length)
        return added.view(kv_heads, -1, *hidden.shape).transpose(1, 2).reshape(1, kv_heads, -1, group.length)

    def select(self, rows: Tensor) -> None:
        """Keep these rows, in this order."""
        kept = max(self.places.read, default=0)
        keys, values = self.keys, self.values
        self.keys = keys.new_empty(rows.shape[0], *keys.shape[1:])
        self.values = values.new_empty(rows.shape[0], *values.shape[1:])
        self.keys[:, :, :kept] = keys[rows, :, :kept]
        self.values[:, :, :kept] = values[rows, :, :kept]


@dataclass
class LayerCache:
    """The caches of one decoder layer."""

    self_attention: SelfCache
    cross_attention: CrossCache | None = None  # None: there is no encoder


class SelfAttentionCache(Protocol):
    """What a step of self-attention needs."""

    def extend(self, q: Tensor, k: Tensor, v: Tensor, scale: float, bias: PositionBias | None = None) -> Tensor:
        """Take in new keys and values, and attend from the new queries to them and to all before them."""
        ...


class CrossAttentionCache(Protocol):
    """What a step of cross-attention needs."""

    def attend(self, q: Tensor, scale: float) -> Tensor:
        """Attend from the new queries to the sources."""
        ...


class StepCache(Protocol):
    """What a step of a decoder layer needs: any of the caches here and in `slot_cache.py`."""

    @property
    def self_attention(self) -> SelfAttentionCache: ...

    @property
    def cross_attention(self) -> CrossAttentionCache | None: ...


@dataclass
class DecoderCache:
    """The caches of all decoder layers."""

    layers: list[LayerCache]
    places: Places

    def begin_step(self, counts: Sequence[int] | None = None) -> tuple[Tensor, int]:
        """As `Places.advance`."""
        if counts is not None and len(set(counts)) > 1 and self.layers[0].cross_attention is not None:
            raise ValueError(f"sentences with a source take equally many tokens in a step, but get {list(counts)}")
        return self.places.advance(counts)

    def select(self, rows: Tensor, sentences: list[int] | None = None) -> None:
        """Keep these rows, in this order; with `sentences`, keep only those sentences."""
        for layer in self.layers:
            layer.self_attention.select(rows)
            if sentences is not None:
                for shared in (layer.self_attention.prompts, layer.cross_attention):
                    if shared is not None:
                        shared.keep(sentences)
        if sentences is not None:
            self.places.keep(sentences)
