"""Where a text that grows ends: at a stop string, which may come in parts."""

from __future__ import annotations

from collections.abc import Sequence

INCOMPLETE = "\ufffd"  # how a tokenizer shows a character of which a part is missing


def cut_at_stop(text: str, stops: Sequence[str]) -> tuple[str, bool]:
    """The text before the first stop string, and whether there is one.

    >>> cut_at_stop("One. Two.", ["wo", "T"])
    ('One. ', True)
    """
    places = [place for stop in stops if (place := text.find(stop)) >= 0]
    return (text[: min(places)], True) if places else (text, False)


def without_tail(text: str, stops: Sequence[str]) -> str:
    """The part of a text that what follows cannot change: without an incomplete character and without what may begin a stop string.

    >>> without_tail("One. T", ["Two"])
    'One. '
    """
    text = text.rstrip(INCOMPLETE)
    longest = max((_overlap(text, stop) for stop in stops), default=0)
    return text[: len(text) - longest]


def _overlap(text: str, stop: str) -> int:
    """How many characters at the end of the text begin the stop string."""
    return next((length for length in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:length])), 0)
