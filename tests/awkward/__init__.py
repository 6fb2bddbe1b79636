"""A hundred lines of each language that translation models stumble over, and what must not happen to them."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from pathlib import Path

from regard.translation.protect import find_spans

MAX_REPEATS = 3  # of a phrase, one after the other; or as often as the source has one
LANGUAGES = ("en", "de")


def awkward_lines(language: str = "en") -> list[str]:
    return (Path(__file__).parent / f"{language}.txt").read_text(encoding="utf-8").splitlines()


def faults(source: str, translation: str) -> list[str]:
    """What is wrong with a translation that can be seen without knowing the language."""
    found = []
    if most_repeats(translation) > max(MAX_REPEATS, most_repeats(source)):
        found.append("a phrase is repeated again and again")
    if len(translation) > 3 * len(source) + 20:
        found.append("it is more than three times as long")
    if bool(source.strip()) != bool(translation.strip()):
        found.append("it is empty, or the source is")
    if "\ufffd" in translation and "\ufffd" not in source:
        found.append("half a character is in it")
    if _is_of_another_script(source) and translation != source:
        found.append("nobody can read the source, but something was made of it")
    spans = Counter(source[begin:end] for begin, end in find_spans(source))
    if lost := [span for span, count in spans.items() if _count(translation, span) < count]:
        found.append(f"lost: {' '.join(lost)}")
    return found


def _count(translation: str, span: str) -> int:
    """How often a span is there; a sum of money may have the marks of the other language."""
    count = translation.count(span)
    other = span.translate(str.maketrans(".,", ",."))
    return count + translation.count(other) if set("$€£¥") & set(span) and other != span else count


def lost_numbers(source: str, translation: str) -> list[str]:
    """The numbers of a source that its translation does not have, or has changed."""
    return list((_numbers(_without_hours(source)) - _numbers(translation)).elements())


def _without_hours(text: str) -> str:
    """Five in the afternoon is 17 where a day has 24 hours."""
    return re.sub(r"\d+(?:[.:]\d\d)? (?:[ap]\.m\.|Uhr)", "", text)


def _numbers(text: str) -> Counter[str]:
    """The digits of every number, without what groups them, which is another mark in another language."""
    return Counter(re.sub(r"\D", "", number) for number in re.findall(r"\d(?:[\d.,:/]*\d)?", text))


def _is_of_another_script(text: str) -> bool:
    letters = [unicodedata.name(character, "") for character in text if character.isalpha()]
    return bool(letters) and not any(name.startswith(("LATIN", "MODIFIER", "SUPERSCRIPT")) for name in letters)


def most_repeats(text: str) -> int:
    """How often a phrase of up to eight words stands in a row, at most."""
    words = re.findall(r"\w+|[^\w\s]+", text.lower())
    most = 1 if words else 0
    for size in range(1, 9):
        run = 1
        for place in range(size, len(words)):
            run = run + 1 if words[place] == words[place - size] else 1
            # `size` words alike to those before them are one repeat more
            most = max(most, (run - 1) // size + 1)
    return most
