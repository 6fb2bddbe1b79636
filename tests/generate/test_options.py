"""Every option of the search, and every pair of options that can meet, against the oracle in plain Python (`oracle.py`)."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from regard.errors import InputError, UserError
from regard.generate.options import Constraints, Hypothesis, Prefix, SearchOptions
from regard.generate.search.core import beam_search, search_steps
from regard.generate.search.phrases import Phrase, PhraseAutomaton
from regard.generate.search.seeds import sentence_rng
from regard.generate.search.stable import stable_prefixes
from regard.generate.search.state import SearchSpec
from regard.translation.translation_options import TranslationOptions
from tests.generate.oracle import OVERDUE, Found, Oracle, Tokens, appears, merged, missing_tokens, penalised

BOS, EOS, VOCAB, SRC = 0, 1, 7, 4
WORDS = range(2, VOCAB)


class Book:
    """A model as a book of random numbers: logits and attention for every source and prefix."""

    def __init__(self, seed: int, sentences: int, beam: int) -> None:
        self.seed = seed
        self.rows: list[Tokens] = [(number,) for number in range(sentences) for _ in range(beam)]

    def logits(self, row: Tokens) -> list[float]:
        chance = random.Random(hash((self.seed, row)))
        return [chance.gauss(0.0, 1.5) for _ in range(VOCAB)]

    def log_probs(self, row: Tokens) -> list[float]:
        logits = self.logits(row)
        total = math.log(sum(math.exp(value) for value in logits))
        return [value - total for value in logits]

    def weights(self, row: Tokens) -> list[float]:
        """Over the source's tokens and its end."""
        chance = random.Random(hash((self.seed, -1, row)))
        values = [chance.random() ** 8 for _ in range(SRC + 1)]
        return [value / sum(values) for value in values]

    def step(self, newest: Tensor) -> Tensor:
        self.rows = [(*row, token) for row, token in zip(self.rows, newest.tolist(), strict=True)]
        return torch.tensor([self.logits(row) for row in self.rows])

    def attention(self) -> Tensor:
        return torch.tensor([self.weights(row) for row in self.rows])

    def select(self, rows: Tensor, sentences: list[int] | None) -> None:
        self.rows = [self.rows[row] for row in rows.tolist()]


def source(number: int) -> list[int]:
    return [number, *range(SRC - 1)]


def prompt_of(number: int, is_continued: bool) -> Tokens:
    """Prompts of different lengths, with repetitions in them."""
    return (number, *[2, 3, 2, 3, 2, 5][: 3 * number + 1]) if is_continued else ()


def limit_of(limit: int, constraint: Constraints) -> int:
    return max(limit, len(constraint.prefix) + sum(min(map(len, phrase.variants)) for phrase in constraint.phrases))


def task_of(
    options: SearchOptions,
    limits: list[int],
    constraints: list[Constraints],
    forbidden: tuple[int, ...],
    book: Book,
    stops: tuple[int, ...] = (),
    is_continued: bool = False,
) -> SearchSpec:
    phrases = [PhraseAutomaton(constraint.phrases) if constraint.phrases else None for constraint in constraints]
    return SearchSpec(
        [limit_of(*pair) for pair in zip(limits, constraints, strict=True)],
        options,
        BOS,
        EOS,
        forbidden,
        prefixes=[constraint.prefix for constraint in constraints],
        phrases=phrases if any(phrases) else (),
        src=() if is_continued else [source(number) for number in range(len(limits))],
        attention=None if is_continued else book.attention,
        prompts=[prompt_of(number, True) for number in range(len(limits))] if is_continued else (),
        stop_ids=stops,
    )


def found(
    seed: int,
    options: SearchOptions,
    limits: list[int],
    constraints: list[Constraints],
    forbidden: tuple[int, ...],
    stops: tuple[int, ...] = (),
    is_continued: bool = False,
) -> list[list[Hypothesis]]:
    book = Book(seed, len(limits), options.beam)
    spec = task_of(options, limits, constraints, forbidden, book, stops, is_continued)
    return beam_search(book.step, book.select, spec)


def at(read: Callable[[Tokens], list[float]], number: int, tokens: Tokens) -> list[float]:
    return read((number, BOS, *tokens))


def model_says(
    book: Book, number: int, options: SearchOptions, stops: tuple[int, ...], prompt: Tokens, tokens: Tokens
) -> list[float]:
    """The log-probabilities that rules start from. The first step reads the start token, or the last one of the prompt."""
    logits = book.logits((number, prompt[-1] if prompt else BOS, *tokens))
    return merged(penalised(logits, (*prompt, *tokens), options.repetition_penalty), EOS, stops, options.sample)


def expected(
    seed: int,
    options: SearchOptions,
    limits: list[int],
    constraints: list[Constraints],
    forbidden: tuple[int, ...],
    stops: tuple[int, ...] = (),
    is_continued: bool = False,
) -> list[list[Found]]:
    book = Book(seed, 1, 1)
    results = []
    for number, (limit, constraint) in enumerate(zip(limits, constraints, strict=True)):
        prompt = prompt_of(number, is_continued)
        oracle = Oracle(
            partial(model_says, book, number, options, stops, prompt),
            limit_of(limit, constraint),
            options,
            EOS,
            forbidden,
            constraint,
            None if is_continued else partial(at, lambda row: book.weights(row)[:SRC], number),
            prompt,
        )
        chance = sentence_rng(options.seed, prompt or source(number))
        results.append(oracle.sample(chance) if options.sample else oracle.search())
    return results


def assert_found(ours: list[list[Hypothesis]], theirs: list[list[Found]]) -> None:
    for mine, slow in zip(ours, theirs, strict=True):
        assert [one.ids for one in mine] == [one.tokens for one in slow]
        assert [one.log_prob for one in mine] == pytest.approx([one.log_prob for one in slow], abs=1e-4)
        assert [one.score for one in mine] == pytest.approx([one.score for one in slow], abs=1e-4)
        assert [one.ended for one in mine] == [one.ended for one in slow]


# --- the options, each as something that hypothesis draws ---

tokens = st.sampled_from(WORDS)
prefixes = st.one_of(
    st.lists(tokens, min_size=1, max_size=3),
    st.builds(
        lambda begin, choice: [*begin, tuple(choice)],
        st.lists(tokens, max_size=2),
        st.lists(st.sampled_from([EOS, *WORDS]), min_size=2, max_size=4, unique=True),
    ),
).map(tuple)
ends = st.one_of(st.none(), st.frozensets(tokens, min_size=2).map(lambda some: some | {2, 3}))
variants = st.lists(st.lists(st.sampled_from([2, 3, 4]), min_size=1, max_size=3).map(tuple), min_size=1, max_size=2)
# A phrase begins with what may follow another, as words do in text.
phrase = st.builds(
    lambda some, end, source: Phrase(tuple((way[0] % 2 + 2, *way[1:]) for way in some), end, source),
    variants,
    ends,
    st.one_of(st.just(frozenset()), st.frozensets(st.integers(0, SRC - 1), max_size=2)),
)
OPTIONS: dict[str, st.SearchStrategy[dict[str, Any]]] = {
    "greedy": st.just({"beam": 1}),
    "narrow": st.just({"beam": 2}),
    "nbest": st.just({"beam": 4, "nbest": 3}),
    "alpha": st.sampled_from([{"alpha": 0.0}, {"alpha": 2.0}]),
    "coverage": st.sampled_from([{"coverage": 0.2}, {"coverage": 3.0}]),
    "no_repeat": st.integers(1, 3).map(lambda n: {"no_repeat": n}),
    "max_repeat": st.integers(1, 2).map(lambda n: {"max_repeat": n}),
    "groups": st.sampled_from([{"beam": 4, "groups": 2}, {"beam": 4, "groups": 4}]).flatmap(
        lambda some: st.sampled_from([0.0, 0.5, 3.0]).map(lambda by: {**some, "diversity": by})
    ),
    "sample": st.integers(0, 99).map(lambda seed: {"sample": True, "seed": seed}),
    "temperature": st.sampled_from([0.3, 2.0]).map(lambda t: {"sample": True, "temperature": t}),
    "top_k": st.integers(1, 4).map(lambda k: {"sample": True, "top_k": k}),
    "top_p": st.sampled_from([0.2, 0.7, 0.95]).map(lambda p: {"sample": True, "top_p": p}),
    "min_p": st.sampled_from([0.1, 0.5, 1.0]).map(lambda p: {"sample": True, "min_p": p}),
    "penalty": st.sampled_from([1.2, 3.0, 0.5]).map(lambda by: {"repetition_penalty": by}),
    "stops": st.just({"stops": (6,)}),
    "continued": st.just({"is_continued": True}),
    "prefix": prefixes.map(lambda some: {"prefix": some}),
    "phrases": st.lists(phrase, min_size=1, max_size=2).map(lambda some: {"phrases": tuple(some)}),
    "forbidden": st.sampled_from([(5,), (4, 6)]).map(lambda some: {"forbidden": some}),
}
SAMPLED = {"sample", "temperature", "top_k", "top_p", "min_p"}
WIDTHS = {"greedy", "narrow", "nbest", "groups"}
PAIRS = [
    pair
    for pair in itertools.combinations_with_replacement(OPTIONS, 2)
    if not (pair[0] != pair[1] and set(pair) <= WIDTHS)
    and not ("groups" in pair and SAMPLED & set(pair))
    and set(pair) != {"coverage", "continued"}  # refused by the engine: a continuation has no source
]


def checked(seed: int, limits: list[int], drawn: list[dict[str, Any]]) -> None:
    """Compare with the oracle. The first sentence has the constraints, the others only if hypothesis drew several."""
    fields: dict[str, Any] = {"beam": 3}
    for some in drawn:
        fields |= some
    constraint = Constraints(fields.pop("prefix", ()), fields.pop("phrases", ()))
    stops, is_continued = fields.pop("stops", ()), fields.pop("is_continued", False)
    if is_continued:
        fields.pop("coverage", None)
        constraint = replace(constraint, phrases=tuple(replace(one, source=frozenset()) for one in constraint.phrases))
    if stops:  # a prefix has words, and they do not end it
        constraint = replace(constraint, prefix=tuple(without_stops(place, stops) for place in constraint.prefix))
    forbidden = (BOS, *fields.pop("forbidden", ()))
    options = SearchOptions(**fields)
    constraints = [
        constraint,
        *[Constraints() if number % 2 else replace(constraint, prefix=()) for number in range(1, len(limits))],
    ]
    asked = (seed, options, limits, constraints, forbidden, stops, is_continued)
    assert_found(found(*asked), expected(*asked))


def without_stops(place: int | Sequence[int], stops: tuple[int, ...]) -> int | tuple[int, ...]:
    if isinstance(place, int):
        return 5 if place in stops else place
    return tuple(dict.fromkeys(5 if token in stops else token for token in place))


@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
def test_every_pair_of_options_finds_what_the_oracle_finds(pair: tuple[str, str]) -> None:
    @settings(max_examples=8, deadline=None, database=None)
    @given(
        st.integers(0, 10_000), st.lists(st.integers(0, 6), min_size=1, max_size=3), *(OPTIONS[name] for name in pair)
    )
    def compare(seed: int, limits: list[int], first: dict[str, Any], second: dict[str, Any]) -> None:
        checked(seed, limits, [first, second])

    compare()


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_number_of_options_together_finds_what_the_oracle_finds(data: st.DataObject) -> None:
    names = data.draw(st.sets(st.sampled_from(sorted(set(OPTIONS) - WIDTHS)), min_size=3))
    width = data.draw(st.sampled_from(sorted(WIDTHS)))
    if width == "groups":
        names -= SAMPLED
    drawn = [data.draw(OPTIONS[name]) for name in (*sorted(names), width)]
    checked(data.draw(st.integers(0, 10_000)), data.draw(st.lists(st.integers(0, 8), min_size=1, max_size=3)), drawn)


def test_the_pairs_above_are_all_that_can_meet() -> None:
    refused = {frozenset(pair) for pair in itertools.combinations(OPTIONS, 2)} - {frozenset(pair) for pair in PAIRS}
    for pair in (
        refused - {frozenset(two) for two in itertools.combinations(WIDTHS, 2)} - {frozenset(("coverage", "continued"))}
    ):
        assert "groups" in pair
        with pytest.raises(UserError, match="sample and groups exclude each other"):
            SearchOptions(beam=4, groups=2, sample=True)


# --- against all sequences there are ---


def lawful(sequence: Tokens, options: SearchOptions, constraint: Constraints) -> bool:
    n, times = options.no_repeat, options.max_repeat
    grams = [sequence[i : i + n] for i in range(len(sequence) - n + 1)]
    loops = any(
        sequence[i : i + size] * (times + 1) == sequence[i : i + size * (times + 1)]
        for size in range(1, 9)
        for i in range(len(sequence) - size * (times + 1) + 1)
    )
    begun = all(token == place for token, place in zip(sequence, constraint.prefix, strict=False))
    return (
        (not n or len(set(grams)) == len(grams))
        and not (times and loops)
        and begun
        and len(sequence) >= len(constraint.prefix)
        and all(appears(sequence, phrase) for phrase in constraint.phrases)
    )


@settings(max_examples=25, deadline=None)
@given(
    st.integers(0, 10_000),
    st.sampled_from([0.0, 0.6]),
    st.sampled_from([0.0, 0.5]),
    st.integers(0, 2),
    st.lists(tokens, max_size=1).map(tuple),
    st.lists(tokens, max_size=2).map(tuple),
)
def test_a_wide_beam_finds_the_best_of_all_lawful_sequences(
    seed: int, alpha: float, coverage: float, no_repeat: int, prefix: Prefix, must: Tokens
) -> None:
    constraint = Constraints(
        prefix, (Phrase((must,)),) if must and not (no_repeat == 1 and len(set(must)) < len(must)) else ()
    )
    options = SearchOptions(beam=160, nbest=3, alpha=alpha, coverage=coverage, no_repeat=no_repeat)
    limit = limit_of(3, constraint)
    book = Book(seed, 1, 1)
    oracle = Oracle(partial(at, book.log_probs, 0), limit, options, EOS, (BOS,), constraint)
    scored = []
    for sequence in (s for size in range(limit + 1) for s in itertools.product(WORDS, repeat=size)):
        # A phrase may break the rule of repetitions, and then the search may, too: those cases are for the oracle.
        if lawful(sequence, options, constraint):
            rows = [(0, BOS, *sequence[:n]) for n in range(len(sequence) + 1)]
            log_prob = sum(book.log_probs(row)[t] for row, t in zip(rows, (*sequence, EOS), strict=True))
            covered = [sum(column) for column in zip(*(book.weights(row)[:SRC] for row in rows), strict=True)]
            penalty = coverage * sum(math.log(min(max(value, 1e-6), 1.0)) for value in covered)
            late = OVERDUE * oracle.is_overdue(sequence)
            scored.append((log_prob / ((6 + len(sequence)) / 6) ** alpha + penalty - late, sequence))
    best = sorted(scored, reverse=True)[:3]
    [ours] = found(seed, options, [3], [constraint], (BOS,))
    if not constraint.phrases or not no_repeat:
        assert [one.ids for one in ours] == [sequence for _, sequence in best]
    assert not best or ours[0].score >= best[0][0] - 1e-4
    assert all(appears(one.ids, phrase) for one in ours for phrase in constraint.phrases)


# --- phrases ---


@settings(max_examples=200, deadline=None)
@given(st.lists(phrase, min_size=1, max_size=3), st.lists(tokens, max_size=12))
def test_the_automaton_knows_what_reading_the_tokens_tells(some: list[Phrase], written: list[int]) -> None:
    automaton = PhraseAutomaton(some)
    state = 0
    for place in range(len(written) + 1):
        read = tuple(written[:place])
        assert automaton.missing(state) == missing_tokens(read, some)
        table = automaton.missing_after(state, VOCAB)
        assert table.tolist()[2:] == [missing_tokens((*read, token), some) for token in WORDS]
        if place < len(written):
            state = automaton.after(state, written[place])


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 10_000),
    st.lists(phrase, min_size=1, max_size=3),
    st.integers(1, 5),
    st.integers(0, 5),
    st.booleans(),
)
def test_phrases_always_appear(seed: int, some: list[Phrase], beam: int, limit: int, sample: bool) -> None:
    options = SearchOptions(beam=beam, nbest=beam, sample=sample)
    [ours] = found(seed, options, [limit], [Constraints(phrases=tuple(some))], (BOS, 4))
    assert ours
    for one in ours:
        assert all(appears(one.ids, phrase) for phrase in some), (one.ids, some)


def test_phrases_that_exclude_each_other_are_said_to() -> None:
    """Each of them must be the last, and an end that is drawn too early cannot be put off."""
    both = (Phrase(((5,),), frozenset()), Phrase(((3, 4),), frozenset()))
    for options in (SearchOptions(beam=1, sample=True, top_k=2), SearchOptions(beam=1), SearchOptions(beam=3)):
        with pytest.raises(InputError, match="no translation can have all required phrases"):
            found(64, options, [0], [Constraints((2, (3, EOS)), both)], (BOS,))


# --- samples ---


def test_samples_come_as_often_as_the_model_says() -> None:
    book = Book(3, 1, 1)
    options = SearchOptions(beam=4000, nbest=4000, sample=True)
    [ours] = found(3, options, [1], [Constraints()], (BOS,))
    firsts = [one.ids[0] if one.ids else EOS for one in ours]
    probs = [math.exp(value) for value in book.log_probs((0, BOS))]
    for token in range(1, VOCAB):
        share = probs[token] / sum(probs[1:])
        assert firsts.count(token) / 4000 == pytest.approx(share, abs=4 * math.sqrt(share * (1 - share) / 4000))


def test_a_seed_gives_the_same_samples_and_another_gives_others() -> None:
    options = SearchOptions(beam=5, nbest=5, sample=True)
    constraints = [Constraints()] * 2
    first = found(1, options, [8, 8], constraints, (BOS,))
    assert found(1, options, [8, 8], constraints, (BOS,)) == first
    assert found(1, options, [8], constraints[:1], (BOS,)) == first[:1]  # whoever shares the batch
    assert found(1, replace(options, seed=1), [8, 8], constraints, (BOS,)) != first


# --- groups ---


def test_no_two_groups_begin_alike_and_a_plain_beam_does() -> None:
    alike = 0
    for seed in range(20):
        options = SearchOptions(beam=4, nbest=4, groups=4, diversity=100.0)
        [apart] = found(seed, options, [6], [Constraints()], (BOS,))
        assert len({one.ids[:1] for one in apart}) == len(apart)
        [together] = found(seed, SearchOptions(beam=4, nbest=4), [6], [Constraints()], (BOS,))
        alike += len({one.ids[:1] for one in together}) < len(together)
    assert alike > 10


# --- streaming ---


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 10_000), st.sampled_from(["greedy", "narrow", "nbest", "phrases", "coverage", "groups"]), st.data()
)
def test_what_was_streamed_is_never_taken_back(seed: int, name: str, data: st.DataObject) -> None:
    drawn = data.draw(OPTIONS[name])
    constraint = Constraints(phrases=drawn.pop("phrases", ()))
    options = SearchOptions(**{"beam": 3, **drawn})
    book = Book(seed, 1, options.beam)
    task = task_of(options, [8], [constraint], (BOS,), book)
    shown = list(stable_prefixes(search_steps(book.step, book.select, task)))
    [[best, *_]] = found(seed, options, [8], [constraint], (BOS,))
    assert shown[-1] == best.ids
    for one in shown:
        assert best.ids[: len(one)] == one
    if options.beam == 1 and not constraint.phrases:  # greedy search never changes its mind
        assert [len(one) for one in shown[:-1]] == list(range(1, len(best.ids) + 1))


# --- refusals ---


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"groups": 0}, "groups must be at least 1"),
        ({"beam": 4, "groups": 3}, "the beam must be a multiple of groups"),
        ({"coverage": -1.0}, "coverage must not be negative"),
        ({"no_repeat": -1}, "no_repeat must not be negative"),
        ({"max_repeat": -1}, "max_repeat must not be negative"),
        ({"sample": True, "temperature": 0.0}, "temperature must be above 0"),
        ({"sample": True, "top_p": 0.0}, "top_p must be above 0"),
        ({"sample": True, "top_p": 1.5}, "top_p must be above 0"),
        ({"sample": True, "top_k": -1}, "top_k must not be negative"),
        ({"temperature": 0.5}, "are for sampling; add sample"),
        ({"seed": 3}, "are for sampling; add sample"),
    ],
)
def test_impossible_options_are_refused_by_name(fields: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        SearchOptions(**fields)


def test_a_change_of_options_keeps_the_rest() -> None:
    search = SearchOptions(beam=4, alpha=1.0)
    own = TranslationOptions(search, guard=True)
    assert own.changed(nbest=6) == replace(own, search=replace(search, beam=6, nbest=6))
    assert own.changed(sample=True, seed=3) == replace(own, search=replace(search, beam=1, sample=True, seed=3))
    assert own.changed(groups=3).search.beam == 6
    assert own.changed(beam=8, alpha=0.0, coverage=0.2) == replace(
        own, search=replace(search, beam=8, alpha=0.0, coverage=0.2)
    )
    assert own.changed(guard=False, keep=("a",), top_k=2, sample=True) == TranslationOptions(
        replace(search, beam=1, sample=True, top_k=2), keep=("a",)
    )
    with pytest.raises(UserError, match="there is no search option 'languages'"):  # those are the model's
        own.changed(languages=("en", "de"))
    with pytest.raises(UserError, match=r"there is no search option 'coverge'; did you mean coverage\?"):
        own.changed(coverge=1.0)
    with pytest.raises(UserError, match="there is no search option 'guard'; there are beam"):
        search.changed(guard=True)
