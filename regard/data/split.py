"""Holds out validation and test records from a training corpus, for users who have no others.

Records are chosen by a hash: one pass, little memory, and the order of the lines does not matter.
"""

from __future__ import annotations

import hashlib
import heapq
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from regard.data.corpus import Texts
from regard.errors import UserError

MOST = 0.1  # of a corpus may be held out


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
    """Records that training must not see: neither the record nor one of its texts."""

    valid: list[Texts] = field(default_factory=list)
    test: list[Texts] = field(default_factory=list)
    compared: int = 0  # the leading columns that training must not share; 0: all
    crosswise: bool = False  # also with a text of another column: pairs occur in both directions

    @cached_property
    def keys(self) -> tuple[frozenset[str], ...]:
        """The keys of the held-out texts, column by column."""
        columns = list(zip(*self.valid, *self.test, strict=True))[: self.compared or None]
        keys = tuple(frozenset(map(sentence_key, column)) - {""} for column in columns)
        return (frozenset().union(*keys),) * len(keys) if self.crosswise else keys

    def is_held_out(self, *texts: str) -> bool:
        """Whether a training record shares the text of some column with a held-out record."""
        return any(sentence_key(text) in keys for text, keys in zip(texts, self.keys, strict=False))


def hold_out(
    records: Iterable[Texts],
    num_valid: int,
    num_test: int,
    seed: int = 0,
    noun: str = "pair",
    remedy: str = "",
    most: float = MOST,
) -> HeldOut:
    """Choose records for validation and test, distinct in every column and spread over the corpus. `noun` is what people call one,
    `remedy` what else helps where there are too few.

    Of a small corpus fewer are held out: at most the share `most`, but at least one record for each set that is wanted.
    """
    wanted = num_valid + num_test
    chosen, count = _draw(records, 2 * wanted, seed)
    distinct = _distinct(chosen)
    least = (num_valid > 0) + (num_test > 0)
    available = min(len(distinct), max(least, int(most * count)))
    if available < least or count <= least:
        raise UserError(
            f"the corpus must have more than {least} different {noun}s to hold out validation or test {noun}s, "
            f"but has {min(count, len(distinct))}; use a larger one, or name files with data.valid and data.test{remedy}"
        )
    if wanted > available:
        num_test = min(num_test, max(int(num_test > 0), available * num_test // wanted))
        num_valid = min(num_valid, available - num_test)
    # Chosen in the order of the hash, which spreads both sets over the corpus; then sorted back into line order.
    test, valid = distinct[:num_test], distinct[num_test : num_test + num_valid]
    return HeldOut([texts for _, texts in sorted(valid)], [texts for _, texts in sorted(test)])


def _draw(records: Iterable[Texts], size: int, seed: int) -> tuple[list[tuple[int, Texts]], int]:
    """The `size` records of lowest rank as (index, texts), lowest first, and the number of records with letters."""
    heap: list[tuple[tuple[int, int], int, Texts]] = []  # ranks negated: the highest is on top and is replaced next
    ranks: set[tuple[int, int]] = set()
    count = 0
    salt = str(seed).encode()[:64]
    for index, texts in enumerate(records):
        keys = [sentence_key(text) for text in texts]
        if not all(keys):
            continue
        count += 1
        digest = hashlib.blake2b(keys[0].encode("utf-8", "surrogatepass"), digest_size=8, key=salt).digest()
        rank = (-int(_is_doubtful(keys)), -int.from_bytes(digest, "little"))
        if rank in ranks or (len(heap) == size and (size == 0 or rank < heap[0][0])):
            continue
        ranks.add(rank)
        if len(heap) < size:
            heapq.heappush(heap, (rank, index, texts))
        else:
            ranks.discard(heapq.heapreplace(heap, (rank, index, texts))[0])
    return [(index, texts) for _, index, texts in sorted(heap, key=lambda entry: entry[0], reverse=True)], count


def _is_doubtful(keys: Sequence[str]) -> bool:
    """Whether a record of several columns makes a poor test, as a copy, a very long or a lopsided one; used only for lack of
    better ones."""
    if len(keys) == 1:
        return False
    longer, shorter = max(map(len, keys)), min(map(len, keys))
    return len(set(keys)) == 1 or longer > 1000 or longer + 15 > 4 * (shorter + 15)


def _distinct(chosen: Sequence[tuple[int, Texts]]) -> list[tuple[int, Texts]]:
    """The records that share no column's text with an earlier one."""
    seen: set[tuple[int, str]] = set()
    out = []
    for index, texts in chosen:
        keys = {(column, sentence_key(text)) for column, text in enumerate(texts)}
        if not keys & seen:
            out.append((index, texts))
            seen |= keys
    return out


def hold_out_by_label(
    records: Sequence[Texts], num_valid: int, num_test: int, seed: int = 0, noun: str = "text", most: float = MOST
) -> HeldOut:
    """As `hold_out` for texts with a label, the last column: of each label about the same share, but never its last text. Equal
    texts are held out together, so training must not see one of them."""
    first: dict[str, int] = {}
    for number, texts in enumerate(records):
        if key := sentence_key(texts[0]):
            first.setdefault(key, number)
    least = (num_valid > 0) + (num_test > 0)
    if len(first) <= least:
        raise UserError(
            f"the table must have more than {least} different {noun}s to hold out validation or test {noun}s, but has "
            f"{len(first)}; use a larger one, or name files with data.valid and data.test"
        )
    available = max(least, min(num_valid + num_test, int(most * len(records))))
    if num_valid + num_test > available:
        num_test = available * num_test // (num_valid + num_test)
        num_valid = available - num_test
    salt = str(seed).encode()[:64]
    ranked = sorted(
        first, key=lambda key: hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=8, key=salt).digest()
    )
    groups: dict[str, list[int]] = {}
    strata = _strata([records[number][-1] for number in first.values()])
    by_number = dict(zip(first.values(), strata, strict=True))
    for key in ranked:
        groups.setdefault(by_number[first[key]], []).append(first[key])
    sets: list[list[Texts]] = []
    for wanted in (num_test, num_valid):
        taken = _share_out(wanted, {name: len(rest) for name, rest in groups.items()})
        chosen = [number for name, count in taken.items() for number in groups[name][:count]]
        groups = {name: rest[taken[name] :] for name, rest in groups.items()}
        sets.append([records[number] for number in sorted(chosen)])
        if wanted and not chosen:
            raise UserError(
                f"the table must have a label with more than {least} different {noun}s to hold out validation or test {noun}s, but "
                "has none; use a larger one, or name files with data.valid and data.test"
            )
    return HeldOut(sets[1], sets[0], compared=1)


def _strata(labels: Sequence[str]) -> list[str]:
    """What is held out in equal shares: labels, the first of several; fifths of numbers, which begin with "="."""
    if not labels or not labels[0].startswith("="):
        return [label.split(" ")[0] for label in labels]
    order = sorted(range(len(labels)), key=lambda number: (float(labels[number][1:]), number))
    fifths = [""] * len(labels)
    for rank, number in enumerate(order):
        fifths[number] = str(5 * rank // len(labels))
    return fifths


def _share_out(wanted: int, sizes: dict[str, int]) -> dict[str, int]:
    """So many in all, of each group in proportion to its size and at most all but one; what is left after rounding down goes to
    those that it took most from."""
    total = sum(sizes.values())
    exact = {name: wanted * size / max(1, total) for name, size in sizes.items()}
    found = {name: min(int(exact[name]), max(0, size - 1)) for name, size in sizes.items()}
    for name in sorted(sizes, key=lambda name: (found[name] - exact[name], name)):
        if sum(found.values()) >= wanted:
            break
        if found[name] < sizes[name] - 1:
            found[name] += 1
    return found
