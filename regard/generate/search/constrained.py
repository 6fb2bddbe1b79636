"""Phrases that must appear, around an engine's search. Most translations have them anyway, and the best translation of all is also
the best of those that have them: so the plain search comes first.

Where it misses a term of a glossary, the source is searched once more with that term already translated in it ("The Gebäude is
old."): a model that has met foreign words in its sources lets it stand and makes a sentence around it. One that has not loses it.
Only where something is missing after this is it insisted on, with the source as it was and with the mixed one. With the first a
term can come to stand beside the model's own word for it, with the second the rest can be garbled: the translation is taken that
both sources together make likelier. No torch here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from regard.generate.options import Constraints, Finished, Hypothesis, Mixed, SearchOptions
from regard.generate.search.phrases import Phrases

# A single hypothesis cannot weigh where a phrase belongs: greedy search gets company where it has missed one.
LEAST_BEAM = 4

TokenIds = Sequence[Sequence[int]]
SearchFunction = Callable[[TokenIds, SearchOptions, Finished | None, Sequence[Constraints]], list[list[Hypothesis]]]
Found = Sequence[Sequence[Hypothesis]] | Mapping[int, Sequence[Hypothesis]]  # by the number of a sentence
ScoreFunction = Callable[
    [TokenIds, TokenIds], list[list[float]]
]  # of sources and translations: log-probabilities of tokens


def constrained_search(
    ids: TokenIds,
    options: SearchOptions,
    finished: Finished | None,
    constraints: Sequence[Constraints],
    plain: SearchFunction,
    insisting: SearchFunction,
    score: ScoreFunction,
) -> list[list[Hypothesis]]:
    """`plain` searches without heeding phrases, `insisting` with them. `finished` hears of the first search."""
    found = plain(ids, options, finished, [_of_plain(constraint) for constraint in constraints])
    missed = _missed(range(len(ids)), found, constraints)
    # What was said otherwise need not be said in these very words now; if that is lost on the way, it must.
    lenient = {number: without_said(constraints[number], found[number]) for number in missed}
    mixed = {number: one for number in missed if (one := _mixed(lenient[number])) is not None}
    _search_mixed(mixed, options, constraints, plain, found)
    missed = _missed(missed, found, constraints)
    if not options.sample and options.beam < LEAST_BEAM:
        options = replace(options, beam=LEAST_BEAM, groups=1, diversity=SearchOptions.diversity)
    _insist_on(ids, {number: lenient[number] for number in missed}, options, insisting, found)
    lost = _missed(missed, found, constraints)
    _insist_on(ids, {number: constraints[number] for number in lost}, options, insisting, found)
    if not options.sample:  # what is drawn at random is not chosen by how likely it is
        mixed = {number: mixed[number] for number in missed if number in mixed}
        _insist_on_mixed(ids, mixed, options, constraints, insisting, score, found)
    return found


def _mixed(constraint: Constraints) -> Mixed | None:
    return constraint.mixed(constraint.phrases) if constraint.mixed is not None else None


def _search_mixed(
    mixed: Mapping[int, Mixed],
    options: SearchOptions,
    constraints: Sequence[Constraints],
    plain: SearchFunction,
    found: list[list[Hypothesis]],
) -> None:
    """Search sources with the terms in them that are missing from what was found; the best that say everything are taken, if there
    are enough of them in the beam. Groups of it may find the same, so that it has fewer than were wanted: then all must."""
    if mixed:
        whole_beam = replace(options, nbest=options.beam)
        sources = [one.ids for one in mixed.values()]
        again = plain(sources, whole_beam, None, [_of_plain(constraints[number]) for number in mixed])
        for number, hypotheses in zip(mixed, again, strict=True):
            saying = [way for way in hypotheses if has_phrases(way.ids, constraints[number])]
            if len(saying) >= min(options.nbest, len(hypotheses)):
                found[number] = saying[: options.nbest]


def _insist_on(
    ids: TokenIds,
    constraints: Mapping[int, Constraints],
    options: SearchOptions,
    insisting: SearchFunction,
    found: list[list[Hypothesis]],
) -> None:
    """Search the sentences of these numbers again; what is found takes the place of what was."""
    if constraints:
        again = insisting(
            [ids[n] for n in constraints], options, None, [replace(w, mixed=None) for w in constraints.values()]
        )
        for number, hypotheses in zip(constraints, again, strict=True):
            found[number] = hypotheses


def _insist_on_mixed(
    ids: TokenIds,
    mixed: Mapping[int, Mixed],
    options: SearchOptions,
    constraints: Sequence[Constraints],
    insisting: SearchFunction,
    score: ScoreFunction,
    found: list[list[Hypothesis]],
) -> None:
    """Likewise with the mixed sources; what is found is taken if it says everything and both sources together make it likelier."""
    if not mixed:
        return
    sources = [one.ids for one in mixed.values()]
    wanted = [replace(constraints[number], phrases=one.phrases, mixed=None) for number, one in mixed.items()]
    again = dict(zip(mixed, insisting(sources, options, None, wanted), strict=True))
    rivals = [number for number in mixed if not _missed([number], again, constraints)]
    src = [source for number in rivals for source in (ids[number], mixed[number].ids) * 2]
    tgt = [ways[number][0].ids for number in rivals for ways in (found, found, again, again)]
    values = iter([sum(one) / ((5 + len(one)) / 6) ** options.alpha for one in score(src, tgt)] if src else [])
    for number in rivals:
        own, other = next(values) + next(values), next(values) + next(values)
        if other > own:
            found[number] = again[number]


def _of_plain(constraint: Constraints) -> Constraints:
    """What a plain search heeds of a constraint."""
    return replace(constraint, phrases=(), mixed=None)


def _missed(numbers: Sequence[int], found: Found, constraints: Sequence[Constraints]) -> list[int]:
    """Those of these sentences whose translations lack something."""
    return [number for number in numbers if not all(has_phrases(way.ids, constraints[number]) for way in found[number])]


def without_said(constraint: Constraints, found: Sequence[Hypothesis]) -> Constraints:
    """A constraint without the phrases that all of these translations say otherwise."""
    wanted = (
        phrase
        for phrase in constraint.phrases
        if phrase.is_satisfied_by is None or not all(phrase.is_satisfied_by(way.ids) for way in found)
    )
    return replace(constraint, phrases=tuple(wanted))


def has_phrases(ids: Sequence[int], constraint: Constraints) -> bool:
    """Whether a translation has all that was wished for, or says it otherwise."""
    phrases = Phrases(
        [phrase for phrase in constraint.phrases if phrase.is_satisfied_by is None or not phrase.is_satisfied_by(ids)]
    )
    state = 0
    for token in ids:
        state = phrases.after(state, token)
    return phrases.missing(state) == 0
