"""The result of a translation: a line with its candidates. No torch here."""

from __future__ import annotations

from dataclasses import dataclass

from regard.translation.links import Link
from regard.translation.words import Word


@dataclass(frozen=True)
class Translation:
    """One candidate translation of a line."""

    text: str
    score: float  # of the search: log-probability under the length penalty; summed over the segments of a line
    words: tuple[Word, ...] = ()  # with `TranslationOptions.words`, where the translation is the model's
    alignment: tuple[Link, ...] = ()  # with `TranslationOptions.alignment`: from `words` to the result's `source_words`
    is_refused: bool = False  # the guard refused every hypothesis, and this is the line itself


@dataclass(frozen=True)
class Result:
    """A line and its translations, best first."""

    source: str
    translations: tuple[Translation, ...]
    source_words: tuple[str, ...] = ()  # with `TranslationOptions.alignment`

    @property
    def text(self) -> str:
        """The best translation."""
        return self.translations[0].text
