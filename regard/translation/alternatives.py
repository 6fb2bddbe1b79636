"""Alternative words at a place in a translation: the likeliest tokens there are completed greedily to words, and the probabilities
of equal words are added up."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from regard.data.pieces import begins_word
from regard.data.tokenizer import Tokenizer
from regard.errors import UserError
from regard.generate.options import Constraints, Engine, forbidden_ids
from regard.translation.protect import Protected
from regard.translation.text_side import TextSide
from regard.translation.words import prefix_ids, word_beginnings

_SPACE = "\u2581"
_LONGEST = 12  # pieces of a word; longer ones are cut off
_SPARE = 2  # tokens completed per word wanted, since several may give the same word


@dataclass(frozen=True)
class Alternative:
    """A word that could come next, and its probability."""

    word: str  # punctuation counts as words
    probability: float  # of its pieces, given the source and the prefix; it may be the start of a longer word


def find_alternatives(side: TextSide, engine: Engine, text: str, prefix: str, count: int) -> list[Alternative]:
    """The likeliest words right after the target text `prefix`, best first, at most `count`."""
    if count < 1:
        raise UserError(f"k must be at least 1, but is {count}")
    cut = side.reader.cut([text])[0]
    if not cut:
        return []
    if len(cut) > 1:
        raise UserError(
            f"alternatives are for one sentence of at most {side.max_length} tokens, but the text has more; give a part of it"
        )
    tokenizer = side.tokenizer
    [src] = side.reader.encode([cut[0].text])
    protected = side.reader.protected(cut[0].text)
    before = [token for token in prefix_ids(tokenizer, prefix.strip(), protected) if isinstance(token, int)]
    first = _likeliest(tokenizer, engine, src, before, _SPARE * count)
    options = replace(side.options.search, beam=1, nbest=1)
    constraints = [Constraints((*before, *tokens), max_tokens=len(before) + _LONGEST) for tokens in first]
    completed = engine.translate([src] * len(first), options, None, constraints)
    words = [_first_word(tokenizer, hypotheses[0].ids[len(before) :]) for hypotheses in completed]
    scores = engine.score([src] * len(words), [[*before, *word] for word in words])
    total: dict[str, float] = {}
    for word, values in zip(words, scores, strict=True):
        if shown := _shown(tokenizer, word, protected):
            total[shown] = total.get(shown, 0.0) + math.exp(sum(values[len(before) : len(before) + len(word)]))
    ranked = sorted(total.items(), key=lambda one: -one[1])
    return [Alternative(word, probability) for word, probability in ranked[:count]]


def _likeliest(
    tokenizer: Tokenizer, engine: Engine, src: Sequence[int], before: Sequence[int], count: int
) -> list[tuple[int, ...]]:
    """The likeliest tokens that begin a word after these. A lone space says nothing, so it is paired with the token after it."""
    values = engine.next_log_probs(src, before)
    begin = word_beginnings(tokenizer, before[-1] if before else None)
    log_probs: dict[tuple[int, ...], float] = {(token,): values[token] for token in begin}
    for space in [tokens for tokens in log_probs if not tokenizer.pieces(tokens)[0].strip(_SPACE)]:
        log_prob = log_probs.pop(space)
        after = engine.next_log_probs(src, [*before, *space])
        inside = set(range(tokenizer.vocab_size)) - {*word_beginnings(tokenizer, space[-1]), *forbidden_ids(tokenizer)}
        log_probs |= {(*space, token): log_prob + after[token] for token in inside - {tokenizer.eos_id}}
    return sorted(log_probs, key=lambda tokens: -log_probs[tokens])[:count]


def _first_word(tokenizer: Tokenizer, ids: Sequence[int]) -> Sequence[int]:
    """The tokens of the first word."""
    pieces = tokenizer.pieces(ids)
    for place in range(1, len(ids)):
        if begins_word(pieces[place - 1], pieces[place]) or {ids[place - 1], ids[place]} & set(tokenizer.span_ids):
            return ids[:place]
    return ids


def _shown(tokenizer: Tokenizer, ids: Sequence[int], protected: Protected | None) -> str:
    if protected is None:
        return tokenizer.decode(ids).strip()
    spans = dict(zip(tokenizer.span_ids, protected.spans, strict=False))
    parts = tokenizer.decode_parts(ids)
    return "".join(part if isinstance(part, str) else spans.get(part, "") for part in parts).strip()
