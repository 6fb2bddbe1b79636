"""Language models in CTranslate2: what torch's engine writes, the same text in any batch, samples, stops; and what torch does."""

from __future__ import annotations

import collections
import logging
import math
import random
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from regard.bundle import Bundle
from regard.data.huggingface import Controls
from regard.data.tokenizer import Tokenizer
from regard.errors import UserError
from regard.generate.engines import ctranslate2_cache
from regard.generate.engines.ctranslate2_text_engine import CTranslate2TextEngine
from regard.generate.engines.select import make_text_engine, text_refusal
from regard.generate.engines.torch_engine import TorchEngine
from regard.generate.options import Constraints, Hypothesis, SearchOptions
from regard.generate.search.phrases import Phrase
from regard.importing.transformers import import_model
from tests.families.checkpoints import CASES, PIECES, make_original

pytest.importorskip("ctranslate2")

LIMIT = 12
GREEDY = SearchOptions(beam=1, alpha=0.0, max_extra=LIMIT)
DECODERS = [name for name, (kind, _) in CASES.items() if kind.endswith(("CausalLM", "LMHeadModel"))]


def make_bundle(
    name: str, folder: Path, forbidden: tuple[int, ...] = (), stops: tuple[int, ...] = (2,), **changes: Any
) -> Bundle:
    """A random model, with end tokens that it really writes."""
    make_original(name, **changes).save_pretrained(folder / "original")
    bundle = import_model(folder / "original", folder / "bundle", compare=False).bundle
    controls = Controls(PIECES, start=1, end=stops[0] if stops else -1, stops=stops, forbidden=forbidden)
    return with_controls(bundle, controls)


def with_controls(bundle: Bundle, controls: Controls) -> Bundle:
    changed = replace(bundle)
    vars(changed)["tokenizer"] = Tokenizer((), controls=controls)  # instead of the one in its folder
    return changed


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return make_bundle("llama", tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def fp32(bundle: Bundle) -> CTranslate2TextEngine:
    return CTranslate2TextEngine(bundle, "fp32")


@pytest.fixture(scope="module")
def torch_engine(bundle: Bundle) -> TorchEngine:
    return TorchEngine.from_bundle(bundle, "cpu")


def make_prompts(number: int = 9, longest: int = 17) -> list[list[int]]:
    draw = random.Random(5)
    return [[draw.randrange(3, PIECES) for _ in range(draw.randrange(0, longest))] for _ in range(number)]


def check_same(found: list[list[Hypothesis]], expected: list[list[Hypothesis]]) -> None:
    assert [[one.ids for one in some] for some in found] == [[one.ids for one in some] for some in expected]
    for one, other in zip((h for some in found for h in some), (h for some in expected for h in some), strict=True):
        assert one.log_prob == pytest.approx(other.log_prob, abs=1e-3)
        assert one.score == pytest.approx(other.score, abs=1e-3)
        assert one.ended == other.ended


@pytest.mark.parametrize("name", DECODERS)
def test_every_family_writes_what_torch_writes(name: str, tmp_path: Path) -> None:
    bundle = make_bundle(name, tmp_path)
    assert text_refusal(bundle) is None
    prompts = make_prompts()
    engine, expected = CTranslate2TextEngine(bundle, "fp32"), TorchEngine.from_bundle(bundle, "cpu")
    check_same(engine.generate(prompts, GREEDY), expected.generate(prompts, GREEDY))


@pytest.mark.parametrize(
    "options",
    [
        {"beam": 3, "nbest": 3, "alpha": 0.6},
        {"beam": 4, "nbest": 2},
        {"repetition_penalty": 1.7},
        {"no_repeat": 2},
    ],
    ids=str,
)
def test_options_find_what_torch_finds(
    options: dict[str, Any], fp32: CTranslate2TextEngine, torch_engine: TorchEngine
) -> None:
    chosen = SearchOptions(**{"beam": 1, "alpha": 0.0, "max_extra": LIMIT, **options})
    # The rules do not count a prompt's first token: here it comes again.
    prompts = [[9, 9, 9, *prompt] for prompt in make_prompts()]
    found = fp32.generate(prompts, chosen)
    check_same(found, torch_engine.generate(prompts, chosen))
    assert any(one.ended for some in found for one in some) and any(not one.ended for some in found for one in some)


def test_prefixes_and_limits_are_those_of_torch(fp32: CTranslate2TextEngine, torch_engine: TorchEngine) -> None:
    prompts = make_prompts(6)
    constraints = [
        Constraints(),
        Constraints(prefix=(9, 8)),
        Constraints(max_tokens=3),
        Constraints(prefix=(7,), max_tokens=1),
        Constraints(prefix=(9, 8, 7), max_tokens=5),
        Constraints(),
    ]
    found = fp32.generate(prompts, GREEDY, constraints=constraints)
    check_same(found, torch_engine.generate(prompts, GREEDY, constraints=constraints))
    assert found[3][0].ids == (7,) and found[1][0].ids[:2] == (9, 8) and len(found[2][0].ids) <= 3


@pytest.mark.parametrize("weights", ["int8", "fp32"])
def test_a_prompt_gets_the_same_text_in_any_batch(weights: Any, bundle: Bundle) -> None:
    engine = CTranslate2TextEngine(bundle, weights)
    draw = random.Random(6)
    prompts = [[draw.randrange(3, PIECES) for _ in range(length)] for length in (8, 8, 3, 8, 1, 12, 8, 3, 8, 8, 12)]
    together = engine.generate(prompts, GREEDY)
    assert [engine.generate([prompt], GREEDY)[0] for prompt in prompts] == together
    order = random.Random(1).sample(range(len(prompts)), len(prompts))
    small = CTranslate2TextEngine(bundle, weights, batch=2)
    assert small.generate([prompts[n] for n in order], GREEDY) == [together[n] for n in order]


def test_int8_computes_prompts_of_one_length_together(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = CTranslate2TextEngine(bundle)
    sizes: list[int] = []
    search = engine._search

    def counting(jobs: Any, options: SearchOptions) -> list[list[Hypothesis]]:
        sizes.append(len(jobs))
        return search(jobs, options)

    monkeypatch.setattr(engine, "_search", counting)
    done: list[int] = []
    engine.generate([[5, 6], [7, 8, 9], [9, 9], [4, 4]], GREEDY, lambda numbers: done.extend(numbers))
    assert sorted(sizes) == [1, 3] and sorted(done) == [0, 1, 2, 3]


# --- samples ---


def sampling(n: int = 1, **options: Any) -> SearchOptions:
    return SearchOptions(
        **{"beam": n, "nbest": n, "alpha": 0.0, "max_extra": LIMIT, "sample": True, "seed": 1, **options}
    )


def test_samples_depend_on_the_seed_and_the_prompt_alone(bundle: Bundle, fp32: CTranslate2TextEngine) -> None:
    prompts = make_prompts(4)
    together = fp32.generate(prompts, sampling(3))
    assert [fp32.generate([prompt], sampling(3))[0] for prompt in reversed(prompts)] == together[::-1]
    assert CTranslate2TextEngine(bundle, "fp32").generate(prompts, sampling(3)) == together
    assert fp32.generate(prompts, sampling(3, seed=2)) != together
    assert len({one.ids for one in together[1]}) == 3
    for prompt, some in zip(prompts, together, strict=True):
        for one in some:
            scores = fp32.score([prompt], [one.ids])[0]
            assert one.log_prob == pytest.approx(sum(scores if one.ended else scores[:-1]), abs=1e-3)


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p"), [(0.5, 0, 1.0), (1.0, 5, 1.0), (2.0, 0, 0.6), (0.7, 12, 0.8)]
)
def test_samples_come_from_the_distribution_that_is_asked_for(
    temperature: float, top_k: int, top_p: float, fp32: CTranslate2TextEngine, torch_engine: TorchEngine
) -> None:
    prompt, number = [9, 11, 30, 8], 4000
    chosen = sampling(number, max_extra=1, temperature=temperature, top_k=top_k, top_p=top_p)
    drawn = collections.Counter(one.ids[0] if one.ids else 2 for one in fp32.generate([prompt], chosen)[0])
    scaled = {token: value / temperature for token, value in enumerate(torch_engine.next_log_probs(prompt, []))}
    order = sorted(scaled, key=lambda token: -scaled[token])[: top_k or PIECES]
    total = sum(math.exp(scaled[token]) for token in order)
    expected, reached = {}, 0.0
    for token in order:
        if reached < top_p:
            expected[token] = math.exp(scaled[token]) / total
        reached += math.exp(scaled[token]) / total
    kept = sum(expected.values())
    assert set(drawn) <= set(expected)
    assert sum(abs(drawn[token] / number - value / kept) for token, value in expected.items()) / 2 < 0.06


# --- ends ---


def test_several_ends_and_forbidden_tokens(tmp_path: Path) -> None:
    """What it would like to write most is forbidden; log-probabilities are still those of the model."""
    plain = make_bundle("gpt2", tmp_path)
    written = [one.ids for [one] in CTranslate2TextEngine(plain, "fp32").generate(make_prompts(), GREEDY)]
    commonest = [token for token, _ in collections.Counter(token for ids in written for token in ids).most_common(4)]
    controls = Controls(PIECES, start=1, end=2, stops=(2, commonest[2]), forbidden=tuple(commonest[:2]))
    bundle = with_controls(plain, controls)
    engine, expected = CTranslate2TextEngine(bundle, "fp32"), TorchEngine.from_bundle(bundle, "cpu")
    for options in (GREEDY, replace(GREEDY, beam=3, nbest=2)):
        found = engine.generate(make_prompts(), options)
        check_same(found, expected.generate(make_prompts(), options))
        assert not {token for some in found for one in some for token in one.ids} & set(commonest[:3])
    for some in engine.generate(make_prompts(3), sampling(4)):
        assert not {token for one in some for token in one.ids} & set(commonest[:3])
    prompts, texts = [[5, 6], [7]], [[8, 9, 10], []]
    for ours, theirs in zip(engine.score(prompts, texts), expected.score(prompts, texts), strict=True):
        assert ours == pytest.approx(theirs, abs=1e-4)


@pytest.mark.parametrize("kind", ["ctranslate2", "torch"])
@pytest.mark.parametrize("sample", [False, True])
def test_a_text_ends_as_soon_as_it_is_complete(kind: str, sample: bool, bundle: Bundle) -> None:
    engine = CTranslate2TextEngine(bundle, "int8") if kind == "ctranslate2" else TorchEngine.from_bundle(bundle, "cpu")
    options = sampling(3) if sample else GREEDY
    prompts = [[9, 8, 7], [30, 31, 32], [40, 41, 42]]
    whole = engine.generate(prompts, options)
    calls: collections.Counter[int] = collections.Counter()

    def after(number: int, length: int) -> Constraints:
        def ends(ids: Any) -> bool:
            calls[number] += 1
            return len(ids) >= length

        return Constraints(ends=ends)

    found = engine.generate(prompts, options, constraints=[after(0, 4), Constraints(), after(2, 7)])
    assert [one.ids for one in found[1]] == [one.ids for one in whole[1]]
    for number, length in ((0, 4), (2, 7)):
        assert sorted(one.ids for one in found[number]) == sorted(one.ids[:length] for one in whole[number])
        assert calls[number] <= length * options.beam  # it was not asked any more, so that nothing came after
        assert all(one.ended for one in found[number])


def test_a_complete_hypothesis_of_a_beam_ends(torch_engine: TorchEngine) -> None:
    options = SearchOptions(beam=3, nbest=3, alpha=0.0, max_extra=LIMIT)
    found = torch_engine.generate([[9, 8, 7]], options, constraints=[Constraints(ends=lambda ids: ids[-1] % 2 == 0)])
    for one in found[0]:
        assert all(token % 2 for token in one.ids[:-1])


def test_streams_grow_to_the_whole_text(fp32: CTranslate2TextEngine, bundle: Bundle) -> None:
    prompt = [30, 31, 32]
    for options in (GREEDY, sampling(), sampling(3), replace(GREEDY, beam=3), replace(GREEDY, repetition_penalty=1.5)):
        grown = list(fp32.stream(prompt, options))
        assert grown[-1] == fp32.generate([prompt], options)[0][0].ids
        assert all(later[: len(one)] == one for one, later in pairwise(grown))
        assert (len(grown) > 3) == (options.beam == 1)
    prefixed = list(fp32.stream(prompt, GREEDY, Constraints(prefix=(9,), ends=lambda ids: len(ids) == 3)))
    assert prefixed[-1] == (9, *fp32.generate([[*prompt, 9]], GREEDY)[0][0].ids[:2])
    stream = fp32.stream(prompt, GREEDY)
    assert len(next(stream)) == 1
    stream.close()  # type: ignore[attr-defined] # whoever leaves does not wait for the rest


# --- scoring ---


def test_scores_are_those_of_torch(fp32: CTranslate2TextEngine, torch_engine: TorchEngine) -> None:
    prompts = make_prompts(5)
    texts = [prompt[::-1] for prompt in prompts]
    for ours, theirs in zip(fp32.score(prompts, texts), torch_engine.score(prompts, texts), strict=True):
        assert ours == pytest.approx(theirs, abs=1e-4)
    assert fp32.next_log_probs([5, 6], [7]) == pytest.approx(torch_engine.next_log_probs([5, 6], [7]), abs=1e-4)


# --- choosing, and what is left to torch ---


def test_it_is_the_default_on_cpus(bundle: Bundle, tmp_path: Path) -> None:
    # heads of 8 dimensions are none for ONNX Runtime, which would come first
    assert isinstance(make_text_engine(bundle, device="cpu"), CTranslate2TextEngine)
    for name, weights in (("ctranslate2", "int8"), ("ctranslate2-fp32", "fp32")):
        engine = make_text_engine(bundle, name)
        assert isinstance(engine, CTranslate2TextEngine) and engine.weights == weights and engine.strict
    assert isinstance(make_text_engine(bundle, "torch", "cpu"), TorchEngine)
    with pytest.raises(UserError, match="device must be auto or cpu with engine ctranslate2"):
        make_text_engine(bundle, "ctranslate2", "cuda")
    endless = make_bundle("llama", tmp_path, stops=())
    assert isinstance(make_text_engine(endless, device="cpu"), TorchEngine)
    with pytest.raises(UserError, match="needs a token that ends a text"):
        make_text_engine(endless, "ctranslate2")
    parallel = replace(bundle, config=replace(bundle.config, positions="none"))
    assert isinstance(text_refusal(parallel), str)


def test_what_it_cannot_do_is_refused_or_left_to_torch(
    bundle: Bundle, torch_engine: TorchEngine, caplog: pytest.LogCaptureFixture
) -> None:
    strict, lenient = CTranslate2TextEngine(bundle, strict=True), CTranslate2TextEngine(bundle)
    asked: list[tuple[SearchOptions, Constraints, str]] = [
        (sampling(min_p=0.1), Constraints(), "min_p"),
        (replace(GREEDY, max_repeat=1), Constraints(), "max_repeat"),
        (replace(GREEDY, beam=4, groups=2), Constraints(), "groups"),
        (replace(GREEDY, beam=4, no_repeat=2), Constraints(), "no_repeat with a beam"),
        (replace(GREEDY, beam=4, repetition_penalty=1.5), Constraints(), "repetition_penalty with a beam"),
        (GREEDY, Constraints(prefix=((7, 8),)), "a choice in a prefix"),
    ]
    for options, constraint, name in asked:
        with pytest.raises(UserError, match=f"engine ctranslate2 cannot do {name}; use --engine torch, or auto"):
            strict.generate([[5, 6]], options, constraints=[constraint])
        with caplog.at_level(logging.INFO, "regard.engines"):
            found = lenient.generate([[5, 6]], options, constraints=[constraint])
            assert list(lenient.stream([5, 6], options, constraint))[-1] == found[0][0].ids
        assert found == torch_engine.generate([[5, 6]], options, constraints=[constraint])
        assert [record.getMessage() for record in caplog.records].count(
            f"{name} is left to torch: ctranslate2 cannot do it"
        ) == 1


def test_phrases_come_from_torch_only_where_one_is_missing(bundle: Bundle, caplog: pytest.LogCaptureFixture) -> None:
    engine = CTranslate2TextEngine(bundle, "fp32")
    [[plain]] = engine.generate([[9, 8, 7]], GREEDY)
    there, missing = plain.ids[1:3], (66, 65, 66)
    with caplog.at_level(logging.INFO, "regard.engines"):
        assert engine.generate([[9, 8, 7]], GREEDY, constraints=[Constraints(phrases=(Phrase((there,)),))]) == [[plain]]
        assert not caplog.records
        [[found]] = engine.generate([[9, 8, 7]], GREEDY, constraints=[Constraints(phrases=(Phrase((missing,)),))])
    assert " ".join(map(str, missing)) in " ".join(map(str, found.ids))
    assert "phrases is left to torch" in caplog.text
    with pytest.raises(UserError, match="cannot do phrases"):
        CTranslate2TextEngine(bundle, strict=True).generate(
            [[9]], GREEDY, constraints=[Constraints(phrases=(Phrase((missing,)),))]
        )


def test_texts_beyond_the_table_of_positions_go_to_torch(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    bundle = make_bundle("gpt2", tmp_path)
    engine = CTranslate2TextEngine(bundle, "fp32")
    engine._max_positions = 20
    prompts = [[9] * 4, [8] * 15]
    with caplog.at_level(logging.INFO, "regard.engines"):
        check_same(engine.generate(prompts, GREEDY), TorchEngine.from_bundle(bundle, "cpu").generate(prompts, GREEDY))
    assert "texts of more than 20 tokens are left to torch" in caplog.text


def test_a_model_is_converted_once(
    bundle: Bundle, fp32: CTranslate2TextEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*given: object) -> None:
        raise AssertionError("converted again")

    monkeypatch.setattr(ctranslate2_cache, "convert", fail)
    assert CTranslate2TextEngine(bundle, "fp32").generate([[5, 6]], GREEDY) == fp32.generate([[5, 6]], GREEDY)


def test_an_empty_prompt_is_the_start_of_a_text(fp32: CTranslate2TextEngine, bundle: Bundle) -> None:
    assert fp32.generate([[]], GREEDY) == fp32.generate([[bundle.tokenizer.bos_id]], GREEDY)
