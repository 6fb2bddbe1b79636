"""Characters escaped by a backslash: the model sees them without it, and the translation gets it back."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import accumulate


class Escaped(str):
    """A character that had a backslash before it."""


def escaped_positions(texts: Iterable[str]) -> list[int]:
    """The positions of `Escaped` characters in the joined texts.

    >>> escaped_positions(["ab", Escaped("*"), "c", Escaped("_")])
    [2, 4]
    """
    texts = list(texts)
    return [end - 1 for text, end in zip(texts, accumulate(map(len, texts)), strict=True) if isinstance(text, Escaped)]


def escape_again(text: str, escaped: Collection[int], translation: str) -> Collection[int]:
    """The positions in a translation that need a backslash. If a character occurs as often as in the text, the same occurrences are
    escaped, otherwise all of them: a superfluous backslash is not rendered.

    >>> sorted(escape_again("1. a. *b*", {1, 6, 8}, "1. c. *d"))
    [1, 6]
    """
    if translation == text:
        return escaped
    found: set[int] = set()
    for character in {text[position] for position in escaped}:
        before = [position for position, one in enumerate(text) if one == character]
        after = [position for position, one in enumerate(translation) if one == character]
        if len(before) == len(after):
            after = [b for a, b in zip(before, after, strict=True) if a in escaped]
        found.update(after)
    return found


def with_backslashes(text: str, escaped: Collection[int], start: int, end: int) -> str:
    """`text[start:end]` with a backslash before each position in `escaped`."""
    if not escaped:
        return text[start:end]
    return "".join("\\" + text[position] if position in escaped else text[position] for position in range(start, end))
