"""Ends a growing text at a stop string, which may arrive in parts."""

from __future__ import annotations

from collections.abc import Sequence

INCOMPLETE = "\ufffd"  # a tokenizer's sign for an incomplete character


def cut_at_stop(text: str, stops: Sequence[str]) -> tuple[str, bool]:
    """The text before the first stop string, and whether there is one.

    >>> cut_at_stop("One. Two.", ["wo", "T"])
    ('One. ', True)
    """
    places = [place for stop in stops if (place := text.find(stop)) >= 0]
    return (text[: min(places)], True) if places else (text, False)


def without_tail(text: str, stops: Sequence[str]) -> str:
    """The text without its tail that later tokens may change: an incomplete character, or the beginning of a stop string.

    >>> without_tail("One. T", ["Two"])
    'One. '
    """
    text = text.rstrip(INCOMPLETE)
    longest = max((_overlap(text, stop) for stop in stops), default=0)
    return text[: len(text) - longest]


def _overlap(text: str, stop: str) -> int:
    """The number of characters at the end of the text that begin the stop string."""
    place = text.find(stop[0], max(0, len(text) - len(stop) + 1))
    while place >= 0 and not stop.startswith(text[place:]):
        place = text.find(stop[0], place + 1)
    return len(text) - place if place >= 0 else 0
