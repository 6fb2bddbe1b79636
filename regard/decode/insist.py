"""Phrases that must appear, around an engine's search. Most translations have them anyway, and the best translation of all is also
the best of those that have them: so the plain search comes first.

Where it misses a term of a glossary, the source is searched once more with that term already translated in it ("The
Gebäude is old."): a model that has met foreign words in its sources lets it stand and makes a sentence around it. One that has
not loses it. Only where something is missing after this is it insisted on, with the source as it was: a term may then come to stand
beside the model's own word for it. No torch here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from regard.decode.options import Finished, Hypothesis, SearchOptions, Wish
from regard.decode.search.phrases import Phrases

# A single hypothesis cannot weigh where a phrase belongs: greedy search gets company where it has missed one.
LEAST_BEAM = 4

Ids = Sequence[Sequence[int]]
Search = Callable[[Ids, SearchOptions, Finished | None, Sequence[Wish]], list[list[Hypothesis]]]


def insist(
    ids: Ids,
    options: SearchOptions,
    finished: Finished | None,
    wishes: Sequence[Wish],
    plain: Search,
    insisting: Search,
) -> list[list[Hypothesis]]:
    """`plain` searches without heeding phrases, `insisting` with them. `finished` hears of the first search."""
    found = plain(ids, options, finished, [_of_plain(wish) for wish in wishes])
    missed = _missed(range(len(ids)), found, wishes)
    # What was said otherwise need not be said in these very words now; if that is lost on the way, it must.
    lenient = {number: without_said(wishes[number], found[number]) for number in missed}
    _search_mixed(missed, lenient, options, wishes, plain, found)
    missed = _missed(missed, found, wishes)
    if not options.sample and options.beam < LEAST_BEAM:
        options = replace(options, beam=LEAST_BEAM, groups=1)
    _insist_on(ids, {number: lenient[number] for number in missed}, options, insisting, found)
    lost = _missed(missed, found, wishes)
    _insist_on(ids, {number: wishes[number] for number in lost}, options, insisting, found)
    return found


def _search_mixed(
    missed: Sequence[int],
    missing: Mapping[int, Wish],
    options: SearchOptions,
    wishes: Sequence[Wish],
    plain: Search,
    found: list[list[Hypothesis]],
) -> None:
    """Search sources with the terms in them that are missing from what was found; the best that say everything are taken, if there
    are enough of them in the beam."""
    sources = {}
    for number in missed:
        mixed = wishes[number].mixed
        if mixed is not None and (source := mixed(missing[number].phrases)):
            sources[number] = source
    if sources:
        whole_beam = replace(options, nbest=options.beam)
        again = plain(list(sources.values()), whole_beam, None, [_of_plain(wishes[number]) for number in sources])
        for number, hypotheses in zip(sources, again, strict=True):
            saying = [way for way in hypotheses if has_phrases(way.ids, wishes[number])]
            if len(saying) >= options.nbest:
                found[number] = saying[: options.nbest]


def _insist_on(
    ids: Ids,
    wishes: Mapping[int, Wish],
    options: SearchOptions,
    insisting: Search,
    found: list[list[Hypothesis]],
) -> None:
    """Search the sentences of these numbers again; what is found takes the place of what was."""
    if wishes:
        again = insisting([ids[n] for n in wishes], options, None, [replace(w, mixed=None) for w in wishes.values()])
        for number, hypotheses in zip(wishes, again, strict=True):
            found[number] = hypotheses


def _of_plain(wish: Wish) -> Wish:
    """What a plain search heeds of a wish."""
    return replace(wish, phrases=(), mixed=None)


def _missed(numbers: Sequence[int], found: Sequence[Sequence[Hypothesis]], wishes: Sequence[Wish]) -> list[int]:
    """Those of these sentences whose translations lack something."""
    return [number for number in numbers if not all(has_phrases(way.ids, wishes[number]) for way in found[number])]


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
