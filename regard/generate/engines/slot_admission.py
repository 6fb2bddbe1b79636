"""Admission of sentences into slots: batches of a fixed number of tokens and sentences, so that encoding them can be a CUDA graph,
too."""

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


@dataclass(frozen=True)
class SlotAdmission:
    """The fixed shape of these batches."""

    tokens: int
    sentences: int
    slots: int  # of the cache that they are admitted to
    capacity: int  # tokens of the longest sentence, including the end token

    @cached_property
    def _sections(self) -> list[slice]:
        """Per token: src, token_slots, positions, sequence_ids; groups; per sentence: slots, lengths, limits."""
        sizes = (*4 * [self.tokens], self.sentences + 1, *3 * [self.sentences])
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
            tokens += length + 1
            if tokens > self.tokens:
                return number
        return min(len(lengths), self.sentences)

    def pack(self, ids: Sequence[Sequence[int]], slots: Sequence[int], limits: Sequence[int], eos_id: int) -> Tensor:
        """Sentences with their slots and limits as one row of words, (size,) int32, on the host."""
        words = np.zeros(self.size, dtype=np.int32)
        src, token_slots, positions, sequence_ids, groups, *per_sentence = (words[part] for part in self._sections)
        lengths = np.array([len(sentence) + 1 for sentence in ids])
        starts = np.array(tile_groups(lengths.tolist(), lengths.tolist()))
        ends = write_layout(lengths, starts, positions, sequence_ids, groups)
        write_sentences(np.fromiter((i for sentence in ids for i in sentence), np.int32), ends, eos_id, src)
        token_slots[:] = self.slots
        token_slots[: ends[-1]] = np.repeat(np.array(slots), lengths)
        for part, values in zip(per_sentence, (slots, lengths.tolist(), limits), strict=True):
            part[:] = values[0]
            part[: len(ids)] = np.array(values)
        return torch.from_numpy(words)

    def unpack(self, words: Tensor) -> AdmittedBatch:
        """The batch in these words, (size,) int32."""
        src, token_slots, positions, sequence_ids, groups, slots, lengths, limits = (
            words[part] for part in self._sections
        )
        layout = SlotLayout(positions, sequence_ids, groups, self.capacity)
        return AdmittedBatch(
            src, layout, SlotAssignment(slots.long(), lengths.long(), token_slots.long()), limits.long()
        )
