"""`decode.guard`: a line that the model cannot know, or whose translation is nonsense that can be seen, stays as it is."""

from __future__ import annotations

from collections.abc import Sequence

from regard.data.clean import is_loop
from regard.data.tokenizer import Tokenizer


def is_foreign(text: str, tokenizer: Tokenizer) -> bool:
    """Whether most letters of a text are in no word that the model has ever seen: those of another script."""
    letters = [character for character in text if character.isalpha()]
    return 2 * sum(letter in tokenizer.letters for letter in letters) < len(letters)


def runs_away(
    source: str, translation: str, source_ids: Sequence[int], ids: Sequence[int], tokenizer: Tokenizer
) -> bool:
    """Whether a translation repeats itself without end, is far longer than what it translates, or has characters that come
    neither from the source nor from any piece of the vocabulary: bytes that happened to make one."""
    return (
        is_loop(source_ids, ids)
        or len(translation) > 3 * len(source) + 20
        or not set(translation) <= tokenizer.characters | set(source)
    )
