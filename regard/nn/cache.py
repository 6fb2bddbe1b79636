"""The key/value cache of decoding, so that the prefix is never computed again.

A decoding step works on rows: `beam` hypotheses for each sentence, side by side. The self-attention cache has an entry for
every row and is reordered as hypotheses replace each other. The cross-attention cache has one entry per sentence, shared by
its hypotheses and never copied for the beam. The cache of fixed shape for CUDA graphs is `slot_cache.py`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.layout import SequenceLayout
from regard.nn.kernels.scores import PositionBias


def _attend(q: Tensor, keys: Tensor, values: Tensor, bias: Tensor | None, scale: float) -> Tensor:
    """q (batch, kv_heads, queries, d_head) over keys and values (batch, kv_heads, length, d_head), with a bias on the scores,
    (batch or 1, kv_heads or 1, queries or 1, length)."""
    batch = q.shape[0]
    if q.device.type == "cpu" and (copies := _copies(batch * q.shape[1])) > 1:
        q, keys, values = (tensor.repeat(copies, 1, 1, 1) for tensor in (q, keys, values))
        bias = bias if bias is None or bias.shape[0] == 1 else bias.repeat(copies, 1, 1, 1)
    scores = torch.matmul(q * scale, keys.transpose(-2, -1))
    if bias is not None:
        scores = scores + bias
    return torch.matmul(torch.softmax(scores, dim=-1), values)[:batch]


def _weights(q: Tensor, keys: Tensor, bias: Tensor | None, scale: float) -> Tensor:
    """The attention weights inside `_attend`, (batch, kv_heads, queries, length)."""
    scores = torch.matmul(q * scale, keys.transpose(-2, -1))
    return torch.softmax(scores if bias is None else scores + bias, dim=-1)


def _copies(matrices: int) -> int:
    """How often to repeat a batch of products so that each is computed as in a larger batch.

    MKL gives each matrix to one thread if there are enough matrices, and splits matrices if there are few, which changes the
    last bits. The threads that compute the copies would be idle otherwise.
    """
    return -(-max(2, torch.get_num_threads()) // matrices)


class SelfCache:
    """Keys and values of the tokens decoded so far, (rows, kv_heads, capacity, d_head); grows as needed."""

    def __init__(self, rows: int, kv_heads: int, d_head: int, capacity: int, like: Tensor) -> None:
        self.keys = like.new_empty(rows, kv_heads, capacity, d_head)
        self.values = like.new_empty(rows, kv_heads, capacity, d_head)
        self.length = 0

    def extend(self, q: Tensor, k: Tensor, v: Tensor, scale: float, bias: PositionBias | None = None) -> Tensor:
        """Append one token's keys and values, each (rows, kv_heads, d_head), and let its queries (rows, num_heads, d_head) attend
        to the whole prefix: (rows, num_heads, d_head)."""
        self._append(k, v)
        return self._attend(q, scale, bias)

    def _append(self, k: Tensor, v: Tensor) -> None:
        if self.length == self.keys.shape[2]:
            self.keys = torch.cat((self.keys, torch.empty_like(self.keys)), dim=2)
            self.values = torch.cat((self.values, torch.empty_like(self.values)), dim=2)
        self.keys[:, :, self.length] = k
        self.values[:, :, self.length] = v
        self.length += 1

    def _attend(self, q: Tensor, scale: float, bias: PositionBias | None) -> Tensor:
        rows, num_heads, d_head = q.shape
        kv_heads = self.keys.shape[1]
        # (rows, num_heads, d_head) -> (rows, kv_heads, group, d_head): the query heads of a group share one key/value head
        grouped = q.view(rows, kv_heads, num_heads // kv_heads, d_head)
        keys, values = self.keys[:, :, : self.length], self.values[:, :, : self.length]
        added = None
        if bias is not None:
            places = torch.arange(self.length, device=q.device)
            # (num_heads, 1, length) -> (1, kv_heads, group, length)
            added = bias(places[-1:], places).to(q.dtype).view(1, kv_heads, -1, self.length)
        # (rows, kv_heads, group, d_head) -> (rows, num_heads, d_head)
        return _attend(grouped, keys, values, added, scale).reshape(rows, num_heads, d_head)

    def select(self, rows: Tensor) -> None:
        """Keep these rows, in this order."""
        kept = self.length
        keys, values = self.keys, self.values
        self.keys = keys.new_empty(rows.shape[0], *keys.shape[1:])
        self.values = values.new_empty(rows.shape[0], *values.shape[1:])
        self.keys[:, :, :kept] = keys[rows, :, :kept]
        self.values[:, :, :kept] = values[rows, :, :kept]


@dataclass
class _Group:
    """Sentences whose source lengths round up to the same length, as one padded tensor of keys and values."""

    sentences: list[int]  # their indices in the batch, ascending
    keys: Tensor  # (sentences, kv_heads, length, d_head)
    values: Tensor
    bias: Tensor | None  # (sentences, 1, 1, length): 0 for a token, -inf for padding


class CrossCache:
    """Keys and values of the source sentences, one entry per sentence.

    Sentences are grouped by length, rounded up to a multiple of `bucket`: so a sentence's arithmetic is a function of the
    sentence alone, whatever else is in the batch.
    """

    def __init__(self, k: Tensor, v: Tensor, layout: SequenceLayout, bucket: int) -> None:
        """k and v are packed, (src_tokens, kv_heads, d_head)."""
        self.num_sentences = layout.num_sequences
        self.keeps_weights = False  # whether `attend` also computes `weights`
        self.weights: Tensor | None = None  # (rows, max_length) of the last step, averaged over the heads
        self.groups: list[_Group] = []
        padded = [-(-length // bucket) * bucket for length in layout.lengths]
        for length in sorted(set(padded)):
            numbers = [number for number, other in enumerate(padded) if other == length]
            index = torch.tensor(numbers, device=k.device)
            positions = torch.arange(length, device=k.device)
            counts = (layout.offsets[index + 1] - layout.offsets[index]).long()
            valid = positions < counts[:, None]
            rows = torch.where(valid, layout.offsets[index].long()[:, None] + positions, 0)
            bias = torch.zeros(valid.shape, dtype=k.dtype, device=k.device).masked_fill(~valid, -math.inf)
            # (sentences, length, kv_heads, d_head) -> (sentences, kv_heads, length, d_head)
            keys, values = k[rows].transpose(1, 2).contiguous(), v[rows].transpose(1, 2).contiguous()
            self.groups.append(_Group(numbers, keys, values, bias[:, None, None, :]))

    def attend(self, q: Tensor, scale: float) -> Tensor:
        """Queries (rows, num_heads, d_head), the hypotheses of a sentence side by side -> the same shape."""
        rows, num_heads, d_head = q.shape
        beam = rows // self.num_sentences
        kv_heads = self.groups[0].keys.shape[1]
        # (rows, num_heads, d_head) -> (sentences, kv_heads, beam * group, d_head): a sentence's hypotheses share its keys
        queries = q.view(self.num_sentences, beam, kv_heads, num_heads // kv_heads, d_head).transpose(1, 2)
        queries = queries.reshape(self.num_sentences, kv_heads, -1, d_head)
        output = torch.empty_like(queries)
        for group in self.groups:
            output[group.sentences] = _attend(queries[group.sentences], group.keys, group.values, group.bias, scale)
        if self.keeps_weights:
            self.weights = self._mean_weights(queries, beam, scale)
        # (sentences, kv_heads, beam * group, d_head) -> (rows, num_heads, d_head)
        output = output.view(self.num_sentences, kv_heads, beam, num_heads // kv_heads, d_head).transpose(1, 2)
        return output.reshape(rows, num_heads, d_head)

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

    def keep(self, sentences: list[int]) -> None:
        """Keep only these sentences, given by ascending indices; the others are finished."""
        renumbered = {old: new for new, old in enumerate(sentences)}
        kept = []
        for group in self.groups:
            members = [member for member, number in enumerate(group.sentences) if number in renumbered]
            if members:
                bias = None if group.bias is None else group.bias[members]
                numbers = [renumbered[group.sentences[member]] for member in members]
                kept.append(_Group(numbers, group.keys[members], group.values[members], bias))
        self.groups = kept
        self.num_sentences = len(sentences)


@dataclass
class LayerCache:
    """The caches of one decoder layer."""

    self_attention: SelfCache
    cross_attention: CrossCache | None  # None: there is no encoder


@dataclass
class DecoderCache:
    """The caches of all decoder layers."""

    layers: list[LayerCache]
    position: int = 0  # of the next token

    def begin_step(self) -> tuple[Tensor, int]:
        """Positions (rows,) of the next tokens, and an upper bound on them."""
        keys = self.layers[0].self_attention.keys
        positions = torch.full((keys.shape[0],), self.position, device=keys.device)
        self.position += 1
        return positions, self.position

    def select(self, rows: Tensor, sentences: list[int] | None = None) -> None:
        """Keep these rows, in this order; with `sentences`, keep only those sentences."""
        for layer in self.layers:
            layer.self_attention.select(rows)
            if sentences is not None and layer.cross_attention is not None:
                layer.cross_attention.keep(sentences)
