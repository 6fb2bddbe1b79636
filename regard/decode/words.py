"""Words of translations: where they begin among a tokenizer's pieces, how a wished beginning is written in pieces, how sure the
model was of each word. No torch here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from regard.data.pieces import begins_word, is_punctuation, is_without_spaces, make_side
from regard.data.protect import Protected
from regard.data.tokenizer import Tokenizer
from regard.decode.options import Prefix, forbidden_ids

_SPACE = "\u2581"


@dataclass(frozen=True)
class Word:
    """A word of a translation; punctuation counts as words."""

    text: str
    log_prob: float  # of its pieces together, given all that comes before them


def word_beginnings(tokenizer: Tokenizer, last: int | None) -> tuple[int, ...]:
    """The tokens that begin a word after this one, or with None a sentence; not those that no translation may contain."""
    bare = "" if last is None else tokenizer.pieces([last])[0].lstrip(_SPACE)
    if last is None:
        kind = "."  # after it everything but more of it begins a word
    elif not bare:
        kind = _SPACE
    elif is_punctuation(bare):
        kind = "."
    else:
        kind = "中" if is_without_spaces(bare) else "a"
    return _beginnings(tokenizer, kind, last is None)


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


def words_of(
    tokenizer: Tokenizer, ids: Sequence[int], log_probs: Sequence[float], protected: Protected | None = None
) -> tuple[Word, ...]:
    """The words of a translation from its tokens; `log_probs` are those of the tokens, the end token's, if there, left out."""
    spans = {} if protected is None else dict(zip(tokenizer.span_ids, protected.spans, strict=False))
    special = {tokenizer.eos_id, tokenizer.bos_id, *tokenizer.span_ids}
    side = make_side(ids, tokenizer.pieces(ids), tuple(special))
    totals = [0.0] * len(side.words)
    texts = list(side.words)
    for piece, log_prob in zip(side.pieces, log_probs, strict=False):
        totals[piece.word] += log_prob
        texts[piece.word] = spans.get(piece.id, texts[piece.word])
    words: list[Word] = []
    waiting = 0.0  # of spaces that stand alone: they belong to the next word
    for text, total in zip(texts, totals, strict=True):
        if text.strip(_SPACE):
            words.append(Word(text, waiting + total))
            waiting = 0.0
        else:
            waiting += total
    return tuple(words)
