"""Phrases that must appear, with as few constrained searches as possible. Most outputs contain them anyway, and the best output of
all is then also the best that contains them: so an unconstrained search comes first.

If it misses a term of a glossary, or has it less often than the source, the second search reads a code-switched source, in which
the term is already translated ("The Gebäude is old."): a model that has seen foreign words in its sources copies the term and
builds a sentence around it; other models lose it. Only what is still missing then takes a constrained search, of the original
source and of the code-switched one. The first may put a term beside the model's own word for it, the second may garble the rest:
the output is taken that both sources together make likelier. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from regard.generate.options import CodeSwitchedSource, Constraints, Hypothesis, OnFinished, SearchOptions
from regard.generate.search.phrases import Phrase, PhraseAutomaton

# A lone hypothesis cannot compare places for a phrase: greedy search becomes beam search where it has missed one.
MIN_BEAM = 4

TokenIds = Sequence[Sequence[int]]  # of several sentences
SearchFunction = Callable[[TokenIds, SearchOptions, OnFinished | None, Sequence[Constraints]], list[list[Hypothesis]]]
ScoreFunction = Callable[[TokenIds, TokenIds], list[list[float]]]  # sources, outputs -> log-probabilities of the tokens


def constrained_search(
    ids: TokenIds,
    options: SearchOptions,
    on_finished: OnFinished | None,
    constraints: Sequence[Constraints],
    unconstrained: SearchFunction,
    constrained: SearchFunction,
    score: ScoreFunction,
) -> list[list[Hypothesis]]:
    """The hypotheses of every sentence, with all phrases. `unconstrained` ignores phrases, `constrained` enforces them. The
    first search alone calls `on_finished`."""
    results = unconstrained(ids, options, on_finished, [_without_phrases(one) for one in constraints])
    # A term paraphrased by the first search is accepted; if the next search loses it, the phrase becomes required.
    lenient, switched = {}, {}
    for number in _incomplete(range(len(ids)), results, constraints, in_full=True):
        lenient[number] = _without_satisfied(constraints[number], results[number])
        if (one := _code_switch(_without_satisfied(constraints[number], results[number], in_full=True))) is not None:
            switched[number] = one
    _search_switched(switched, options, constraints, unconstrained, results)
    incomplete = _incomplete(list(lenient), results, constraints)
    if not options.sample and options.beam < MIN_BEAM:
        options = replace(options, beam=MIN_BEAM, groups=1, diversity=SearchOptions.diversity)
    _search_again(ids, {number: lenient[number] for number in incomplete}, options, constrained, results)
    lost = _incomplete(incomplete, results, constraints)
    _search_again(ids, {number: constraints[number] for number in lost}, options, constrained, results)
    if not options.sample:  # samples are not chosen by their likelihood
        switched = {number: switched[number] for number in incomplete if number in switched}
        _constrain_switched(ids, switched, options, constraints, constrained, score, results)
    return results


def _code_switch(constraint: Constraints) -> CodeSwitchedSource | None:
    return constraint.code_switch(constraint.phrases) if constraint.code_switch is not None else None


def _search_switched(
    switched: Mapping[int, CodeSwitchedSource],
    options: SearchOptions,
    constraints: Sequence[Constraints],
    unconstrained: SearchFunction,
    results: list[list[Hypothesis]],
) -> None:
    """Search code-switched sources without constraints. The best hypotheses with all phrases, each as often as it should appear,
    replace the earlier results if the beam has enough of them; else those with all phrases, if the earlier ones lack one.
    Groups may find duplicates, so that there are fewer than `nbest`: then all must have the phrases."""
    if not switched:
        return
    whole_beam = replace(options, nbest=options.beam)
    sources = [one.ids for one in switched.values()]
    again = unconstrained(sources, whole_beam, None, [_without_phrases(constraints[number]) for number in switched])
    for number, hypotheses in zip(switched, again, strict=True):
        lacks_one = bool(_incomplete([number], results, constraints))
        for in_full in (True, False) if lacks_one else (True,):
            complete = [one for one in hypotheses if _has_phrases(one.ids, constraints[number], in_full)]
            if len(complete) >= min(options.nbest, len(hypotheses)):
                results[number] = complete[: options.nbest]
                break


def _search_again(
    ids: TokenIds,
    constraints: Mapping[int, Constraints],
    options: SearchOptions,
    constrained: SearchFunction,
    results: list[list[Hypothesis]],
) -> None:
    """Replace the results of these sentences by those of a constrained search."""
    if constraints:
        sources = [ids[number] for number in constraints]
        again = constrained(sources, options, None, [replace(one, code_switch=None) for one in constraints.values()])
        for number, hypotheses in zip(constraints, again, strict=True):
            results[number] = hypotheses


def _constrain_switched(
    ids: TokenIds,
    switched: Mapping[int, CodeSwitchedSource],
    options: SearchOptions,
    constraints: Sequence[Constraints],
    constrained: SearchFunction,
    score: ScoreFunction,
    results: list[list[Hypothesis]],
) -> None:
    """A constrained search of the code-switched sources. Its hypotheses replace the earlier ones if they have all phrases and both
    sources together make the best one likelier."""
    if not switched:
        return
    sources = [one.ids for one in switched.values()]
    required = [replace(constraints[number], phrases=one.phrases, code_switch=None) for number, one in switched.items()]
    again = dict(zip(switched, constrained(sources, options, None, required), strict=True))
    rivals = [number for number in switched if not _incomplete([number], again, constraints)]
    src = [source for number in rivals for source in (ids[number], switched[number].ids) * 2]
    tgt = [hypotheses[number][0].ids for number in rivals for hypotheses in (results, results, again, again)]
    values = iter([sum(one) / ((5 + len(one)) / 6) ** options.alpha for one in score(src, tgt)] if src else [])
    for number in rivals:
        earlier, later = next(values) + next(values), next(values) + next(values)
        if later > earlier:
            results[number] = again[number]


def _without_phrases(constraint: Constraints) -> Constraints:
    """What an unconstrained search heeds: the forced prefix and the length limit."""
    return replace(constraint, phrases=(), code_switch=None)


def _incomplete(
    numbers: Sequence[int],
    results: Sequence[Sequence[Hypothesis]] | Mapping[int, Sequence[Hypothesis]],
    constraints: Sequence[Constraints],
    in_full: bool = False,
) -> list[int]:
    """The sentences with a hypothesis that lacks a phrase; `in_full`: or has one less often than it should appear."""
    return [
        number
        for number in numbers
        if not all(_has_phrases(one.ids, constraints[number], in_full) for one in results[number])
    ]


def _without_satisfied(constraint: Constraints, hypotheses: Sequence[Hypothesis], in_full: bool = False) -> Constraints:
    """The constraints without the phrases that all of these hypotheses paraphrase."""
    required = tuple(
        phrase
        for phrase in constraint.phrases
        if not all(_is_satisfied(phrase, one.ids, phrase.count if in_full else 1) for one in hypotheses)
    )
    return replace(constraint, phrases=required)


def _is_satisfied(phrase: Phrase, ids: Sequence[int], count: int) -> bool:
    """Whether an output has or paraphrases a phrase this often."""
    return phrase.count_in is not None and phrase.count_in(ids) >= count


def _has_phrases(ids: Sequence[int], constraint: Constraints, in_full: bool = False) -> bool:
    """Whether an output has every phrase or paraphrases it; `in_full`: as often as it should appear."""
    if in_full and any(one.count > 1 and not _is_satisfied(one, ids, one.count) for one in constraint.phrases):
        return False
    automaton = PhraseAutomaton([phrase for phrase in constraint.phrases if not _is_satisfied(phrase, ids, 1)])
    state = 0
    for token in ids:
        state = automaton.after(state, token)
    return automaton.missing(state) == 0
