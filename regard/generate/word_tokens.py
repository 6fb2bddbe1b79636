"""Tokens and words: which tokens begin a word, and the tokens of a phrase that must appear. No torch here."""

from __future__ import annotations

from functools import lru_cache

from regard.data.pieces import begins_word, is_punctuation, is_without_spaces
from regard.data.tokenizer import Tokenizer
from regard.errors import UserError
from regard.generate.options import forbidden_ids
from regard.generate.search.phrases import Phrase

_SPACE = "\u2581"


def word_beginnings(tokenizer: Tokenizer, last: int | None) -> tuple[int, ...]:
    """The tokens that begin a word after the token `last`, or a sentence if None; without those forbidden in translations."""
    return _beginnings(tokenizer, "" if last is None else kind_of(tokenizer, last), last is None)


def kind_of(tokenizer: Tokenizer, token: int) -> str:
    """A representative of all pieces after which the same pieces begin a word as after this token."""
    bare = tokenizer.pieces([token])[0].lstrip(_SPACE)
    if not bare:
        return _SPACE
    if is_punctuation(bare):
        return "."
    return "中" if is_without_spaces(bare) else "a"


@lru_cache(maxsize=32)
def _beginnings(tokenizer: Tokenizer, before: str, at_start: bool) -> tuple[int, ...]:
    """Only the kind of the previous piece matters, so `before` is any piece of that kind."""
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


@lru_cache(maxsize=4096)
def phrase_of(tokenizer: Tokenizer, variants: tuple[str, ...], cases: tuple[str, ...] = ()) -> Phrase:
    """A phrase that must appear as whole words, in one of the variants; `cases` are the variants as at the start of a sentence."""
    encoded = []
    for variant in (*variants, *cases):
        ids = _word_ids(tokenizer, variant.strip())
        if not ids:
            raise UserError("a phrase that must appear must not be empty")
        if tokenizer.unk_id in ids:
            raise UserError(
                f"{variant!r} cannot be made to appear: this model's vocabulary lacks one of its characters"
            )
        encoded.append(ids)
    # A variant that begins with a lone space is partly matched wherever a word begins: not worth it for another case.
    kept = [ids for number, ids in enumerate(encoded) if number < len(variants) or kind_of(tokenizer, ids[0]) != _SPACE]
    # Only tokens that may follow every variant may follow the phrase.
    ends = frozenset.intersection(*(_ends(tokenizer, kind_of(tokenizer, ids[-1])) for ids in kept))
    return Phrase(tuple(dict.fromkeys(kept)), ends)


def _word_ids(tokenizer: Tokenizer, text: str) -> tuple[int, ...]:
    """The tokens of whole words inside a text. Byte-level vocabularies keep the space before a word in its first token."""
    ids = tuple(tokenizer.encode(text, "target"))
    if not ids or tokenizer.pieces(ids[:1])[0].startswith(_SPACE):
        return ids
    spaced = tuple(tokenizer.encode(f" {text}", "target"))
    return spaced if tokenizer.pieces(spaced[:1])[0].startswith(_SPACE) else ids


@lru_cache(maxsize=32)
def _ends(tokenizer: Tokenizer, before: str) -> frozenset[int]:
    return frozenset(_beginnings(tokenizer, before, False))
