"""The dictionary: each word with its likeliest translations, in lists, between quotation marks and in capitals."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from random import Random

from scripts.builtin_text.common import Pair, one_of

_WORD = re.compile(r"[^\W\d_]+(?:-[^\W\d_]+)*")


def word_counts(texts: Iterable[str]) -> Counter[str]:
    return Counter(word for text in texts for word in _WORD.findall(text))


def tidy(pair: Pair) -> Pair | None:
    """An entry without the forms of irregular verbs; None where other marks of the dictionary are left.

    >>> tidy(("to sew {sewed", "nähen")), tidy(("in front of", "wo? +Dat.}"))
    (('to sew', 'nähen'), None)
    """
    english, german = (text.partition(" {")[0].strip() for text in pair)
    return None if not english or not german or re.search(r"[{}/<>|+]", english + german) else (english, german)


def best_senses(entries: Iterable[Pair], side: int, texts: Iterable[Pair], most: int) -> list[Pair]:
    """Of the entries with one headword, which is on `side`, the likeliest: those whose two words go together in `texts` most
    often, then those whose translation is known there, then the earliest.

    >>> best_senses([("bat", "Brennplatte"), ("bat", "Fledermaus")], 0, [("A bat.", "Eine Fledermaus.")], 1)
    [('bat', 'Fledermaus')]
    """
    by_head: dict[str, list[Pair]] = defaultdict(list)
    for pair in dict.fromkeys(entries):
        by_head[pair[side]].append(pair)
    counts: Counter[str] = Counter()
    together: Counter[Pair] = Counter()
    for text in texts:
        heads, others = (
            {*found, *map(str.lower, found)} for found in (_WORD.findall(text[s]) for s in (side, 1 - side))
        )
        counts.update(others)
        together.update(pair for head in heads for pair in by_head.get(head, ()) if pair[1 - side] in others)

    def likelihood(pair: Pair) -> tuple[float, bool]:
        other = pair[1 - side]
        return together[pair] / (counts[other] + 1) ** 0.5, bool(counts[other])

    return [pair for pairs in by_head.values() for pair in sorted(pairs, key=likelihood, reverse=True)[:most]]


def nouns(entries: Iterable[Pair]) -> list[Pair]:
    """Entries that are surely nouns: one or two English words in small letters, one German word with a capital."""
    return [
        pair
        for pair in entries
        if re.fullmatch(r"[a-z-]{3,}(?: [a-z-]{3,})?", pair[0]) and re.fullmatch(r"[A-ZÄÖÜ][a-zäöüß-]{2,24}", pair[1])
    ]


def small_words(entries: Iterable[Pair]) -> list[Pair]:
    """Entries of one word in small letters on both sides; in French nothing shows which of them are nouns."""
    return [
        pair
        for pair in entries
        if re.fullmatch(r"[a-z-]{3,}", pair[0]) and re.fullmatch(r"[a-zà-öø-ÿœ-]{3,24}", pair[1])
    ]


def lists(
    words: Sequence[Pair],
    draw: Random,
    count: int,
    heads: Sequence[Pair],
    joints: Pair,
) -> Iterator[Pair]:
    """Enumerations of words; `joints` are for "and" and "or"."""
    for _ in range(count):
        chosen = [one_of(draw, words) for _ in range(2 + int(draw.random() * 5))]
        head, end = one_of(draw, heads), one_of(draw, [("", ""), (".", ".")])
        last = one_of(draw, [(" and ", joints[0]), (", ", ", "), (" or ", joints[1])])
        sides = []
        for side in (0, 1):
            listed = [pair[side] for pair in chosen]
            sides.append(f"{head[side]}{', '.join(listed[:-1])}{last[side]}{listed[-1]}{end[side]}")
        if not head[0]:
            sides = [text[0].upper() + text[1:] for text in sides]  # German nouns have a capital anyway
        yield sides[0], sides[1]


def quoted_words(words: Sequence[Pair], draw: Random, count: int, frames: Sequence[Pair]) -> Iterator[Pair]:
    for _ in range(count):
        word, frame = one_of(draw, words), one_of(draw, frames)
        yield frame[0].replace("{w}", word[0]), frame[1].replace("{w}", word[1])


def spoken(pairs: Iterable[Pair], names: Sequence[str], draw: Random, frames: Sequence[Pair]) -> Iterator[Pair]:
    """Short sentences between quotation marks, with who said them."""
    for pair in pairs:
        if all(text.endswith(".") and 8 < len(text) < 70 and not set(text) & set('"„“”«»') for text in pair):
            frame, name = one_of(draw, frames), one_of(draw, names)
            yield (
                frame[0].replace("{s}", pair[0][:-1]).replace("{n}", name),
                frame[1].replace("{s}", pair[1][:-1]).replace("{n}", name),
            )


def stressed(pairs: Iterable[Pair], lexicon: dict[str, set[str]], draw: Random) -> Iterator[Pair]:
    """Sentences with one word in capitals on both sides, where the lexicon knows what it became."""
    for pair in pairs:
        english, german = (list(_WORD.finditer(text)) for text in pair)
        found = [
            (one, other)
            for one in english
            for other in german
            if len(one[0]) > 2 and other[0].lower() in lexicon.get(one[0].lower(), ())
        ]
        if found:
            matches = one_of(draw, found)
            sides = [text[: m.start()] + m[0].upper() + text[m.end() :] for text, m in zip(pair, matches, strict=True)]
            yield sides[0], sides[1]


def lexicon_of(entries: Iterable[Pair]) -> dict[str, set[str]]:
    """Words of the other language by English word, all in small letters; of entries with one word on each side."""
    lexicon: dict[str, set[str]] = defaultdict(set)
    for english, german in entries:
        if _WORD.fullmatch(english) and _WORD.fullmatch(german):
            lexicon[english.lower()].add(german.lower())
    return dict(lexicon)
