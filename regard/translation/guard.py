"""`decode.guard`: a line that the model cannot know, or whose translation is nonsense that can be seen, stays as it is."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from regard.data.pieces import is_without_spaces
from regard.data.tokenizer import Tokenizer
from regard.translation.repetition import is_loop, loops

_MANY = 50  # characters of scripts without spaces: a vocabulary with so many is about such a language
_TIMES = 3  # that a phrase may come in a row, and more often where the source repeats one more often


def is_foreign(text: str, tokenizer: Tokenizer) -> bool:
    """Whether most letters of a text are in no word that the model has ever seen: those of another script."""
    letters = [character for character in text if character.isalpha()]
    known = sum(
        letter in tokenizer.letters or (letter in tokenizer.characters and is_without_spaces(letter))
        for letter in letters
    )
    return 2 * known < len(letters)


def runs_away(
    source: str, translation: str, source_ids: Sequence[int], ids: Sequence[int], tokenizer: Tokenizer, given: str = ""
) -> bool:
    """Whether a translation repeats itself without end, or a phrase more often than its source does, is far longer than what it
    translates (in bytes: a character of Chinese is a word), or has characters from nowhere; `given` is the source with all else
    that was asked for."""
    return (
        is_loop(source_ids, ids)
        or most_repeats(translation) > max(_TIMES, most_repeats(source))
        or len(_bytes(translation)) > 3 * len(_bytes(source)) + 20
        or _invents(translation, given or source, tokenizer)
    )


def most_repeats(text: str) -> int:
    """How often a phrase stands in a row, at most; up to three times is not counted.

    >>> most_repeats("No no no no, never"), most_repeats("no, no, never"), most_repeats("to and fro and to and fro")
    (4, 1, 1)
    """
    words = re.findall(r"\w+|[^\w\s]+", text.lower())
    if max(Counter(words).values(), default=0) <= _TIMES:
        return 1  # nearly every sentence
    return max((words // phrase for phrase, words in loops(words)), default=1)


def _invents(translation: str, given: str, tokenizer: Tokenizer) -> bool:
    """Whether there are characters that come neither from what was given nor from a piece of the vocabulary: bytes that happened to
    make one. Chinese and Japanese have more characters than a vocabulary, so that bytes are right there."""
    new = set(translation) - tokenizer.characters - set(given)
    if new and "\ufffd" not in new and sum(map(is_without_spaces, tokenizer.characters)) >= _MANY:
        new = {character for character in new if not is_without_spaces(character)}
    return bool(new)


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
