"""Keys and values that the hypotheses of a sentence share: those of its source and of its prompt."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.layout import SequenceLayout
from regard.nn.places import rounded


@dataclass
class SentenceGroup:
    """Sentences whose lengths round up to the same length, as one padded tensor of keys and values."""

    sentences: list[int]  # their indices in the batch, ascending
    keys: Tensor  # (sentences, kv_heads, length, d_head)
    values: Tensor
    padding: Tensor  # (sentences, 1, 1, length), what to add to the scores: 0 for a token, -inf for padding

    def at(self, members: list[int] | None) -> SentenceGroup:
        """Some of them, as one group; None: all."""
        if members is None:
            return self
        sentences = [self.sentences[member] for member in members]
        return SentenceGroup(sentences, self.keys[members], self.values[members], self.padding[members])


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
            padding = torch.zeros(valid.shape, dtype=k.dtype, device=k.device).masked_fill(~valid, -math.inf)
            # (sentences, length, kv_heads, d_head) -> (sentences, kv_heads, length, d_head)
            keys, values = k[rows].transpose(1, 2).contiguous(), v[rows].transpose(1, 2).contiguous()
            self.groups.append(SentenceGroup(numbers, keys, values, padding[:, None, None, :]))

    def keep(self, sentences: list[int]) -> None:
        """Keep only these sentences, given by ascending indices; the others are finished."""
        renumbered = {old: new for new, old in enumerate(sentences)}
        kept = []
        for group in self.groups:
            members = [member for member, number in enumerate(group.sentences) if number in renumbered]
            if members:
                kept.append(group.at(members))
                kept[-1].sentences = [renumbered[number] for number in kept[-1].sentences]
        self.groups = kept
        self.num_sentences = len(sentences)
