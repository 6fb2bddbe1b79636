"""Likely translations of each source token, learnt from parallel text with IBM model 1 (Brown et al., 1993): each target
token comes from one source token, and p(target | source) maximises the likelihood of the text. For
`benchmarks/shortlist.py`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

EACH = 100  # likely translations kept for each source token, besides itself
COMMON = 4_000  # most frequent tokens, which are always allowed
ROUNDS = 3  # of expectation maximisation; the first assumes all source tokens to be equally likely
_LEAST = 5e-4  # pairs with a lower p(target | source) after the first round are dropped to save memory
_CHUNK = 4_000  # sentences processed at a time
_MERGED = 1 << 24  # pair numbers held before they are summed

Ids = NDArray[np.int64]
Pair = tuple[Sequence[int], Sequence[int]]


@dataclass(frozen=True)
class Shortlist:
    """Tokens that are always allowed, and for every source token its likely translations; each may stay itself."""

    common: NDArray[np.uint32]  # (COMMON,) the most frequent first
    each: NDArray[np.uint32]  # (vocab_size, EACH) the likeliest first; padded with the token itself

    def cut(self, each: int, common: int) -> Shortlist:
        """A shorter one."""
        return Shortlist(self.common[:common], self.each[:, :each])

    def candidates(self, ids: Sequence[int]) -> set[int]:
        """The tokens allowed in a translation of this sentence."""
        return {*self.common.tolist(), *ids, *self.each[list(ids)].flatten().tolist()}


def learn(pairs: Sequence[Pair], vocab_size: int) -> Shortlist:
    """A shortlist from the token ids of parallel text."""
    pairs = [(src, tgt) for src, tgt in pairs if src and tgt]
    if not pairs:
        raise SystemExit("a shortlist is learnt from parallel text, but no pair has text on both sides")
    keys, values = _first_round(pairs, vocab_size)
    for _ in range(ROUNDS - 1):
        values = _normalised(keys, _round(pairs, vocab_size, keys, values), vocab_size)
    frequent = np.bincount(np.concatenate([np.asarray(tgt) for _, tgt in pairs]), minlength=vocab_size)
    common = np.argsort(-frequent, kind="stable")[: min(COMMON, np.count_nonzero(frequent))]
    return Shortlist(common.astype(np.uint32), _likeliest(keys, values, vocab_size))


def _first_round(pairs: Sequence[Pair], vocab_size: int) -> tuple[Ids, NDArray[np.float64]]:
    """Sorted pair numbers, source * vocab_size + target, of the pairs worth keeping, and their probabilities."""
    keys, counts = np.empty(0, np.int64), np.empty(0)
    waiting: list[tuple[Ids, NDArray[np.float64]]] = []
    for links, targets, lengths in _links(pairs, vocab_size):
        found, places = np.unique(links, return_inverse=True)
        waiting.append((found, np.bincount(places, weights=1.0 / lengths[targets]).astype(np.float64)))
        if sum(len(some) for some, _ in waiting) > _MERGED:
            keys, counts = _merged([(keys, counts), *waiting])
            waiting = []
    keys, counts = _merged([(keys, counts), *waiting])
    values = _normalised(keys, counts, vocab_size)
    kept = values >= _LEAST
    return keys[kept], values[kept]


def _round(pairs: Sequence[Pair], vocab_size: int, keys: Ids, values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The expected count of each pair under the current probabilities."""
    counts = np.zeros(len(keys))
    for links, targets, lengths in _links(pairs, vocab_size):
        found, places = np.unique(links, return_inverse=True)
        at = np.minimum(np.searchsorted(keys, found), len(keys) - 1)
        is_known = keys[at] == found
        weights = np.where(is_known, values[at], 0.0)[places]
        totals = np.bincount(targets, weights=weights, minlength=len(lengths))
        weights /= np.maximum(totals, np.finfo(np.float64).tiny)[targets]
        expected = np.bincount(places, weights=weights)
        counts[at[is_known]] += expected[is_known]
    return counts


def _links(pairs: Sequence[Pair], vocab_size: int) -> Iterator[tuple[Ids, Ids, Ids]]:
    """Chunk by chunk, every source token with every target token of its sentence: the pair number, the index of the target
    token in the chunk, and for each target token the number of its source tokens."""
    for begin in range(0, len(pairs), _CHUNK):
        chunk = pairs[begin : begin + _CHUNK]
        src = np.concatenate([np.asarray(one, dtype=np.int64) for one, _ in chunk])
        tgt = np.concatenate([np.asarray(one, dtype=np.int64) for _, one in chunk])
        src_lengths, tgt_lengths = (np.array([len(pair[side]) for pair in chunk]) for side in (0, 1))
        lengths = np.repeat(src_lengths, tgt_lengths)  # one per target token
        starts = np.repeat(np.cumsum(src_lengths) - src_lengths, tgt_lengths)
        targets = np.repeat(np.arange(len(tgt)), lengths)
        places = np.arange(len(targets)) - np.repeat(np.cumsum(lengths) - lengths, lengths) + starts[targets]
        yield src[places] * vocab_size + tgt[targets], targets, lengths


def _merged(parts: Sequence[tuple[Ids, NDArray[np.float64]]]) -> tuple[Ids, NDArray[np.float64]]:
    keys, places = np.unique(np.concatenate([some for some, _ in parts]), return_inverse=True)
    weights = np.concatenate([counts for _, counts in parts])
    return keys, np.bincount(places, weights=weights, minlength=len(keys)).astype(np.float64)


def _normalised(keys: Ids, counts: NDArray[np.float64], vocab_size: int) -> NDArray[np.float64]:
    """Counts of pairs as p(target | source)."""
    sources = keys // vocab_size
    totals = np.bincount(sources, weights=counts, minlength=vocab_size)
    shares: NDArray[np.float64] = counts / np.maximum(totals, np.finfo(np.float64).tiny)[sources]
    return shares


def _likeliest(keys: Ids, values: NDArray[np.float64], vocab_size: int) -> NDArray[np.uint32]:
    """(vocab_size, EACH) the translations of each token, the likeliest first."""
    each = np.repeat(np.arange(vocab_size, dtype=np.uint32)[:, None], EACH, axis=1)
    order = np.lexsort((keys, -values, keys // vocab_size))
    sources = keys[order] // vocab_size
    places = np.arange(len(order)) - np.searchsorted(sources, sources)
    kept = (places < EACH) & (values[order] > 0)
    each[sources[kept], places[kept]] = keys[order][kept] % vocab_size
    return each
