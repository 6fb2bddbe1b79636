"""Phrases that must appear in the output, as an automaton over tokens: which have been met, which are under way, and how many
tokens are still missing at least. A phrase counts only as whole words. Imports no torch.

How hypotheses that miss more and less share the beam is in `candidates.py`.
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
    """Something that must appear, in any of several variants. Each variant must start with a token that may follow any other
    phrase."""

    variants: tuple[Tokens, ...]
    followers: frozenset[int] | None = None  # tokens that may follow it, besides the end token; None: any
    source: frozenset[int] = frozenset()  # positions of the source tokens that it translates; empty: anywhere
    # How often an output says the same, also in other words, so that no variant is needed; None: only variants count.
    count_in: Callable[[Sequence[int]], int] | None = field(default=None, compare=False)
    count: int = 1  # how often it should appear; a search must reach 1 only, since "it" may stand for the second

    @property
    def min_length(self) -> int:
        """Tokens of the shortest variant."""
        return min(map(len, self.variants))

    def may_be_followed_by(self, token: int) -> bool:
        return self.followers is None or token in self.followers


@dataclass(frozen=True)
class _State:
    met: frozenset[int]  # phrases that have appeared and were followed by the start of another word
    matched: tuple[tuple[int, ...], ...]  # for each variant of each phrase, how many of its tokens the output ends with


class PhraseAutomaton:
    """The automaton for all phrases of one sentence. A state is an integer; 0 is the start."""

    def __init__(self, phrases: Sequence[Phrase]) -> None:
        self.phrases = tuple(phrases)
        self._phrase_tokens = frozenset(
            token for phrase in self.phrases for variant in phrase.variants for token in variant
        )
        self._states = [_State(frozenset(), tuple(tuple(0 for _ in phrase.variants) for phrase in self.phrases))]
        self._numbers = {self._states[0]: 0}
        self._after: dict[tuple[int, int], int] = {}
        self._tables: dict[int, NDArray[np.int16]] = {}

    def after(self, state: int, token: int) -> int:
        """The state after one more token. The end token changes nothing and must not be passed."""
        if (state, token) not in self._after:
            before = self._states[state]
            met = set(before.met)
            matched = []
            for number, (phrase, lengths) in enumerate(zip(self.phrases, before.matched, strict=True)):
                if self._is_complete(number, lengths) and phrase.may_be_followed_by(token):
                    met.add(number)
                matched.append(
                    tuple(_matched(variant, n, token) for variant, n in zip(phrase.variants, lengths, strict=True))
                )
            new = _State(frozenset(met), tuple(matched))
            if new not in self._numbers:
                self._numbers[new] = len(self._states)
                self._states.append(new)
            self._after[state, token] = self._numbers[new]
        return self._after[state, token]

    def missing(self, state: int) -> int:
        """The minimum number of tokens until every phrase is complete; 0: the output may end here. That is the shortest variant of
        each phrase that is not complete, less what the output already ends with of one of them. Only one can be continued, and
        that may undo a phrase that is complete at the end but must not be followed that way."""
        now = self._states[state]
        unmet = [number for number in range(len(self.phrases)) if number not in now.met]
        complete = [number for number in unmet if self._is_complete(number, now.matched[number])]
        incomplete = sum(self.phrases[number].min_length for number in unmet if number not in complete)
        least = incomplete
        for number in unmet:
            phrase = self.phrases[number]
            for variant, n in zip(phrase.variants, now.matched[number], strict=True):
                if 0 < n < len(variant):
                    undone = [other for other in complete if not self.phrases[other].may_be_followed_by(variant[n])]
                    lost = sum(self.phrases[other].min_length for other in undone)
                    if number in undone or number not in complete:
                        least = min(least, incomplete + lost - (n - (len(variant) - phrase.min_length)))
        return least

    def missing_after(self, state: int, vocab_size: int) -> NDArray[np.int16]:
        """`missing` after every token, (vocab_size,); cached, since hypotheses return to the same states again and again."""
        if state not in self._tables:
            # Tokens of no phrase differ only in which phrases they may follow: compute one of each kind.
            kinds = np.zeros(vocab_size, dtype=np.int16)
            for number, followers in enumerate(self._pending_followers(state)):
                kinds += _members(followers, vocab_size) << number
            values = np.empty(vocab_size, dtype=np.int16)
            for kind in np.unique(kinds):
                alike = np.flatnonzero(kinds == kind)
                plain = next((int(token) for token in alike if int(token) not in self._phrase_tokens), None)
                if plain is not None:
                    values[alike] = self.missing(self.after(state, plain))
            for token in self._phrase_tokens:
                values[token] = self.missing(self.after(state, token))
            self._tables[state] = values
        return self._tables[state]

    def starts_at(self, state: int, attended: int) -> tuple[frozenset[int], frozenset[int]]:
        """While this source position is attended to: the tokens that start a phrase that translates it, and the tokens that do
        nothing but start phrases that translate other positions."""
        here: set[int] = set()
        elsewhere: set[int] = set()
        others: set[int] = set(self.continuations(state))
        for phrase, _ in self._incomplete(state):
            starts = others if not phrase.source else here if attended in phrase.source else elsewhere
            starts.update(variant[0] for variant in phrase.variants)
        return frozenset(here), frozenset(elsewhere - here - others)

    def continuations(self, state: int) -> frozenset[int]:
        """Tokens that continue a phrase that is under way."""
        return frozenset(
            variant[n]
            for phrase, lengths in self._incomplete(state)
            for variant, n in zip(phrase.variants, lengths, strict=True)
            if n
        )

    def followers(self, state: int) -> frozenset[int]:
        """Tokens that may follow the phrases that were just completed; none if there are none."""
        pending = self._pending_followers(state)
        return frozenset.intersection(*pending) if pending else frozenset()

    def _incomplete(self, state: int) -> list[tuple[Phrase, tuple[int, ...]]]:
        """Phrases that are not complete yet, with the matched tokens of each variant."""
        now = self._states[state]
        return [
            (phrase, lengths)
            for number, (phrase, lengths) in enumerate(zip(self.phrases, now.matched, strict=True))
            if number not in now.met and not self._is_complete(number, lengths)
        ]

    @property
    def has_sources(self) -> bool:
        """Whether any phrase translates given source tokens."""
        return any(phrase.source for phrase in self.phrases)

    def _pending_followers(self, state: int) -> list[frozenset[int]]:
        """For each phrase that was just completed, and not followed by anything yet: the tokens that may follow it."""
        now = self._states[state]
        return [
            phrase.followers
            for number, (phrase, lengths) in enumerate(zip(self.phrases, now.matched, strict=True))
            if phrase.followers is not None and number not in now.met and self._is_complete(number, lengths)
        ]

    def _is_complete(self, number: int, lengths: Sequence[int]) -> bool:
        return any(n == len(variant) for variant, n in zip(self.phrases[number].variants, lengths, strict=True))


def _matched(variant: Tokens, before: int, token: int) -> int:
    """How many tokens of `variant` the output ends with when `token` follows `before` of them.

    >>> _matched((5, 5, 6), 2, 6), _matched((5, 5, 6), 2, 5), _matched((5, 5, 6), 2, 7)
    (3, 2, 0)
    """
    text = (*variant[:before], token)
    return next((n for n in range(min(len(variant), before + 1), 0, -1) if text[-n:] == variant[:n]), 0)


@lru_cache(maxsize=64)
def _members(tokens: frozenset[int], vocab_size: int) -> NDArray[np.int16]:
    """(vocab_size,), 1 for these tokens and 0 for others."""
    values = np.zeros(vocab_size, dtype=np.int16)
    values[[token for token in tokens if token < vocab_size]] = 1
    return values
