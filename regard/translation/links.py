"""From attention to links between words: the one rule that everything built on word alignment follows. No torch here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from regard.generate.options import Matrix
from regard.translation.words import TokenWords

Link = tuple[int, int]  # (number of a target word, number of the source word aligned to it)

# A target word is not linked to a source word to which another one attends more than 1 / _RIVAL times as much: articles and
# commas that the source lacks attend to a neighbour's word. From 0.7 to 1 agreement with eflomal on development text hardly
# changes (docs/results.md).
_RIVAL = 0.8


def links_of(target: TokenWords, source: TokenWords, weights: Sequence[Sequence[float]]) -> tuple[Link, ...]:
    """The links between the words of a translation and its source. `weights` is (target tokens, source tokens) and may include
    the end tokens."""
    return tuple(link_words(attention_by_words(target, source, weights)))


def attention_by_words(target: TokenWords, source: TokenWords, weights: Sequence[Sequence[float]]) -> Matrix:
    """(target tokens, source tokens) -> (target words, source words): the sum over a source word's tokens, the mean over a target
    word's. End tokens and the tag of a target language are left out."""
    by_words = [[0.0] * len(source.words) for _ in target.words]
    sizes = Counter(target.word_of_token)
    for word, row in zip(target.word_of_token, weights, strict=False):
        for other, weight in zip(source.word_of_token, row, strict=False):
            if other >= 0:
                by_words[word][other] += weight / sizes[word]
    return by_words


def link_words(weights: Matrix) -> list[Link]:
    """Link each target word with the source word that it attends to most, unless that word is much more another's. `weights` is
    (target words, source words).

    >>> link_words([[0.9, 0.1], [0.4, 0.3], [0.2, 0.8]])
    [(0, 0), (2, 1)]
    """
    most = [max(column) for column in zip(*weights, strict=True)]
    links = []
    for word, row in enumerate(weights):
        best = max(range(len(row)), key=row.__getitem__, default=None)
        if best is not None and row[best] > 0 and row[best] >= _RIVAL * most[best]:
            links.append((word, best))
    return links


def belonging(weights: Matrix) -> Matrix:
    """How much words belong to each other, from both sides: the attention of a target word to a source word, times its share in
    all attention to that source word. Both are (target words, source words).

    >>> belonging([[0.5, 0.5], [0.0, 0.5]])
    [[0.5, 0.25], [0.0, 0.25]]
    """
    totals = [sum(column) or 1.0 for column in zip(*weights, strict=True)]
    return [[weight * weight / total for weight, total in zip(row, totals, strict=True)] for row in weights]
