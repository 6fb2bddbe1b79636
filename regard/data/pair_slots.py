"""Batches of sentence pairs in slots of a fixed shape (`slot_batch.py`), with the marks of `pairs.py`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from regard.data.arrays import Int64Array, IntArray
from regard.data.corpus import CorpusRange, check_ranges
from regard.data.slot_batch import (
    DEVIATIONS,
    RECORD_STEP,
    TOKEN_STEP,
    BatchLimits,
    Int32Array,
    check_packed,
    make_sections,
    round_up,
    write_layout,
    write_sentences,
)
from regard.errors import UserError
from regard.layout import SlotLayout, tile_groups


@dataclass(frozen=True)
class PairSlotBatch:
    """Pairs to train on, in slots of a fixed number of rows. `tgt_in` and `labels` share `tgt_layout`."""

    src: Tensor  # (src_tokens,) int32; 0 in empty rows
    src_layout: SlotLayout
    tgt_in: Tensor  # (tgt_tokens,) int32; 0 in empty rows
    labels: Tensor  # (tgt_tokens,) int32; -1 in empty rows
    tgt_layout: SlotLayout
    count: Tensor  # () int32, the target tokens of the whole update


@dataclass(frozen=True)
class PairSlots:
    """The fixed shape of a batch, and how it is packed into one array.

    Two pairs, (7 8 9 -> 5 6) and (4 -> 3 4 3), with `<s>` = 1 and `</s>` = 2, in 8 rows on each side:

    >>> slots = PairSlots(src_tokens=8, tgt_tokens=8, pairs=3, max_length=4)
    >>> packed = slots.pack(
    ...     src_ids=np.array([7, 8, 9, 4]), src_lengths=np.array([3, 1]),
    ...     tgt_ids=np.array([5, 6, 3, 4, 3]), tgt_lengths=np.array([2, 3]), bos_id=1, eos_id=2, count=7,
    ... )
    >>> batch = slots.unpack(packed)
    >>> batch.src.tolist(), batch.src_layout.sequence_ids.tolist()
    ([7, 8, 9, 2, 4, 2, 0, 0], [0, 0, 0, 0, 1, 1, -1, -1])
    >>> batch.tgt_in.tolist(), batch.labels.tolist()
    ([1, 5, 6, 1, 3, 4, 3, 0], [5, 6, 2, 3, 4, 3, 2, -1])
    """

    src_tokens: int
    tgt_tokens: int
    pairs: int
    max_length: int  # tokens of the longest sentence, </s> included

    @cached_property
    def _sections(self) -> list[slice]:
        """Where the tensors of a batch lie in its packed array; each begins at a multiple of ALIGNMENT."""
        src, tgt, groups = self.src_tokens, self.tgt_tokens, self.pairs + 1
        # src and its layout; tgt_in, labels and their layout; count
        return make_sections((src, src, src, groups, tgt, tgt, tgt, tgt, groups, 1))

    @property
    def size(self) -> int:
        """The length of a packed batch, in int32s."""
        return int(self._sections[-1].stop)

    @property
    def limits(self) -> BatchLimits:
        return BatchLimits(self.tgt_tokens, (self.src_tokens,), self.pairs)

    @property
    def fingerprint(self) -> list[int]:
        """Part of saved states."""
        return list(astuple(self))

    def check_fit(self, costs: Int64Array, others: Sequence[Int64Array], corpora: Sequence[CorpusRange]) -> None:
        """Refuse a pair that does not fit into an empty batch; `costs` are the target lengths, `others` the source lengths."""
        [src], tgt = others, costs
        src_limit, tgt_limit = min(self.src_tokens, self.max_length), min(self.tgt_tokens, self.max_length)
        for _, weight, start, stop in corpora:
            misfits = (src[start:stop] > src_limit) | (tgt[start:stop] > tgt_limit)
            if weight and misfits.any():
                pair = start + int(misfits.argmax())
                raise UserError(
                    f"every pair must fit into a batch of {self.src_tokens} source and {self.tgt_tokens} target tokens with "
                    f"sentences of up to {self.max_length}, but number {pair + 1} has {src[pair]} and {tgt[pair]}, "
                    f"</s> included; set data.max_length to at most {min(src_limit, tgt_limit) - 1}, or raise train.batch_tokens"
                )

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
        """Pack what `pairs.gather` returns into (size,) int32, on the host.

        `count` is the number of target tokens of the whole update, of which this batch may be one micro-batch.
        """
        src_lengths, tgt_lengths = np.asarray(src_lengths, np.int64) + 1, np.asarray(tgt_lengths, np.int64) + 1
        if not len(src_lengths) == len(tgt_lengths) <= self.pairs:
            raise ValueError(
                f"a batch must hold at most {self.pairs} pairs, but gets {len(src_lengths)} source and "
                f"{len(tgt_lengths)} target sentences"
            )
        self._check_side("source", src_ids, src_lengths, self.src_tokens)
        self._check_side("target", tgt_ids, tgt_lengths, self.tgt_tokens)
        packed: Int32Array = np.zeros(self.size, dtype=np.int32)
        parts = [packed[section] for section in self._sections]
        src, *src_layout = parts[:4]
        tgt_in, labels, *tgt_layout = parts[4:9]
        groups = np.array(tile_groups(src_lengths.tolist(), tgt_lengths.tolist()))
        ends = write_layout(src_lengths, groups, *src_layout)
        write_sentences(src_ids, ends, eos_id, src)
        ends = write_layout(tgt_lengths, groups, *tgt_layout)
        write_sentences(tgt_ids, ends, eos_id, labels)
        tgt_in[1:] = labels[:-1]
        tgt_in[ends - tgt_lengths] = bos_id  # replaces the </s> of the sentence before
        used = int(tgt_lengths.sum())
        tgt_in[used:] = 0
        labels[used:] = -1
        packed[-1] = count
        return torch.from_numpy(packed)

    def unpack(self, packed: Tensor) -> PairSlotBatch:
        """The batch of a packed array, on its device: views, no copies."""
        check_packed(packed, self.size)
        parts = [packed[section] for section in self._sections]
        src, *src_layout = parts[:4]
        tgt_in, labels, *tgt_layout = parts[4:9]
        return PairSlotBatch(
            src=src,
            src_layout=self._layout(*src_layout),
            tgt_in=tgt_in,
            labels=labels,
            tgt_layout=self._layout(*tgt_layout),
            count=packed[-1],
        )

    def _layout(self, positions: Tensor, sequence_ids: Tensor, groups: Tensor) -> SlotLayout:
        return SlotLayout(positions, sequence_ids, groups, self.max_length)

    def _check_side(self, side: str, ids: IntArray, lengths: Int64Array, limit: int) -> None:
        tokens = int(lengths.sum())
        longest = int(lengths.max(initial=0))
        if tokens > limit:
            raise ValueError(f"a batch must hold at most {limit} {side} tokens, </s> included, but gets {tokens}")
        if longest > self.max_length:
            raise ValueError(f"a {side} sentence must have at most {self.max_length} tokens, but one has {longest}")
        if len(ids) != tokens - len(lengths):
            raise ValueError(f"the {side} lengths must add up to {len(ids)} ids, but add up to {tokens - len(lengths)}")


# --- how large the slots should be ---


def fit_slots(
    src_lengths: IntArray,
    tgt_lengths: IntArray,
    corpora: Sequence[CorpusRange] | None,
    tgt_tokens: int,
    max_length: int,
) -> PairSlots:
    """Slots that random batches of `tgt_tokens` nearly fill: a batch almost always runs out of target tokens first.

    Lengths and corpora are those given to the sampler, without `</s>`; `tgt_tokens` and `max_length` count it.
    """
    total = np.zeros(6)
    for _, weight, start, stop in check_ranges(corpora, len(tgt_lengths)):
        src = np.asarray(src_lengths[start:stop], dtype=np.float64) + 1.0
        tgt = np.asarray(tgt_lengths[start:stop], dtype=np.float64) + 1.0
        # Sums of whole numbers are exact in any order of addition, so every machine gets the same slots.
        total += weight * np.array([len(tgt), src.sum(), tgt.sum(), src @ src, src @ tgt, tgt @ tgt])
    if total[0] == 0.0:
        raise UserError("an epoch must have at least one pair, but the corpora and their weights give none")
    src_mean, tgt_mean, src_src, src_tgt, tgt_tgt = (total[1:] / total[0]).tolist()
    ratio = src_mean / tgt_mean
    num_pairs = tgt_tokens / tgt_mean
    # The variance of src - ratio * tgt, whose mean is 0: how far a source length is from what its target length suggests.
    src_variance = max(0.0, src_src - 2.0 * ratio * src_tgt + ratio**2 * tgt_tgt)
    tgt_variance = max(0.0, tgt_tgt - tgt_mean**2)
    src_tokens = ratio * tgt_tokens + DEVIATIONS * math.sqrt(num_pairs * src_variance)
    pairs = num_pairs + DEVIATIONS * math.sqrt(num_pairs * tgt_variance) / tgt_mean
    return PairSlots(
        src_tokens=round_up(max(src_tokens, max_length), TOKEN_STEP),
        tgt_tokens=round_up(max(tgt_tokens, max_length), TOKEN_STEP),
        pairs=round_up(pairs, RECORD_STEP),
        max_length=max_length,
    )
