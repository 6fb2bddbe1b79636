"""Sentences with what must, and must not, be in their translation: names, capitals, times of day, idioms and so on.

`SOURCE-TARGET.tsv` has one check a line, in four columns: kind, source sentence, must, must not. The pattern language:

    Katze|Kater          one of these
    Hut & Wind|Sturm     all of these groups
    Vogel*               `*` stands for any letters of the same word
    ^-                   at the very beginning of the translation

A term matches whole words. A term without capital letters matches in any case ("ß" as "ss"); one with a capital letter only as
written. No alternative of `must not` may match. Typographic apostrophes and special spaces count as plain ones.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).parent
COLUMNS = ("kind", "source", "must", "must not")
KINDS = (
    "names", "exonyms", "capitals", "punctuation", "case", "typos", "times", "dates", "units", "money", "quotes", "lists",
    "negation", "idioms", "rare",
)  # fmt: skip


@dataclass(frozen=True)
class Check:
    """A source sentence and the patterns that judge its translation."""

    kind: str
    source: str
    must: str
    must_not: str = ""

    def passes(self, translation: str) -> bool:
        return matches(self.must, translation) and not (self.must_not and matches(self.must_not, translation))


def read_checks(path: Path) -> list[Check]:
    header, *lines = path.read_text(encoding="utf-8").splitlines()
    if tuple(header.split("\t")) != COLUMNS:
        raise ValueError(f"{path}, line 1: must be {COLUMNS!r}, separated by tabs, but is {header!r}")
    checks = []
    for number, line in enumerate(lines, start=2):
        cells = line.split("\t")
        if len(cells) != len(COLUMNS) or cells[0] not in KINDS or not cells[1] or not cells[2]:
            raise ValueError(f"{path}, line {number}: must hold a known kind, a source and a pattern, but is {line!r}")
        checks.append(Check(*cells))
    return checks


def matches(pattern: str, translation: str) -> bool:
    """Whether the translation has one alternative of each group.

    >>> matches("Hut & Wind|Sturm*", "Der Hut flog im Sturmwind davon.")
    True
    >>> matches("hut & Wind", "DER HUT FLOG IM WIND DAVON.")
    False
    """
    text = _plain(translation)
    folded = text.casefold()
    return all(
        any(_regex(term).search(text if _is_exact(term) else folded) for term in group.split("|"))
        for group in pattern.split(" & ")
    )


def _plain(text: str) -> str:
    return re.sub(r"\s", " ", text).replace("’", "'").strip()


def _is_exact(term: str) -> bool:
    return term != term.lower()


@cache
def _regex(term: str) -> re.Pattern[str]:
    bare = _plain(term.removeprefix("^"))
    words = bare if _is_exact(term) else bare.casefold()
    begin = r"\A" if term.startswith("^") else r"(?<!\w)" if re.match(r"[\w*]", words) else ""
    end = r"(?!\w)" if re.search(r"[\w*]\Z", words) else ""
    return re.compile(begin + re.escape(words).replace(r"\*", r"\w*") + end)


def count_passed(checks: Sequence[Check], translations: Sequence[str]) -> dict[str, tuple[int, int]]:
    """For each kind that occurs, in the order of KINDS: how many passed, of how many."""
    counts: dict[str, tuple[int, int]] = {}
    for kind in KINDS:
        passed = [check.passes(text) for check, text in zip(checks, translations, strict=True) if check.kind == kind]
        if passed:
            counts[kind] = sum(passed), len(passed)
    return counts
