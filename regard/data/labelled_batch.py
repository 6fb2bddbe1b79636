"""Batches of labelled texts: long texts in windows, each framed as the model reads it, end to end without padding.

    text       a b c d e f g        in windows of 5 tokens:   [CLS] a b c [SEP]   [CLS] d e f [SEP]   [CLS] g [SEP]
    pair       a b c d | e            in windows of 6:        [CLS] a b [SEP] e [SEP]   [CLS] c d [SEP] e [SEP]

Every window of a text has the text's label; a tag belongs to the first token of its word.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from regard.data.arrays import Int64Array
from regard.data.batch import on_device, plan_by_length, split_indices
from regard.data.corpus import CorpusRange
from regard.data.feed import Packed, Part
from regard.data.labelled import decode_number
from regard.data.sampler import Sampler
from regard.data.store import Store
from regard.data.tokenizer import Tokenizer
from regard.data.windows import Span, cut_windows, pair_windows, text_room
from regard.layout import SequenceLayout
from regard.settings import Answer

IGNORED = -1  # the target of a token without a tag


class Window(NamedTuple):
    """A part of a record: of its text, or of both texts of a pair."""

    record: int
    first: Span
    second: Span | None  # of a pair

    @property
    def num_tokens(self) -> int:
        return sum(stop - start for start, stop in (self.first, self.second or (0, 0)))


class Framed(NamedTuple):
    """The input of a model: ids with what opens and closes them, their types, and how many ids open it."""

    ids: list[int]
    types: list[int]
    opening: int


class LabelledTexts:
    """The records of a store as windows. `costs` are their tokens, frames included."""

    def __init__(
        self,
        store: Store,
        tokenizer: Tokenizer,
        length: int,
        answer: Answer,
        num_labels: int,
        in_training: bool = False,
    ) -> None:
        """`answer` and `num_labels` are those of the head; a store without a column "second" has tags. `in_training`: the length is
        that of a recipe."""
        self._tokenizer, self.answer, self.num_labels = tokenizer, answer, num_labels
        self._text, self._label = store["text"], store["label"]
        self._second = store.columns.get("second")
        self.has_tags = self._second is None
        sizes = self._text.lengths
        seconds = np.zeros_like(sizes) if self._second is None else self._second.lengths
        kinds = set((seconds > 0).tolist())
        rooms = {is_pair: text_room(tokenizer, length, is_pair=is_pair, in_training=in_training) for is_pair in kinds}
        self.windows: list[Window] = []
        firsts = [0]
        for record, (size, second) in enumerate(zip(sizes.tolist(), seconds.tolist(), strict=True)):
            room = rooms[second > 0]
            if size + second <= room:  # most texts
                self.windows.append(Window(record, (0, size), (0, second) if second else None))
            elif second and self._second is not None:
                texts = self._ids(self._text, record).tolist(), self._ids(self._second, record).tolist()
                self.windows += [Window(record, *both) for both in pair_windows(*texts, room, tokenizer)]
            else:
                self.windows += [Window(record, span, None) for span in self._cut(record, room)]
            firsts.append(len(self.windows))
        self.num_windowed = int(np.count_nonzero(np.diff(firsts) > 1))  # texts in several windows
        marks = {is_pair: length - room for is_pair, room in rooms.items()}
        self.costs: Int64Array = np.array(
            [window.num_tokens + marks[window.second is not None] for window in self.windows], np.int64
        )
        self.corpora = [
            CorpusRange(corpus.name, corpus.weight, firsts[corpus.start], firsts[corpus.stop])
            for corpus in store.corpora
        ]

    def _cut(self, record: int, room: int) -> list[Span]:
        """The windows of a long text; with tags each begins with a word."""
        ids = self._ids(self._text, record).tolist()
        if not self.has_tags:
            return cut_windows(ids, room, self._tokenizer)
        size = len(ids)
        begins = np.flatnonzero(self._ids(self._label, record)).tolist()
        cuts, end = [0], 0
        while end < size:
            fitting = [place for place in (*begins, size) if end < place <= end + room]
            end = fitting[-1] if fitting else min(size, end + room)  # a word that is longer than a window
            cuts.append(end)
        return list(pairwise(cuts))

    @staticmethod
    def _ids(column: object, record: int) -> Int64Array:
        ids, offsets = column.ids, column.offsets  # type: ignore[attr-defined]
        return np.asarray(ids[offsets[record] : offsets[record + 1]], np.int64)

    @property
    def num_records(self) -> int:
        return len(self._text.lengths)

    def framed(self, window: int) -> Framed:
        """A window as the model reads it."""
        record, first_span, second_span = self.windows[window]
        first = self._ids(self._text, record)[slice(*first_span)].tolist()
        other = None
        if second_span and self._second is not None:
            other = self._ids(self._second, record)[slice(*second_span)].tolist()
        ids, types = self._tokenizer.frame(first, other)
        return Framed(ids, types, len(self._tokenizer.opening))

    def tags(self, window: int) -> list[int]:
        """The tag of each token of a window, its frame included; IGNORED where there is none."""
        record, span, _ = self.windows[window]
        found = (self._ids(self._label, record)[slice(*span)] - 1).tolist()
        opening, closing = len(self._tokenizer.opening), len(self._tokenizer.closing)
        return [IGNORED] * opening + [tag if tag >= 0 else IGNORED for tag in found] + [IGNORED] * closing

    @cached_property
    def targets(self) -> Tensor:
        """What is to be predicted of each record: its class (records,), its classes (records, classes) or its number (records,)."""
        labels = [self._ids(self._label, record).tolist() for record in range(self.num_records)]
        if self.answer == "number":
            return torch.tensor([decode_number(one) for one in labels], dtype=torch.float32)
        if self.answer == "several":
            wanted = torch.zeros(len(labels), self.num_labels)
            for record, classes in enumerate(labels):
                wanted[record, classes] = 1.0
            return wanted
        return torch.tensor([one[0] for one in labels], dtype=torch.int64)

    @cached_property
    def num_labelled(self) -> Int64Array:
        """(windows,) the labels in each: its tags, or the one of its text."""
        if not self.has_tags:
            return np.ones(len(self.windows), np.int64)
        return np.array(
            [int(np.count_nonzero(self._ids(self._label, w.record)[slice(*w.first)])) for w in self.windows], np.int64
        )

    @cached_property
    def label_counts(self) -> Int64Array:
        """(labels,) how often each label occurs in the store."""
        ids = np.asarray(self._label.ids, np.int64)
        if self.answer == "number":
            return np.full(1, self.num_records, np.int64)
        return np.bincount(ids[ids > 0] - 1 if self.has_tags else ids, minlength=self.num_labels)


@dataclass(frozen=True)
class LabelledBatch:
    """Windows to train on."""

    ids: Tensor  # (tokens,) int64
    types: Tensor  # (tokens,) int64
    layout: SequenceLayout
    targets: Tensor  # (sequences,) or (sequences, classes); of tags (tokens,), IGNORED where there is none
    class_weights: Tensor  # (classes,) what a target of each class counts

    def to(self, device: torch.device | str, non_blocking: bool = False) -> LabelledBatch:
        return on_device(self, device, non_blocking)


def make_labelled_batch(
    texts: LabelledTexts, windows: Sequence[int], weights: Tensor, tile_sizes: Sequence[int] = ()
) -> LabelledBatch:
    """These windows as a batch."""
    framed = [texts.framed(window) for window in windows]
    if texts.has_tags:
        targets = torch.tensor([tag for window in windows for tag in texts.tags(window)], dtype=torch.int64)
    else:
        targets = texts.targets[torch.tensor([texts.windows[window].record for window in windows])]
    return LabelledBatch(
        torch.tensor([i for one in framed for i in one.ids], dtype=torch.int64),
        torch.tensor([i for one in framed for i in one.types], dtype=torch.int64),
        SequenceLayout.from_lengths([len(one.ids) for one in framed], tile_sizes=tile_sizes),
        targets,
        weights,
    )


@dataclass(frozen=True)
class LabelledPacking:
    """Turns the windows that the sampler chose into micro-batches: see `feed.py`."""

    texts: LabelledTexts
    weights: Tensor
    slots: None = None

    def split(self, indices: Int64Array, parts: int) -> list[Int64Array]:
        return split_indices(indices, self.texts.costs[indices], parts)

    def pack(self, parts: Sequence[Part], own: slice, sampler: Sampler) -> Packed:
        indices = np.concatenate([part.indices for part in parts])
        count, tokens = int(self.texts.num_labelled[indices].sum()), int(self.texts.costs[indices].sum())
        return Packed([self._batch(part) for part in parts[own]], count, tokens)

    def _batch(self, part: Part) -> LabelledBatch:
        order, tile_sizes = plan_by_length(self.texts.costs[part.indices])
        return make_labelled_batch(self.texts, part.indices[order].tolist(), self.weights, tile_sizes)

    def without_labels(self, part: Part) -> LabelledBatch:
        """A batch that adds nothing to the loss."""
        batch = make_labelled_batch(self.texts, part.indices[:1].tolist(), self.weights)
        return replace(batch, class_weights=torch.zeros_like(batch.class_weights))
