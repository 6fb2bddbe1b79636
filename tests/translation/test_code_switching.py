"""A glossary's terms put into the source: what the engine is shown, when its translation is taken, and that all else is about the
source as it was."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

import regard
from regard.data.tokenizer import Tokenizer
from regard.generate.engines.ctranslate2_engine import CTranslate2Engine
from regard.generate.engines.torch_engine import TorchEngine
from regard.generate.options import CodeSwitchedSource, Constraints, Hypothesis, SearchOptions
from regard.generate.search.constrained import constrained_search
from regard.generate.search.phrases import Phrase
from regard.translation.glossary import Glossary, insert_terms
from regard.translation.reading import Segment
from regard.translation.translation_options import TranslationOptions
from regard.translation.translator import Translator
from tests.translation.test_translator import Echo

GOLDEN = Path(__file__).parents[1] / "golden" / "bundle-1"  # reverses the letters a to p; what else it reads it garbles


@cache
def model(engine: str = "torch") -> regard.Model:
    return regard.load(GOLDEN, device="cpu", engine=engine)


# --- the text ---

TERMS = {"cat": "kater", "wild cat": "Wildkatze", "house": ["Gebäude", "Haus"], "Polish": "polnisch"}


@pytest.mark.parametrize(
    ("text", "switched"),
    [
        ("A cat in a house.", "A kater in a Gebäude."),
        ("Cat, cat and Cat: cats", "Kater, kater and kater: cats"),
        ("Is it? Cat! “Cat.” (Cat) cat", "Is it? Kater! “Kater.” (Kater) kater"),
        ("HOUSE of a Wild cat", "Gebäude of a Wildkatze"),
        ("Polish it, a Polish cat", "Polnisch it, a polnisch kater"),
        ("nothing", "nothing"),
    ],
)
def test_terms_are_put_into_the_source_with_the_capitals_of_a_beginning(text: str, switched: str) -> None:
    wanted = Glossary.of(TERMS).find(text)
    found, places = insert_terms(text, wanted)
    assert found == switched
    for variants, some in places.items():
        assert len(some) == len(wanted[variants])
        assert {found[slice(*place)] for place in some} <= {variants[0], variants[0].capitalize()}


def test_a_sentence_begins_where_it_is_said_to() -> None:
    text = ">>deu<< Cat and Cat"
    wanted = Glossary.of(TERMS).find(text)
    assert insert_terms(text, wanted)[0] == ">>deu<< kater and kater"
    assert insert_terms(text, wanted, len(">>deu<<"))[0] == ">>deu<< Kater and kater"


# --- when it is taken ---


class Searches:
    """Plain searches and those that insist, which answer what they are told to, and remember what they were asked."""

    def __init__(self, plain: list[list[tuple[int, ...]]], insisting: list[list[tuple[int, ...]]]) -> None:
        self.answers = {"plain": plain, "insisting": insisting}
        self.asked: list[tuple[str, list[list[int]], list[tuple[Phrase, ...]]]] = []
        self.told: list[object] = []
        self.nbest: list[int] = []
        self.constraints: list[Constraints] = []
        self.scores: dict[tuple[int, tuple[int, ...]], float] = {}

    def search(self, name: str):
        def translate(
            ids: Sequence[Sequence[int]], options: SearchOptions, on_finished, constraints: Sequence[Constraints]
        ):
            assert all(constraint.code_switch is None for constraint in constraints)
            self.asked.append((name, [list(one) for one in ids], [constraint.phrases for constraint in constraints]))
            self.told.append(on_finished)
            self.nbest.append(options.nbest)
            self.constraints.extend(constraints)
            return [[Hypothesis(way, 0.0, 0.0) for way in self.answers[name].pop(0)] for _ in ids]

        return translate

    def score(self, src: Sequence[Sequence[int]], tgt: Sequence[Sequence[int]]) -> list[list[float]]:
        """Of each token the same, the end's with them."""
        return [[self.scores[one[0], tuple(other)]] * (len(other) + 1) for one, other in zip(src, tgt, strict=True)]

    def run(self, constraints: Sequence[Constraints], **search: bool) -> list[list[tuple[int, ...]]]:
        ids = [[50 + number] for number in range(len(constraints))]
        options = SearchOptions(beam=4, nbest=2, **search)
        plain, insisting = self.search("plain"), self.search("insisting")
        found = constrained_search(ids, options, self.told.append, constraints, plain, insisting, self.score)
        return [[one.ids for one in hypotheses] for hypotheses in found]


CAT = Phrase(((7,),), count_in=lambda ids: ids.count(7))
DOG = Phrase(((8,),), count_in=lambda ids: ids.count(8))


def containing(*phrases: Phrase) -> Constraints:
    """The code-switched source is 60 and what each of the phrases is called."""

    def code_switch(some: Sequence[Phrase]) -> CodeSwitchedSource:
        return CodeSwitchedSource([60, *(phrase.variants[0][0] for phrase in some)], tuple(some))

    return Constraints(phrases=phrases, code_switch=code_switch)


def test_what_is_said_anyway_is_searched_once() -> None:
    searches = Searches([[(7, 8), (8, 7)]], [])
    assert searches.run([containing(CAT, DOG)]) == [[(7, 8), (8, 7)]]
    assert searches.asked == [("plain", [[50]], [()])]


def test_terms_that_are_missing_are_put_into_the_source_and_no_others() -> None:
    searches = Searches([[(8,), (8, 1)], [(7, 8), (8, 7)]], [])
    assert searches.run([containing(CAT, DOG)]) == [[(7, 8), (8, 7)]]
    assert searches.asked == [("plain", [[50]], [()]), ("plain", [[60, 7]], [()])]
    assert searches.told[0] is not None and searches.told[1:] == [None]  # a sentence is finished once


@pytest.mark.parametrize("lacking", [[(7, 8), (7,)], [(7,), (8, 7)]])
@pytest.mark.parametrize("better", [50, 60])
def test_where_a_term_is_still_missing_the_likelier_of_what_both_sources_give_is_taken(
    lacking: list[tuple[int, ...]], better: int
) -> None:
    own: list[tuple[int, ...]] = [(8, 7), (7, 8)]
    switched: list[tuple[int, ...]] = [(8, 7, 1), (7, 1, 8)]
    searches = Searches([[(8,), (8, 1)], lacking], [own, switched])
    # The source as it was likes its own translation better in any case; the sum decides.
    # With the ends they have 3 and 4 tokens: -18 over (9 / 6)^0.6 against -30, or -13.5, over (8 / 6)^0.6.
    searches.scores = {(50, own[0]): -1.0, (60, own[0]): -9.0, (50, switched[0]): -2.5, (60, switched[0]): -2.0}
    if better == 50:
        searches.scores[60, own[0]] = -3.5
    assert searches.run([containing(CAT, DOG)]) == [own if better == 50 else switched]
    assert searches.asked[2:] == [("insisting", [[50]], [(CAT,)]), ("insisting", [[60, 7]], [(CAT,)])]


def test_of_the_likelihoods_the_length_penalty_is_taken_off() -> None:
    own: list[tuple[int, ...]] = [(7, 8), (8, 7)]
    longer: list[tuple[int, ...]] = [(7, 1, 2, 3, 4, 5, 6, 9, 8), (8, 7)]
    searches = Searches([[(8,), (8, 1)], [(1,)]], [own, longer])
    # 3 and 10 tokens with the end: the sums are -6 and -7.6, over (8 / 6)^0.6 and (15 / 6)^0.6 -5.05 and -4.39
    searches.scores = {(50, own[0]): -1.0, (60, own[0]): -1.0, (50, longer[0]): -0.38, (60, longer[0]): -0.38}
    assert searches.run([containing(CAT, DOG)]) == [longer]


def test_every_search_heeds_the_prefix_and_how_long_it_may_become() -> None:
    searches = Searches([[(8,), (8, 1)], [(1,)]], [[(7,), (8,)], [(8, 7), (7, 8)], [(7,), (7, 8)]])
    searches.run([replace(containing(CAT, DOG), prefix=(3, 4), max_tokens=9)])
    names = [name for name, _, _ in searches.asked]
    assert names == ["plain", "plain", "insisting", "insisting", "insisting"]
    assert [(one.prefix, one.max_tokens) for one in searches.constraints] == [((3, 4), 9)] * 5


def test_what_the_code_switched_source_gives_must_say_everything() -> None:
    searches = Searches([[(8,), (8, 1)], [(1,)]], [[(8, 7), (7, 8)], [(7,), (7, 8)]])
    assert searches.run([containing(CAT, DOG)]) == [[(8, 7), (7, 8)]]


def test_samples_are_not_chosen_by_how_likely_they_are() -> None:
    searches = Searches([[(1,), (2,)], [(1,)]], [[(8, 7), (7, 8)]])
    assert searches.run([containing(CAT)], sample=True) == [[(8, 7), (7, 8)]]


def test_the_best_that_say_the_term_are_taken_from_the_whole_beam() -> None:
    searches = Searches([[(1,), (2,)], [(1, 2), (3, 7), (4,), (7, 5)]], [])
    assert searches.run([containing(CAT)]) == [[(3, 7), (7, 5)]]
    assert searches.nbest == [2, 4]


def test_fewer_than_were_wanted_are_taken_where_the_beam_has_no_others() -> None:
    searches = Searches([[(1,), (2,)], [(3, 7)]], [])
    assert searches.run([containing(CAT)]) == [[(3, 7)]]


def test_each_sentence_goes_as_far_as_it_must() -> None:
    searches = Searches([[(7,)], [(1,)], [(2,)], [(3,)], [(4,)], [(7, 1), (7,)], [(1, 7), (7,)]], [[(7, 2)]])
    unreadable = Constraints(phrases=(CAT,), code_switch=lambda some: None)
    found = searches.run([containing(CAT), containing(CAT), containing(CAT), Constraints(), unreadable])
    assert [hypotheses[0] for hypotheses in found] == [(7,), (7, 1), (1, 7), (3,), (7, 2)]
    assert [name for name, _, _ in searches.asked] == ["plain", "plain", "insisting"]
    assert [ids for _, ids, _ in searches.asked[1:]] == [[[60, 7], [60, 7]], [[54]]]


def test_a_phrase_that_is_no_term_is_not_put_into_the_source() -> None:
    glossary = Glossary.of({"b": "k"})
    options = TranslationOptions(glossary=glossary)
    translator = Translator(model().bundle.tokenizer, model().engine, options, 24)
    [one] = translator.text_side.constraint_builder.build([[Segment("a b c", "")]])
    [term] = one.phrases
    assert one.code_switch is not None
    other = Phrase(((9,),))
    shown = one.code_switch([other, term])
    assert shown is not None and shown.ids == translator.text_side.reader.encode(["a k c"])[0]
    assert shown.phrases == (other, term)  # with its place, which is the same here
    assert one.code_switch([]) is None and one.code_switch([other]) is None


def test_phrases_have_their_places_in_the_code_switched_source() -> None:
    options = TranslationOptions(glossary=Glossary.of({"a b c": "k", "d": "l m"}))
    translator = Translator(model().bundle.tokenizer, model().engine, options, 24)
    [one] = translator.text_side.constraint_builder.build([[Segment("e a b c d", "")]])
    assert one.code_switch is not None
    shown = one.code_switch(one.phrases)
    assert shown is not None
    pieces = translator.text_side.tokenizer.pieces(shown.ids)
    written = ["".join(pieces[n] for n in sorted(phrase.source)).replace("\u2581", "") for phrase in shown.phrases]
    assert written == ["k", "lm"]


def test_a_term_should_appear_as_often_as_in_the_source() -> None:
    twice = replace(CAT, count=2)
    searches = Searches([[(7, 1), (7, 2)], [(7, 7), (7, 3, 7)]], [])
    assert searches.run([containing(twice)]) == [[(7, 7), (7, 3, 7)]]
    assert searches.asked[1][1] == [[60, 7]]
    # Less often is accepted where the code-switched source does not help: only once is required.
    searches = Searches([[(7, 1), (7, 2)], [(7,), (7, 3, 7)]], [])
    assert searches.run([containing(twice)]) == [[(7, 1), (7, 2)]]
    # It is better than not at all.
    searches = Searches([[(7, 1), (2,)], [(7,), (7, 3)]], [])
    assert searches.run([containing(twice)]) == [[(7,), (7, 3)]]


# --- with models ---


@pytest.mark.parametrize("engine", ["torch", "auto"])
def test_every_occurrence_of_a_term_gets_its_translation(engine: str) -> None:
    assert model(engine).translate("b a c b", glossary={"b": "k"}) == "k c a k"
    # The model says k for the other word already: once is not enough.
    assert model(engine).translate("k a b", glossary={"b": "k", "k": "k"}) == "k a k"


@pytest.mark.parametrize("beam", [1, 4])
def test_a_term_stands_in_place_of_the_models_own_word(beam: int) -> None:
    found = model().translate(["a b c", "p o n m", "d"], beam=beam, glossary={"b": "k", "x": "l", "n m": "c"})
    assert found == ["c k a", "c o p", "d"]


def test_with_auto_torch_is_loaded_only_where_a_term_is_still_missing(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "regard.engines")
    auto = regard.load(GOLDEN, device="cpu")
    assert isinstance(auto.engine, CTranslate2Engine)
    assert auto.translate("a b c", glossary={"b": "k"}) == "c k a"
    assert vars(auto.engine)["_loaded"] is None and not caplog.messages
    assert "q" in auto.translate("a b c", glossary={"b": "q"}).split()
    assert vars(auto.engine)["_loaded"] is not None and "glossary is left to torch where" in caplog.text


def test_auto_finds_what_torch_finds_and_leaves_only_the_insisting_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    line, glossary = "m p d e o a", {"m": "g", "e": "d n"}
    expected = model().nbest([line], 3, glossary=glossary, alpha=0.0)
    searched: list[list[int]] = []
    search = TorchEngine.search

    def watched(self: TorchEngine, ids, options, constraints=(), observer=None):
        searched.append([len(constraint.phrases) for constraint in constraints])
        return search(self, ids, options, constraints, observer)

    monkeypatch.setattr(TorchEngine, "search", watched)
    [found] = model("auto").nbest([line], 3, glossary=glossary, alpha=0.0)
    assert [way.text for way in found.translations] == [way.text for way in expected[0].translations]
    assert searched == [[2], [2]]  # with the source as it was and with the terms in it


@pytest.mark.parametrize("engine", ["torch", "auto"])
def test_words_and_alignment_are_those_of_the_source_as_it_was(engine: str) -> None:
    [result] = model(engine).nbest(["a b c d"], 1, glossary={"b": "k"}, alignment=True)
    assert result.text == "d c k a" and result.source_words == ("a", "b", "c", "d")
    assert result.translations[0].alignment == ((0, 3), (1, 2), (2, 1), (3, 0))
    # A term of two words has become one: places in the code-switched source are others.
    [result] = model(engine).nbest(["a b c d"], 1, glossary={"b c": "k"}, alignment=True)
    assert result.text == "d k a" and result.source_words == ("a", "b", "c", "d")
    [best] = result.translations
    assert best.alignment[0] == (0, 3)
    scores = model(engine).token_scores(["a b c d"], ["d k a"])[0]
    assert sum(word.log_prob for word in best.words) == pytest.approx(sum(scores[:-1]), abs=1e-3)


@pytest.mark.parametrize(
    "search",
    [
        {"prefix": "c k "},
        {"prefix": "c"},
        {"phrases": ["a"]},
        {"mbr": "chrf"},
        {"coverage": 0.1},
        {"sample": True, "top_k": 1},
        {"keep": ["c"]},
        {"words": True},
    ],
    ids=str,
)
def test_other_options_go_with_it(search: dict) -> None:
    assert model().translate("a b c", glossary={"b": "k"}, **search) == "c k a"


@pytest.mark.parametrize("terms", [{"b": "b"}, {"b": "k"}, {"b": "q"}], ids=["said", "in the source", "insisted on"])
def test_groups_of_one_hypothesis_go_with_it_however_diverse(terms: dict[str, str]) -> None:
    found = model().translate("a b c", beam=2, groups=2, diversity=0.8, glossary=terms)
    assert set(terms.values()) <= set(found.split())


def test_groups_that_find_the_same_are_no_reason_to_insist() -> None:
    [result] = model().nbest(["n o m n c p"], 4, glossary={"n": "f"}, groups=2)
    [own] = model().nbest(["f o m f c p"], 4, groups=2)
    assert len(own.translations) < 4
    assert result.translations == own.translations


def test_models_together_and_following_go_with_it() -> None:
    twice = regard.load([GOLDEN, GOLDEN], device="cpu")
    assert twice.translate("a b c", glossary={"b": "k"}) == "c k a"
    assert list(model().follow("a b c", glossary={"b": "k"})) == ["c k a"]


def test_all_of_a_list_say_the_term() -> None:
    [result] = model().nbest(["a b c"], 4, glossary={"b": "k"})
    assert len(result.translations) == 4 and all("k" in way.text.split() for way in result.translations)


# --- what the model cannot read ---


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    lines = ["The house is small, but the garden is large.", "We went home; it was late. Nobody spoke!"] * 20
    return Tokenizer.train(lines, 400, tmp_path_factory.mktemp("tokenizer"))


def mixed_of(tokenizer: Tokenizer, text: str, terms: dict[str, str], max_length: int = 100, **options) -> str | None:
    """The text that the model is shown with all terms in it."""
    search = TranslationOptions(glossary=Glossary.of(terms), **options)
    [one] = Translator(tokenizer, Echo(), search, max_length).text_side.constraint_builder.build([[Segment(text, "")]])
    assert one.code_switch is not None
    switched = one.code_switch(one.phrases)
    return (
        None
        if switched is None
        else "".join(p if isinstance(p, str) else "#" for p in tokenizer.decode_parts(switched.ids))
    )


def test_a_source_that_says_the_term_already_is_not_searched_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    searched: list[list[int]] = []
    search = TorchEngine.search

    def counted(self: TorchEngine, ids, options, constraints=(), observer=None):
        searched.extend(ids)
        return search(self, ids, options, constraints, observer)

    monkeypatch.setattr(TorchEngine, "search", counted)
    assert "q" in model().translate("a q c", glossary={"q": "q"}).split()
    assert len(searched) == 2  # plainly, and with the term insisted on


def test_a_source_that_becomes_too_long_stays_as_it_is(tokenizer: Tokenizer) -> None:
    length = len(tokenizer.encode("The house is small."))
    assert mixed_of(tokenizer, "The house is small.", {"house": "home"}, length) == "The home is small."
    assert mixed_of(tokenizer, "The house is small.", {"house": "garden of Nobody"}, length) is None
    # What could not be cut into parts that are short enough may be as long as it was.
    assert mixed_of(tokenizer, "The house is small.", {"house": "home"}, 2) == "The home is small."
    assert mixed_of(tokenizer, "The house is small.", {"house": "garden of Nobody"}, 2) is None


def test_what_is_kept_keeps_its_reserved_piece(tokenizer: Tokenizer) -> None:
    careful = Tokenizer(tokenizer.models, protects=True)
    text = "The house is {a} and {b}"
    assert mixed_of(careful, text, {"house": "garden"}) == "The garden is # and #"
    assert mixed_of(careful, text, {"house": "{a}"}) is None
    assert mixed_of(careful, text, {"house": "small garden"}, keep=("garden",)) is None
    assert mixed_of(careful, text, {"house": "garden", "and": "but"}, keep=("and",)) == "The garden is # # #"
