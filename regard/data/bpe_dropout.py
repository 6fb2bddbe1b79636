"""BPE-dropout (Provilkov et al., 2020): in training, words are segmented differently each time, with merges dropped at random.

sentencepiece can do that, but not from a seed. Here a pool of segmentations is drawn beforehand for each distinct word of the
corpus (word type), 8 to 32 of them depending on its frequency, from the run's seed. Each update then draws one of them for
each of its words, from (seed, epoch, position) alone. So runs resume exactly, processes agree without communicating, and an
update costs two gathers.

    sentence   "the cats sat"           word types   [17, 4, 311]
    pool       17: the | th e | t he    ...                              the first is the tokenizer's own
    drawn      th e | cats | s at

As in sentencepiece, a dropped merge stays dropped until one of its neighbours changes.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.data.arrays import Int64Array, PairArrays
from regard.data.store import Column, Store
from regard.data.tokenizer import Tokenizer, check_joint

MIN_DRAWN, MAX_DRAWN = 8, 32  # segmentations drawn for a word type: as many as it has occurrences, within these bounds


class Segmenter:
    """Segments words as the tokenizer does, but drops each merge with `probability`."""

    def __init__(self, tokenizer: Tokenizer, probability: float, draw: Callable[[], float]) -> None:
        """`draw` returns uniform random numbers in [0, 1)."""
        pieces, scores = tokenizer.pieces(range(tokenizer.vocab_size)), tokenizer.scores()
        self._pieces, self._probability, self._draw = pieces, probability, draw
        self._is_text = [tokenizer.has_text(i) for i in range(tokenizer.vocab_size)]
        self._known = {pieces[i]: (scores[i], i) for i, is_text in enumerate(self._is_text) if is_text}

    def segment(self, word: Sequence[int], count: int) -> list[list[int]]:
        """`count` random segmentations of a word given as ids; one, if nothing can merge. Bytes and reserved pieces are kept."""
        symbols = self._symbols(word)
        # The score of merging each symbol with the next; None: no such merge, or it was dropped.
        merges = [self._score(left, right) for left, right in pairwise(symbols)]
        if all(score is None for score in merges):
            return [self._ids(symbols)]
        return [self._ids(self._merge(symbols.copy(), merges.copy())) for _ in range(count)]

    def _merge(self, symbols: list[str | int], merges: list[float | None]) -> list[str | int]:
        """Apply the best merge again and again, in place, until none is left."""
        while True:
            best, place = None, 0
            for number, score in enumerate(merges):
                if score is not None and (best is None or score > best):
                    best, place = score, number
            if best is None:
                return symbols
            if self._probability and self._draw() < self._probability:
                merges[place] = None
                continue
            symbols[place : place + 2] = [f"{symbols[place]}{symbols[place + 1]}"]
            del merges[place]
            for number in (place - 1, place):
                if 0 <= number < len(merges):
                    merges[number] = self._score(symbols[number], symbols[number + 1])

    def _ids(self, symbols: Sequence[str | int]) -> list[int]:
        return [self._known[symbol][1] if isinstance(symbol, str) else symbol for symbol in symbols]

    def _symbols(self, word: Sequence[int]) -> list[str | int]:
        """The characters of a word; pieces that cannot be taken apart stay ids."""
        symbols: list[str | int] = []
        for i in word:
            if self._is_text[i] and all(character in self._known for character in self._pieces[i]):
                symbols += self._pieces[i]
            else:
                symbols.append(int(i))
        return symbols

    def _score(self, left: str | int, right: str | int) -> float | None:
        if isinstance(left, str) and isinstance(right, str) and (entry := self._known.get(left + right)):
            return entry[0]
        return None


@dataclass(frozen=True)
class SegmentationPool:
    """One side of a corpus as word types, and the segmentations of each type."""

    words: Column  # of each sentence, the types of its words
    segmentations: Column  # the ids of all segmentations, type by type
    first: Int64Array  # (types,): the first segmentation of each type, which is the tokenizer's own; drawn ones follow
    num_drawn: NDArray[np.uint64]  # (types,)
    lengths: Int64Array  # (segmentations,): ids of each

    def draw(self, indices: Int64Array, bits: np.random.PCG64) -> tuple[Int64Array, Int64Array, Int64Array]:
        """For the words of these sentences, end to end: a drawn segmentation, and the tokenizer's own; then the number of
        words of each sentence."""
        types, num_words = self.words.gather(indices)
        own: Int64Array = self.first[types]
        high = np.asarray(bits.random_raw(len(types)), dtype=np.uint64) >> np.uint64(32)
        chosen = (high * self.num_drawn[types] >> np.uint64(32)).astype(np.int64)
        return own + 1 + chosen, own, num_words

    def sentence_lengths(self, drawn: Int64Array, num_words: Int64Array) -> Int64Array:
        """The number of tokens of each sentence with these segmentations of its words."""
        return _segment_sums(self.lengths[drawn], num_words)

    def expected_lengths(self, own_lengths: NDArray[Any], max_length: int) -> Int64Array:
        """The expected number of tokens of each sentence, never below `own_lengths`, those of the tokenizer."""
        num_drawn = self.num_drawn.astype(np.int64)
        sums = _segment_sums(self.lengths, num_drawn + 1) - self.lengths[self.first]
        mean = np.maximum(sums / num_drawn, self.lengths[self.first])
        num_words = np.diff(self.words.offsets)
        expected = np.ceil(_segment_sums(mean[self.words.ids], num_words) - 1e-6).astype(np.int64)
        planned: Int64Array = np.maximum(np.minimum(expected, max_length), own_lengths)
        return planned


@dataclass(frozen=True)
class TokenLimits:
    """The most tokens that a sentence may have, without `</s>`, and that a batch may have, with it (0: no limit)."""

    sentence: int
    src: int = 0
    tgt: int = 0


@dataclass(frozen=True)
class DrawnBatch:
    """The segmentations drawn for the words of one batch, and the lengths of its sentences: (source, target) each."""

    segmentations: tuple[Int64Array, Int64Array]
    lengths: tuple[Int64Array, Int64Array]


class BpeDropout:
    """A store whose sentences are segmented anew in each update. `src_lengths` and `tgt_lengths` are what to expect."""

    def __init__(self, store: Store, tokenizer: Tokenizer, probability: float, seed: int, max_length: int) -> None:
        check_joint(tokenizer, "train.bpe_dropout")
        self._seed = seed % 2**64
        self._pools = tuple(
            make_pool(side, tokenizer, probability, random.Random(f"bpe-dropout {seed} {number}"))
            for number, side in enumerate((store["source"], store["target"]))
        )
        self._own_lengths = (store["source"].lengths, store["target"].lengths)
        self.src_lengths, self.tgt_lengths = (
            pool.expected_lengths(lengths, max_length)
            for pool, lengths in zip(self._pools, self._own_lengths, strict=True)
        )

    def draw(self, parts: Sequence[Int64Array], epoch: int, position: int, limits: TokenLimits) -> list[DrawnBatch]:
        """Draw for the micro-batches of one update; `epoch` and `position` are the sampler's after it took them."""
        bits = [np.random.PCG64(np.random.SeedSequence([self._seed, epoch, position, side])) for side in (0, 1)]
        return [self._draw_batch(part, bits, limits) for part in parts]

    def gather(self, drawn: DrawnBatch) -> PairArrays:
        """As `pairs.gather`."""
        src, tgt = (
            pool.segmentations.gather(chosen)[0] for pool, chosen in zip(self._pools, drawn.segmentations, strict=True)
        )
        return src, drawn.lengths[0], tgt, drawn.lengths[1]

    def _draw_batch(self, indices: Int64Array, bits: Sequence[np.random.PCG64], limits: TokenLimits) -> DrawnBatch:
        segmentations, lengths = [], []
        batch_limits = (limits.src, limits.tgt)
        for pool, all_lengths, generator, limit in zip(self._pools, self._own_lengths, bits, batch_limits, strict=True):
            drawn, own, num_words = pool.draw(indices, generator)
            tokens, own_tokens = pool.sentence_lengths(drawn, num_words), all_lengths[indices].astype(np.int64)
            reverted = _sentences_to_revert(tokens, own_tokens, limits.sentence, limit)
            if reverted.any():
                drawn = np.where(np.repeat(reverted, num_words), own, drawn)
                tokens = np.where(reverted, own_tokens, tokens)
            segmentations.append(drawn)
            lengths.append(tokens)
        return DrawnBatch((segmentations[0], segmentations[1]), (lengths[0], lengths[1]))


def _sentences_to_revert(
    tokens: Int64Array, own_tokens: Int64Array, max_length: int, batch_limit: int
) -> NDArray[np.bool_]:
    """Which sentences keep the tokenizer's own segmentation: those that got too long, and as many of the last as make the
    batch fit."""
    reverted = tokens > max_length
    if batch_limit:
        saved = np.where(reverted, 0, tokens - own_tokens)
        excess = int(np.where(reverted, own_tokens, tokens).sum()) + len(tokens) - batch_limit
        if excess > 0:
            saved_from_here = np.cumsum(saved[::-1])[::-1]  # by reverting this sentence and all after it
            reverted |= saved_from_here - saved < excess
    return reverted


def make_pool(side: Column, tokenizer: Tokenizer, probability: float, generator: random.Random) -> SegmentationPool:
    """Find the word types of a side, and draw segmentations of each."""
    starts = word_starts(side, tokenizer)
    words = Column(side.ids, np.append(starts, len(side.ids)))
    types, examples, counts = find_types(words)
    offsets = np.searchsorted(starts, side.offsets)
    segmenter = Segmenter(tokenizer, probability, generator.random)
    segmentations: list[list[int]] = []
    first, num_drawn = np.zeros(len(examples), np.int64), np.zeros(len(examples), np.uint64)
    for word_type, (example, count) in enumerate(zip(examples.tolist(), counts.tolist(), strict=True)):
        own = side.ids[words.offsets[example] : words.offsets[example + 1]].tolist()
        first[word_type] = len(segmentations)
        drawn = segmenter.segment(own, min(max(count, MIN_DRAWN), MAX_DRAWN))
        segmentations += [own, *drawn]
        num_drawn[word_type] = len(drawn)
    lengths = np.array([len(ids) for ids in segmentations], dtype=np.int64)
    flat = np.fromiter((i for ids in segmentations for i in ids), dtype=side.ids.dtype, count=int(lengths.sum()))
    pool = Column(flat, np.concatenate([[0], lengths.cumsum()]))
    return SegmentationPool(Column(types, offsets), pool, first, num_drawn, lengths)


def word_starts(side: Column, tokenizer: Tokenizer) -> Int64Array:
    """The places among the ids where words begin: at a space, before and after reserved pieces, at the start of a sentence."""
    pieces = tokenizer.pieces(range(tokenizer.vocab_size))
    has_space = np.array([piece.startswith("\u2581") for piece in pieces])
    is_reserved = ~np.array([tokenizer.has_text(i) or tokenizer.is_byte(i) for i in range(tokenizer.vocab_size)])
    begins = has_space[side.ids] | is_reserved[side.ids]
    begins[1:] |= is_reserved[side.ids[:-1]]
    begins[side.offsets[:-1][np.diff(side.offsets) > 0]] = True
    return np.flatnonzero(begins)


def find_types(words: Column) -> tuple[NDArray[np.int32], Int64Array, Int64Array]:
    """The type of each word, (words,); of each type the index of one of its words and their number, (types,) each.

    Words are told apart by a hash, which is checked.
    """
    lengths = np.diff(words.offsets)
    places = np.arange(len(words.ids)) - np.repeat(words.offsets[:-1], lengths)
    base = np.random.PCG64(1).random_raw(int(lengths.max(initial=1)))  # the same in every numpy
    mixed = (words.ids.astype(np.uint64) + np.uint64(1)) * (base[places] | np.uint64(1))
    mixed ^= mixed >> np.uint64(29)
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    sums = np.concatenate([[np.uint64(0)], mixed.cumsum(dtype=np.uint64)])
    hashes = sums[words.offsets[1:]] - sums[words.offsets[:-1]]
    _, examples, types, counts = np.unique(hashes, return_index=True, return_inverse=True, return_counts=True)
    same, same_lengths = words.gather(examples[types])
    if not (np.array_equal(same_lengths, lengths) and np.array_equal(same, words.ids)):
        raise AssertionError("two words have the same hash")  # once in ten million corpora of a million words
    return types.astype(np.int32), examples, counts


def _segment_sums(values: NDArray[Any], counts: Int64Array) -> NDArray[Any]:
    """The sum of the first counts[0] values, of the next counts[1], and so on; 0 where a count is 0."""
    ends = np.concatenate([[0], np.cumsum(values)])
    places = np.concatenate([[0], np.cumsum(counts)])
    sums: NDArray[Any] = ends[places[1:]] - ends[places[:-1]]
    return sums
