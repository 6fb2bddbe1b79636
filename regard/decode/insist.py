"""Phrases that must appear, around an engine's search. Most translations have them anyway, and the best translation of all is also
the best of those that have them: so the plain search comes first, and only where it misses a phrase is it insisted on. No torch
here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from regard.decode.options import Hypothesis, SearchOptions, Wish
from regard.decode.search.phrases import Phrases

# A single hypothesis cannot weigh where a phrase belongs: greedy search gets company where it has missed one.
LEAST_BEAM = 4

Search = Callable[[Sequence[Sequence[int]], SearchOptions, Sequence[Wish]], list[list[Hypothesis]]]


def insist(
    ids: Sequence[Sequence[int]], options: SearchOptions, wishes: Sequence[Wish], plain: Search, insisting: Search
) -> list[list[Hypothesis]]:
    """`plain` searches without heeding phrases, `insisting` with them."""
    found = plain(ids, options, [replace(wish, phrases=()) for wish in wishes])
    missed = [
        number for number, wish in enumerate(wishes) if not all(has_phrases(way.ids, wish) for way in found[number])
    ]
    if missed:
        if not options.sample and options.beam < LEAST_BEAM:
            options = replace(options, beam=LEAST_BEAM, groups=1)
        # What was said otherwise need not be said in these very words now; if that is lost on the way, it must.
        lenient = [without_said(wishes[number], found[number]) for number in missed]
        again = insisting([ids[number] for number in missed], options, lenient)
        for number, hypotheses in zip(missed, again, strict=True):
            found[number] = hypotheses
        lost = [number for number in missed if not all(has_phrases(way.ids, wishes[number]) for way in found[number])]
        again = insisting([ids[number] for number in lost], options, [wishes[number] for number in lost])
        for number, hypotheses in zip(lost, again, strict=True):
            found[number] = hypotheses
    return found


def without_said(wish: Wish, found: Sequence[Hypothesis]) -> Wish:
    """A wish without the phrases that all of these translations say otherwise."""
    wanted = (
        phrase for phrase in wish.phrases if phrase.is_said is None or not all(phrase.is_said(way.ids) for way in found)
    )
    return replace(wish, phrases=tuple(wanted))


def has_phrases(ids: Sequence[int], wish: Wish) -> bool:
    """Whether a translation has all that was wished for, or says it otherwise."""
    phrases = Phrases([phrase for phrase in wish.phrases if phrase.is_said is None or not phrase.is_said(ids)])
    state = 0
    for token in ids:
        state = phrases.after(state, token)
    return phrases.missing(state) == 0
