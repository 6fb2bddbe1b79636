"""What people want of translations, from text to text: glossaries, phrases, kept words, alignment, risk, ensembles, following; and
who does what: both engines, refusals."""

from __future__ import annotations

import json
import math
import random
import threading
import time
from dataclasses import replace
from functools import cache, partial
from itertools import pairwise
from pathlib import Path

import pytest
import torch

import regard
from regard.cli import main
from regard.data.tokenizer import NUM_SPANS, Tokenizer
from regard.errors import RegardError, UserError
from regard.evaluate import sentence_scorer
from regard.explain.explainer import run_recorded
from regard.generate.engines.ctranslate2_engine import CTranslate2Engine
from regard.generate.engines.select import make_engine
from regard.generate.engines.stepper import Stepper
from regard.generate.engines.torch_engine import TorchEngine
from regard.generate.options import Constraints, Hypothesis, SearchOptions
from regard.generate.search.candidates import Candidates, round_robin
from regard.generate.search.constrained import constrained_search
from regard.generate.search.phrases import Phrase
from regard.generate.search.seeds import sentence_rng
from regard.generate.word_tokens import phrase_of
from regard.nn.attention import set_kernel
from regard.translation.glossary import Glossary, count_term
from regard.translation.links import links_of
from regard.translation.mbr import by_expected_utility
from regard.translation.terms import find_terms
from regard.translation.translation_options import TranslationOptions
from regard.translation.translator import Translator
from regard.translation.words import TokenWords
from tests.build import SWITCHES, build, tiny_config
from tests.commands import fails
from tests.generate.oracle import Oracle, appears
from tests.tiny import make_bundle
from tests.translation.test_translator import Echo, Forgetful

pytest.importorskip("ctranslate2")

GOLDEN = Path(__file__).parents[1] / "golden" / "bundle-1"  # reverses letters
BOS, EOS, FORBIDDEN = 1, 2, (0, 1, 3)


@cache
def model(engine: str = "torch") -> regard.Model:
    return regard.load(GOLDEN, device="cpu", engine=engine)


# --- the engine with real models, against the oracle ---


def oracle_for(engines: list[TorchEngine], src: list[int], options: SearchOptions, constraint: Constraints) -> Oracle:
    """The oracle over the mean of these engines' probabilities, and the mean of what they attend to."""

    @cache
    def log_probs(tokens: tuple[int, ...]) -> list[float]:
        each = [engine.next_log_probs(src, tokens) for engine in engines]
        return [math.log(sum(map(math.exp, values)) / len(each)) for values in zip(*each, strict=True)]

    @cache
    def attended(tokens: tuple[int, ...]) -> list[float]:
        each = [recorded(engine, src, tokens)[-1] for engine in engines]
        return [sum(values) / len(each) for values in zip(*each, strict=True)][: len(src)]

    limit = max(
        len(src) + options.max_extra, len(constraint.prefix) + sum(phrase.min_length for phrase in constraint.phrases)
    )
    return Oracle(log_probs, limit, options, EOS, FORBIDDEN, constraint, attended)


def recorded(engine: TorchEngine, src: list[int], tokens: tuple[int, ...]) -> list[list[float]]:
    """Attention weights as the reference kernel computes them over the whole sentence at once."""
    set_kernel(engine.model, "reference")
    try:
        cross = run_recorded(engine.model, [*src, EOS], [BOS, *tokens]).weights["cross"]
    finally:
        set_kernel(engine.model, "by_length")
    weights: list[list[float]] = cross[max(0, len(cross) - 2)].mean(0).tolist()
    return weights


CASES = [
    {"coverage": 0.5},
    {"coverage": 2.0, "beam": 2, "alpha": 0.0},
    {"no_repeat": 2, "max_repeat": 1},
    {"groups": 2, "beam": 4, "nbest": 3},
    {"sample": True, "beam": 3, "nbest": 3, "seed": 5, "top_k": 9, "temperature": 0.7},
    {"beam": 1},
]


@pytest.mark.parametrize("fields", CASES, ids=lambda fields: "-".join(fields))
@pytest.mark.parametrize("models", [1, 2])
def test_models_are_searched_as_the_oracle_searches_them(fields: dict, models: int) -> None:
    engines = [
        TorchEngine(build(tiny_config(vocab_size=23), seed=seed), BOS, EOS, forbidden=FORBIDDEN)
        for seed in range(models)
    ]
    together = TorchEngine(engines[0].model, BOS, EOS, forbidden=FORBIDDEN, others=[e.model for e in engines[1:]])
    options = SearchOptions(**{"beam": 3, "max_extra": 2, **fields})
    draw = random.Random(models)
    srcs = [[draw.randrange(4, 23) for _ in range(length)] for length in (3, 1, 2)]
    place = frozenset({1})
    constraints = [Constraints(phrases=(Phrase(((7, 8),), None, place),)), Constraints((9,)), Constraints()]
    for src, constraint, ours in zip(
        srcs, constraints, together.translate(srcs, options, None, constraints), strict=True
    ):
        oracle = oracle_for(engines, src, options, constraint)
        slow = oracle.sample(sentence_rng(options.seed, src)) if options.sample else oracle.search()
        # What has the phrases without being told to stays as it is; greedy search gets company where it has not.
        free = replace(oracle, constraint=replace(constraint, phrases=()), limit=oracle.limit)
        plain = free.sample(sentence_rng(options.seed, src)) if options.sample else free.search()
        if all(appears(one.tokens, phrase) for one in plain for phrase in constraint.phrases):
            slow = plain
        elif options.beam < 4 and not options.sample:
            slow = replace(oracle, options=replace(options, beam=4, groups=1)).search()
        assert [one.ids for one in ours] == [one.tokens for one in slow]
        assert [one.log_prob for one in ours] == pytest.approx([one.log_prob for one in slow], abs=1e-3)
        assert [one.score for one in ours] == pytest.approx([one.score for one in slow], abs=1e-3)


@pytest.mark.parametrize("switches", ["paper", "grouped", "rotary", "deep-encoder"])
def test_attention_while_decoding_is_that_of_the_reference_kernel(switches: str) -> None:
    engine = TorchEngine(build(tiny_config(**SWITCHES[switches])), BOS, EOS)
    src, tgt = [[5, 6, 7], [10] * 11], [(8, 9, 4), (4, 5, 6)]
    stepper = Stepper(engine.models, src, EOS, 1, 8, engine.bucket, engine.device, record_attention=True)
    for position in range(4):
        newest = [(BOS, *target)[position] for target in tgt]
        stepper.step(torch.tensor(newest))
        for number, row in enumerate(stepper.attention()):
            expected = recorded(engine, src[number], tgt[number])[position]
            torch.testing.assert_close(row[: len(expected)], torch.tensor(expected), atol=1e-5, rtol=0)


@pytest.mark.parametrize("fields", [{"sample": True, "top_p": 0.9}, {"groups": 2}, {"coverage": 0.2}, {"no_repeat": 2}])
def test_no_option_lets_a_sentence_see_its_neighbours(fields: dict) -> None:
    single = build(tiny_config())
    draw = random.Random(5)
    ids = [[draw.randrange(4, 53) for _ in range(draw.randrange(1, 25))] for _ in range(12)]
    constraints = [
        Constraints(phrases=(Phrase(((7, 8),)),)) if number % 3 == 0 else Constraints() for number in range(12)
    ]
    options = SearchOptions(beam=4, max_extra=8, **fields)
    together = TorchEngine(single, BOS, EOS, batch=12).translate(ids, options, None, constraints)
    alone = [
        TorchEngine(single, BOS, EOS).translate([one], options, None, [constraint])[0]
        for one, constraint in zip(ids, constraints, strict=True)
    ]
    assert alone == together


def test_coverage_goes_on_when_the_longest_sentence_is_done() -> None:
    engine = TorchEngine(build(tiny_config()), BOS, EOS, forbidden=FORBIDDEN)
    options = SearchOptions(beam=3, max_extra=6, coverage=1.0)
    ids, constraints = [[5] * 30, [6, 7, 8]], [Constraints(max_tokens=1), Constraints()]
    together = engine.translate(ids, options, None, constraints)
    assert [
        engine.translate([one], options, None, [constraint])[0]
        for one, constraint in zip(ids, constraints, strict=True)
    ] == together


def test_an_engine_with_slots_does_in_batches_what_slots_cannot() -> None:
    draw = random.Random(7)
    ids = [[draw.randrange(4, 53) for _ in range(draw.randrange(1, 12))] for _ in range(9)]
    constraints = [
        [Constraints(), Constraints((9, 10)), Constraints(phrases=(Phrase(((7, 8),)),))][number % 3]
        for number in range(9)
    ]
    engines = [TorchEngine(build(tiny_config()), BOS, EOS, forbidden=FORBIDDEN, slots=slots) for slots in (True, False)]
    for options in (
        SearchOptions(max_extra=5),
        SearchOptions(max_extra=5, sample=True),
        SearchOptions(max_extra=5, coverage=1.0),
    ):
        ours, theirs = (engine.translate(ids, options, None, constraints) for engine in engines)
        for one, other in zip(ours, theirs, strict=True):
            assert [way.ids for way in one] == [way.ids for way in other]
            assert [way.score for way in one] == pytest.approx([way.score for way in other], abs=1e-4)


def test_two_copies_of_a_model_translate_as_one() -> None:
    twice = regard.load([GOLDEN, GOLDEN], device="cpu")
    lines = ["a b c", "p o n m"]
    assert isinstance(twice.engine, TorchEngine)  # CTranslate2 knows no ensembles
    assert twice.translate(lines) == model().translate(lines)
    assert twice.score(lines, lines) == pytest.approx(model().score(lines, lines), abs=1e-4)


def test_models_of_other_vocabularies_are_refused_by_name(tmp_path: Path) -> None:
    other = make_bundle(tmp_path / "other")
    with pytest.raises(UserError, match=r"other: the models of an ensemble must share a tokenizer"):
        regard.load([GOLDEN, other.folder], device="cpu")
    with pytest.raises(UserError, match="engine ctranslate2 cannot do ensembles"):
        regard.load([GOLDEN, GOLDEN], device="cpu", engine="ctranslate2")


# --- who can do what ---


@pytest.mark.parametrize(
    ("search", "name"),
    [
        ({"sample": True}, "sample"),
        ({"groups": 2}, "groups"),
        ({"coverage": 0.2}, "coverage"),
        ({"no_repeat": 3, "max_repeat": 2}, "no_repeat and max_repeat"),
        ({"glossary": {"a": "q"}}, "glossary"),  # a letter that it garbles where the source has it
        ({"phrases": ["k"]}, "phrases"),
        ({"glossary": {"a": "q"}, "phrases": ["k"]}, "glossary and phrases"),
        ({"glossary": {"a": "q"}, "coverage": 0.2}, "coverage and glossary"),
    ],
)
def test_what_ctranslate2_cannot_do_is_refused_or_left_to_torch(
    search: dict, name: str, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "regard.engines")
    with pytest.raises(UserError, match=f"engine ctranslate2 cannot do {name}; use --engine torch"):
        model("ctranslate2").translate("a b c", **search)
    auto = regard.load(GOLDEN, device="cpu")
    assert isinstance(auto.engine, CTranslate2Engine)
    assert (
        auto.translate("a b c", **search) == auto.translate("a b c", **search) == model().translate("a b c", **search)
    )
    if {"glossary", "phrases"} >= set(search):
        why = "left to torch where a phrase is missing: ctranslate2 cannot enforce phrases"
    else:
        why = "left to torch: ctranslate2 cannot do it"
    assert caplog.messages == [f"{name} {'are' if ' and ' in name else 'is'} {why}"]  # once, and nothing is printed
    assert capfd.readouterr().err == ""


def test_following_is_refused_or_left_to_torch(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "regard.engines")
    with pytest.raises(UserError, match="cannot do streaming"):
        list(model("ctranslate2").follow("a b c"))
    auto = make_engine(model().bundle, "auto", "cpu")
    src, options = model().bundle.tokenizer.encode("a b c"), model().options.search
    assert list(auto.stream(src, options)) == list(model().engine.stream(src, options))
    assert "streaming is left to torch" in caplog.text


# --- glossaries ---


def test_a_glossary_is_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "terms.tsv"
    path.write_text("# ours\ncat\tKatze\n\ndog \t Hund\ndog\tHunde\n", encoding="utf-8")
    assert Glossary.read(path) == Glossary.of({"cat": "Katze", "dog": ["Hund", "Hunde"]})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("cat Katze\n", "line 1: must be a source term, a tab and a target term"),
        ("cat\tKatze\ndog\t\n", "line 2: must be"),
        ("a\tb\tc\n", "line 1: must be"),
        ("# nothing\n\n", "must hold at least one term"),
    ],
)
def test_a_glossary_that_is_none_is_refused_by_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "terms.tsv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=message):
        Glossary.read(path)


def test_terms_are_found_as_whole_words_and_the_longest_first() -> None:
    glossary = Glossary.of({"cat": "Katze", "wild cat": "Wildkatze", "US": "USA", "c++": "C++"})

    def wanted(text: str) -> list[str]:
        return [variants[0] for variants in glossary.find(text)]

    assert wanted("A cat.") == ["Katze"]
    assert wanted("A Wild Cat and a CAT") == ["Wildkatze", "Katze"]
    assert wanted("concatenate cats") == []
    assert wanted("Tell us about the US, in c++!") == ["USA", "C++"]
    assert wanted("US") == ["USA"] and wanted("us") == []
    assert glossary.find("cat cat") == {("Katze",): [(0, 3), (4, 7)]}
    assert glossary.find("cat cat", [(0, 3)]) == {("Katze",): [(4, 7)]}
    with pytest.raises(UserError, match="must have words on both sides"):
        Glossary.of({"cat": " "})


@pytest.mark.parametrize("beam", [1, 2, 4])
def test_a_term_is_said_where_the_source_has_it(beam: int) -> None:
    lines = ["a b c", "p o n m", "d"]
    found = model().translate(lines, beam=beam, glossary={"b": "k", "x": "l"})
    assert "k" in found[0].split()
    assert found[1:] == model().translate(lines[1:], beam=beam)
    both = model().translate(lines[0], beam=beam, glossary={"b": ["k", "l"]})
    assert {"k", "l"} & set(both.split())


def test_phrases_appear_as_whole_words() -> None:
    for engine_options in ({"beam": 1}, {"beam": 4}, {"sample": True, "beam": 2}, {"groups": 2, "beam": 4}):
        [result] = model().nbest(["a b c"], 1, phrases=["k l", "o"], **engine_options)
        assert " k l " in f" {result.text} " and " o " in f" {result.text} "
    each = model().translate(["a b", "c d"], phrases=[["k"], []])
    assert "k" in each[0].split() and each[1] == model().translate("c d")


def test_wrong_phrases_are_refused() -> None:
    with pytest.raises(UserError, match="must not be empty"):
        model().translate("a", phrases=[" "])
    with pytest.raises(TypeError, match="a list of phrases, but is one string"):
        model().translate("a", phrases="b")
    with pytest.raises(TypeError, match="but is a mixture"):
        model().translate("a", phrases=["b", ["c"]])
    with pytest.raises(ValueError, match="one entry for each of 2 sentences"):
        model().translate(["a", "b"], phrases=[["c"]])
    tokenizer = model().bundle.tokenizer
    assert phrase_of(tokenizer, ("a b",)).variants == (tuple(tokenizer.encode("a b")),)


# --- kept words ---


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    lines = ["The house is small, but the garden is large.", "We went home; it was late. Nobody spoke!"] * 20
    return Tokenizer.train(lines, 400, tmp_path_factory.mktemp("tokenizer"))


KEPT = TranslationOptions(keep=("garden", "The house"))


def test_kept_words_go_around_a_model_with_reserved_pieces(tokenizer: Tokenizer) -> None:
    careful = Tokenizer(tokenizer.models, protects=True)
    engine = Echo()
    line = "The house: gardens, the garden at https://a.de/garden"
    assert Translator(careful, engine, KEPT, 100).translate([line])[0].text == line
    (asked,) = engine.asked
    assert "".join(careful.decode(asked).split()) == ":gardens,theat"
    lost = Forgetful(careful)
    assert Translator(careful, lost, KEPT, 100).translate([line])[0].text == line


def test_a_model_without_reserved_pieces_is_shown_kept_words_and_must_say_them(tokenizer: Tokenizer) -> None:
    class Changing(Echo):
        """Says park for garden, as a translator does."""

        takes_phrases = False

        def translate(self, ids, options, on_finished=None, constraints=()):
            texts = [tokenizer.decode(sentence).replace("garden", "park") for sentence in ids]
            return super().translate([tokenizer.encode(text) for text in texts], options, on_finished)

    engine = Changing()
    lines = ["We went home, the garden is small", "The house is late", "garden"]
    found = Translator(tokenizer, engine, KEPT, 100).translate(lines)
    assert [result.text for result in found] == lines
    asked = [tokenizer.decode(ids) for ids in engine.asked]
    assert asked[1] == "The house is late"  # it was said, so it was not taken apart
    assert asked[3:] == ["We went home, the", "is small"]


@pytest.mark.parametrize("engine", ["torch", "ctranslate2"])
def test_kept_words_are_in_the_translation_with_both_engines(engine: str) -> None:
    for line in ("a xyz b", "xyz", "k l m xyz", "xyz a xyz b"):
        text = model(engine).translate(line, keep=["xyz"])
        assert text.split().count("xyz") >= 1, (line, text)
    assert model(engine).translate("a b", keep="xyz") == model(engine).translate("a b")
    with pytest.raises(UserError, match="keep must be words, none of them empty"):
        model(engine).translate("a", keep=[" "])


# --- alignment ---


def test_links_are_between_words() -> None:
    target, source = TokenWords(["zu", "Hause"], [0, 1, 1]), TokenWords(["at", "home"], [0, 1])
    assert links_of(target, source, [[0.2, 0.7, 0.1], [0.6, 0.4, 0.0], [0.0, 0.95, 0.05], [0, 0, 1]]) == (
        (0, 1),
        (1, 1),
    )


@pytest.mark.parametrize("engine", ["torch", "ctranslate2"])
def test_alignment_follows_the_reversal(engine: str) -> None:
    lines = ["a b c", "p o n m", "k l"]
    right = total = 0
    for result in model(engine).nbest(lines, 1, alignment=True):
        [way] = result.translations
        assert list(result.source_words) == result.source.split()
        assert [word.text for word in way.words] == way.text.split()
        for target, source in way.alignment:
            total += 1
            right += way.words[target].text == result.source_words[source]
    assert right == total >= 8


def test_links_of_a_cut_line_are_counted_through() -> None:
    line = "a b c. " * 60
    [result] = model().nbest([line], 1, alignment=True)
    [way] = result.translations
    assert len(model()._translator(model().options).text_side.reader.cut([line])[0]) > 1
    assert max(target for target, _ in way.alignment) == len(way.words) - 1
    assert max(source for _, source in way.alignment) > len(result.source_words) // 2


# --- risk ---


def test_the_choice_of_least_risk_is_the_mean_of_others() -> None:
    utility = sentence_scorer("chrf")
    texts = ["the cat sat", "the cat sat down", "a dog", "the cat sat"]
    for weights in ([1.0, 1.0, 1.0, 1.0], [0.1, 0.2, 5.0, 0.1]):
        expected = [
            sum(weight * utility(one, other) for other, weight in zip(texts, weights, strict=True)) for one in texts
        ]
        order = by_expected_utility(texts, utility, weights)
        assert [expected[place] for place in order] == sorted(expected, reverse=True)
        assert (order[0] == 2) == (weights[2] > 1)
    assert by_expected_utility(texts, utility) == by_expected_utility(texts, utility, [1.0] * 4)


@pytest.mark.parametrize("engine", ["torch", "ctranslate2"])
@pytest.mark.parametrize("metric", ["bleu", "chrf"])
def test_mbr_chooses_among_the_whole_beam(engine: str, metric: str) -> None:
    lines = ["a b c", "p o n m e"]
    beams = model(engine).nbest(lines, 6)
    utility = sentence_scorer(metric, model().bundle.target)
    chosen = model(engine).nbest(lines, 2, beam=6, mbr=metric)
    for beam, result in zip(beams, chosen, strict=True):
        weights = [math.exp(way.score) for way in beam.translations]
        order = by_expected_utility([way.text for way in beam.translations], utility, weights)
        assert [way.text for way in result.translations] == [beam.translations[place].text for place in order[:2]]
    with pytest.raises(UserError, match="a beam of at least 3"):
        model(engine).translate("a", beam=2, mbr=metric)


def test_mbr_chooses_among_samples() -> None:
    samples = model().nbest(["a b c"], 8, sample=True, temperature=2.0)
    text = model().translate("a b c", beam=8, sample=True, temperature=2.0, mbr="chrf")
    texts = [way.text for way in samples[0].translations]
    assert text == texts[by_expected_utility(texts, sentence_scorer("chrf"))[0]]


# --- following ---


@pytest.mark.filterwarnings("ignore:asked for, but not in the translation")  # of 60 sentences some lack the term
@pytest.mark.parametrize("search", [{}, {"beam": 1}, {"prefix": "k "}, {"keep": ["b"]}, {"glossary": {"a": "k"}}])
def test_following_ends_in_the_translation_and_takes_nothing_back(search: dict) -> None:
    for line in ("a b c", "p o n m", "a b c. " * 60, ""):
        shown = list(model().follow(line, **search))
        assert (shown[-1] if shown else "") == model().translate(line, **search)
        assert all(later.startswith(earlier) for earlier, later in pairwise(shown))
    assert len(list(model().follow("p o n m", beam=1))) > 2


def test_only_a_search_can_be_followed() -> None:
    with pytest.raises(UserError, match="only a single translation without reranking can be followed"):
        list(model().follow("a", beam=4, mbr="chrf"))


# --- the command line ---


def out(capfd: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["translate", "-m", str(GOLDEN), "--device", "cpu", "--engine", "torch", *arguments]) == 0
    return capfd.readouterr().out


def test_the_command_takes_what_python_takes(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    terms = tmp_path / "terms.tsv"
    terms.write_text("b\tk\n", encoding="utf-8")
    ask = partial(out, capfd)
    own = partial(model().translate, "a b c")
    assert ask("a b c", "--glossary", str(terms)).strip() == own(glossary={"b": "k"})
    assert ask("a b c", "--prefix", "k ", "--phrase", "o").strip() == own(prefix="k ", phrases=["o"])
    assert ask("a b c", "--keep", "b").strip() == own(keep=["b"])
    drawn = own(sample=True, temperature=2.0, top_k=9, top_p=0.9, seed=4)
    assert (
        ask(*"a,--sample,--temperature,2,--top-k,9,--top-p,0.9,--seed,4".replace("a,", "a b c,").split(",")).strip()
        == drawn
    )
    assert ask("a b c", "--mbr", "chrf", "--beam", "5").strip() == own(mbr="chrf", beam=5)
    drawn = own(groups=2, diversity=1, coverage=0.2)
    assert ask("a b c", "--groups", "2", "--diversity", "1", "--coverage", "0.2").strip() == drawn
    assert ask("a b c", "--no-repeat", "2", "--max-repeat", "1").strip() == own(no_repeat=2, max_repeat=1)
    assert ask("a b c", "p o", "--follow") == "".join(f"{line}\n" for line in model().translate(["a b c", "p o"]))
    assert ask("a b c", "-m", str(GOLDEN)).strip() == own()


def test_json_has_words_and_links(capfd: pytest.CaptureFixture[str]) -> None:
    [document] = json.loads(out(capfd, "a b c", "--json", "--words", "--alignment"))
    [way] = document["translations"]
    assert [word["text"] for word in way["words"]] == way["text"].split()
    assert document["source_words"] == ["a", "b", "c"] and len(way["alignment"]) == 3
    [plain] = json.loads(out(capfd, "a b c", "--json"))
    assert set(plain) == {"source", "translations"} and set(plain["translations"][0]) == {"text", "score"}


def test_wrong_commands_get_one_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    base = ("translate", "-m", str(GOLDEN), "--device", "cpu", "a")
    assert "add --json" in fails(capfd, *base, "--words")
    assert "leave out --json" in fails(capfd, *base, "--follow", "--json")
    assert "add --sample" in fails(capfd, *base, "--seed", "3")
    assert "cannot do sample" in fails(capfd, *base, "--engine", "ctranslate2", "--sample")
    assert "no-terms.tsv" in fails(capfd, *base, "--glossary", str(tmp_path / "no-terms.tsv"))
    text = tmp_path / "text"
    text.write_text("a\n", encoding="utf-8")
    refused = fails(capfd, "evaluate", "--hypothesis", str(text), "--reference", str(text), "--no-repeat", "2")
    assert "leave out --no-repeat" in refused


@pytest.mark.parametrize("engine", ["torch", "ctranslate2"])
def test_score_gives_the_tokens_log_probabilities(
    engine: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_text("a b c\nk l\n", encoding="utf-8")
    target.write_text("c b a\nl k\n", encoding="utf-8")
    arguments = ["score", "-m", str(GOLDEN), "--device", "cpu", "--engine", engine, "--source", str(source)]
    assert main([*arguments, "--target", str(target), "--json"]) == 0
    document = json.loads(capfd.readouterr().out)
    expected = model().score(["a b c", "k l"], ["c b a", "l k"])
    for entry, log_prob in zip(document, expected, strict=True):
        assert entry["log_prob"] == pytest.approx(log_prob, abs=1e-3)
        assert sum(entry["token_log_probs"]) == pytest.approx(log_prob, abs=1e-3)
        assert len(entry["token_log_probs"]) == len(model().bundle.tokenizer.encode(entry["target"])) + 1


# --- what a second look found ---


@pytest.mark.parametrize(
    ("term", "text"), [("istanbul", "İSTANBUL güzel"), ("μm", "5 µm"), ("猫", "我喜欢猫和狗"), ("Cat", "a Cat")]
)
def test_terms_are_found_in_any_script_and_case(term: str, text: str) -> None:
    assert list(Glossary.of({term: "x", "Zoo": "y"}).find(text)) == [("x",)]


def test_words_are_found_where_no_spaces_are() -> None:
    assert find_terms("使用Regard翻译", ["Regard"]) == [(2, 8)]
    assert Glossary.of({"猫": "cat"}).find("我喜欢猫和狗") == {("cat",): [(3, 4)]}


def test_a_term_with_capitals_counts_before_one_without() -> None:
    glossary = Glossary.of({"polish": "polieren", "Polish": "polnisch"})
    assert list(glossary.find("Polish it")) == [("polnisch",)]
    assert list(glossary.find("polish it")) == [("polieren",)]


@pytest.mark.parametrize("engine", ["torch", "ctranslate2"])
def test_what_is_asked_for_holds_where_a_kept_word_is_lost(engine: str) -> None:
    """The golden model writes letters alone, so that a kept word is always lost, and what stands around it translated by itself."""
    text = model(engine).translate("a b c Qx d e", keep=["Qx"], prefix="b")
    assert isinstance(text, str) and text.startswith("b") and "Qx" in text


def test_numbers_that_are_none_are_refused() -> None:
    for fields in ({"alpha": math.nan}, {"sample": True, "temperature": math.nan}, {"diversity": 2.0}, {"nbest": 0}):
        with pytest.raises(UserError):
            SearchOptions(**fields)
    with pytest.raises(UserError, match="call `nbest` for more"):
        model().translate("a", nbest=2)


# --- where things went wrong once ---


@pytest.mark.parametrize("slots", [False, True])
@pytest.mark.parametrize("fields", [{}, {"beam": 1}, {"sample": True}])
def test_a_model_that_computes_no_numbers_is_an_error_and_no_empty_line(slots: bool, fields: dict) -> None:
    spoilt = build(tiny_config())
    spoilt.get_parameter("embedding.weight").data.fill_(math.nan)
    engine = TorchEngine(spoilt, BOS, EOS, forbidden=FORBIDDEN, slots=slots)
    options = SearchOptions(max_extra=3, **{"beam": 2, **fields})
    with pytest.raises(RegardError, match="no translation was found: the model's outputs are not finite"):
        engine.translate([[5, 6], [7]], options)
    with pytest.raises(RegardError, match="not finite"):
        list(engine.stream([5, 6], options))


def test_samples_are_not_called_a_beam() -> None:
    with pytest.raises(UserError, match="mbr chooses among at least 3 samples, but beam is 1; use a wider beam"):
        model().translate("a b", sample=True, mbr="chrf")


def test_space_around_kept_words_means_nothing() -> None:
    assert TranslationOptions(keep=(" xyz ", "a b\t")).keep == ("xyz", "a b")
    assert "xyz" in model("ctranslate2").translate("a xyz b", keep=[" xyz "]).split()


def test_more_words_are_kept_than_there_are_reserved_pieces(tokenizer: Tokenizer) -> None:
    """A model without reserved pieces has no limit to them."""

    class Losing(Echo):
        takes_phrases = False

        def translate(self, ids, options, on_finished=None, constraints=()):
            return super().translate([tokenizer.encode("home") for _ in ids], options, on_finished)

    names = [f"N{number}" for number in range(NUM_SPANS + 5)]
    line = "We " + " home ".join(names)
    assert not tokenizer.protects
    [result] = Translator(tokenizer, Losing(), TranslationOptions(keep=tuple(names)), 1000).translate([line])
    assert [word for word in result.text.split() if word in names] == names


def test_prefixes_of_many_lines_are_spelt_out_together(monkeypatch: pytest.MonkeyPatch) -> None:
    found = regard.load(GOLDEN, device="cpu", engine="ctranslate2")
    engine = found.engine
    assert isinstance(engine, CTranslate2Engine)
    lines = [" ".join(random.Random(n).choices("abcdefgh", k=n % 5 + 1)) for n in range(20)]
    alone = [found.translate(line, prefix="b ") for line in lines]
    calls = []

    class Counting:
        def __init__(self, translator) -> None:
            self.translator = translator

        def translate_batch(self, *args, **fields):
            calls.append(len(args[0]))
            return self.translator.translate_batch(*args, **fields)

        def score_batch(self, *args, **fields):
            return self.translator.score_batch(*args, **fields)

    monkeypatch.setattr(engine, "_translator", Counting(engine._translator))
    assert found.translate(lines, prefix="b ") == alone
    assert calls[:2] == [16, 4] and len(calls) < 8


def test_torch_is_loaded_once_by_threads_that_come_together(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine(model().bundle, "auto", "cpu")
    assert isinstance(engine, CTranslate2Engine)
    loaded = []

    def slowly(*args: object) -> object:
        time.sleep(0.2)
        loaded.append(args)
        return object()

    monkeypatch.setattr(TorchEngine, "from_bundle", slowly)
    found: list[object] = []
    threads = [threading.Thread(target=lambda: found.append(engine.torch_engine)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(loaded) == 1 and len(set(map(id, found))) == 1


@pytest.mark.parametrize("engine", ["torch", "auto"])
def test_explanations_share_the_engines_weights(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = regard.load(GOLDEN, device="cpu", engine=engine)
    torch_engine = found.engine.torch_engine if isinstance(found.engine, CTranslate2Engine) else found.engine
    monkeypatch.setattr(TorchEngine, "from_bundle", None)  # nothing more is loaded
    assert found.explain("a b c").translation == found.translate("a b c")
    explainer = found._explainer
    assert explainer.engine is torch_engine
    first, second = (next(one.parameters()) for one in (explainer.engine.model, explainer.recorded_model))
    assert first is second


def test_candidates_take_turns_as_plain_python_has_it() -> None:
    draw = random.Random(4)
    for _ in range(20):
        count = draw.randrange(1, 40)
        ranks = [[draw.choice([-math.inf, -1.0, -2.0, -draw.random()]) for _ in range(count)] for _ in range(3)]
        missing = [[draw.randrange(4) for _ in range(count)] for _ in range(3)]
        places = torch.arange(count).expand(3, -1)
        found = round_robin(Candidates(torch.tensor(ranks), places, places, torch.tensor(ranks)), torch.tensor(missing))
        for unit in range(3):
            sorts: dict[int, list[int]] = {}
            alive = [place for place in range(count) if ranks[unit][place] > -math.inf]
            for place in sorted(alive, key=lambda place: -ranks[unit][place]):
                sorts.setdefault(missing[unit][place], []).append(place)
            turns = [some[turn] for turn in range(count) for _, some in sorted(sorts.items()) if turn < len(some)]
            assert found.tokens[unit].tolist()[: len(alive)] == turns


# --- terms that are said otherwise ---


@pytest.mark.parametrize(
    ("text", "term", "is_said"),
    [
        ("Er ist Vizepräsident.", "Präsident", True),
        ("mit den Geräten", "Geräte", True),
        ("Die US-Behörden", "Behörden", True),
        ("Menschen", "Leute", False),
        ("Hausen", "Haus", False),
        ("im Haus", "haus", True),
        ("das Geräte", "Geräten", False),
    ],
)
def test_a_term_is_known_again_inside_longer_words(text: str, term: str, is_said: bool) -> None:
    assert bool(count_term(text, [term])) == is_said


def test_what_is_said_otherwise_is_insisted_on_only_when_it_gets_lost() -> None:
    one = Phrase(((7,),), count_in=lambda ids: ids.count(70) + ids.count(7))
    other = Phrase(((8,),), count_in=lambda ids: ids.count(8))
    constraint = Constraints(phrases=(one, other))
    asked: list[tuple[Phrase, ...]] = []

    def search(answers: list[tuple[int, ...]]):
        def translate(ids, options, on_finished, constraints):
            asked.extend(constraint.phrases for constraint in constraints)
            return [[Hypothesis(answers.pop(0), 0.0, 0.0)] for _ in ids]

        return translate

    def no_score(src, tgt):
        raise AssertionError("there is nothing to choose from")

    def run(plain: tuple[int, ...], *insisting: tuple[int, ...]) -> tuple[tuple[int, ...], list[tuple[Phrase, ...]]]:
        asked.clear()
        [[best]] = constrained_search(
            [[5]], SearchOptions(), None, [constraint], search([plain]), search(list(insisting)), no_score
        )
        return best.ids, asked[1:]

    assert run((70, 8)) == ((70, 8), [])
    assert run((70, 9), (70, 8)) == ((70, 8), [(other,)])
    assert run((70, 9), (9, 8), (7, 8)) == ((7, 8), [(other,), (one, other)])
    assert run((9, 9), (7, 8)) == ((7, 8), [(one, other)])
