"""Which records are fit for training, and an account of those that are not.

The rules know no alphabet: emptiness is judged by the text, length and ratio by the tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from regard.data.corpus import shorten
from regard.progress import counted

EMPTY = "empty"
TOO_LONG = "too long"
RATIO = "length ratio"
DUPLICATE = "duplicate"
HELD_OUT = "held out"
REPETITION = "repetition"  # only in text that a model wrote
REASONS = (EMPTY, TOO_LONG, RATIO, DUPLICATE, HELD_OUT, REPETITION)

_RATIO_SLACK = 8  # tokens added to both sides, so that "Yes." may be paired with a short sentence


@dataclass(frozen=True)
class CleanOptions:
    """The limits that a training record must keep."""

    max_length: int = 256  # tokens of each column
    max_ratio: float = 4.0  # of the longest column to the shortest one
    deduplicate: bool = False


def is_empty(*texts: str) -> bool:
    """Whether the text of some column is only white space."""
    return not all(text.strip() for text in texts)


def length_fault(lengths: Sequence[int], options: CleanOptions) -> str | None:
    """Why a record of these lengths, in tokens, is dropped; None when it is kept."""
    longer, shorter = max(lengths), min(lengths)
    if longer > options.max_length:
        return TOO_LONG
    if longer + _RATIO_SLACK > options.max_ratio * (shorter + _RATIO_SLACK):
        return RATIO
    return None


@dataclass
class CleanAccount:
    """How many records were kept, how many were dropped for each reason, and the first example of each."""

    kept: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    examples: dict[str, str] = field(default_factory=dict)  # reason -> "corpus, line N: text"

    @property
    def read(self) -> int:
        return self.kept + sum(self.dropped.values())

    def keep(self, count: int = 1) -> None:
        self.kept += count

    def drop(self, reason: str, where: str, line: int, *texts: str) -> None:
        """Count a dropped record; the first of each reason is kept as an example."""
        self.dropped[reason] = self.dropped.get(reason, 0) + 1
        if reason not in self.examples:
            shown = " / ".join(repr(shorten(text, 40)) for text in texts)
            self.examples[reason] = f"{where}, line {line}: {shown}"

    def merge(self, other: CleanAccount) -> None:
        """Add the account of a later part of the text."""
        self.kept += other.kept
        for reason, count in other.dropped.items():
            self.dropped[reason] = self.dropped.get(reason, 0) + count
            self.examples.setdefault(reason, other.examples[reason])

    def lines(self, noun: str = "pair") -> list[str]:
        """The account as text: a line for the total and one for each reason. `noun` is what people call a record."""
        share = f" ({100 * self.kept / self.read:.1f}%)" if self.read else ""
        reasons = [
            f"  dropped, {reason}: {self.dropped[reason]:,}, first {self.examples[reason]}"
            for reason in _in_order(self.dropped)
        ]
        return [f"{counted(self.read, noun)} read, {self.kept:,} kept{share}", *reasons]

    def to_json(self) -> dict[str, Any]:
        reasons = _in_order(self.dropped)
        return {
            "read": self.read,
            "kept": self.kept,
            "dropped": {reason: {"count": self.dropped[reason], "first": self.examples[reason]} for reason in reasons},
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> CleanAccount:
        dropped = data["dropped"]
        counts = {reason: int(entry["count"]) for reason, entry in dropped.items()}
        return cls(int(data["kept"]), counts, {reason: str(entry["first"]) for reason, entry in dropped.items()})


def _in_order(reasons: Iterable[str]) -> list[str]:
    return sorted(reasons, key=REASONS.index)
