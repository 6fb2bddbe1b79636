"""`decode.guard`: a line in a script unknown to the model, or with a nonsense translation, is output untranslated."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from regard.data.pieces import is_without_spaces
from regard.data.tokenizer import Tokenizer
from regard.translation.repetition import is_loop, loops

_MANY = 50  # characters of scripts without spaces: a vocabulary with this many covers such a language
_TIMES = 3  # a phrase may repeat in a row this often, or as often as in the source


def is_foreign(text: str, tokenizer: Tokenizer) -> bool:
    """Whether most letters of a text are unknown to the model, as in another script."""
    letters = [character for character in text if character.isalpha()]
    known = sum(
        letter in tokenizer.letters or (letter in tokenizer.characters and is_without_spaces(letter))
        for letter in letters
    )
    return 2 * known < len(letters)


def runs_away(
    source: str, translation: str, source_ids: Sequence[int], ids: Sequence[int], tokenizer: Tokenizer, given: str = ""
) -> bool:
    """Whether a translation loops, repeats a phrase more often than its source, is far longer than its source (in bytes, since a
    Chinese character is a word), or has invented characters; `given` is the source and all other requested text."""
    return (
        is_loop(source_ids, ids)
        or most_repeats(translation) > max(_TIMES, most_repeats(source))
        or len(_bytes(translation)) > 3 * len(_bytes(source)) + 20
        or _invents(translation, given or source, tokenizer)
    )


def most_repeats(text: str) -> int:
    """The most repetitions of a phrase in a row; up to three count as one.

    >>> most_repeats("No no no no, never"), most_repeats("no, no, never"), most_repeats("to and fro and to and fro")
    (4, 1, 1)
    """
    words = re.findall(r"\w+|[^\w\s]+", text.lower())
    if max(Counter(words).values(), default=0) <= _TIMES:
        return 1  # nearly every sentence
    return max((words // phrase for phrase, words in loops(words)), default=1)


def _invents(translation: str, given: str, tokenizer: Tokenizer) -> bool:
    """Whether a translation has characters that are neither in the given text nor in the vocabulary: byte tokens that happen to
    form one. Chinese and Japanese have more characters than a vocabulary, so byte tokens are legitimate there."""
    new = set(translation) - tokenizer.characters - set(given)
    if new and "\ufffd" not in new and sum(map(is_without_spaces, tokenizer.characters)) >= _MANY:
        new = {character for character in new if not is_without_spaces(character)}
    return bool(new)


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
