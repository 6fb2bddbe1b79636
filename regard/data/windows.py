"""How texts are cut into windows that a model can read: nothing is left out, and words stay whole where they can. No torch here."""

from __future__ import annotations

from collections.abc import Sequence

from regard.data.tokenizer import Tokenizer
from regard.errors import UserError
from regard.progress import counted

Span = tuple[int, int]  # [start, stop)
_SPACE = "\u2581"  # how a piece that begins a word is shown


def text_room(
    tokenizer: Tokenizer, length: int, *, is_pair: bool = False, prompt: int = 0, in_training: bool = False
) -> int:
    """Tokens of text in an input of this length, without those that frame it and those of a prompt. `in_training`: the length is
    that of a recipe, so that the user can change it."""
    special = len(tokenizer.frame([], [] if is_pair else None)[0])
    room = length - special - prompt
    if room < 1 + is_pair:
        needs, rest = ("two texts need", "one of each text") if is_pair else ("a text needs", "one of the text")
        parts = [counted(special, "special token"), *([f"{prompt:,} of the prompt"] if prompt else []), rest]
        other = "leave out the prompt" if prompt else "use another model"
        raise UserError(
            f"{needs} at least {special + prompt + 1 + is_pair:,} tokens ({', '.join(parts[:-1])} and {parts[-1]}), but the model "
            f"reads {length:,}; {'raise data.max_length' if in_training else other}"
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
