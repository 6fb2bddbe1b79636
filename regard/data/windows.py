"""How texts are cut into windows that a model can read: nothing is left out, and words stay whole where they can. No torch here."""

from __future__ import annotations

from collections.abc import Sequence

from regard.data.tokenizer import Tokenizer
from regard.errors import UserError

Span = tuple[int, int]  # [start, stop)
_SPACE = "\u2581"  # how a piece that begins a word is shown


def text_room(tokenizer: Tokenizer, length: int, *, is_pair: bool = False, taken: int = 0) -> int:
    """Tokens of text in an input of this length, without those that frame it and `taken` others, such as those of a prompt."""
    room = length - len(tokenizer.frame([], [] if is_pair else None)[0]) - taken
    if room < 1 + is_pair:
        raise UserError(
            f"the input length must leave room for {'two texts' if is_pair else 'a text'}, but {length - room:,} of its {length:,} "
            "tokens are special tokens or the prompt; raise data.max_length, or shorten the prompt"
        )
    return room


def cut_windows(ids: Sequence[int], room: int, tokenizer: Tokenizer) -> list[Span]:
    """Windows of at most `room` tokens, about equally long, cut where a word begins if one does in the second half."""
    windows, start = list[Span](), 0
    while len(ids) - start > room:
        left = len(ids) - start
        end = start + -(-left // -(-left // room))
        words = (place for place in range(end, start + room // 2, -1) if _begins_word(ids[place], tokenizer))
        end = next(words, end)
        windows.append((start, end))
        start = end
    return [*windows, (start, len(ids))]


def _begins_word(token: int, tokenizer: Tokenizer) -> bool:
    return tokenizer.pieces([token])[0].startswith(_SPACE)


def pair_windows(
    first: Sequence[int], second: Sequence[int], room: int, tokenizer: Tokenizer
) -> list[tuple[Span, Span]]:
    """The parts of two texts that are read together: a long text is cut, and a short one is read with each part; two long ones are
    cut side by side."""
    whole = (0, len(first)), (0, len(second))
    if len(first) + len(second) <= room:
        return [whole]
    half = room // 2
    if len(first) <= half:
        return [(whole[0], window) for window in cut_windows(second, room - len(first), tokenizer)]
    if len(second) <= half:
        return [(window, whole[1]) for window in cut_windows(first, room - len(second), tokenizer)]
    ones, others = cut_windows(first, half, tokenizer), cut_windows(second, room - half, tokenizer)
    count = max(len(ones), len(others))
    return [(ones[n * len(ones) // count], others[n * len(others) // count]) for n in range(count)]
