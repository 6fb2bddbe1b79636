"""Holds out validation and test pairs from a training corpus, for users who have no others.

Pairs are chosen by a hash: one pass, little memory, and the order of the lines does not matter.
"""

from __future__ import annotations

import hashlib
import heapq
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from regard.data.corpus import Pair
from regard.errors import UserError


class _LettersOnly(dict[int, int | None]):
    """A table for str.translate that deletes punctuation, white space and control characters, filled as it is used."""

    def __missing__(self, code: int) -> int | None:
        kept = None if unicodedata.category(chr(code))[0] in "PZC" else code
        self[code] = kept
        return kept


_LETTERS_ONLY = _LettersOnly()


def sentence_key(text: str) -> str:
    """The same for sentences that differ only in case, punctuation and white space.

    >>> sentence_key("Yes, it IS.") == sentence_key("yes it is")
    True
    """
    return unicodedata.normalize("NFKC", text).casefold().translate(_LETTERS_ONLY)


@dataclass(frozen=True)
class HeldOut:
    """Pairs that training must not see: neither the pair nor one of its sides."""

    valid: list[Pair] = field(default_factory=list)
    test: list[Pair] = field(default_factory=list)

    @cached_property
    def keys(self) -> tuple[frozenset[str], frozenset[str]]:
        """The keys of the held-out source sentences, and of the target sentences."""
        pairs = [*self.valid, *self.test]
        sources = frozenset(sentence_key(src) for src, _ in pairs)
        targets = frozenset(sentence_key(tgt) for _, tgt in pairs)
        return sources - {""}, targets - {""}

    def is_held_out(self, src: str, tgt: str) -> bool:
        """Whether a training pair shares its source or its target sentence with a held-out pair."""
        sources, targets = self.keys
        return sentence_key(src) in sources or sentence_key(tgt) in targets


def hold_out(pairs: Iterable[Pair], num_valid: int, num_test: int, seed: int = 0) -> HeldOut:
    """Choose pairs for validation and test, distinct on both sides and spread over the corpus.

    Of a small corpus fewer are held out: at most a tenth, but at least one pair for each set that is wanted.
    """
    wanted = num_valid + num_test
    chosen, count = _draw(pairs, 2 * wanted, seed)
    distinct = _distinct(chosen)
    least = (num_valid > 0) + (num_test > 0)
    available = min(len(distinct), max(least, count // 10))
    if available < least or count <= least:
        raise UserError(
            f"the corpus must have more than {least} different pairs to hold out validation or test pairs, "
            f"but has {min(count, len(distinct))}; use a larger one, or name files with data.valid and data.test"
        )
    if wanted > available:
        num_test = min(num_test, max(int(num_test > 0), available * num_test // wanted))
        num_valid = min(num_valid, available - num_test)
    # Chosen in the order of the hash, which spreads both sets over the corpus; then sorted back into line order.
    test, valid = distinct[:num_test], distinct[num_test : num_test + num_valid]
    return HeldOut([pair for _, pair in sorted(valid)], [pair for _, pair in sorted(test)])


def _draw(pairs: Iterable[Pair], size: int, seed: int) -> tuple[list[tuple[int, Pair]], int]:
    """The `size` pairs of lowest rank as (line index, pair), lowest first, and the number of pairs with letters."""
    heap: list[tuple[tuple[int, int], int, Pair]] = []  # ranks negated: the highest is on top and is replaced next
    ranks: set[tuple[int, int]] = set()
    count = 0
    salt = str(seed).encode()[:64]
    for index, (src, tgt) in enumerate(pairs):
        src_key, tgt_key = sentence_key(src), sentence_key(tgt)
        if not src_key or not tgt_key:
            continue
        count += 1
        digest = hashlib.blake2b(src_key.encode("utf-8", "surrogatepass"), digest_size=8, key=salt).digest()
        rank = (-int(_is_doubtful(src_key, tgt_key)), -int.from_bytes(digest, "little"))
        if rank in ranks or (len(heap) == size and (size == 0 or rank < heap[0][0])):
            continue
        ranks.add(rank)
        if len(heap) < size:
            heapq.heappush(heap, (rank, index, (src, tgt)))
        else:
            ranks.discard(heapq.heapreplace(heap, (rank, index, (src, tgt)))[0])
    return [(index, pair) for _, index, pair in sorted(heap, key=lambda entry: entry[0], reverse=True)], count


def _is_doubtful(src_key: str, tgt_key: str) -> bool:
    """Whether a pair makes a poor test, as a copy, a very long or a lopsided one; used only for lack of better ones."""
    longer, shorter = max(len(src_key), len(tgt_key)), min(len(src_key), len(tgt_key))
    return src_key == tgt_key or longer > 1000 or longer + 15 > 4 * (shorter + 15)


def _distinct(chosen: Sequence[tuple[int, Pair]]) -> list[tuple[int, Pair]]:
    """The pairs that share neither side with an earlier one."""
    seen: tuple[set[str], set[str]] = (set(), set())
    out = []
    for index, pair in chosen:
        keys = [sentence_key(side) for side in pair]
        if all(key not in side for key, side in zip(keys, seen, strict=True)):
            out.append((index, pair))
            for key, side in zip(keys, seen, strict=True):
                side.add(key)
    return out
