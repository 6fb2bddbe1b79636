"""Given beginnings, words with their probabilities, and other words for a place: both engines, against the model's own numbers."""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path

import pytest

import regard
from regard.data.tokenizer import Tokenizer
from regard.errors import UserError
from regard.generate.engines.ctranslate2_engine import CTranslate2Engine
from regard.generate.engines.torch_engine import TorchEngine
from regard.generate.options import Constraints, SearchOptions
from regard.generate.word_tokens import word_beginnings
from regard.translation.constraints import TextConstraints
from regard.translation.protect import protect
from regard.translation.translation_options import TranslationOptions
from regard.translation.translator import Translator
from regard.translation.words import prefix_ids, token_words, words_of
from tests.build import build, tiny_config
from tests.translation.test_translator import Echo

pytest.importorskip("ctranslate2")

GOLDEN = Path(__file__).parents[1] / "golden" / "bundle-1"  # reverses letters
ENGINES = ["torch", "ctranslate2"]
LINES = ["a b c", "p o n m", "d", "n e m"]


@cache
def model(engine: str) -> regard.Model:
    return regard.load(GOLDEN, device="cpu", engine=engine)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("beam", [1, 4])
def test_a_translation_begins_with_its_prefix_and_ends_as_the_model_would(engine: str, beam: int) -> None:
    one = model(engine)
    prefixes = ["k ", "m n", "", "m "]
    found = one.translate(LINES, beam=beam, prefix=prefixes)
    for prefix, text in zip(prefixes, found, strict=True):
        assert text.startswith(prefix.strip())
    assert found[2] == one.translate("d", beam=beam)
    assert found[3] == "m e n"  # the model's own beginning is gone on with
    assert one.translate(LINES[0], beam=beam, prefix="k ") == found[0]


@pytest.mark.parametrize("beam", [1, 2, 4])
def test_both_engines_go_on_alike(beam: int) -> None:
    prefixes = ["k ", "m n", "d a ", "q"]
    results = [model(engine).nbest(LINES, 1, beam=beam, prefix=prefixes) for engine in ENGINES]
    for ours, theirs in zip(*results, strict=True):
        assert theirs.text == ours.text
        assert theirs.translations[0].score == pytest.approx(ours.translations[0].score, abs=1e-3)


@pytest.mark.parametrize("engine", ENGINES)
def test_the_log_probability_counts_the_prefix(engine: str) -> None:
    one = model(engine)
    ids = one.bundle.tokenizer.encode("a b c")
    constraints = [Constraints(prefix_ids(one.bundle.tokenizer, "k l "))]
    [found] = one.engine.translate([ids], SearchOptions(beam=4, nbest=3, max_extra=8), None, constraints)
    assert len(found) == 3
    for hypothesis in found:
        [values] = model("torch").engine.score([ids], [hypothesis.ids])
        assert hypothesis.log_prob == pytest.approx(sum(values), abs=1e-3)
        assert one.bundle.tokenizer.decode(hypothesis.ids).startswith("k l")


@pytest.mark.parametrize("engine", ENGINES)
def test_a_prefix_longer_than_any_translation_is_taken_as_it_is(engine: str) -> None:
    one = model(engine)
    ids = one.bundle.tokenizer.encode("a")
    prefix = tuple(one.bundle.tokenizer.encode("a b c d e f g"))
    [[best]] = one.engine.translate([ids], SearchOptions(beam=2, max_extra=1), None, [Constraints(prefix)])
    assert best.ids == prefix
    [[best]] = one.engine.translate(
        [ids], SearchOptions(beam=2, max_extra=50), None, [Constraints(prefix[:2], max_tokens=3)]
    )
    assert best.ids[:2] == prefix[:2] and len(best.ids) <= 3


def test_a_model_with_an_end_refuses_a_prefix_beyond_it() -> None:
    engine = TorchEngine(build(tiny_config(positions="learned", max_positions=8)), 1, 2)
    with pytest.raises(UserError, match="must have fewer than 8 tokens"):
        engine.translate([[5]], SearchOptions(), None, [Constraints((9,) * 8)])


def test_white_space_after_a_prefix_ends_its_last_word() -> None:
    tokenizer = model("torch").bundle.tokenizer
    open_end, closed = prefix_ids(tokenizer, "a b"), prefix_ids(tokenizer, "a b ")
    assert closed[:-1] == open_end == tuple(tokenizer.encode("a b"))
    choice = closed[-1]
    assert isinstance(choice, tuple) and tokenizer.eos_id in choice
    assert all(tokenizer.pieces([i])[0][0] in "\u2581.,;:!?" for i in choice if i != tokenizer.eos_id)
    assert prefix_ids(tokenizer, "  ") == ()


def test_a_prefix_names_the_spans_of_its_source(tmp_path: Path) -> None:
    trained = Tokenizer.train(["See the garden at home, {name}."] * 20, 400, tmp_path)
    tokenizer = Tokenizer(trained.models, protects=True)
    ids = prefix_ids(tokenizer, "At {b} see {a} and {c}", protect("See {a} at {b}."))
    assert [i for i in ids if i in tokenizer.span_ids] == [tokenizer.span_ids[1], tokenizer.span_ids[0]]


def test_only_the_first_part_of_a_cut_line_begins_with_the_prefix(tmp_path: Path) -> None:
    tokenizer = Tokenizer.train(["The house is small. We went home."] * 20, 400, tmp_path)
    one = Translator(tokenizer, Echo(), TranslationOptions(), 8)
    cut = one.text_side.reader.cut(["The house is small. We went home.", "", "home"])
    constraints = one.text_side.constraint_builder.build(
        cut, [TextConstraints("Das"), TextConstraints("Der"), TextConstraints()]
    )
    assert [bool(constraint.prefix) for constraint in constraints] == [True, *[False] * len(cut[0])]
    assert (
        one.text_side.constraint_builder.build(cut, [TextConstraints(), TextConstraints("x"), TextConstraints()]) == []
    )  # an empty line has nothing to begin


# --- words ---


@pytest.mark.parametrize("engine", ENGINES)
def test_words_carry_the_models_log_probabilities(engine: str) -> None:
    one = model(engine)
    for line, result in zip(LINES, one.nbest(LINES, 2, words=True), strict=True):
        for way in result.translations:
            assert [word.text for word in way.words] == way.text.split()
            # All but the end token's, which belongs to no word.
            [values] = model("torch").engine.score(
                [one.bundle.tokenizer.encode(line)], [one.bundle.tokenizer.encode(way.text)]
            )
            assert sum(word.log_prob for word in way.words) == pytest.approx(sum(values[:-1]), abs=1e-3)
    assert all(way.words == () for result in one.nbest(LINES, 1) for way in result.translations)


def test_the_pieces_of_a_word_are_added_up(tmp_path: Path) -> None:
    tokenizer = Tokenizer.train(["the house, the zoo a b"] * 20, 345, tmp_path)
    ids = tokenizer.encode("the zebra, a")
    values = [-float(n + 1) for n in range(len(ids) + 1)]
    words = words_of(token_words(tokenizer, ids), values)
    assert [word.text for word in words] == ["the", "zebra", ",", "a"]
    assert len(ids) > 4
    assert sum(word.log_prob for word in words) == sum(values[:-1])
    spans = protect("see {0}")
    tokens = (*tokenizer.encode("the"), tokenizer.span_ids[0])
    assert [word.text for word in words_of(token_words(tokenizer, tokens, "target", spans), [-1.0] * 9)] == [
        "the",
        "{0}",
    ]


# --- other words ---


@pytest.mark.parametrize("engine", ENGINES)
def test_the_next_tokens_log_probabilities_are_the_models(engine: str) -> None:
    one = model(engine)
    src, prefix = one.bundle.tokenizer.encode("a b c"), one.bundle.tokenizer.encode("c b")
    values = one.engine.next_log_probs(src, prefix)
    assert len(values) == one.bundle.config.vocab_size
    assert sum(map(math.exp, values)) == pytest.approx(1.0, abs=1e-4)
    for token in (*one.bundle.tokenizer.encode("a k"), one.bundle.tokenizer.eos_id):
        [scored] = model("torch").engine.score([src], [[*prefix, token]])
        assert values[token] == pytest.approx(scored[len(prefix)], abs=1e-3)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("prefix", ["", "c", "c b", "k l "])
def test_alternatives_are_the_likeliest_words_at_the_place(engine: str, prefix: str) -> None:
    one = model(engine)
    tokenizer = one.bundle.tokenizer
    found = one.alternatives("a b c", prefix, k=5, least=0)
    assert len(found) == 5
    assert [word.probability for word in found] == sorted((word.probability for word in found), reverse=True)
    src, before = tokenizer.encode("a b c"), tokenizer.encode(prefix.strip())
    # Every letter is one word of this language: its probability is that of its spelling, and of no other letter's.
    exact = {}
    for letter in "abcdefghijklmnop":
        spelt = tokenizer.encode(letter)
        [values] = model("torch").engine.score([src], [[*before, *spelt]])
        exact[letter] = math.exp(sum(values[len(before) : len(before) + len(spelt)]))
    assert found[0].word == max(exact, key=lambda letter: exact[letter])
    for word in found:
        if (
            word.word in exact and len(tokenizer.encode(word.word)) == 2
        ):  # a space and the letter: spelt in one way only
            assert word.probability == pytest.approx(exact[word.word], rel=0.02)


def test_alternatives_are_whole_words() -> None:
    one = model("torch")
    tokenizer = one.bundle.tokenizer
    for word in one.alternatives("a b c d", "d", k=8, least=0):
        assert word.word and not word.word.startswith("\u2581") and " " not in word.word
    begin = word_beginnings(tokenizer, tokenizer.encode("a")[-1])
    assert tokenizer.eos_id not in begin and tokenizer.unk_id not in begin
    spaced = [i for i in range(tokenizer.vocab_size) if tokenizer.pieces([i])[0].startswith("\u2581")]
    assert set(spaced) <= set(begin)


def test_impossible_alternatives_are_refused() -> None:
    one = model("torch")
    assert one.alternatives("  ") == []
    with pytest.raises(UserError, match="k must be at least 1"):
        one.alternatives("a b", k=0)
    with pytest.raises(UserError, match="least must be between 0 and 1"):
        one.alternatives("a b", least=1.5)
    with pytest.raises(UserError, match="alternatives are for one sentence"):
        one.alternatives("a b c. " * 200)
    with pytest.raises(ValueError, match="one entry for each of 2 sentences"):
        one.translate(["a", "b"], prefix=["c"])


def test_ctranslate2_spells_out_a_choice_by_likelihood() -> None:
    engine = model("ctranslate2").engine
    assert isinstance(engine, CTranslate2Engine)
    tokenizer = model("torch").bundle.tokenizer
    src = tokenizer.encode("a b c")
    letters = tuple(tokenizer.encode("a b c d e"))
    values = engine.next_log_probs(src, letters[:1])
    expected = sorted(letters, key=lambda token: -values[token])[:2]
    wanted = [(letters[0], token) for token in expected]
    assert engine._expand_prefixes([src], [(letters[0], letters)], 2) == [wanted]
