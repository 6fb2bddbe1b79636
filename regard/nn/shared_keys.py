"""Keys and values that all hypotheses of a sentence share during decoding: kept once for each sentence, and attended to at lengths
that are a function of the sentence alone, so that its bits do not depend on the rest of the batch."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.layout import SequenceLayout
from regard.nn.places import rounded


def attend(q: Tensor, keys: Tensor, values: Tensor, bias: Tensor | None, scale: float) -> Tensor:
    """q (batch, kv_heads, queries, d_head) over keys and values (batch, kv_heads, length, d_head), with a bias on the scores,
    (batch or 1, kv_heads or 1, queries or 1, length)."""
    scores = attention_scores(q, keys, scale)
    return weighted_sum(torch.softmax(scores if bias is None else scores + bias, dim=-1), values)


def attention_scores(q: Tensor, keys: Tensor, scale: float) -> Tensor:
    """(batch, kv_heads, queries, d_head) and (batch, kv_heads, length, d_head) -> (batch, kv_heads, queries, length)."""
    copies = _copies(q)
    if copies == 1:
        return torch.matmul(q * scale, keys.transpose(-2, -1))
    repeated = (q * scale).repeat(copies, 1, 1, 1)
    return torch.matmul(repeated, keys.repeat(copies, 1, 1, 1).transpose(-2, -1))[: q.shape[0]]


def weighted_sum(weights: Tensor, values: Tensor) -> Tensor:
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
    """The attention weights inside `attend`, (batch, kv_heads, queries, length)."""
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
            output[group.sentences] = attend(queries[group.sentences], group.keys, group.values, group.bias, scale)
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
