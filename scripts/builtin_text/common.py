"""What the makers of text share: pairs in and out, the sentences and names that are held out, drawing."""

from __future__ import annotations

import lzma
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from random import Random
from typing import TypeVar

from benchmarks.checks import FOLDER, read_checks
from regard.files import write_atomic

Pair = tuple[str, str]  # English, the other language
PARLIAMENT = "europarl"  # its folder
T = TypeVar("T")


def read_pairs(data: Path, corpus: str, language: str) -> Iterator[Pair]:
    """The pairs of DATA/corpus.en.xz and the file of the other language, stripped."""
    yield from read_sides(data / f"{corpus}.en.xz", data / f"{corpus}.{language}.xz")


def read_sides(english: Path, other: Path) -> Iterator[Pair]:
    with (
        lzma.open(english, "rt", encoding="utf-8", newline="\n") as left,
        lzma.open(other, "rt", encoding="utf-8", newline="\n") as right,
    ):
        for one, two in zip(left, right, strict=True):
            yield one.strip(), two.strip()


def read_parliament(data: Path, part: int, language: str, folder: str) -> Iterator[Pair]:
    """A part of Europarl. A side in a folder of its own has empty lines where there is no translation."""
    name = f"train-{part:02d}"
    pairs = read_sides(data / f"{PARLIAMENT}/{name}.en.xz", data / f"{folder}/{name}.{language}.xz")
    return pairs if folder == PARLIAMENT else (pair for pair in pairs if all(pair))


def write_pairs(path: Path, pairs: Iterable[Pair], language: str) -> int:
    """Writes path.en.xz and the file of the other language, without held-out sentences and repetitions; returns how many pairs."""
    kept = list(dict.fromkeys(pair for pair in pairs if not is_held_out(*pair)))
    path.parent.mkdir(parents=True, exist_ok=True)
    for side, code in enumerate(("en", language)):
        text = "".join(f"{pair[side]}\n" for pair in kept)
        write_atomic(path.with_name(f"{path.name}.{code}.xz"), lzma.compress(text.encode(), preset=6))
    return len(kept)


def normalise(text: str) -> str:
    """Without case and punctuation.

    >>> normalise("Don't stop, Ann!")
    'don t stop ann'
    """
    return " ".join(re.findall(r"\w+", text.casefold()))


@cache
def held_out_sentences() -> frozenset[str]:
    return frozenset(normalise(check.source) for path in FOLDER.glob("*.tsv") for check in read_checks(path))


@cache
def held_out_names() -> frozenset[str]:
    """Words of the names that the checks want copied."""
    patterns = [check.must for path in FOLDER.glob("*.tsv") for check in read_checks(path) if check.kind == "names"]
    return frozenset(word for pattern in patterns for word in re.findall(r"\w+", pattern.casefold()))


def is_held_out(*texts: str) -> bool:
    return any(normalise(text) in held_out_sentences() for text in texts)


def has_held_out_name(text: str) -> bool:
    return any(word in held_out_names() for word in re.findall(r"\w+", text.casefold()))


def one_of(draw: Random, items: Sequence[T]) -> T:
    return items[int(draw.random() * len(items))]
