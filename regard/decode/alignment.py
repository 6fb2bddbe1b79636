"""Which words of a translation go with which words of its source: the cross-attention of the last decoder layer but one, the mean
of its heads, gathered by words (Garg et al., 2019). Engines compute the attention; what is made of it is the same for all of them.
No torch here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from regard.config import ModelConfig
from regard.data.pieces import Side, make_side
from regard.data.protect import protect
from regard.data.tokenizer import Tokenizer
from regard.decode.options import Engine, Matrix

Span = tuple[int, int]  # characters from, to


@dataclass(frozen=True)
class Aligned:
    """The words of a text and of its translation, and which of them go together."""

    source: tuple[Span, ...] = ()
    target: tuple[Span, ...] = ()
    pairs: tuple[
        tuple[int, int], ...
    ] = ()  # (source word, target word), both from 0: for each target word the heaviest


def aligning_layer(config: ModelConfig) -> int:
    """The decoder layer, from 0, whose attention aligns best."""
    return max(0, config.decoder_layers - 2)


def by_words(matrix: Matrix, queries: Side, keys: Side) -> Matrix:
    """Weights between words from weights between pieces: what goes to a word's pieces is added up, what comes from a word's pieces
    is averaged, so that rows still sum to one."""
    columns = [piece.word for piece in keys.pieces]
    rows: Matrix = []
    for word in range(len(queries.words)):
        members = queries.members(word)
        row = [0.0] * len(keys.words)
        for place in members:
            for column, weight in zip(columns, matrix[place], strict=True):
                row[column] += weight / len(members)
        rows.append(row)
    return rows


def link_words(words: Matrix) -> tuple[Matrix, list[tuple[int, int]]]:
    """Weights (target words, source words), without the ends: with rows that sum to one, and (target word, source word) of the
    heaviest of each target word. A row of nothing stays one, and has no link."""
    weights: Matrix = []
    links = []
    for number, row in enumerate(words):
        total = sum(row)
        weights.append([weight / total for weight in row] if total > 0 else [])
        if total > 0:
            links.append((number, max(range(len(row)), key=row.__getitem__)))
    return weights, links


def align_texts(
    engine: Engine, tokenizer: Tokenizer, pairs: Sequence[tuple[str, str]], max_length: int
) -> list[Aligned]:
    """Aligned words of texts and their translations, whoever made these. One that is longer than `max_length` tokens, more than the
    model has ever seen, has words, but no pairs."""
    read = [_read(tokenizer, source, target) for source, target in pairs]
    short = [
        number
        for number, (left, right) in enumerate(read)
        if left.side.pieces and right.side.pieces and max(len(left.side.pieces), len(right.side.pieces)) <= max_length
    ]
    found = engine.attention([read[n][0].ids for n in short], [read[n][1].ids for n in short]) if short else []
    attention = dict(zip(short, found, strict=True))
    aligned = []
    for number, (left, right) in enumerate(read):
        links: list[tuple[int, int]] = []
        if number in attention:
            _, links = link_words(by_words(attention[number], right.side, left.side))
        # Words that are not found in the text as they are (a tokenizer may rewrite it) are left out.
        source_number, target_number = left.numbers(), right.numbers()
        known = [
            (source_number[source], target_number[target])
            for target, source in links
            if source in source_number and target in target_number
        ]
        aligned.append(Aligned(tuple(left.spans.values()), tuple(right.spans.values()), tuple(known)))
    return aligned


@dataclass(frozen=True)
class _Words:
    """One side of a pair: its tokens, the words that they make, and where these stand in the text."""

    ids: list[int]
    side: Side
    spans: dict[int, Span]

    def numbers(self) -> dict[int, int]:
        """Which of the words that were found each word is."""
        return {word: number for number, word in enumerate(self.spans)}


def _read(tokenizer: Tokenizer, source: str, target: str) -> tuple[_Words, _Words]:
    protected = protect(source) if tokenizer.protects else None
    if protected is None:
        ids = tokenizer.encode(source), tokenizer.encode(target, "target")
    else:
        ids = protected.ids(tokenizer), protected.ids_of_other(tokenizer, target)
    spans = {} if protected is None else dict(zip(tokenizer.span_ids, protected.spans, strict=False))
    made = []
    for text, tokens, pieces in (
        (source, ids[0], tokenizer.pieces(ids[0], "source")),
        (target, ids[1], tokenizer.pieces(ids[1], "target")),
    ):
        side = make_side(tokens, pieces, tuple(spans))
        words = list(side.words)
        for piece in side.pieces:
            words[piece.word] = spans.get(piece.id, words[piece.word])
        made.append(_Words(tokens, side, dict(_find(words, text))))
    return made[0], made[1]


def _find(words: Sequence[str], text: str) -> Iterator[tuple[int, Span]]:
    """Where words stand in a text, one after the other.

    >>> dict(_find(["so", ",", "so", "?!"], "so, so"))
    {0: (0, 2), 1: (2, 3), 2: (4, 6)}
    """
    position = 0
    for number, word in enumerate(words):
        start = text.find(word, position) if word else -1
        if start >= 0:
            position = start + len(word)
            yield number, (start, position)
