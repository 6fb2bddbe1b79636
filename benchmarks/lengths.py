"""Sentences for the benchmarks: lengths as in news text, cut into batches of similar length, and token ids for them."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Lengths = npt.NDArray[np.int64]

PAD, BOS, EOS, FIRST_WORD = 0, 1, 2, 3
SHORTEST, LONGEST = 2, 160
MEAN_TARGET, SPREAD = 28.0, 0.6  # lengths in subwords are lognormal: their mean, and the deviation of their logarithm
SOURCE_SHARE, SOURCE_SPREAD = 0.95, 0.15  # source length / target length, and the deviation of its logarithm
CORPUS = 4_500_000  # pairs that are sorted by length, as many as in WMT 2014: the more, the more alike are neighbours


@dataclass(frozen=True)
class Batch:
    """The lengths of one update's sentence pairs; a target's length includes its end."""

    src: tuple[int, ...]
    tgt: tuple[int, ...]

    @property
    def src_tokens(self) -> int:
        return sum(self.src)

    @property
    def tgt_tokens(self) -> int:
        return sum(self.tgt)


def corpus(pairs: int = CORPUS, seed: int = 1) -> tuple[Lengths, Lengths]:
    """Source and target lengths, always the same."""
    draw = np.random.default_rng(seed)
    centre = math.log(MEAN_TARGET) - SPREAD**2 / 2  # exp of this normal has mean MEAN_TARGET
    tgt = draw.lognormal(centre, SPREAD, pairs).round().clip(SHORTEST, LONGEST)
    src = (tgt * SOURCE_SHARE * draw.lognormal(0.0, SOURCE_SPREAD, pairs)).round().clip(SHORTEST, LONGEST)
    return src.astype(np.int64), tgt.astype(np.int64)


def bucketed(src: Lengths, tgt: Lengths, tokens: int) -> list[Batch]:
    """Sorted by target and then source length, and cut into batches of about `tokens` real target tokens.

    The source lengths rise and fall by turns from one target length to the next, so that a batch with two target lengths
    does not hold the longest sources of one and the shortest of the other.
    """
    order = np.lexsort((np.where(tgt % 2, src, -src), tgt))
    src, tgt = src[order], tgt[order]
    ends = tgt.cumsum()
    cuts = np.searchsorted(ends, np.arange(tokens, ends[-1] + 1, tokens)) + 1
    begins = [0, *cuts[:-1].tolist()]  # the rest after the last cut is not a whole batch
    return [
        Batch(tuple(src[a:b].tolist()), tuple(tgt[a:b].tolist())) for a, b in zip(begins, cuts.tolist(), strict=True)
    ]


def make_batches(tokens: int, number: int, pairs: int = CORPUS, seed: int = 1) -> list[Batch]:
    """`number` batches from all over the sorted corpus, in a shuffled order: shapes change from update to update."""
    batches = bucketed(*corpus(pairs, seed), tokens)
    number = min(number, len(batches))
    chosen = [batches[int((n + 0.5) * len(batches) / number)] for n in range(number)]
    random.Random(seed).shuffle(chosen)
    return chosen


def padding(batches: Sequence[Batch], side: str) -> float:
    """The share of padding in a padded grid, over all batches."""
    lengths: list[tuple[int, ...]] = [getattr(batch, side) for batch in batches]
    return 1.0 - sum(map(sum, lengths)) / sum(len(values) * max(values) for values in lengths)


def sentences(batch: Batch, vocab_size: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Source, target input and labels, packed end to end. Word n is drawn with a probability of about 1 / n, as in text."""
    draw = torch.Generator().manual_seed(seed)

    def words(count: int) -> Tensor:
        ranks = (vocab_size - FIRST_WORD + 1) ** torch.rand(count, generator=draw, dtype=torch.float64)
        return (ranks.long() - 1 + FIRST_WORD).clamp_(FIRST_WORD, vocab_size - 1)

    src, labels = words(batch.src_tokens), words(batch.tgt_tokens)
    ends = torch.tensor(batch.tgt).cumsum(0) - 1
    labels[ends] = EOS
    tgt_in = labels.roll(1)  # each sentence's input begins where the end of the one before it would be
    tgt_in[tgt_in == EOS] = BOS
    return src, tgt_in, labels


def padded(ids: Tensor, lengths: Sequence[int]) -> Tensor:
    """(tokens,) -> (sentences, longest), padded at the right."""
    return torch.nn.utils.rnn.pad_sequence(list(torch.split(ids, list(lengths))), batch_first=True, padding_value=PAD)
