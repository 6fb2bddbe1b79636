"""Words of a translation: the tokens of a forced prefix, the words that tokens make up, and the probability of each word of a
translation. No torch here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from regard.data.pieces import group_words
from regard.data.tokenizer import Tokenizer
from regard.data.vocabulary import Side
from regard.generate.options import Prefix
from regard.generate.word_tokens import word_beginnings
from regard.translation.protect import Protected
from regard.translation.terms import Span, overlap_with

_SPACE = "\u2581"
_NEAR = 10_000  # characters between two words that are found


@dataclass(frozen=True)
class Word:
    """A word of a translation; a punctuation mark is a word."""

    text: str
    log_prob: float  # sum over its tokens, given everything before it


def prefix_ids(tokenizer: Tokenizer, text: str, protected: Protected | None = None) -> Prefix:
    """The tokens that a translation must begin with so that its text begins with `text`. The search may extend the last word
    unless white space follows it. `protected` is the source without its protected spans: a span in both gets the same reserved
    piece."""
    stripped = text.strip()
    if not stripped:
        return ()
    ids = tokenizer.encode(stripped, "target") if protected is None else protected.ids_of_other(tokenizer, stripped)
    if text[-1].isspace():
        return (*ids, (*word_beginnings(tokenizer, ids[-1]), tokenizer.eos_id))
    return tuple(ids)


@dataclass(frozen=True)
class TokenWords:
    """The words of a sentence, and the number of the word that each token belongs to; -1: the tag of a target language."""

    words: list[str]
    word_of_token: list[int]


def token_words(
    tokenizer: Tokenizer, ids: Sequence[int], side: Side = "target", protected: Protected | None = None
) -> TokenWords:
    """Group tokens into words. A reserved piece is the span that it stands for; a lone space belongs to the word after it."""
    spans = {} if protected is None else dict(zip(tokenizer.span_ids, protected.spans, strict=False))
    tags = set(tokenizer.tag_ids) if tokenizer.targets else set()
    special = {tokenizer.eos_id, tokenizer.bos_id, *tokenizer.span_ids, *tags}
    found = group_words(ids, tokenizer.pieces(ids, side), tuple(special))
    texts = list(found.words)
    for piece in found.pieces:
        texts[piece.word] = "" if piece.id in tags else spans.get(piece.id, texts[piece.word])
    is_word = [bool(text.strip(_SPACE)) for text in texts]
    # the number of each word; that of a lone space is the number of the next word
    numbers = list(accumulate(is_word, initial=0))
    words = [text for text, is_one in zip(texts, is_word, strict=True) if is_one]
    if not words:
        return TokenWords([], [])
    places = (-1 if piece.id in tags else min(numbers[piece.word], len(words) - 1) for piece in found.pieces)
    return TokenWords(words, list(places))


def find_words(words: Sequence[str], text: str) -> Iterator[tuple[int, Span]]:
    """The places of words in a text, from left to right, with their numbers. Words that are not found are left out: a tokenizer
    may have rewritten them.

    >>> dict(find_words(["so", ",", "so", "?!"], "so, so"))
    {0: (0, 2), 1: (2, 3), 2: (4, 6)}
    """
    position = 0
    for number, word in enumerate(words):
        # Not to the end of the text: of a text that is rewritten throughout, each word would take as long as the text is.
        start = text.find(word, position, position + _NEAR + len(word)) if word else -1
        if start >= 0:
            position = start + len(word)
            yield number, (start, position)


def tokens_at(tokens: TokenWords, text: str, places: Sequence[tuple[int, int]]) -> frozenset[int]:
    """The positions of the tokens whose words overlap these spans of the text.

    >>> tokens_at(TokenWords(["the", "cat"], [0, 1, 1]), "the cat", [(4, 7)])
    frozenset({1, 2})
    """
    is_at_place = overlap_with(places)
    found = {number for number, place in find_words(tokens.words, text) if is_at_place(place)}
    return frozenset(token for token, word in enumerate(tokens.word_of_token) if word in found)


def words_of(tokens: TokenWords, log_probs: Sequence[float]) -> tuple[Word, ...]:
    """The words of a translation with their log-probabilities; `log_probs` has one for each token, and may have the end token's."""
    totals = [0.0] * len(tokens.words)
    for place, log_prob in zip(tokens.word_of_token, log_probs, strict=False):
        totals[place] += log_prob
    return tuple(Word(text, total) for text, total in zip(tokens.words, totals, strict=True))


def cut_again(words: Sequence[Word], old: str, new: str, places: Sequence[int] | None = None) -> tuple[Word, ...]:
    """The words of the text `old`, cut from `new`, where `places` are those of its characters; None: the same.

    >>> [word.text for word in cut_again([Word("„ja“", -1.0), Word(".", -1.0)], "„ja“.", "« ja ».", [0, 2, 3, 5, 6])]
    ['« ja »', '.']
    """
    places = range(len(old)) if places is None else places
    cut, begin = [], 0
    for word in words:
        start = old.find(word.text, begin) if word.text else -1
        if start < 0:
            cut.append(word)
        else:
            begin = start + len(word.text)
            cut.append(replace(word, text=new[places[start] : places[begin - 1] + 1]))
    return tuple(cut)
