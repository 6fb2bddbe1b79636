"""BPE-dropout (Provilkov et al., 2020): in training a word is cut into other pieces each time, with merges left out at random.

sentencepiece can do that, but not from a seed. Here the cuts of each distinct word of the corpus are drawn beforehand, eight to
thirty-two of them by its frequency, from the run's seed; an update then draws one of them for each of its words, from (seed,
epoch, position) alone. So a run resumes exactly, several processes agree without a word, and an update costs two gathers.

    sentence   "the cats sat"           words    [17, 4, 311]            kinds of words, in the order of the sentence
    pool       17: the | th e | t he    ...                              the cuts of each kind; the first is the usual one
    drawn      th e | cats | s at

A merge is dropped when its turn comes and does not come back until a neighbour has changed, as sentencepiece does it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.data.arrays import Int64Array
from regard.data.store import Gathered, SideArrays, Store
from regard.data.tokenizer import Tokenizer
from regard.errors import UserError

FEWEST, MOST = 8, 32  # cuts drawn for a word, by how often it comes in the corpus


class Cutter:
    """Cuts words into pieces as the tokenizer does, with merges left out at random."""

    def __init__(self, tokenizer: Tokenizer, probability: float, draw: Callable[[], float]) -> None:
        pieces, scores = tokenizer.pieces(range(tokenizer.vocab_size)), tokenizer.scores()
        self._pieces, self._probability, self._draw = pieces, probability, draw
        self._is_text = [tokenizer.has_text(i) for i in range(tokenizer.vocab_size)]
        self._known = {pieces[i]: (scores[i], i) for i, is_text in enumerate(self._is_text) if is_text}

    def cuts(self, word: Sequence[int], number: int) -> list[list[int]]:
        """The ids of a word, cut anew so many times, or once if it has no merges. Bytes and reserved pieces stay what they are."""
        symbols = self._symbols(word)
        # Of each symbol with the next one: the score of the merge, None where there is none or it was dropped.
        merges = [self._score(left, right) for left, right in pairwise(symbols)]
        if all(score is None for score in merges):
            return [self._ids(symbols)]
        return [self._ids(self._merged(symbols.copy(), merges.copy())) for _ in range(number)]

    def _merged(self, symbols: list[str | int], merges: list[float | None]) -> list[str | int]:
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
class Pool:
    """One side of a corpus as kinds of words, and the cuts of each kind."""

    words: SideArrays  # of each sentence, the kinds of its words
    cuts: SideArrays  # the ids of all cuts, kind by kind
    first: Int64Array  # of each kind, its first cut: the usual one; the drawn ones follow
    count: NDArray[np.uint64]  # drawn ones
    lengths: Int64Array  # ids of each cut

    def draw(self, indices: Int64Array, bits: np.random.PCG64) -> tuple[Int64Array, Int64Array, Int64Array]:
        """For the words of these sentences, end to end, which cut each gets, and the usual one; the words of each sentence."""
        kinds, num_words = self.words.gather(indices)
        usual: Int64Array = self.first[kinds]
        high = np.asarray(bits.random_raw(len(kinds)), dtype=np.uint64) >> np.uint64(32)
        chosen = (high * self.count[kinds] >> np.uint64(32)).astype(np.int64)
        return usual + 1 + chosen, usual, num_words

    def sentence_lengths(self, drawn: Int64Array, num_words: Int64Array) -> Int64Array:
        return _sums(self.lengths[drawn], num_words)

    def expected_lengths(self, usual: NDArray[Any], longest: int) -> Int64Array:
        """About how many tokens each sentence will have, and never fewer than it has as it is."""
        count = self.count.astype(np.int64)
        sums = _sums(self.lengths, count + 1) - self.lengths[self.first]
        mean = np.maximum(sums / count, self.lengths[self.first])
        num_words = np.diff(self.words.offsets)
        expected = np.ceil(_sums(mean[self.words.ids], num_words) - 1e-6).astype(np.int64)
        planned: Int64Array = np.maximum(np.minimum(expected, longest), usual)
        return planned


@dataclass(frozen=True)
class TokenLimits:
    """The tokens that a sentence may have without `</s>`, and a batch with one for each of its sentences (0: no limit)."""

    sentence: int
    src: int = 0
    tgt: int = 0


@dataclass(frozen=True)
class Drawn:
    """The cuts of one batch."""

    cuts: tuple[Int64Array, Int64Array]
    lengths: tuple[Int64Array, Int64Array]


def check_bpe(tokenizer: Tokenizer) -> None:
    if tokenizer.kind != "joint":
        raise UserError("train.bpe_dropout: imported models have two vocabularies and go without it; leave it at 0")


class BpeDropout:
    """A store whose sentences are cut anew in each update."""

    def __init__(self, store: Store, tokenizer: Tokenizer, probability: float, seed: int, longest: int) -> None:
        check_bpe(tokenizer)
        self._seed = seed % 2**64
        self._pools = tuple(
            make_pool(side, tokenizer, probability, random.Random(f"bpe-dropout {seed} {number}"))
            for number, side in enumerate((store.src, store.tgt))
        )
        self._usual = (store.src_lengths, store.tgt_lengths)
        self.src_lengths, self.tgt_lengths = (
            pool.expected_lengths(lengths, longest) for pool, lengths in zip(self._pools, self._usual, strict=True)
        )

    def draw(self, parts: Sequence[Int64Array], epoch: int, position: int, limits: TokenLimits) -> list[Drawn]:
        """The cuts of an update's parts; the update is the one after which the sampler stands there."""
        bits = [np.random.PCG64(np.random.SeedSequence([self._seed, epoch, position, side])) for side in (0, 1)]
        return [self._draw_part(part, bits, limits) for part in parts]

    def gather(self, drawn: Drawn) -> Gathered:
        src, tgt = (pool.cuts.gather(cuts)[0] for pool, cuts in zip(self._pools, drawn.cuts, strict=True))
        return src, drawn.lengths[0], tgt, drawn.lengths[1]

    def _draw_part(self, indices: Int64Array, bits: Sequence[np.random.PCG64], limits: TokenLimits) -> Drawn:
        cuts, lengths = [], []
        rooms = (limits.src, limits.tgt)
        for pool, all_lengths, generator, room in zip(self._pools, self._usual, bits, rooms, strict=True):
            drawn, usual, num_words = pool.draw(indices, generator)
            tokens, usual_tokens = pool.sentence_lengths(drawn, num_words), all_lengths[indices].astype(np.int64)
            plain = _to_leave_as_they_are(tokens, usual_tokens, limits.sentence, room)
            if plain.any():
                drawn = np.where(np.repeat(plain, num_words), usual, drawn)
                tokens = np.where(plain, usual_tokens, tokens)
            cuts.append(drawn)
            lengths.append(tokens)
        return Drawn((cuts[0], cuts[1]), (lengths[0], lengths[1]))


def _to_leave_as_they_are(tokens: Int64Array, usual: Int64Array, longest: int, room: int) -> NDArray[np.bool_]:
    """Sentences that would be too long by themselves, and of the last ones so many that the batch fits."""
    plain = tokens > longest
    if room:
        saved = np.where(plain, 0, tokens - usual)
        excess = int(np.where(plain, usual, tokens).sum()) + len(tokens) - room
        if excess > 0:
            from_behind = np.cumsum(saved[::-1])[::-1]  # what is saved by leaving this one and all behind it
            plain |= from_behind - saved < excess
    return plain


def make_pool(side: SideArrays, tokenizer: Tokenizer, probability: float, generator: random.Random) -> Pool:
    """The words of a side, and cuts of each kind of word."""
    starts = word_starts(side, tokenizer)
    words = SideArrays(side.ids, np.append(starts, len(side.ids)))
    kinds, examples, counts = find_kinds(words)
    offsets = np.searchsorted(starts, side.offsets)
    cutter = Cutter(tokenizer, probability, generator.random)
    cuts: list[list[int]] = []
    first, drawn = np.zeros(len(examples), np.int64), np.zeros(len(examples), np.uint64)
    for kind, (example, count) in enumerate(zip(examples.tolist(), counts.tolist(), strict=True)):
        usual = side.ids[words.offsets[example] : words.offsets[example + 1]].tolist()
        first[kind] = len(cuts)
        anew = cutter.cuts(usual, min(max(count, FEWEST), MOST))
        cuts += [usual, *anew]
        drawn[kind] = len(anew)
    lengths = np.array([len(cut) for cut in cuts], dtype=np.int64)
    flat = np.fromiter((i for cut in cuts for i in cut), dtype=side.ids.dtype, count=int(lengths.sum()))
    pool = SideArrays(flat, np.concatenate([[0], lengths.cumsum()]))
    return Pool(SideArrays(kinds, offsets), pool, first, drawn, lengths)


def word_starts(side: SideArrays, tokenizer: Tokenizer) -> Int64Array:
    """Where words begin among the ids: with a space, around reserved pieces, and with the sentence."""
    pieces = tokenizer.pieces(range(tokenizer.vocab_size))
    spaced = np.array([piece.startswith("\u2581") for piece in pieces])
    alone = ~np.array([tokenizer.has_text(i) or tokenizer.is_byte(i) for i in range(tokenizer.vocab_size)])
    begins = spaced[side.ids] | alone[side.ids]
    begins[1:] |= alone[side.ids[:-1]]
    begins[side.offsets[:-1][np.diff(side.offsets) > 0]] = True
    return np.flatnonzero(begins)


def find_kinds(words: SideArrays) -> tuple[NDArray[np.int32], Int64Array, Int64Array]:
    """Of each word its kind; of each kind one of its words, and how many it has. A hash tells words apart, and is checked."""
    lengths = np.diff(words.offsets)
    places = np.arange(len(words.ids)) - np.repeat(words.offsets[:-1], lengths)
    base = np.random.PCG64(1).random_raw(int(lengths.max(initial=1)))  # the same in every numpy
    mixed = (words.ids.astype(np.uint64) + np.uint64(1)) * (base[places] | np.uint64(1))
    mixed ^= mixed >> np.uint64(29)
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    sums = np.concatenate([[np.uint64(0)], mixed.cumsum(dtype=np.uint64)])
    hashes = sums[words.offsets[1:]] - sums[words.offsets[:-1]]
    _, examples, kinds, counts = np.unique(hashes, return_index=True, return_inverse=True, return_counts=True)
    same, same_lengths = words.gather(examples[kinds])
    if not (np.array_equal(same_lengths, lengths) and np.array_equal(same, words.ids)):
        raise AssertionError("two words have one hash")  # once in ten million corpora of a million words
    return kinds.astype(np.int32), examples, counts


def _sums(values: NDArray[Any], counts: Int64Array) -> NDArray[Any]:
    """The sums of the first counts[0] values, of the next counts[1], and so on; none of nothing is 0."""
    ends = np.concatenate([[0], np.cumsum(values)])
    places = np.concatenate([[0], np.cumsum(counts)])
    sums: NDArray[Any] = ends[places[1:]] - ends[places[:-1]]
    return sums
