"""Alternative words at a place in a translation. The likeliest tokens there are continued to whole translations, whose first words
are the candidates; only those remain whose translation is likely, too, since a word may be likely where it stands and spoil the
rest of the sentence."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from regard.data.pieces import begins_word
from regard.data.tokenizer import Tokenizer
from regard.errors import UserError
from regard.generate.options import Constraints, Engine, Hypothesis, forbidden_ids
from regard.generate.word_tokens import word_beginnings
from regard.translation.protect import Protected
from regard.translation.results import Translation
from regard.translation.text_side import TextSide
from regard.translation.words import prefix_ids

# How likely a translation must be to be offered, relative to the best one. Chosen by reading what is offered on development text:
# just below, half of it is wrong (`python -m benchmarks.alternatives` measures other text).
LEAST = 0.075
_LEAST_WORD = 0.3  # times `least`: the probability that a word itself must have
_SPACE = "\u2581"
_LONGEST = 12  # pieces of a word that are looked for if whole translations are not wanted
_SPARE = 2  # tokens continued per word wanted, since several may give the same word
_BEAM = 4  # or the model's own, if that is wider


@dataclass(frozen=True)
class Alternative:
    """A word that could come next."""

    word: str  # punctuation counts as words
    probability: float  # given the source and the prefix
    relative: (
        float  # probability of the best translation with this word, relative to the best of all; 1 for the likeliest
    )


def find_alternatives(
    side: TextSide, engine: Engine, text: str, prefix: str, count: int, least: float | None = None
) -> list[Alternative]:
    """The likeliest words right after the target text `prefix`, best first, at most `count`: whole words whose translations are
    at least `least` times as likely as the best one (default: `LEAST`; 0: all words)."""
    least = LEAST if least is None else least
    _check(count, least)
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
    first = _likeliest(tokenizer, engine, src, before, _SPARE * count, _LEAST_WORD * least)
    found = _continued(side, engine, src, before, first, whole=least > 0)
    probabilities = _probabilities(engine, src, before, list(found))
    best = max((one.log_prob for one in found.values()), default=0.0)
    words: dict[str, Alternative] = {}
    for ids, hypothesis in found.items():
        shown = _shown(tokenizer, ids, protected)
        same = words.get(shown, Alternative(shown, 0.0, 0.0))  # with other tokens
        relative = max(same.relative, math.exp(hypothesis.log_prob - best))
        words[shown] = Alternative(shown, same.probability + probabilities[ids], relative)
    offered = [one for one in words.values() if one.word and one.relative >= least]
    offered = [one for one in offered if one.probability >= _LEAST_WORD * least]
    return sorted(offered, key=lambda one: -one.probability)[:count]


def likely_translations(translations: Sequence[Translation], least: float | None = None) -> list[Translation]:
    """The best translation and those of the others that are at least `least` times as likely (default: `LEAST`; 0: all). Without
    words, the scores are compared."""
    floor = math.log(least) if (least := LEAST if least is None else least) else -math.inf
    log_probs = [sum(word.log_prob for word in one.words) if one.words else one.score for one in translations]
    return [one for number, one in enumerate(translations) if not number or log_probs[number] >= log_probs[0] + floor]


def _check(count: int, least: float) -> None:
    if count < 1:
        raise UserError(f"k must be at least 1, but is {count}")
    if not 0 <= least <= 1:
        raise UserError(f"least must be between 0 and 1, but is {least}")


def _likeliest(
    tokenizer: Tokenizer, engine: Engine, src: Sequence[int], before: Sequence[int], count: int, least: float
) -> list[tuple[int, ...]]:
    """The likeliest tokens that begin a word after these, each with a probability of `least` or more. A lone space says nothing,
    so it is paired with the token after it."""
    values = engine.next_log_probs(src, before)
    begin = word_beginnings(tokenizer, before[-1] if before else None)
    log_probs: dict[tuple[int, ...], float] = {(token,): values[token] for token in begin}
    for space in [tokens for tokens in log_probs if not tokenizer.pieces(tokens)[0].strip(_SPACE)]:
        log_prob = log_probs.pop(space)
        after = engine.next_log_probs(src, [*before, *space])
        inside = set(range(tokenizer.vocab_size)) - {*word_beginnings(tokenizer, space[-1]), *forbidden_ids(tokenizer)}
        log_probs |= {(*space, token): log_prob + after[token] for token in inside - {tokenizer.eos_id}}
    ranked = sorted(log_probs, key=lambda tokens: -log_probs[tokens])[:count]
    # The likeliest in any case: a word may be unsure, and still the best.
    return [tokens for n, tokens in enumerate(ranked) if not n or math.exp(log_probs[tokens]) >= least]


def _continued(
    side: TextSide,
    engine: Engine,
    src: Sequence[int],
    before: Sequence[int],
    first: Sequence[tuple[int, ...]],
    whole: bool,
) -> dict[tuple[int, ...], Hypothesis]:
    """Continue each of the tokens `first` to several translations. Returns the tokens of every word that they begin with, and the
    likeliest translation with it; without `whole`, the search ends soon after the word."""
    tokenizer = side.tokenizer
    beam = max(_BEAM, side.options.search.beam)
    limit = None if whole else len(before) + _LONGEST
    constraints = [Constraints((*before, *tokens), max_tokens=limit) for tokens in first]
    options = replace(side.options.search, beam=beam, nbest=beam)
    best: dict[tuple[int, ...], Hypothesis] = {}
    for hypotheses in engine.translate([src] * len(first), options, None, constraints):
        for hypothesis in hypotheses:
            word = _first_word(tokenizer, hypothesis.ids[len(before) :])
            is_cut = limit is not None and len(before) + len(word) >= limit
            if word and not is_cut and (word not in best or hypothesis.log_prob > best[word].log_prob):
                best[word] = hypothesis
    return best


def _probabilities(
    engine: Engine, src: Sequence[int], before: Sequence[int], words: Sequence[tuple[int, ...]]
) -> dict[tuple[int, ...], float]:
    """The probability of each word: that of its tokens, less that of the longer words which begin with them ("we", "we'll")."""
    scores = engine.score([src] * len(words), [[*before, *ids] for ids in words])
    log_probs = [sum(values[len(before) : len(before) + len(ids)]) for ids, values in zip(words, scores, strict=True)]
    found: dict[tuple[int, ...], float] = {}
    for ids, log_prob in sorted(zip(words, log_probs, strict=True), key=lambda one: -len(one[0])):
        longer = sum(probability for other, probability in found.items() if other[: len(ids)] == ids)
        found[ids] = max(0.0, math.exp(log_prob) - longer)
    return found


def _first_word(tokenizer: Tokenizer, ids: tuple[int, ...]) -> tuple[int, ...]:
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
