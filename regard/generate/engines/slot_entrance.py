"""How sentences get into slots: so many tokens and so many sentences at a time, always the same shape, so that encoding them
can be captured as a CUDA graph, too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from regard.data.slot_batch import write_layout, write_sentences
from regard.layout import SlotLayout, tile_groups
from regard.nn.slot_cache import Entering


@dataclass(frozen=True)
class Arrival:
    """Views of what `Entrance.pack` wrote, wherever it is."""

    src: Tensor  # (tokens,) int32; 0 in empty rows
    layout: SlotLayout
    entering: Entering
    limits: Tensor  # (sentences,) int64, most tokens that each translation may have


@dataclass(frozen=True)
class Entrance:
    """The fixed shape: `tokens` rows and `sentences`, for a cache of `slots`."""

    tokens: int
    sentences: int
    slots: int
    room: int  # tokens of the longest sentence, </s> included

    @cached_property
    def _sections(self) -> list[slice]:
        """src, token_slots and the layout's positions, sequence_ids and groups; slots, lengths and limits of sentences."""
        sizes = (*4 * [self.tokens], self.sentences + 1, *3 * [self.sentences])
        ends = np.cumsum(sizes).tolist()
        return [slice(end - size, end) for size, end in zip(sizes, ends, strict=True)]

    @property
    def size(self) -> int:
        """The int32 words that all of it takes."""
        return int(self._sections[-1].stop)

    def count(self, lengths: Sequence[int]) -> int:
        """How many of these sentences, from the first on, go in together."""
        tokens = 0
        for number, length in enumerate(lengths[: self.sentences]):
            tokens += length + 1
            if tokens > self.tokens:
                return number
        return min(len(lengths), self.sentences)

    def pack(self, ids: Sequence[Sequence[int]], slots: Sequence[int], limits: Sequence[int], eos_id: int) -> Tensor:
        """Sentences and what becomes of them as one row of words, (size,) int32, on the host."""
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

    def arrival(self, words: Tensor) -> Arrival:
        src, token_slots, positions, sequence_ids, groups, slots, lengths, limits = (
            words[part] for part in self._sections
        )
        layout = SlotLayout(positions, sequence_ids, groups, self.room)
        return Arrival(src, layout, Entering(slots.long(), lengths.long(), token_slots.long()), limits.long())
