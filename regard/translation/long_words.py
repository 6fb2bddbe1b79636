"""Words too long to translate. Two hundred characters without a space are no word of any language but data: a key, an encoded
file, minified code. They are copied, so that such a word costs next to nothing, whatever its length."""

from __future__ import annotations

import re
from collections.abc import Iterator

MOST_CHARACTERS = 200
# Scripts without spaces between words, with their punctuation: Thai, Lao, Tibetan, Burmese, Khmer, Japanese, Chinese.
_NO_SPACES = (
    r"\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff\u3000-\u30ff\u3400-\u9fff\uf900-\ufaff\uff00-\uffef\U00020000-\U0003ffff"
)
_LONG_WORD = re.compile(rf"[^\s{_NO_SPACES}]{{{MOST_CHARACTERS + 1},}}")


def split_long_words(text: str) -> Iterator[tuple[str, bool]]:
    """The parts of a text, and whether each is a word too long to translate. Joined, the parts are the text.

    >>> [(len(part), is_long) for part, is_long in split_long_words("see " + 2_000 * "x" + " there")]
    [(4, False), (2000, True), (6, False)]
    """
    done = 0
    for match in _LONG_WORD.finditer(text) if len(text) > MOST_CHARACTERS else ():
        if done < match.start():
            yield text[done : match.start()], False
        yield match[0], True
        done = match.end()
    if done < len(text):
        yield text[done:], False
