"""How long texts are cut into windows that a model can read. No torch here."""

from __future__ import annotations

from itertools import pairwise

from regard.data.tokenizer import Tokenizer
from regard.errors import UserError


def room_of(tokenizer: Tokenizer, length: int, is_pair: bool) -> int:
    """Tokens of text in a window of this length."""
    marks = len(tokenizer.opening) + len(tokenizer.closing) + (len(tokenizer.between) if is_pair else 0)
    if length - marks < 2:
        raise UserError(f"data.max_length must be more than the {marks + 1} tokens around a text, but is {length}")
    return length - marks


def cut_windows(size: int, room: int) -> list[tuple[int, int]]:
    """Windows of at most `room` tokens over a text of `size`, of about equal length.

    >>> cut_windows(7, 3), cut_windows(0, 3)
    ([(0, 2), (2, 4), (4, 7)], [(0, 0)])
    """
    count = max(1, -(-size // room))
    return list(pairwise(number * size // count for number in range(count + 1)))


def cut_pair(first: int, second: int, room: int) -> tuple[int, int]:
    """How many tokens of both texts fit: the longer one is cut first.

    >>> cut_pair(3, 9, 8), cut_pair(9, 9, 8), cut_pair(2, 3, 8)
    ((3, 5), (4, 4), (2, 3))
    """
    if first + second <= room:
        return first, second
    half = room // 2
    if min(first, second) <= half:
        return (first, room - first) if first < second else (room - second, second)
    return room - half, half
