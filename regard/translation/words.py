"""Words of translations: where they begin among a tokenizer's pieces, how a forced prefix is written in pieces, how sure the
model was of each word and where it looked. No torch here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from regard.data.pieces import begins_word, group_words, is_punctuation, is_without_spaces
from regard.data.tokenizer import Side, Tokenizer
from regard.errors import UserError
from regard.generate.options import Prefix, forbidden_ids
from regard.generate.search.phrases import Phrase
from regard.translation.protect import Protected
from regard.translation.terms import overlaps

_SPACE = "\u2581"


@dataclass(frozen=True)
class Word:
    """A word of a translation; punctuation counts as words."""

    text: str
    log_prob: float  # of its pieces together, given all that comes before them


Link = tuple[int, int]  # (number of a target word, number of the source word that it comes from)


def word_beginnings(tokenizer: Tokenizer, last: int | None) -> tuple[int, ...]:
    """The tokens that begin a word after this one, or with None a sentence; not those that no translation may contain."""
    return _beginnings(tokenizer, "" if last is None else kind_of(tokenizer, last), last is None)


def kind_of(tokenizer: Tokenizer, token: int) -> str:
    """A piece that, as to what begins a word after it, is like this token's."""
    bare = tokenizer.pieces([token])[0].lstrip(_SPACE)
    if not bare:
        return _SPACE
    if is_punctuation(bare):
        return "."
    return "中" if is_without_spaces(bare) else "a"


@lru_cache(maxsize=32)
def _beginnings(tokenizer: Tokenizer, before: str, at_start: bool) -> tuple[int, ...]:
    """What begins a word hangs on the kind of the piece before it alone, so `before` is any piece of that kind."""
    pieces = tokenizer.pieces(range(tokenizer.vocab_size))
    spans = set(tokenizer.span_ids)
    no_words = {*forbidden_ids(tokenizer), tokenizer.eos_id, tokenizer.bos_id, tokenizer.pad_id, tokenizer.unk_id}
    return tuple(
        i
        for i, piece in enumerate(pieces)
        if i not in no_words
        and (
            piece.startswith(_SPACE)
            or i in spans
            or (is_punctuation(piece) if at_start else begins_word(before, piece))
        )
    )


def prefix_ids(tokenizer: Tokenizer, text: str, protected: Protected | None = None) -> Prefix:
    """The tokens that a translation must begin with so that its text begins with `text`. Its last word may go on, unless white
    space follows it. `protected` is the source with its spans taken out: what is in both has the same reserved piece."""
    stripped = text.strip()
    if not stripped:
        return ()
    ids = tokenizer.encode(stripped, "target") if protected is None else protected.ids_of_other(tokenizer, stripped)
    if text[-1].isspace():
        return (*ids, (*word_beginnings(tokenizer, ids[-1]), tokenizer.eos_id))
    return tuple(ids)


@lru_cache(maxsize=4096)
def phrase_of(tokenizer: Tokenizer, ways: tuple[str, ...], cases: tuple[str, ...] = ()) -> Phrase:
    """Text that must appear, as whole words, in one of several ways; `cases` are these as the beginning of a sentence."""
    spelt = []
    for way in (*ways, *cases):
        ids = tuple(tokenizer.encode(way.strip(), "target"))
        if not ids:
            raise UserError("what must appear in a translation must not be empty")
        if tokenizer.unk_id in ids:
            raise UserError(f"{way!r} cannot be made to appear: this model's vocabulary lacks one of its characters")
        spelt.append(ids)
    # A way that begins with a space alone is under way wherever a word begins: a mere case is not worth that.
    kept = [ids for number, ids in enumerate(spelt) if number < len(ways) or kind_of(tokenizer, ids[0]) != _SPACE]
    # A way is followed by what may follow any of them.
    ends = frozenset.intersection(*(_ends(tokenizer, kind_of(tokenizer, ids[-1])) for ids in kept))
    return Phrase(tuple(dict.fromkeys(kept)), ends)


@lru_cache(maxsize=32)
def _ends(tokenizer: Tokenizer, before: str) -> frozenset[int]:
    return frozenset(_beginnings(tokenizer, before, False))


@dataclass(frozen=True)
class TokenWords:
    """The words of a sentence, and which of them each token belongs to."""

    words: list[str]
    word_of_token: list[int]


def token_words(
    tokenizer: Tokenizer, ids: Sequence[int], side: Side = "target", protected: Protected | None = None
) -> TokenWords:
    """Words from tokens; reserved pieces are the spans that they stand for, and a space alone belongs to the word after it."""
    spans = {} if protected is None else dict(zip(tokenizer.span_ids, protected.spans, strict=False))
    special = {tokenizer.eos_id, tokenizer.bos_id, *tokenizer.span_ids}
    found = group_words(ids, tokenizer.pieces(ids, side), tuple(special))
    texts = list(found.words)
    for piece in found.pieces:
        texts[piece.word] = spans.get(piece.id, texts[piece.word])
    is_word = [bool(text.strip(_SPACE)) for text in texts]
    # a word's number among those that are words; a space's is that of the next one
    numbers = [sum(is_word[:word]) for word in range(len(texts))]
    words = [text for text, is_one in zip(texts, is_word, strict=True) if is_one]
    return TokenWords(words, [min(numbers[piece.word], len(words) - 1) for piece in found.pieces] if words else [])


def tokens_at(spelt: TokenWords, text: str, places: Sequence[tuple[int, int]]) -> frozenset[int]:
    """The tokens of the words that stand at these places of a text, of characters.

    >>> tokens_at(TokenWords(["the", "cat"], [0, 1, 1]), "the cat", [(4, 7)])
    frozenset({1, 2})
    """
    found: set[int] = set()
    end = 0
    for number, word in enumerate(spelt.words):
        begin = text.find(word, end)
        if begin >= 0:  # else a character that the tokenizer writes otherwise
            end = begin + len(word)
            if overlaps((begin, end), places):
                found.update(token for token, place in enumerate(spelt.word_of_token) if place == number)
    return frozenset(found)


def words_of(spelt: TokenWords, log_probs: Sequence[float]) -> tuple[Word, ...]:
    """The words of a translation; `log_probs` are those of its tokens, the end token's, if there, left out."""
    totals = [0.0] * len(spelt.words)
    for place, log_prob in zip(spelt.word_of_token, log_probs, strict=False):
        totals[place] += log_prob
    return tuple(Word(text, total) for text, total in zip(spelt.words, totals, strict=True))


def links_of(target: TokenWords, source: TokenWords, weights: Sequence[Sequence[float]]) -> tuple[Link, ...]:
    """For each target word the source word that it attended to most; `weights` are a row for each target token over the source
    tokens, ends, if there, left out."""
    sums = [[0.0] * len(source.words) for _ in target.words]
    for word, row in zip(target.word_of_token, weights, strict=False):
        for other, weight in zip(source.word_of_token, row, strict=False):
            sums[word][other] += weight
    return tuple(
        (word, max(range(len(row)), key=row.__getitem__))
        for word, row in enumerate(sums)
        if any(value > 0 for value in row)
    )
