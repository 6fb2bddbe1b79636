"""Admission of sentences into slots: batches of a fixed number of tokens and sentences, so that reading them can be a CUDA graph,
too. A source is read whole, with its end token; of a prompt, all but the last token, which the first step reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from regard.data.slot_batch import write_layout, write_sentences
from regard.layout import SlotLayout, tile_groups
from regard.nn.slot_cache import SlotAssignment


@dataclass(frozen=True)
class AdmittedBatch:
    """One packed batch, as views of the words that `SlotAdmission.pack` wrote, on any device."""

    src: Tensor  # (tokens,) int32; 0 in empty rows
    layout: SlotLayout
    assignment: SlotAssignment
    limits: Tensor  # (sentences,) int64, maximum number of output tokens of each
    first: Tensor  # (sentences,) int64, the token that each search begins with


@dataclass(frozen=True)
class SlotAdmission:
    """The fixed shape of these batches."""

    tokens: int
    sentences: int
    slots: int  # of the cache that they are admitted to
    capacity: int  # tokens of the longest sentence, including the end token
    bos_id: int  # the token that a search begins with
    eos_id: int
    is_prompts: bool = False  # whether the sentences are prompts, whose last token begins the search

    @cached_property
    def _sections(self) -> list[slice]:
        """Per token: src, token_slots, positions, sequence_ids; groups; per sentence: slots, lengths, limits, first."""
        sizes = (*4 * [self.tokens], self.sentences + 1, *4 * [self.sentences])
        ends = np.cumsum(sizes).tolist()
        return [slice(end - size, end) for size, end in zip(sizes, ends, strict=True)]

    @property
    def size(self) -> int:
        """The number of int32 words of a packed batch."""
        return int(self._sections[-1].stop)

    def count(self, lengths: Sequence[int]) -> int:
        """How many of these sentences, from the first on, fit into one batch."""
        tokens = 0
        for number, length in enumerate(lengths[: self.sentences]):
            tokens += self._read(length)
            if tokens > self.tokens:
                return number
        return min(len(lengths), self.sentences)

    def _read(self, length: int) -> int:
        """The tokens that are read of a sentence of this length."""
        return length - 1 if self.is_prompts else length + 1

    def pack(self, ids: Sequence[Sequence[int]], slots: Sequence[int], limits: Sequence[int]) -> Tensor:
        """Sentences with their slots and limits as one row of words, (size,) int32, on the host."""
        words = np.zeros(self.size, dtype=np.int32)
        src, token_slots, positions, sequence_ids, groups, *per_sentence = (words[part] for part in self._sections)
        lengths = np.array([self._read(len(sentence)) for sentence in ids])
        starts = np.array(tile_groups(lengths.tolist(), lengths.tolist()))
        ends = write_layout(lengths, starts, positions, sequence_ids, groups)
        first = [self.bos_id] * len(ids)
        if self.is_prompts:
            first = [prompt[-1] for prompt in ids]
            src[: ends[-1]] = np.fromiter((i for prompt in ids for i in prompt[:-1]), np.int32)
        else:
            write_sentences(np.fromiter((i for sentence in ids for i in sentence), np.int32), ends, self.eos_id, src)
        token_slots[:] = self.slots
        token_slots[: ends[-1]] = np.repeat(np.array(slots), lengths)
        for part, values in zip(per_sentence, (slots, lengths.tolist(), limits, first), strict=True):
            part[:] = values[0]
            part[: len(ids)] = np.array(values)
        return torch.from_numpy(words)

    def unpack(self, words: Tensor) -> AdmittedBatch:
        """The batch in these words, (size,) int32."""
        src, token_slots, positions, sequence_ids, groups, slots, lengths, limits, first = (
            words[part] for part in self._sections
        )
        layout = SlotLayout(positions, sequence_ids, groups, self.capacity)
        assignment = SlotAssignment(slots.long(), lengths.long(), token_slots.long())
        return AdmittedBatch(src, layout, assignment, limits.long(), first.long())
