"""Whether bold words stay on the right words: sentences aligned by hand, with one phrase marked in each. For
`benchmarks/alignment.py`."""

from __future__ import annotations

import html
import random
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import regard
from regard.translation.markup.marked_text import MarkedText

Links = set[tuple[int, int]]
_MAX_WORDS = 4  # of a phrase


class MarkedPair(NamedTuple):
    """A sentence and its translation by people, both as words; the phrase to mark, and where its words are in the translation."""

    source: list[str]
    target: list[str]
    phrase: range  # of source words
    belongs: set[int]  # target words that are aligned with the phrase
    alien: set[int]  # target words that are aligned with others


def mark_phrases(sources: Sequence[str], targets: Sequence[str], gold: Sequence[Links], seed: int) -> list[MarkedPair]:
    """One phrase of every sentence, drawn from those whose translation is one piece."""
    draw = random.Random(seed)
    marked = []
    for source, target, links in zip(sources, targets, gold, strict=True):
        if found := list(_phrases(source.split(), target.split(), links)):
            marked.append(draw.choice(found))
    return marked


def _phrases(source: list[str], target: list[str], links: Links) -> Iterator[MarkedPair]:
    linked = {i for i, _ in links}
    for begin in range(len(source)):
        for end in range(begin + 1, min(begin + _MAX_WORDS, len(source)) + 1):
            phrase = range(begin, end)
            belongs = {j for i, j in links if i in phrase}
            alien = {j for i, j in links if i not in phrase}
            has_words = all(re.search(r"\w", source[i]) for i in phrase) and {begin, end - 1} <= linked
            if has_words and len(phrase) < len(source) - 1 and not alien & {*range(min(belongs), max(belongs) + 1)}:
                yield MarkedPair(source, target, phrase, belongs, alien)


def is_right(model: regard.Model, pair: MarkedPair) -> bool:
    """Whether all words of the phrase, and none of another's, are bold in the translation."""
    words = [html.escape(word, quote=False) for word in pair.source]
    words[pair.phrase.start] = f"<b>{words[pair.phrase.start]}"
    words[pair.phrase.stop - 1] += "</b>"
    page = MarkedText(" ".join(words), model.bundle.source, by_sentence=False)
    phrase = " ".join(pair.source[i] for i in pair.phrase)
    translations = [" ".join(pair.target), *model.translate([phrase])]
    joined = html.unescape(page.join(translations, model.align(page.to_align(translations))))
    before, bold, _ = re.split("</?b>", joined)
    first = len(before.split())
    bold_words = {*range(first, first + len(bold.split()))}
    return pair.belongs <= bold_words and not bold_words & pair.alien


def measure_marks(german: Sequence[str], english: Sequence[str], gold: Sequence[Links]) -> dict[str, int]:
    """The number of sentences of both directions whose bold words are right, and how many there are."""
    reverse = [{(j, i) for i, j in links} for links in gold]
    both = {"de-en": mark_phrases(german, english, gold, 1), "en-de": mark_phrases(english, german, reverse, 1)}
    right = {}
    for name, pairs in both.items():
        model = regard.load(name, device="cpu")
        right[name] = sum(is_right(model, pair) for pair in pairs)
    return {"sentences": sum(map(len, both.values())), "right": sum(right.values()), **right}
