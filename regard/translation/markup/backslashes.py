"""Characters that were written with a backslash: the model sees them without it, and in the translation they have it again."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import accumulate


class Escaped(str):
    """A character that was written with a backslash before it."""


def places_of_escaped(texts: Iterable[str]) -> list[int]:
    """Where, in the texts joined, the escaped characters among them are.

    >>> places_of_escaped(["ab", Escaped("*"), "c", Escaped("_")])
    [2, 4]
    """
    texts = list(texts)
    return [end - 1 for text, end in zip(texts, accumulate(map(len, texts)), strict=True) if isinstance(text, Escaped)]


def escaped_again(text: str, escaped: Collection[int], translation: str) -> Collection[int]:
    """Which characters of a translation need the backslash that they had in the text: the same ones among their like, and if there
    are more or fewer of these now, all. Where a backslash is not needed it is not seen either.

    >>> sorted(escaped_again("1. a. *b*", {1, 6, 8}, "1. c. *d"))
    [1, 6]
    """
    if translation == text:
        return escaped
    found: set[int] = set()
    for mark in {text[place] for place in escaped}:
        before = [place for place, one in enumerate(text) if one == mark]
        after = [place for place, one in enumerate(translation) if one == mark]
        if len(before) == len(after):
            after = [b for a, b in zip(before, after, strict=True) if a in escaped]
        found.update(after)
    return found


def with_backslashes(text: str, escaped: Collection[int], start: int, end: int) -> str:
    """A part of a text as it is written."""
    if not escaped:
        return text[start:end]
    return "".join("\\" + text[place] if place in escaped else text[place] for place in range(start, end))
