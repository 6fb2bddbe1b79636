"""The key/value cache of decoding, so that no token is computed twice.

A decoding step works on rows: `beam` hypotheses for each sentence, side by side. What they have in common is kept once for
each sentence and never copied: the keys and values of its source (`CrossCache`) and of its prompt, which is read at once
(`PromptCache`). What a row reads after that is kept for each row and reordered as hypotheses replace each other
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

from regard.layout import SequenceLayout
from regard.nn.kernels import Kernel, attention
from regard.nn.kernels.scores import PositionBias
from regard.nn.places import Places, StepGroup, rounded


def _attend(q: Tensor, keys: Tensor, values: Tensor, bias: Tensor | None, scale: float) -> Tensor:
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


def _weights(q: Tensor, keys: Tensor, bias: Tensor | None, scale: float) -> Tensor:
    """The attention weights inside `_attend`, (batch, kv_heads, queries, length)."""
    scores = torch.matmul(q * scale, keys.transpose(-2, -1))
    return torch.softmax(scores if bias is None else scores + bias, dim=-1)


@dataclass
class SentenceGroup:
    """Sentences whose lengths round up to the same length, as one padded tensor of keys and values."""

    sentences: list[int]  # their indices in the batch, ascending
    keys: Tensor  # (sentences, kv_heads, length, d_head)
    values: Tensor
    bias: Tensor | None  # (sentences, 1, 1, length): 0 for a token, -inf for padding


class SharedKeys:
    """Keys and values that all rows of a sentence share, one entry per sentence.

    Sentences are grouped by length, rounded up to a multiple of `bucket`: so a sentence's arithmetic is a function of the
    sentence alone, whatever else is in the batch.
    """

    def __init__(self, k: Tensor, v: Tensor, layout: SequenceLayout, bucket: int) -> None:
        """k and v are packed, (tokens, kv_heads, d_head)."""
        self.num_sentences = layout.num_sequences
        self.groups: list[SentenceGroup] = []
        padded = [rounded(length, bucket) for length in layout.lengths]
        for length in sorted(set(padded) - {0}):
            numbers = [number for number, other in enumerate(padded) if other == length]
            index = torch.tensor(numbers, device=k.device)
            positions = torch.arange(length, device=k.device)
            counts = (layout.offsets[index + 1] - layout.offsets[index]).long()
            valid = positions < counts[:, None]
            rows = torch.where(valid, layout.offsets[index].long()[:, None] + positions, 0)
            bias = torch.zeros(valid.shape, dtype=k.dtype, device=k.device).masked_fill(~valid, -math.inf)
            # (sentences, length, kv_heads, d_head) -> (sentences, kv_heads, length, d_head)
            keys, values = k[rows].transpose(1, 2).contiguous(), v[rows].transpose(1, 2).contiguous()
            self.groups.append(SentenceGroup(numbers, keys, values, bias[:, None, None, :]))

    def keep(self, sentences: list[int]) -> None:
        """Keep only these sentences, given by ascending indices; the others are finished."""
        renumbered = {old: new for new, old in enumerate(sentences)}
        kept = []
        for group in self.groups:
            members = [member for member, number in enumerate(group.sentences) if number in renumbered]
            if members:
                bias = None if group.bias is None else group.bias[members]
                numbers = [renumbered[group.sentences[member]] for member in members]
                kept.append(SentenceGroup(numbers, group.keys[members], group.values[members], bias))
        self.groups = kept
        self.num_sentences = len(sentences)


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
            heads = self._attend_with_prompt(group, queries, keys, values, own_bias, scale, bias)
        else:
            heads = _attend(queries, keys, values, own_bias, scale)
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

    def _attend_with_prompt(
        self,
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
        assert self.prompts is not None
        [prompt] = [one for one in self.prompts.groups if one.keys.shape[2] == group.prompt]
        prompt_keys, prompt_values, padding = prompt.keys, prompt.values, prompt.bias
        assert padding is not None
        if group.members is not None:
            prompt_keys, prompt_values = prompt_keys[group.members], prompt_values[group.members]
            padding = padding[group.members]
        sentences, rows, kv_heads = prompt_keys.shape[0], *queries.shape[:2]

        def by_sentence(x: Tensor) -> Tensor:
            """(rows, kv_heads, n, d) -> (sentences, kv_heads, beam * n, d)"""
            split = x.view(sentences, self.places.beam, *x.shape[1:]).transpose(1, 2)
            return split.reshape(sentences, kv_heads, -1, x.shape[3])

        def by_row(x: Tensor) -> Tensor:
            """(sentences, kv_heads, beam * n, d) -> (rows, kv_heads, n, d)"""
            split = x.view(sentences, kv_heads, self.places.beam, -1, x.shape[3]).transpose(1, 2)
            return split.reshape(rows, kv_heads, -1, x.shape[3])

        to_prompt = by_row(_scores(by_sentence(queries), prompt_keys, scale) + padding)
        if bias is not None:
            to_prompt = to_prompt + self._prompt_bias(group, bias, to_prompt)
        to_own = _scores(queries, keys, scale)
        to_own = to_own if own_bias is None else to_own + own_bias
        weights = torch.softmax(torch.cat((to_prompt, to_own), dim=-1), dim=-1)
        on_prompt, on_own = weights.split((group.prompt, group.length), dim=-1)
        return by_row(_product(by_sentence(on_prompt), prompt_values)) + _product(on_own, values)

    def _prompt_bias(self, group: StepGroup, bias: PositionBias, scores: Tensor) -> Tensor:
        """What positions add to the scores of prompts (rows, kv_heads, count * shared, length); of the same shape."""
        device = scores.device
        firsts = torch.tensor(group.starts, device=device)
        queries = firsts[:, None] + torch.arange(group.count, device=device)  # (sentences, count)
        keys = torch.arange(group.prompt, device=device).expand(len(group.starts), -1)
        # (sentences, num_heads, count, length) -> (sentences, kv_heads, count, shared, length)
        added = bias(queries, keys).to(scores.dtype)
        added = added.view(len(group.starts), scores.shape[1], -1, group.count, group.prompt).transpose(2, 3)
        # -> (sentences, kv_heads, count * shared, length) -> (rows, ...)
        return added.flatten(2, 3).repeat_interleave(self.places.beam, dim=0)

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
            output[group.sentences] = _attend(queries[group.sentences], group.keys, group.values, group.bias, scale)
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
            weights = _weights(queries[group.sentences], group.keys, group.bias, scale).float()
            # (sentences, kv_heads, beam * group, length) -> (sentences, kv_heads, beam, group, length)
            by_head = weights.view(len(group.sentences), weights.shape[1], beam, -1, weights.shape[3])
            means[group.sentences, :, : weights.shape[3]] = by_head.mean(dim=(1, 3))
        return means.flatten(0, 1)


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
class LayerCache:
    """The caches of one decoder layer."""

    self_attention: SelfCache
    cross_attention: CrossCache | None = None  # None: there is no encoder


@dataclass
class PromptLayerCache:
    """In the place of a `LayerCache` while prompts are read."""

    self_attention: PromptCache
    cross_attention: PromptCrossCache | None = None


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
