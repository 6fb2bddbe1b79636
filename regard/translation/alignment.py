"""Word alignment of texts and their translations. Engines compute the attention of the model's `AlignmentHeads`, and `links.py`
makes links of it. No torch here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from regard.data.tokenizer import Tokenizer
from regard.generate.options import Engine, Matrix
from regard.translation.links import attention_by_words, belonging, link_words
from regard.translation.protect import protect
from regard.translation.terms import Span
from regard.translation.words import TokenWords, find_words, token_words


@dataclass(frozen=True)
class TextAlignment:
    """The words of a text and of its translation as spans, and the aligned pairs of words."""

    source: tuple[Span, ...] = ()
    target: tuple[Span, ...] = ()
    pairs: tuple[tuple[int, int], ...] = ()  # (source word, target word)
    belonging: Matrix = field(
        default_factory=list, compare=False, repr=False
    )  # as in `links.py`; empty without attention


def align_texts(
    engine: Engine, tokenizer: Tokenizer, pairs: Sequence[tuple[str, str]], max_length: int, language: str = ""
) -> list[TextAlignment]:
    """Align texts with their translations, from this model or elsewhere. A text longer than `max_length` tokens, the most that the
    model was trained on, gets words but no pairs. `language` is that of the translations."""
    tag = tokenizer.target_tag(language)
    read = [_read(tokenizer, tag, *pair) for pair in pairs]
    short = [
        number
        for number, sides in enumerate(read)
        if all(side.ids for side in sides) and max(len(side.ids) for side in sides) <= max_length
    ]
    found = engine.attention([read[n][0].ids for n in short], [read[n][1].ids for n in short]) if short else []
    attention = dict(zip(short, found, strict=True))
    aligned = []
    for number, (source, target) in enumerate(read):
        weights = attention_by_words(target.tokens, source.tokens, attention[number]) if number in attention else []
        # Words that do not occur in the text literally (a tokenizer may rewrite it) are left out.
        left, right = ({word: place for place, word in enumerate(side.spans)} for side in (source, target))
        known = tuple(
            (left[there], right[here]) for here, there in link_words(weights) if there in left and here in right
        )
        shares = [[row[word] for word in left] for row in (belonging(weights)[word] for word in right if weights)]
        aligned.append(TextAlignment(tuple(source.spans.values()), tuple(target.spans.values()), known, shares))
    return aligned


@dataclass(frozen=True)
class _Words:
    """One side of a pair: its token ids, its words, and their spans in the text."""

    ids: list[int]
    tokens: TokenWords
    spans: dict[int, Span]


def _read(tokenizer: Tokenizer, tag: Sequence[int], source: str, target: str) -> tuple[_Words, _Words]:
    protected = protect(source) if tokenizer.protects else None
    if protected is None:
        src, tgt = tokenizer.encode(source), tokenizer.encode(target, "target")
    else:
        src, tgt = protected.ids(tokenizer), protected.ids_of_other(tokenizer, target)
    src = [*tag, *src] if src else src
    sides = token_words(tokenizer, src, "source", protected), token_words(tokenizer, tgt, "target", protected)
    return (
        _Words(src, sides[0], dict(find_words(sides[0].words, source))),
        _Words(tgt, sides[1], dict(find_words(sides[1].words, target))),
    )
