"""Language models in ONNX Runtime: what torch writes with the same rounded weights, the same text in any batch, samples, ends; and
what is left to other engines."""

from __future__ import annotations

import math
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from regard.bundle import Bundle
from regard.data.huggingface import Controls
from regard.errors import InputError, UserError
from regard.generate.engines import onnx_builder, onnx_decoder, onnx_graph, onnx_text_engine, select
from regard.generate.engines.ctranslate2_text_engine import CTranslate2TextEngine
from regard.generate.engines.onnx_text_engine import OnnxTextEngine
from regard.generate.engines.select import make_text_engine
from regard.generate.engines.torch_engine import TorchEngine
from regard.generate.options import Constraints, SearchOptions
from regard.generate.search.phrases import Phrase
from regard.nn.rotary import Rotary
from tests.families.checkpoints import PIECES
from tests.generate.test_ctranslate2_text import (
    DECODERS,
    GREEDY,
    LIMIT,
    check_same,
    make_bundle,
    make_prompts,
    sampling,
    with_controls,
)

pytest.importorskip("onnxruntime")
pytest.importorskip("onnx")

PARALLEL = ("cohere", "falcon", "gptj")
WIDE = {"hidden_size": 64}  # heads of 16 dimensions: rotary ones must be a multiple of that


def make_twin(bundle: Bundle) -> TorchEngine:
    """Torch's engine in fp32 with the weights that the graph has."""
    engine = TorchEngine.from_bundle(bundle, "cpu")
    for name, weight in engine.model.named_parameters():
        if weight.ndim == 2 and "positions" not in name:
            rounded = onnx_graph.from_blocks(*onnx_graph.to_blocks(weight.numpy()), weight.shape[1])
            weight.copy_(torch.from_numpy(rounded))
    return engine


@pytest.fixture
def _exact_vectors(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Only weights are rounded, so that texts are those of torch."""
    monkeypatch.setattr(onnx_graph, "ACCURACY", 1)
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return make_bundle("llama", tmp_path_factory.mktemp("llama"), **WIDE)


@pytest.fixture(scope="module")
def pair(bundle: Bundle, tmp_path_factory: pytest.TempPathFactory) -> tuple[OnnxTextEngine, TorchEngine]:
    """The engine with exact vectors, and torch with the same weights."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(onnx_graph, "ACCURACY", 1)
        patch.setenv("REGARD_CACHE", str(tmp_path_factory.mktemp("cache")))
        return OnnxTextEngine(bundle), make_twin(bundle)


@pytest.fixture(scope="module")
def engine(bundle: Bundle) -> OnnxTextEngine:
    return OnnxTextEngine(bundle)


Pair = tuple[OnnxTextEngine, TorchEngine]


# --- the model ---


@pytest.mark.usefixtures("_exact_vectors")
@pytest.mark.parametrize("name", DECODERS)
def test_every_family_writes_what_torch_writes(name: str, tmp_path: Path) -> None:
    if name.startswith(PARALLEL):
        with pytest.raises(UserError, match="ONNX Runtime does not run model"):
            make_text_engine(make_bundle(name, tmp_path), "onnxruntime")
        return
    changes = {} if name.startswith("gpt2") else {**WIDE, "head_dim": 32} if name == "llama-heads" else WIDE
    bundle, prompts = make_bundle(name, tmp_path, **changes), make_prompts()
    check_same(OnnxTextEngine(bundle).generate(prompts, GREEDY), make_twin(bundle).generate(prompts, GREEDY))


def test_narrow_rotary_heads_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"model\.d_head = 8, no multiple of 16"):
        make_text_engine(make_bundle("llama", tmp_path), "onnxruntime")


def test_rounded_vectors_change_little(engine: OnnxTextEngine, bundle: Bundle) -> None:
    prompts = [prompt or [5] for prompt in make_prompts(12)]
    texts = [[7, 9, 11, 5]] * 12
    ours = np.array(engine.score(prompts, texts))
    theirs = np.array(TorchEngine.from_bundle(bundle, "cpu").score(prompts, texts))
    assert 0 < np.abs(ours - theirs).max() < 0.2 and np.abs(ours - theirs).mean() < 0.05


def test_blocks_round_to_the_nearest_of_255_levels() -> None:
    matrix = np.random.default_rng(0).standard_normal((5, 100)).astype(np.float32)
    matrix[2] = 0
    integers, scales = onnx_graph.to_blocks(matrix)
    assert integers.shape == (5, 2, onnx_graph.BLOCK) and integers.min() >= 1
    error = np.abs(onnx_graph.from_blocks(integers, scales, 100) - matrix)
    assert (error <= np.repeat(scales, onnx_graph.BLOCK, axis=1)[:, :100] * 0.501).all() and not error[2].any()


@pytest.mark.parametrize(
    "scaling",
    [
        {},
        {"kind": "linear", "factor": 4.0},
        {
            "kind": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_positions": 64,
        },
    ],
    ids=lambda scaling: scaling.get("kind", "none"),
)
def test_rotary_frequencies_are_those_of_torch(scaling: dict[str, Any], bundle: Bundle) -> None:
    assert bundle.config.decoder_stack is not None
    stack = replace(bundle.config.decoder_stack, rotary_scaling=scaling, rotary_dim=32, rotary_base=5e5)
    expected = Rotary(stack).frequencies(torch.device("cpu")).numpy()
    np.testing.assert_allclose(onnx_builder.frequencies(stack), expected, rtol=2e-6)


# --- searching ---


def test_a_prompt_gets_the_same_text_in_any_batch(engine: OnnxTextEngine, bundle: Bundle) -> None:
    for options in (GREEDY, sampling(2), replace(GREEDY, no_repeat=2)):
        prompts = make_prompts(11)
        together = engine.generate(prompts, options)
        assert [engine.generate([prompt], options)[0] for prompt in prompts] == together
        assert OnnxTextEngine(bundle, batch=2).generate(prompts[::-1], options) == together[::-1]


@pytest.mark.parametrize(
    "options",
    [
        {"repetition_penalty": 1.7},
        {"no_repeat": 2},
        {"max_repeat": 1},
        {"no_repeat": 3, "repetition_penalty": 0.5, "max_repeat": 2},
        {"sample": True, "seed": 3},
        {"sample": True, "beam": 3, "nbest": 3, "temperature": 2.0},
        {"sample": True, "beam": 2, "nbest": 2, "top_k": 5, "top_p": 0.8},
        {"sample": True, "min_p": 0.3, "top_p": 0.9, "no_repeat": 2},
    ],
    ids=str,
)
def test_options_find_what_torch_finds(options: dict[str, Any], pair: Pair) -> None:
    """Samples, too: both engines take the same random numbers."""
    chosen = SearchOptions(**{"beam": 1, "alpha": 0.6, "max_extra": LIMIT, **options})
    prompts = [[9, 9, 9, *prompt] for prompt in make_prompts()]
    ours, theirs = pair
    found = ours.generate(prompts, chosen)
    check_same(found, theirs.generate(prompts, chosen))
    assert found != ours.generate(prompts, GREEDY)


def test_top_p_beyond_the_tokens_that_are_sorted_first(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    from regard.generate.search import one_row

    chosen = sampling(3, temperature=3.0, top_p=0.95)
    expected = pair[0].generate([[5, 6]], chosen)
    monkeypatch.setattr(one_row, "_FEW", 2)
    assert pair[0].generate([[5, 6]], chosen) == expected


def test_prefixes_and_limits_are_those_of_torch(pair: Pair) -> None:
    constraints = [
        Constraints(),
        Constraints(prefix=(9, 8)),
        Constraints(max_tokens=3),
        Constraints(prefix=(7,), max_tokens=1),
        Constraints(prefix=(9, 8, 7), max_tokens=5),
        Constraints(max_tokens=0),
    ]
    prompts = make_prompts(6)
    found = pair[0].generate(prompts, GREEDY, constraints=constraints)
    check_same(found, pair[1].generate(prompts, GREEDY, constraints=constraints))
    assert found[3][0].ids == (7,) and found[1][0].ids[:2] == (9, 8) and found[5][0].ids == ()


@pytest.mark.usefixtures("_exact_vectors")
@pytest.mark.parametrize("sample", [False, True])
def test_several_ends_and_forbidden_tokens(sample: bool, tmp_path: Path) -> None:
    plain = make_bundle("gpt2", tmp_path)
    written = [one.ids for [one] in OnnxTextEngine(plain).generate(make_prompts(), GREEDY)]
    common = [token for ids in written for token in ids]
    forbidden = max(set(common), key=common.count)
    stops = tuple({token for token in common if token != forbidden})[:3]
    bundle = with_controls(plain, Controls(PIECES, start=1, end=stops[0], stops=stops, forbidden=(forbidden,)))
    chosen = sampling(2) if sample else GREEDY
    found = OnnxTextEngine(bundle).generate(make_prompts(), chosen)
    check_same(found, make_twin(bundle).generate(make_prompts(), chosen))
    assert any(one.ended for some in found for one in some)
    assert not any({forbidden, *stops} & set(one.ids) for some in found for one in some)


@pytest.mark.parametrize("sample", [False, True])
def test_a_text_ends_as_soon_as_it_is_complete(sample: bool, pair: Pair) -> None:
    chosen = sampling() if sample else GREEDY
    prompts = make_prompts(5)
    constraints = [Constraints(ends=lambda ids: len(ids) >= 4), *[Constraints()] * 4]
    found = pair[0].generate(prompts, chosen, constraints=constraints)
    check_same(found, pair[1].generate(prompts, chosen, constraints=constraints))
    assert len(found[0][0].ids) <= 4 and any(len(some[0].ids) > 4 for some in found)


def test_streams_grow_to_the_whole_text(engine: OnnxTextEngine) -> None:
    for options in (GREEDY, sampling()):
        for prompt in make_prompts(3):
            whole = engine.generate([prompt], options)[0][0].ids
            grown = list(engine.stream(prompt, options))
            assert grown[-1] == whole and all(whole[: len(ids)] == ids for ids in grown)
            assert {len(ids) for ids in grown} >= set(range(1, len(whole) + 1))
    forced = list(engine.stream([5, 6], GREEDY, Constraints(prefix=(9, 8))))
    assert all(ids[:2] == (9, 8) for ids in forced)


def test_scores_are_those_of_torch(pair: Pair) -> None:
    prompts, texts = make_prompts(5), [[7, 8, 9], [], [5], [11, 12, 13, 14], [6, 6]]
    for ours, theirs in zip(*(one.score(prompts, texts) for one in pair), strict=True):
        assert ours == pytest.approx(theirs, abs=1e-4)
    assert pair[0].next_log_probs([5, 6], [7]) == pytest.approx(pair[1].next_log_probs([5, 6], [7]), abs=1e-4)


def test_a_long_prompt_is_read_in_parts(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = [token for prompt in make_prompts(9) for token in prompt][:60]
    whole = pair[0].score([ids[:20]], [ids[20:]])[0]
    monkeypatch.setattr(onnx_decoder, "PART", 7)
    assert pair[0].score([ids[:20]], [ids[20:]])[0] == pytest.approx(whole, abs=1e-4)
    assert pair[0].score([ids], [[]])[0] == pytest.approx(whole[-1:], abs=1e-4)


def test_the_logits_of_a_text_are_never_in_memory_together(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are as many as its tokens times the vocabulary: gigabytes, for a long text."""
    computed: list[weakref.ref[Any]] = []
    kept = []
    run, log_probs = onnx_decoder.Rows._run, OnnxTextEngine._log_probs

    def counted(rows: onnx_decoder.Rows, *given: Any) -> Any:
        kept.append(sum(one() is not None for one in computed))
        logits = run(rows, *given)
        computed.append(weakref.ref(logits))
        return logits

    def watched(engine: OnnxTextEngine, *given: Any) -> Any:
        for part in log_probs(engine, *given):
            computed.append(weakref.ref(part))
            yield part

    monkeypatch.setattr(onnx_decoder.Rows, "_run", counted)
    monkeypatch.setattr(OnnxTextEngine, "_log_probs", watched)
    monkeypatch.setattr(onnx_decoder, "PART", 4)
    pair[0].score([[5]], [[5 + n % 20 for n in range(40)]])
    assert len(kept) == 11 and max(kept) <= 2  # the logits of one part, and their logarithms


# --- what is left to others ---


def test_it_is_the_default_on_cpus_with_wide_vnni(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(select, "has_wide_vnni", lambda: True)
    assert isinstance(make_text_engine(bundle, device="cpu"), OnnxTextEngine)
    monkeypatch.setattr(onnx_decoder, "MIN_VERSION", (99, 0))
    assert isinstance(make_text_engine(bundle, device="cpu"), CTranslate2TextEngine)
    with pytest.raises(UserError, match=r"must be 99\.0 or later"):
        make_text_engine(bundle, "onnxruntime")
    with pytest.raises(UserError, match="device must be auto or cpu"):
        make_text_engine(bundle, "onnxruntime", "cuda")


@pytest.mark.parametrize(
    ("what", "options", "constraint"),
    [
        ("a beam", replace(GREEDY, beam=2), Constraints()),
        ("phrases", GREEDY, Constraints(phrases=(Phrase(((9, 8),)),))),
        ("a choice in a prefix", GREEDY, Constraints(prefix=((9, 8),))),
    ],
)
def test_what_it_cannot_do_is_refused_or_left_to_others(
    what: str, options: SearchOptions, constraint: Constraints, bundle: Bundle, engine: OnnxTextEngine
) -> None:
    with pytest.raises(UserError, match=f"engine onnxruntime cannot do {what}"):
        engine.generate([[5, 6]], options, constraints=[constraint])
    with pytest.raises(UserError, match=f"engine onnxruntime cannot do {what}"):
        list(engine.stream([5, 6], options, constraint))
    torch_engine = TorchEngine.from_bundle(bundle, "cpu")
    lenient = OnnxTextEngine(bundle, make_other=lambda: torch_engine)
    expected = torch_engine.generate([[5, 6]], options, constraints=[constraint])
    assert lenient.generate([[5, 6]], options, constraints=[constraint]) == expected


def test_texts_beyond_its_tables_go_to_others(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_text_engine, "positions", lambda _: 10)
    torch_engine = TorchEngine.from_bundle(bundle, "cpu")
    lenient, done = OnnxTextEngine(bundle, make_other=lambda: torch_engine), list[int]()
    short = [Constraints(), Constraints(max_tokens=2)]
    found = lenient.generate([[5, 6], [5, 6]], GREEDY, done.extend, short)
    assert (
        found[0] == torch_engine.generate([[5, 6]], GREEDY)[0] and len(found[1][0].ids) <= 2 and sorted(done) == [0, 1]
    )
    with pytest.raises(UserError, match="cannot do texts of more than 10 tokens"):
        OnnxTextEngine(bundle).generate([[5, 6]], GREEDY)
    with pytest.raises(InputError, match="at most 10 tokens"):
        lenient.score([[5] * 8], [[6] * 3])


def test_a_model_is_converted_once(bundle: Bundle, engine: OnnxTextEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr(onnx_text_engine, "convert", fail)
    assert OnnxTextEngine(bundle).generate([[5, 6]], GREEDY) == engine.generate([[5, 6]], GREEDY)


def test_outputs_that_are_not_finite_are_refused(engine: OnnxTextEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_decoder.Rows, "read", lambda *_: np.full(PIECES, math.nan, np.float32))
    with pytest.raises(Exception, match="no continuation was found"):
        engine.generate([[5, 6]], GREEDY)
