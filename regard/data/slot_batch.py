"""Batches of one fixed shape, which compiled code and captured CUDA graphs need: so many places, some of them empty.

Pairs lie end to end as in `data/batch.py`, with the same marks. All that a batch holds is one row of int32 words, so that
one copy takes it to the device. Which pairs go into a batch is the sampler's business.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.data.arrays import Int64Array, IntArray
from regard.errors import UserError
from regard.layout import SlotLayout, tile_groups

Words = NDArray[np.int32]
Range = tuple[str, float, int, int]  # name, weight, start, stop

ALIGNMENT = 4  # words; a GPU loads 16 bytes at once from where a section begins
TOKEN_STEP, PAIR_STEP = (
    128,
    64,
)  # slots are multiples of these: products like tokens so, and runs of like corpora share them
DEVIATIONS = 3.0  # with so much room above the mean, hardly a batch runs out of source tokens or pairs first


@dataclass(frozen=True)
class SlotBatch:
    """Pairs to train on in a fixed number of places. `labels` has the layout of `tgt_in`."""

    src: Tensor  # (src_tokens,) int32; 0 in empty rows
    src_layout: SlotLayout
    tgt_in: Tensor  # (tgt_tokens,) int32; 0 in empty rows
    labels: Tensor  # (tgt_tokens,) int32; -1 in empty rows
    tgt_layout: SlotLayout
    count: Tensor  # () int32, the target tokens of the whole update


@dataclass(frozen=True)
class Slots:
    """The fixed shape of a batch."""

    src_tokens: int
    tgt_tokens: int
    pairs: int
    max_length: int  # tokens of the longest sentence, </s> included

    @cached_property
    def _sections(self) -> list[slice]:
        """Where the parts of a batch lie in its words; each begins at a multiple of ALIGNMENT."""
        src, tgt, groups = self.src_tokens, self.tgt_tokens, self.pairs + 1
        sections = []
        start = 0
        # src and its layout; tgt_in, labels and their layout; count
        for length in (src, src, src, groups, tgt, tgt, tgt, tgt, groups, 1):
            sections.append(slice(start, start + length))
            start = _round_up(start + length, ALIGNMENT)
        return sections

    @property
    def size(self) -> int:
        """The int32 words that a batch takes."""
        return int(self._sections[-1].stop)

    def pack(
        self,
        src_ids: IntArray,
        src_lengths: IntArray,
        tgt_ids: IntArray,
        tgt_lengths: IntArray,
        bos_id: int,
        eos_id: int,
        count: int,
    ) -> Tensor:
        """What `Store.gather` gives as the words of a batch: (size,) int32, on the host.

        `count` is the number of target tokens of the whole update, of which this batch may be a part.
        """
        src_lengths, tgt_lengths = np.asarray(src_lengths, np.int64) + 1, np.asarray(tgt_lengths, np.int64) + 1
        if not len(src_lengths) == len(tgt_lengths) <= self.pairs:
            raise ValueError(
                f"at most {self.pairs} pairs must come, but {len(src_lengths)} source and {len(tgt_lengths)} target "
                "sentences did"
            )
        self._check_side("source", src_ids, src_lengths, self.src_tokens)
        self._check_side("target", tgt_ids, tgt_lengths, self.tgt_tokens)
        words: Words = np.zeros(self.size, dtype=np.int32)
        parts = [words[section] for section in self._sections]
        src, *src_layout = parts[:4]
        tgt_in, labels, *tgt_layout = parts[4:9]
        groups = np.array(tile_groups(src_lengths.tolist(), tgt_lengths.tolist()))
        ends = write_layout(src_lengths, groups, *src_layout)
        write_sentences(src_ids, ends, eos_id, src)
        ends = write_layout(tgt_lengths, groups, *tgt_layout)
        write_sentences(tgt_ids, ends, eos_id, labels)
        tgt_in[1:] = labels[:-1]
        tgt_in[ends - tgt_lengths] = bos_id  # in the place of the </s> of the sentence before
        used = int(tgt_lengths.sum())
        tgt_in[used:] = 0
        labels[used:] = -1
        words[-1] = count
        return torch.from_numpy(words)

    def batch(self, words: Tensor) -> SlotBatch:
        """The batch that lies in `words`, on whatever device they are: views, no copies."""
        if words.shape != (self.size,) or words.dtype != torch.int32:
            raise ValueError(f"a batch must be {self.size} int32 words, but is {tuple(words.shape)} of {words.dtype}")
        parts = [words[section] for section in self._sections]
        src, *src_layout = parts[:4]
        tgt_in, labels, *tgt_layout = parts[4:9]
        return SlotBatch(
            src=src,
            src_layout=self._layout(*src_layout),
            tgt_in=tgt_in,
            labels=labels,
            tgt_layout=self._layout(*tgt_layout),
            count=words[-1],
        )

    def _layout(self, positions: Tensor, sequence_ids: Tensor, groups: Tensor) -> SlotLayout:
        return SlotLayout(positions, sequence_ids, groups, self.max_length)

    def _check_side(self, side: str, ids: IntArray, lengths: Int64Array, limit: int) -> None:
        tokens = int(lengths.sum())
        longest = int(lengths.max(initial=0))
        if tokens > limit:
            raise ValueError(f"at most {limit} {side} tokens must come, but {tokens} did, </s> included")
        if longest > self.max_length:
            raise ValueError(f"a {side} sentence must have at most {self.max_length} tokens, but one has {longest}")
        if len(ids) != tokens - len(lengths):
            raise ValueError(f"the {side} lengths must add up to the ids ({len(ids)}), but are {tokens - len(lengths)}")


def write_layout(
    lengths: Int64Array,
    group_starts: Int64Array,
    positions: Words,
    sequence_ids: Words,
    groups: Words,
) -> Int64Array:
    """Fill in a layout whose words are 0; returns the rows where the sentences end."""
    ends = lengths.cumsum()
    used = int(lengths.sum())
    positions[:used] = np.arange(used) - np.repeat(ends - lengths, lengths)
    sequence_ids[:used] = np.repeat(np.arange(len(ends)), lengths)
    sequence_ids[used:] = -1
    groups[: len(group_starts)] = np.concatenate([[0], ends])[group_starts]
    groups[len(group_starts) :] = used
    return ends


def write_sentences(ids: IntArray, ends: Int64Array, eos_id: int, out: Words) -> None:
    """Sentences end to end, each with `</s>` in the row before its end."""
    used = len(ids) + len(ends)
    inside = np.ones(used, dtype=np.bool_)
    inside[ends - 1] = False
    out[:used][inside] = ids
    out[ends - 1] = eos_id


# --- how large the slots should be ---


def fit_slots(
    src_lengths: IntArray, tgt_lengths: IntArray, corpora: Sequence[Range] | None, tgt_tokens: int, max_length: int
) -> Slots:
    """Slots for random batches of up to `tgt_tokens`, all of them nearly full: the target nearly always ends a batch first.

    Lengths and corpora are as for the sampler, so without `</s>`; `tgt_tokens` and `max_length` count it.
    """
    total = np.zeros(6)
    for _, weight, start, stop in checked_ranges(corpora, len(tgt_lengths)):
        src = np.asarray(src_lengths[start:stop], dtype=np.float64) + 1.0
        tgt = np.asarray(tgt_lengths[start:stop], dtype=np.float64) + 1.0
        # Sums of whole numbers are exact, in whatever order a machine adds them: slots are the same on every machine.
        total += weight * np.array([len(tgt), src.sum(), tgt.sum(), src @ src, src @ tgt, tgt @ tgt])
    if total[0] == 0.0:
        raise UserError("an epoch must have at least one pair, but the corpora and their weights give none")
    src_mean, tgt_mean, src_src, src_tgt, tgt_tgt = (total[1:] / total[0]).tolist()
    ratio = src_mean / tgt_mean
    num_pairs = tgt_tokens / tgt_mean
    # Of src - ratio * tgt, whose mean is 0: how far the source of a pair is from what its target lets expect.
    src_variance = max(0.0, src_src - 2.0 * ratio * src_tgt + ratio**2 * tgt_tgt)
    tgt_variance = max(0.0, tgt_tgt - tgt_mean**2)
    src_tokens = ratio * tgt_tokens + DEVIATIONS * math.sqrt(num_pairs * src_variance)
    pairs = num_pairs + DEVIATIONS * math.sqrt(num_pairs * tgt_variance) / tgt_mean
    return Slots(
        src_tokens=_round_up(max(src_tokens, max_length), TOKEN_STEP),
        tgt_tokens=_round_up(max(tgt_tokens, max_length), TOKEN_STEP),
        pairs=_round_up(pairs, PAIR_STEP),
        max_length=max_length,
    )


def checked_ranges(corpora: Sequence[Range] | None, num_pairs: int) -> list[Range]:
    """The corpora with lawful weights; None stands for one of all the pairs."""
    if corpora is None:
        return [("", 1.0, 0, num_pairs)]
    for name, weight, *_ in corpora:
        if not (math.isfinite(weight) and weight >= 0):
            raise UserError(f"the weight of corpus {name!r} must be a number from 0 on, but is {weight}")
    return [(name, float(weight), int(start), int(stop)) for name, weight, start, stop in corpora]


def _round_up(value: float, step: int) -> int:
    return step * math.ceil(value / step)
