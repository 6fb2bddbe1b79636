"""Texts longer than a model reads, cut into windows: nothing is left out, and words stay whole where they can."""

from __future__ import annotations

from collections.abc import Sequence

from regard.data.tokenizer import Tokenizer
from regard.errors import UserError

_SPACE = "\u2581"  # how a piece that begins a word is shown


def frame_size(tokenizer: Tokenizer) -> int:
    """Tokens that open and close an input."""
    return len(tokenizer.frame([])[0])


def window_room(tokenizer: Tokenizer, max_length: int, taken: int = 0) -> int:
    """Tokens of a text in one window, besides its frame and `taken` others."""
    room = max_length - frame_size(tokenizer) - taken
    if room < 1:
        raise UserError(
            f"what stands before and after a text must leave room for it, but takes {max_length - room:,} of the {max_length:,} "
            "tokens that this model reads"
        )
    return room


def cut_windows(ids: Sequence[int], room: int, tokenizer: Tokenizer) -> list[Sequence[int]]:
    """The ids in windows of at most `room`, about equally long, cut where a word begins if one does in the second half."""
    windows: list[Sequence[int]] = []
    start = 0
    while len(ids) - start > room:
        left = len(ids) - start
        end = start + -(-left // -(-left // room))
        words = (place for place in range(end, start + room // 2, -1) if begins_word(ids[place], tokenizer))
        end = next(words, end)
        windows.append(ids[start:end])
        start = end
    return [*windows, ids[start:]]


def begins_word(token: int, tokenizer: Tokenizer) -> bool:
    """Whether a token begins a word, by the space before it."""
    return tokenizer.pieces([token])[0].startswith(_SPACE)
