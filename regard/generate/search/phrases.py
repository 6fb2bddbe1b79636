"""Phrases that must appear in a translation, as an automaton over tokens: what has been met, what is under way, how many tokens are
missing at least. A phrase counts where it stands whole, with the end of a word after it. No torch here.

How the beam is shared among hypotheses that miss more and less is in `candidates.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Tokens = tuple[int, ...]


@dataclass(frozen=True)
class Phrase:
    """One thing that must appear, in any of several ways. Each way must begin with a token that may follow any other phrase."""

    variants: tuple[Tokens, ...]
    ends: frozenset[int] | None = None  # what may follow it beside the end of the translation; None: anything
    source: frozenset[int] = frozenset()  # the source tokens that it translates; empty: it may stand anywhere
    # Whether a translation will do without any of the ways, because it says the same otherwise; None: it will not.
    is_satisfied_by: Callable[[Sequence[int]], bool] | None = field(default=None, compare=False)

    @property
    def min_length(self) -> int:
        return min(map(len, self.variants))

    def may_be_followed_by(self, token: int) -> bool:
        return self.ends is None or token in self.ends


@dataclass(frozen=True)
class _Place:
    """A state of the automaton."""

    met: frozenset[int]  # numbers of phrases that have appeared, and a word ended after them
    matched: tuple[tuple[int, ...], ...]  # for each way of each phrase, how many of its tokens stand at the end


class Phrases:
    """The automaton for all phrases of one sentence. States are numbers, 0 is the start."""

    def __init__(self, phrases: Sequence[Phrase]) -> None:
        self.phrases = tuple(phrases)
        self._special = frozenset(token for phrase in self.phrases for way in phrase.variants for token in way)
        self._places = [_Place(frozenset(), tuple(tuple(0 for _ in phrase.variants) for phrase in self.phrases))]
        self._numbers = {self._places[0]: 0}
        self._after: dict[tuple[int, int], int] = {}
        self._tables: dict[int, NDArray[np.int16]] = {}

    def after(self, state: int, token: int) -> int:
        """The state after one more token; not for the end token, which changes nothing."""
        if (state, token) not in self._after:
            place = self._places[state]
            met = set(place.met)
            matched = []
            for number, (phrase, lengths) in enumerate(zip(self.phrases, place.matched, strict=True)):
                if self._stands(number, lengths) and phrase.may_be_followed_by(token):
                    met.add(number)
                matched.append(tuple(_matched(way, n, token) for way, n in zip(phrase.variants, lengths, strict=True)))
            new = _Place(frozenset(met), tuple(matched))
            if new not in self._numbers:
                self._numbers[new] = len(self._places)
                self._places.append(new)
            self._after[state, token] = self._numbers[new]
        return self._after[state, token]

    def missing(self, state: int) -> int:
        """How many more tokens it takes at least until every phrase stands; 0: the translation may end here. It takes the shortest
        way of each phrase that is absent, less what one of them has at the end already: only one can be gone on with, and that
        may undo a phrase that stands at the end and must not be followed so."""
        place = self._places[state]
        unmet = [number for number in range(len(self.phrases)) if number not in place.met]
        standing = [number for number in unmet if self._stands(number, place.matched[number])]
        absent = sum(self.phrases[number].min_length for number in unmet if number not in standing)
        least = absent
        for number in unmet:
            phrase = self.phrases[number]
            for way, n in zip(phrase.variants, place.matched[number], strict=True):
                if 0 < n < len(way):
                    undone = [other for other in standing if not self.phrases[other].may_be_followed_by(way[n])]
                    lost = sum(self.phrases[other].min_length for other in undone)
                    if number in undone or number not in standing:
                        least = min(least, absent + lost - (n - (len(way) - phrase.min_length)))
        return least

    def missing_after(self, state: int, vocab_size: int) -> NDArray[np.int16]:
        """(vocab_size,) `missing` after every token; kept, since hypotheses come to the same states again and again."""
        if state not in self._tables:
            # Tokens that are in no phrase are alike, but for what they may follow.
            kinds = np.zeros(vocab_size, dtype=np.int16)
            for number, ends in enumerate(self._waiting(state)):
                kinds += _members(ends, vocab_size) << number
            values = np.empty(vocab_size, dtype=np.int16)
            for kind in np.unique(kinds):
                alike = np.flatnonzero(kinds == kind)
                plain = next((int(token) for token in alike if int(token) not in self._special), None)
                if plain is not None:
                    values[alike] = self.missing(self.after(state, plain))
            for token in self._special:
                values[token] = self.missing(self.after(state, token))
            self._tables[state] = values
        return self._tables[state]

    def begun_at(self, state: int, attended: int) -> tuple[frozenset[int], frozenset[int]]:
        """Where this source token is attended to: tokens that begin a phrase whose place is here, and tokens that do nothing but
        begin phrases whose place is elsewhere."""
        here: set[int] = set()
        elsewhere: set[int] = set()
        others: set[int] = set(self.going_on(state))
        for phrase, _ in self._absent(state):
            begin = others if not phrase.source else here if attended in phrase.source else elsewhere
            begin.update(way[0] for way in phrase.variants)
        return frozenset(here), frozenset(elsewhere - here - others)

    def going_on(self, state: int) -> frozenset[int]:
        """Tokens that go on with a phrase that is under way."""
        return frozenset(
            way[n]
            for phrase, lengths in self._absent(state)
            for way, n in zip(phrase.variants, lengths, strict=True)
            if n
        )

    def following(self, state: int) -> frozenset[int]:
        """Tokens that may follow the phrases that stand at the end for the first time; none where there are none."""
        ends = self._waiting(state)
        return frozenset.intersection(*ends) if ends else frozenset()

    def _absent(self, state: int) -> list[tuple[Phrase, tuple[int, ...]]]:
        place = self._places[state]
        return [
            (phrase, lengths)
            for number, (phrase, lengths) in enumerate(zip(self.phrases, place.matched, strict=True))
            if number not in place.met and not self._stands(number, lengths)
        ]

    @property
    def has_places(self) -> bool:
        return any(phrase.source for phrase in self.phrases)

    def _waiting(self, state: int) -> list[frozenset[int]]:
        """Of the phrases that stand at the end, but have not been followed by anything yet: what must follow each."""
        place = self._places[state]
        return [
            phrase.ends
            for number, (phrase, lengths) in enumerate(zip(self.phrases, place.matched, strict=True))
            if phrase.ends is not None and number not in place.met and self._stands(number, lengths)
        ]

    def _stands(self, number: int, lengths: Sequence[int]) -> bool:
        return any(n == len(way) for way, n in zip(self.phrases[number].variants, lengths, strict=True))


def _matched(way: Tokens, before: int, token: int) -> int:
    """How many tokens of `way` stand at the end when `token` follows `before` of them.

    >>> _matched((5, 5, 6), 2, 6), _matched((5, 5, 6), 2, 5), _matched((5, 5, 6), 2, 7)
    (3, 2, 0)
    """
    text = (*way[:before], token)
    return next((n for n in range(min(len(way), before + 1), 0, -1) if text[-n:] == way[:n]), 0)


@lru_cache(maxsize=64)
def _members(tokens: frozenset[int], vocab_size: int) -> NDArray[np.int16]:
    """(vocab_size,) 1 for these tokens."""
    values = np.zeros(vocab_size, dtype=np.int16)
    values[[token for token in tokens if token < vocab_size]] = 1
    return values
