"""The key/value cache of decoding, so that no token is computed twice.

A decoding step works on rows: `beam` hypotheses for each sentence, side by side. What they have in common is kept once for
each sentence and never copied: the keys and values of its source (`CrossCache`) and of its prompt, which is read at once
(`step_cache.py`). What a row reads after that is kept for each row and reordered as hypotheses replace each other
(`SelfCache`). Sentences may stand at different places (`places.py`): their prompts differ in length, and a step may take
several tokens. Attention works at lengths that are a function of the sentence alone, so that its bits do not depend on the rest of
the batch. The cache of fixed shape for CUDA graphs is `slot_cache.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.layout import SequenceLayout
from regard.nn.cached_attention import attend, attend_with_prompt, attention_weights, own_bias
from regard.nn.kernels.scores import PositionBias
from regard.nn.places import Places, StepGroup
from regard.nn.shared_keys import SharedKeys


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
        if group.prompt:
            assert self.prompts is not None
            [alike] = [one for one in self.prompts.groups if one.keys.shape[2] == group.prompt]
            heads = attend_with_prompt(group, queries, keys, values, alike.at(group.members), scale, bias)
        else:
            heads = attend(queries, keys, values, own_bias(group, queries, bias), scale)
        # (rows, kv_heads, count * shared, d_head) -> (tokens, num_heads, d_head)
        return heads.view(rows, kv_heads, count, -1, d_head).transpose(1, 2).reshape(q.shape)

    def keep_prompts(self, layout: SequenceLayout, k: Tensor, v: Tensor) -> None:
        """Take the keys and values of prompts, packed, (tokens, kv_heads, d_head)."""
        self.prompts = SharedKeys(k, v, layout, self.places.bucket)

    def select(self, rows: Tensor) -> None:
        """Keep these rows, in this order."""
        kept = max(self.places.read, default=0)
        keys, values = self.keys, self.values
        self.keys = keys.new_empty(rows.shape[0], *keys.shape[1:])
        self.values = values.new_empty(rows.shape[0], *values.shape[1:])
        self.keys[:, :, :kept] = keys[rows, :, :kept]
        self.values[:, :, :kept] = values[rows, :, :kept]


class CrossCache(SharedKeys):
    """Keys and values of the source sentences."""

    def __init__(self, k: Tensor, v: Tensor, layout: SequenceLayout, bucket: int) -> None:
        """k and v are packed, (src_tokens, kv_heads, d_head)."""
        super().__init__(k, v, layout, bucket)
        self.keeps_weights = False  # whether `attend` also computes `weights`
        self.weights: Tensor | None = None  # (rows, max_length) of the last step, averaged over the heads

    def attend(self, q: Tensor, scale: float) -> Tensor:
        """Queries (tokens, num_heads, d_head), equally many for each sentence and side by side -> the same shape."""
        tokens, num_heads, d_head = q.shape
        beam = tokens // self.num_sentences
        kv_heads = self.groups[0].keys.shape[1]
        # (tokens, num_heads, d_head) -> (sentences, kv_heads, beam * group, d_head): a sentence's hypotheses share its keys
        queries = q.view(self.num_sentences, beam, kv_heads, num_heads // kv_heads, d_head).transpose(1, 2)
        queries = queries.reshape(self.num_sentences, kv_heads, -1, d_head)
        output = torch.empty_like(queries)
        for group in self.groups:
            output[group.sentences] = attend(queries[group.sentences], group.keys, group.values, group.padding, scale)
        if self.keeps_weights:
            self.weights = self._mean_weights(queries, beam, scale)
        # (sentences, kv_heads, beam * group, d_head) -> (tokens, num_heads, d_head)
        output = output.view(self.num_sentences, kv_heads, beam, num_heads // kv_heads, d_head).transpose(1, 2)
        return output.reshape(tokens, num_heads, d_head)

    def _mean_weights(self, queries: Tensor, beam: int, scale: float) -> Tensor:
        """queries (sentences, kv_heads, beam * group, d_head) -> attention weights (rows, max_length)."""
        max_length = max(group.keys.shape[2] for group in self.groups)
        means = torch.zeros((self.num_sentences, beam, max_length), dtype=torch.float32, device=queries.device)
        for group in self.groups:
            weights = attention_weights(queries[group.sentences], group.keys, group.padding, scale).float()
            # (sentences, kv_heads, beam * group, length) -> (sentences, kv_heads, beam, group, length)
            by_head = weights.view(len(group.sentences), weights.shape[1], beam, -1, weights.shape[3])
            means[group.sentences, :, : weights.shape[3]] = by_head.mean(dim=(1, 3))
        return means.flatten(0, 1)


@dataclass
class LayerCache:
    """The caches of one decoder layer."""

    self_attention: SelfCache
    cross_attention: CrossCache | None = None  # None: there is no encoder


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

    def as_prompt(self, beam: int, capacity: int) -> DecoderCache:
        """What the one row of one sentence has read, as the prompt of `beam` rows that go on from there; there is no source."""
        [length], device = self.places.read, self.places.device
        layout = SequenceLayout.from_lengths([length], device)
        places = Places([length], beam, self.places.bucket, device)
        layers = []
        for layer in self.layers:
            own = layer.self_attention
            kept = SelfCache(places, own.keys.shape[1], own.keys.shape[3], capacity, like=own.keys)
            # (1, kv_heads, capacity, d_head) -> (length, kv_heads, d_head)
            kept.keep_prompts(layout, *(x[0, :, :length].transpose(0, 1) for x in (own.keys, own.values)))
            layers.append(LayerCache(kept))
        return DecoderCache(layers, places)
