"""The result of a translation: a line with its candidates. No torch here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from regard.escaping import shorten
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
class Unmet:
    """Something that was asked for and is not in the best translation."""

    option: str  # prefix, phrases or glossary
    text: str  # the prefix, the phrase, or what the term must be called


@dataclass(frozen=True)
class Result:
    """A line and its translations, best first."""

    source: str
    translations: tuple[Translation, ...]
    source_words: tuple[str, ...] = ()  # with `TranslationOptions.alignment`
    unmet: tuple[Unmet, ...] = ()  # such as the phrases of a line that was left as it is

    @property
    def text(self) -> str:
        """The best translation."""
        return self.translations[0].text


def unmet_note(results: Sequence[Result]) -> str:
    """One line about the results that lack what was asked for; empty if there are none."""
    lacking = [result for result in results if result.unmet]
    if not lacking:
        return ""
    first = lacking[0]
    lost = "; ".join(f"{one.option}: {shorten(one.text)}" for one in first.unmet)
    more = f" (and {len(lacking) - 1:,} more)" if len(lacking) > 1 else ""
    return f"asked for, but not in the translation of {shorten(first.source)}: {lost}{more}"
