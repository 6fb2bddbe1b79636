"""CTranslate2 against torch: the same numbers, the same translations; what is converted, and what is kept of it."""

from __future__ import annotations

import copy
import dataclasses
import errno
import json
import os
import random
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch

from regard import cpu
from regard.bundle import Bundle, load_bundle, save_bundle
from regard.config import ModelConfig
from regard.data.tokenizer import Tokenizer
from regard.errors import UserError
from regard.files import cache_folder
from regard.generate.engines import ctranslate2_cache, ctranslate2_model, select
from regard.generate.engines.ctranslate2_engine import CTranslate2Engine, share_cores
from regard.generate.engines.ctranslate2_model import (
    WeightFormat,
    convert,
    int8_levels,
    read_weights,
    sinusoids,
    vocabularies,
)
from regard.generate.engines.select import make_engine
from regard.generate.engines.torch_engine import TorchEngine, load_model
from regard.generate.options import Hypothesis, SearchOptions, forbidden_ids
from regard.models.transformer import Transformer
from regard.nn import embedding
from regard.recipe import DecodeRecipe
from tests.build import SWITCHES, build, pack
from tests.tiny import make_bundle, reversal_pairs, save_model

pytest.importorskip("ctranslate2")

GOLDEN = Path(__file__).parents[1] / "golden" / "bundle-1"
GOLDEN_INT8 = Path(__file__).parents[1] / "golden" / "bundle-2"
SENTENCES = [source for source, _ in reversal_pairs(40, 9, longest=6)]


@pytest.fixture(autouse=True)
def entries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where converted models are kept; every test begins with nothing there."""
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "ctranslate2"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    lines = [side for pair in reversal_pairs(200, 3) for side in pair]
    return Tokenizer.train(lines, 420, tmp_path_factory.mktemp("tokenizer"))


def random_model(tokenizer: Tokenizer, switches: dict[str, Any]) -> Transformer:
    shape: dict[str, Any] = {"d_model": 32, "d_ff": 48, "num_heads": 4, "encoder_layers": 2, "decoder_layers": 2}
    model = build(ModelConfig(**{"vocab_size": tokenizer.vocab_size, "dropout": 0.0, **shape, **switches}))
    with torch.no_grad():
        model.get_parameter("encoder.layers.0.feed_forward.outer.weight")[3] = 0.0  # a row without a largest number
        if model.output_bias is not None:
            model.output_bias.normal_()
    return model


COPIED = range(330, 338)  # ids that a trained model knows


@cache
def trained_model(tokenizer: Tokenizer, name: str) -> Transformer:
    """A model that has begun to learn to copy: what it says is nonsense, but has an end, now here, now there."""
    model = random_model(tokenizer, SWITCHES[name])
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    for step in range(80):
        sentences = random_ids(24, 12, COPIED, seed=step)
        src, src_layout = pack([torch.tensor([*sentence, tokenizer.eos_id]) for sentence in sentences])
        tgt, tgt_layout = pack([torch.tensor([tokenizer.bos_id, *sentence]) for sentence in sentences])
        logits = model(src, src_layout, tgt, tgt_layout)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(logits, src, label_smoothing=0.1).backward()
        optimizer.step()
    return model.eval().requires_grad_(False)


def engine_of(bundle: Bundle, weights: WeightFormat = "fp32", **options: Any) -> CTranslate2Engine:
    folder = bundle.folder.parent / f"{bundle.folder.name}-{weights}"
    if not folder.exists():
        folder.mkdir()
        convert(bundle, folder, weights, int8_levels())
    return CTranslate2Engine(folder, bundle, weights, **options)


def random_ids(count: int, longest: int, ids: range = range(69, 350), seed: int = 0) -> list[list[int]]:
    draw = random.Random(seed)
    return [[draw.choice(ids) for _ in range(draw.randrange(1, longest))] for _ in range(count)]


def assert_same(
    theirs: list[list[Hypothesis]], ours: list[list[Hypothesis]], ids: list[list[int]], torch_engine: TorchEngine
) -> None:
    """The best hypotheses are the same, with the same scores, and those are the model's. One in twenty may be a little worse, since
    CTranslate2 stops earlier, or differ at a near-tie."""
    others = 0
    for sentence, [one, *_], [other, *_] in zip(ids, theirs, ours, strict=True):
        assert one.log_prob == pytest.approx(sum(torch_engine.score([sentence], [one.ids])[0]), abs=1e-4)
        if one.ids == other.ids:
            assert one.score == pytest.approx(other.score, abs=1e-4)
        else:
            others += 1
            assert other.score - 0.1 < one.score < other.score + 1e-4
    assert others <= len(ids) / 20


# --- numbers ---


@pytest.mark.parametrize("switches", SWITCHES)
def test_log_probabilities_are_torchs(switches: str, tokenizer: Tokenizer, tmp_path: Path) -> None:
    model = random_model(tokenizer, SWITCHES[switches])
    bundle = save_model(tmp_path / "bundle", model, tokenizer)
    src = [[], *random_ids(12, 20)]
    tgt = [*random_ids(12, 20, seed=1), []]
    expected = TorchEngine(model, tokenizer.bos_id, tokenizer.eos_id).score(src, tgt)
    tolerances: dict[WeightFormat, tuple[float, float]] = {
        "fp32": (0.0, 1e-4),
        "fp16": (1e-5, 2e-2),
        "int8": (1e-3, 0.5),
    }
    for weights, (least, most) in tolerances.items():
        scores = engine_of(bundle, weights, batch=5).score(src, tgt)
        assert [len(tokens) for tokens in scores] == [len(tokens) + 1 for tokens in tgt]
        difference = max(abs(x - y) for a, b in zip(scores, expected, strict=True) for x, y in zip(a, b, strict=True))
        assert least <= difference <= most  # a model that was to be rounded and was not is a mistake, too


@pytest.mark.parametrize("switches", SWITCHES)
def test_searches_find_what_torch_finds(switches: str, tokenizer: Tokenizer, tmp_path: Path) -> None:
    model = trained_model(tokenizer, switches)
    theirs = engine_of(save_model(tmp_path / "bundle", model, tokenizer))
    ours = TorchEngine(model, tokenizer.bos_id, tokenizer.eos_id)
    ids = random_ids(24, 20, COPIED, seed=1000)
    greedy = SearchOptions(beam=1, max_extra=10)
    assert [h.ids for [h] in theirs.translate(ids, greedy)] == [h.ids for [h] in ours.translate(ids, greedy)]
    for alpha in (0.0, 0.6, 1.0):
        options = SearchOptions(beam=4, alpha=alpha, max_extra=10)
        expected = ours.translate(ids, options)
        assert len({len(h.ids) for [h] in expected}) > 4  # they end in several places
        assert_same(theirs.translate(ids, options), expected, ids, ours)


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0])
def test_a_trained_model_translates_as_with_torch(alpha: float) -> None:
    bundle = load_bundle(GOLDEN)
    ids = bundle.tokenizer.encode_batch(SENTENCES)
    theirs, ours = CTranslate2Engine.from_bundle(bundle), TorchEngine.from_bundle(bundle, "cpu")
    for beam, nbest in ((1, 1), (4, 1), (4, 4)):
        options = SearchOptions(beam=beam, alpha=alpha, nbest=nbest, max_extra=20)
        found = theirs.translate(ids, options)
        assert {len(hypotheses) for hypotheses in found} == {nbest}
        assert_same(found, ours.translate(ids, options), ids, ours)
        for hypotheses in found:
            scores = [h.score for h in hypotheses]
            assert scores == sorted(scores, reverse=True)
            assert scores == pytest.approx([h.log_prob / ((6 + len(h.ids)) / 6) ** alpha for h in hypotheses])
            assert len({h.ids for h in hypotheses}) == nbest


def test_the_tables_of_sinusoids_are_one() -> None:
    assert np.array_equal(sinusoids(300, 32), embedding.sinusoids(300, 32).numpy())


@pytest.mark.parametrize("folder", [GOLDEN, GOLDEN_INT8], ids=["fp32", "int8"])
def test_weights_are_read_as_torch_reads_them(folder: Path) -> None:
    bundle = load_bundle(folder)
    weights = read_weights(bundle)
    expected = load_model(bundle).state_dict()
    assert weights.keys() == expected.keys()
    for name, tensor in expected.items():
        assert np.array_equal(weights[name], tensor.numpy()), name


def test_a_bundle_in_int8_is_computed_in_int8(entries: Path) -> None:
    bundle = load_bundle(GOLDEN_INT8)
    engine = CTranslate2Engine.from_bundle(bundle)
    assert engine._translator.compute_type.startswith("int8")
    assert [entry.name.split("-")[1] for entry in entries.iterdir()] == ["int8" if int8_levels() == 127 else "int7"]
    expected = json.loads(GOLDEN_INT8.with_suffix(".json").read_text(encoding="utf-8"))
    ids = bundle.tokenizer.encode_batch([entry["source"] for entry in expected if entry["source"]])
    found = [bundle.tokenizer.decode(h.ids) for [h] in engine.translate(ids, SearchOptions())]
    assert found == [entry["translation"] for entry in expected if entry["source"]]


@pytest.mark.parametrize(("flags", "levels"), [({"avx2"}, 63), ({"avx2", "avx512_vnni"}, 127), ({"avx_vnni"}, 127)])
def test_weights_are_smaller_where_sums_of_products_could_overflow(
    flags: set[str], levels: int, entries: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    monkeypatch.setattr(cpu, "cpu_flags", lambda: flags)
    assert int8_levels() == levels
    with ctranslate2_cache.converted(load_bundle(GOLDEN_INT8), "int8") as folder:
        assert folder.parent.name.split("-")[1] == ("int8" if levels == 127 else "int7")
        content = np.frombuffer((folder / "model.bin").read_bytes(), np.int8)
    with ctranslate2_cache.converted(load_bundle(GOLDEN_INT8), "int8") as folder:
        assert np.array_equal(np.frombuffer((folder / "model.bin").read_bytes(), np.int8), content)


def test_int8_weights_use_all_of_their_levels() -> None:
    value = np.array([[1.0, -0.5], [0.0, 0.0]], np.float32)
    for levels in (63, 127):
        small = ctranslate2_model._to_int8({"a/weight": value}, levels)
        assert small["a/weight"].tolist() == [[levels, -round(levels / 2)], [0, 0]]
        assert small["a/weight_scale"].tolist() == [levels, 1.0]


# --- what is never in a translation, and how long it may be ---


@pytest.mark.parametrize("beam", [1, 4])
def test_forbidden_tokens_never_appear_and_scores_stay_the_models_own(
    beam: int, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    model = copy.deepcopy(trained_model(tokenizer, "untied"))
    forbidden = forbidden_ids(tokenizer)
    model.output.weight[[tokenizer.unk_id, tokenizer.span_ids[7]]] = model.output.weight[COPIED[:2]] * 1.1
    bundle = save_model(tmp_path / "bundle", model, tokenizer)
    ids, options = random_ids(20, 12, COPIED), SearchOptions(beam=beam, nbest=beam, max_extra=10)

    def used(found: list[list[Hypothesis]]) -> int:
        return sum(not set(h.ids).isdisjoint(forbidden) for hypotheses in found for h in hypotheses)

    assert used(engine_of(bundle).translate(ids, options)) > 5  # else there would be nothing to forbid
    found = engine_of(bundle, forbidden=forbidden).translate(ids, options)
    assert used(found) == 0
    ours = TorchEngine(model, tokenizer.bos_id, tokenizer.eos_id, forbidden=forbidden)
    if beam == 1:
        assert [h.ids for [h] in found] == [h.ids for [h] in ours.translate(ids, options)]
    for sentence, hypotheses in zip(ids, found, strict=True):
        for hypothesis in hypotheses:
            tokens = ours.score([sentence], [hypothesis.ids])[0]
            assert hypothesis.log_prob == pytest.approx(sum(tokens), abs=1e-4)


@pytest.mark.parametrize("max_extra", [0, 1, 3])
@pytest.mark.parametrize("beam", [1, 4])
def test_a_translation_has_at_most_max_extra_tokens_more_than_its_source(
    beam: int, max_extra: int, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    model = random_model(tokenizer, {})
    theirs = engine_of(save_model(tmp_path / "bundle", model, tokenizer))
    ours = TorchEngine(model, tokenizer.bos_id, tokenizer.eos_id)
    ids = random_ids(20, 9)
    options = SearchOptions(beam=beam, max_extra=max_extra)
    found = theirs.translate(ids, options)
    extra = [len(h.ids) - len(sentence) for sentence, [h] in zip(ids, found, strict=True)]
    assert max(extra) == max_extra
    assert extra.count(max_extra) > 10  # each sentence has a limit of its own, not its batch's
    assert_same(found, ours.translate(ids, options), ids, ours)


@pytest.mark.parametrize("beam", [1, 4])
def test_forbidden_tokens_and_the_limit_go_together(beam: int, tokenizer: Tokenizer, tmp_path: Path) -> None:
    """A random model runs into the limit, and says a forbidden token on the way or only there."""
    model = random_model(tokenizer, {})
    bundle = save_model(tmp_path / "bundle", model, tokenizer)
    ids, options = random_ids(30, 9), SearchOptions(beam=beam, max_extra=2)
    said = [h.ids for [h] in engine_of(bundle).translate(ids, options)]
    forbidden = sorted({tokens[-1] for tokens in said[:3]})
    assert sum(not set(tokens).isdisjoint(forbidden) for tokens in said) > 5
    found = engine_of(bundle, forbidden=forbidden).translate(ids, options)
    ours = TorchEngine(model, tokenizer.bos_id, tokenizer.eos_id, forbidden=forbidden)
    at_limit = 0
    for sentence, [hypothesis] in zip(ids, found, strict=True):
        assert set(hypothesis.ids).isdisjoint(forbidden)
        assert len(hypothesis.ids) <= len(sentence) + 2
        at_limit += len(hypothesis.ids) == len(sentence) + 2
        assert hypothesis.log_prob == pytest.approx(sum(ours.score([sentence], [hypothesis.ids])[0]), abs=1e-4)
    assert at_limit > 5
    if beam == 1:
        assert [h.ids for [h] in found] == [h.ids for [h] in ours.translate(ids, options)]


def test_an_empty_sentence_has_an_empty_translation(tokenizer: Tokenizer, tmp_path: Path) -> None:
    model = random_model(tokenizer, {})
    bundle = save_model(tmp_path / "bundle", model, tokenizer)
    [expected] = TorchEngine(model, tokenizer.bos_id, tokenizer.eos_id).score([[]], [[]])
    for max_extra in (0, 5):
        [[found], _] = engine_of(bundle).translate([[], [100]], SearchOptions(max_extra=max_extra))
        assert found.ids == ()
        assert found.log_prob == pytest.approx(expected[0], abs=1e-4)


def test_learned_positions_end_a_translation(tokenizer: Tokenizer, tmp_path: Path) -> None:
    model = random_model(tokenizer, {"positions": "learned", "max_positions": 16})
    theirs = engine_of(save_model(tmp_path / "bundle", model, tokenizer, max_length=12))
    ours = TorchEngine(model, tokenizer.bos_id, tokenizer.eos_id)
    ids = random_ids(8, 12)
    for beam in (1, 4):
        options = SearchOptions(beam=beam, max_extra=50)
        found = theirs.translate(ids, options)
        assert max(len(h.ids) for [h] in found) == 15
        assert_same(found, ours.translate(ids, options), ids, ours)


def test_what_is_longer_than_the_table_of_positions_is_given_to_torch(
    tokenizer: Tokenizer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "regard.engines")
    model = random_model(tokenizer, {"encoder_layers": 1, "decoder_layers": 1})
    bundle = save_model(tmp_path / "bundle", model, tokenizer)
    theirs, ours = engine_of(bundle), TorchEngine.from_bundle(bundle, "cpu")
    long = random_ids(1, 20)[0] * 1100
    src, tgt = [long[:1023], long[:1024], [100]], [[100], [100], [100]]
    assert theirs.score(src[:1], tgt[:1])[0] == pytest.approx(ours.score(src, tgt)[0], abs=1e-4)
    assert caplog.messages == []
    for scores, expected in zip(theirs.score(src, tgt), ours.score(src, tgt), strict=True):
        assert scores == pytest.approx(expected, abs=1e-4)
    assert caplog.text.count("left to torch") == 1
    told: list[int] = []
    options = SearchOptions(beam=1, max_extra=1020)
    found = theirs.translate([[100], [100, 101, 102, 103], []], options, told.extend)
    assert found[1] == ours.translate([[100, 101, 102, 103]], options)[0]
    assert sorted(told) == [0, 1, 2]


# --- batches ---


@pytest.mark.parametrize("weights", ["fp32", "int8"])
@pytest.mark.parametrize("beam", [1, 4])
def test_a_sentence_gets_the_same_translation_in_any_batch(
    beam: int, weights: WeightFormat, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    copying = save_model(tmp_path / "bundle", trained_model(tokenizer, "modern"), tokenizer)
    golden = load_bundle(shutil.copytree(GOLDEN, tmp_path / "golden"))
    for bundle, ids in (
        (copying, random_ids(23, 20, COPIED, seed=1000)),
        (golden, golden.tokenizer.encode_batch(SENTENCES)),
    ):
        options = SearchOptions(beam=beam, nbest=beam, max_extra=12)
        forbidden = forbidden_ids(bundle.tokenizer)
        together = engine_of(bundle, weights, forbidden=forbidden).translate(ids, options)
        shuffled = random.Random(3).sample(range(len(ids)), len(ids))
        small = engine_of(bundle, weights, forbidden=forbidden, batch=4)
        again = small.translate([ids[number] for number in shuffled], options)
        alone = [small.translate([sentence], options)[0] for sentence in ids]
        for number, one in zip(shuffled, again, strict=True):
            assert [h.ids for h in one] == [h.ids for h in together[number]] == [h.ids for h in alone[number]]
            for others in (together, alone):
                assert [h.score for h in one] == pytest.approx([h.score for h in others[number]], abs=1e-4)


def test_progress_is_told_of_every_sentence() -> None:
    bundle = load_bundle(GOLDEN)
    told: list[int] = []
    engine = CTranslate2Engine.from_bundle(bundle, batch=3)
    engine.translate(bundle.tokenizer.encode_batch(SENTENCES), SearchOptions(), told.extend)
    assert sorted(told) == list(range(len(SENTENCES)))


def test_all_cores_are_used() -> None:
    for cores in range(1, 65):
        batches, threads = share_cores(cores)
        assert cores - threads < batches * threads <= cores


def test_torch_keeps_its_threads() -> None:
    """CTranslate2 sets OpenMP's threads where it is loaded, and what is left to torch runs with those."""
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        CTranslate2Engine.from_bundle(load_bundle(GOLDEN))
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


# --- the converted folder ---


@pytest.mark.parametrize("weights", ["fp32", "fp16", "int8"])
@pytest.mark.parametrize("switches", SWITCHES)
def test_the_files_are_those_that_ctranslate2s_own_specs_write(
    switches: str, weights: WeightFormat, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    bundle = save_model(tmp_path / "bundle", random_model(tokenizer, SWITCHES[switches]), tokenizer)
    (tmp_path / "theirs").mkdir()
    (tmp_path / "ours").mkdir()
    spec = make_spec(bundle)
    spec.validate()
    spec.optimize({"fp32": None, "fp16": "float16", "int8": "int8"}[weights])
    spec.save(str(tmp_path / "theirs"))
    convert(bundle, tmp_path / "ours", weights)
    assert {path.name for path in (tmp_path / "ours").iterdir()} == {p.name for p in (tmp_path / "theirs").iterdir()}
    assert (tmp_path / "ours" / "model.bin").read_bytes() == (tmp_path / "theirs" / "model.bin").read_bytes()
    for name in ("config.json", "shared_vocabulary.json"):
        contents = [json.loads((tmp_path / side / name).read_text(encoding="utf-8")) for side in ("ours", "theirs")]
        assert contents[0] == contents[1]


def make_spec(bundle: Bundle) -> Any:
    """The bundle in CTranslate2's own description of a Transformer."""
    specs: Any = import_module("ctranslate2.specs")
    config, weights = bundle.config, load_model(bundle).state_dict()
    given: dict[str, Any] = {
        "pre_norm": config.norm_position == "pre",
        "activation": {"relu": 0, "gelu": 3, "silu": 2, "swiglu": 2}[config.activation],
        "ffn_glu": config.activation == "swiglu",
        "rms_norm": config.norm == "rms",
        "num_heads_kv": config.num_kv_heads or None,
        "rotary_dim": config.head_width if config.positions == "rotary" else None,
    }
    spec = specs.TransformerSpec(
        specs.TransformerEncoderSpec(config.encoder_layers, config.num_heads, **given),
        specs.TransformerDecoderSpec(
            config.decoder_layers,
            config.num_heads,
            alignment_layer=bundle.alignment_heads.layer,
            alignment_heads=config.num_heads,
            **given,
        ),
    )

    def array(name: str) -> Any:
        return weights[name].numpy()

    def linear(theirs: Any, ours: str, rows: slice = slice(None)) -> None:
        theirs.weight, theirs.bias = array(f"{ours}.weight")[rows], array(f"{ours}.bias")[rows]

    def norm(theirs: Any, ours: str) -> None:
        theirs.gamma = array(f"{ours}.weight")
        if config.norm == "layer":
            theirs.beta = array(f"{ours}.bias")

    def feed_forward(theirs: Any, ours: str) -> None:
        gated = config.activation == "swiglu"
        linear(theirs.linear_0, f"{ours}.feed_forward.inner", slice(config.d_ff))
        if gated:
            linear(theirs.linear_0_noact, f"{ours}.feed_forward.inner", slice(config.d_ff, None))
        linear(theirs.linear_1, f"{ours}.feed_forward.outer")
        norm(theirs.layer_norm, f"{ours}.feed_forward_residual.norm")

    for name, stack in (("encoder", spec.encoder), ("decoder", spec.decoder)):
        if config.positions == "learned":
            stack.position_encodings.encodings = array(f"{name}.positions.weight")
        elif config.positions == "sinusoidal":
            stack.position_encodings.encodings = embedding.sinusoids(1024, config.d_model).numpy()
        if config.norm_position == "pre":
            norm(stack.layer_norm, f"{name}.final_norm")
        for number, layer in enumerate(stack.layer):
            ours = f"{name}.layers.{number}"
            linear(layer.self_attention.linear[0], f"{ours}.self_attention.qkv")
            linear(layer.self_attention.linear[1], f"{ours}.self_attention.out")
            norm(layer.self_attention.layer_norm, f"{ours}.self_residual.norm")
            if name == "decoder":
                for place, part in enumerate(("q", "kv", "out")):
                    linear(layer.attention.linear[place], f"{ours}.cross_attention.{part}")
                norm(layer.attention.layer_norm, f"{ours}.cross_residual.norm")
            feed_forward(layer.ffn, ours)
    tied = config.tie_embeddings
    spec.encoder.embeddings[0].weight = array("embedding.weight" if tied else "src_embedding.weight")
    spec.decoder.embeddings.weight = array("embedding.weight" if tied else "tgt_embedding.weight")
    spec.decoder.projection.weight = array("embedding.weight" if tied else "output.weight")
    if config.output_bias:
        spec.decoder.projection.bias = array("output_bias")
    pieces = bundle.tokenizer.pieces(range(config.vocab_size))
    spec.register_source_vocabulary(pieces)
    spec.register_target_vocabulary(pieces)
    spec.config.layer_norm_epsilon = config.norm_eps
    spec.config.add_source_eos = True
    return spec


def test_a_model_that_ctranslate2_does_not_know_is_refused_by_its_switch(tokenizer: Tokenizer, tmp_path: Path) -> None:
    unknown = save_model(tmp_path / "unknown", random_model(tokenizer, {"final_norm": True}), tokenizer)
    with pytest.raises(UserError, match=r"does not support model\.final_norm with post-norm in the .*--engine torch"):
        make_engine(unknown, "ctranslate2")
    assert isinstance(make_engine(unknown, "auto", "cpu"), TorchEngine)
    known = save_model(tmp_path / "known", random_model(tokenizer, {"positions": "rotary"}), tokenizer)
    assert isinstance(make_engine(known, "auto", "cpu"), CTranslate2Engine)


def test_every_choice_of_every_switch_was_looked_at() -> None:
    from regard.rules import _CHOICES

    config = ModelConfig(100, positions="rotary")
    for name in _CHOICES.keys() - ctranslate2_model._KNOWN.keys():
        other = get_args(_CHOICES[name])[1]
        assert dataclasses.replace(config, **{name: other}).unsupported() == f"model.{name} = {other!r}"


def test_a_tensor_that_is_wrong_is_named(tokenizer: Tokenizer, tmp_path: Path) -> None:
    model = random_model(tokenizer, {})
    state = model.state_dict()
    for name, change, message in (
        ("a", {"decoder.layers.1.cross_attention.q.bias": None}, "q.bias is missing"),
        (
            "b",
            {"embedding.weight": torch.zeros(3, 32)},
            r"embedding.weight must have shape \(\d+, 32\), but has \(3, 32\)",
        ),
        ("c", {"surprise": torch.zeros(3)}, "surprise does not belong to this model"),
    ):
        weights = {key: tensor for key, tensor in {**state, **change}.items() if tensor is not None}
        bundle = save_bundle(
            tmp_path / name, weights, model.config, tokenizer, "", source="en", target="de",
            decode=DecodeRecipe(), max_length=24, facts={},
        )  # fmt: skip
        with pytest.raises(UserError, match=rf"model\.safetensors: tensor .*{message}"):
            CTranslate2Engine.from_bundle(bundle)


def test_an_id_without_a_piece_gets_a_name_that_is_no_piece(tokenizer: Tokenizer) -> None:
    source, target = vocabularies(tokenizer, tokenizer.vocab_size + 2)
    assert source == target
    assert source[: tokenizer.vocab_size] == tokenizer.pieces(range(tokenizer.vocab_size))
    assert len(set(source)) == tokenizer.vocab_size + 2


@pytest.mark.parametrize(
    ("pieces", "message"),
    [
        ((["<unk>", "<s>", "</s>", "a", "a"], ["<unk>", "<s>", "</s>", "a", "b"]), "two ids have the piece 'a'"),
        ((["<unk>", "<s>", "</s>", "a"], ["<unk>", "<s>", "END", "a"]), "one end token.*'</s>' and 'END'"),
    ],
)
def test_pieces_that_ctranslate2_cannot_tell_apart_are_refused(
    pieces: tuple[list[str], list[str]], message: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(ctranslate2_model, "vocabularies", lambda tokenizer, vocab_size: pieces)
    with pytest.raises(UserError, match=message):
        convert(load_bundle(GOLDEN), tmp_path, "fp32")
    assert isinstance(make_engine(load_bundle(GOLDEN), "auto", "cpu"), TorchEngine)


@pytest.mark.slow
@pytest.mark.parametrize("separate", ["", "fewer source", "fewer target"])
def test_an_imported_model_with_a_vocabulary_of_its_own_translates_as_with_torch(separate: str, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    from regard.importing.marian import import_marian
    from tests.importing.opus import tatoeba, write_opus

    write_opus(tmp_path / "marian", steps=180, separate=separate, padding=2.0)
    bundle = import_marian(tmp_path / "marian", tmp_path / "bundle")
    theirs, ours = make_engine(bundle, "auto", "cpu"), make_engine(bundle, "torch", "cpu")
    assert isinstance(theirs, CTranslate2Engine)
    assert isinstance(ours, TorchEngine)
    src = bundle.tokenizer.encode_batch(tatoeba("dev.en", 20))
    tgt = bundle.tokenizer.encode_batch(tatoeba("dev.de", 20), "target")
    for scores, expected in zip(theirs.score(src, tgt), ours.score(src, tgt), strict=True):
        assert scores == pytest.approx(expected, abs=1e-4)
    for beam in (1, 4):
        options = SearchOptions(beam=beam, alpha=0.0, max_extra=10)
        best = ours.translate(src, options)
        assert len({h.ids for [h] in best}) > 5
        assert_same(theirs.translate(src, options), best, src, ours)


# --- the cache ---


@pytest.fixture
def conversions(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Where bundles were converted to, in the order of time."""
    folders: list[Path] = []

    def counting(bundle: Bundle, folder: Path, weights: WeightFormat, levels: int) -> None:
        folders.append(folder)
        convert(bundle, folder, weights, levels)

    monkeypatch.setattr(ctranslate2_cache, "convert", counting)
    return folders


def translations(bundle: Bundle) -> list[tuple[int, ...]]:
    engine = CTranslate2Engine.from_bundle(bundle)
    return [h.ids for [h] in engine.translate(bundle.tokenizer.encode_batch(SENTENCES), SearchOptions())]


def test_a_bundle_is_converted_once(conversions: list[Path], entries: Path, tmp_path: Path) -> None:
    first = translations(load_bundle(GOLDEN))
    moved = load_bundle(shutil.copytree(GOLDEN, tmp_path / "elsewhere"))  # the content counts, not the place
    assert translations(moved) == first
    assert len(conversions) == 1
    translations(make_bundle(tmp_path / "another"))
    assert len(conversions) == 2
    assert len(list(entries.iterdir())) == 2


@pytest.mark.parametrize("name", ["model.bin", "config.json", "shared_vocabulary.json", "manifest.json"])
@pytest.mark.parametrize("damage", ["flip", "remove"])
def test_a_damaged_entry_is_made_anew(name: str, damage: str, conversions: list[Path], entries: Path) -> None:
    bundle = load_bundle(GOLDEN)
    expected = translations(bundle)
    [entry] = entries.iterdir()
    content = bytearray((entry / "model" / name).read_bytes())
    if damage == "flip":
        content[len(content) // 2] ^= 0x40
        (entry / "model" / name).write_bytes(content)
    else:
        (entry / "model" / name).unlink()
    assert translations(bundle) == expected
    assert len(conversions) == 2
    assert translations(bundle) == expected
    assert len(conversions) == 2


def test_an_interrupted_conversion_leaves_no_entry(entries: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(bundle: Bundle, folder: Path, weights: WeightFormat, levels: int) -> None:
        (folder / "model.bin").write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(ctranslate2_cache, "convert", interrupted)
    with pytest.raises(KeyboardInterrupt):
        CTranslate2Engine.from_bundle(load_bundle(GOLDEN))
    [entry] = entries.iterdir()
    assert [path.name for path in entry.iterdir()] == [".lock"]


def test_several_at_once_convert_a_bundle_once(conversions: list[Path]) -> None:
    bundle = load_bundle(GOLDEN)
    results: list[list[tuple[int, ...]]] = []
    threads = [threading.Thread(target=lambda: results.append(translations(bundle))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(conversions) == 1
    assert len(results) == 4
    assert all(result == results[0] for result in results)


def test_where_nothing_can_be_kept_the_model_is_converted_each_time(
    conversions: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "file"))
    bundle = load_bundle(GOLDEN)
    assert translations(bundle) == translations(bundle)
    assert len(conversions) == 2
    assert not any(folder.exists() for folder in conversions)


def test_where_the_cache_is_full_the_model_is_converted_for_this_one_time(
    entries: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(bundle: Bundle, folder: Path, weights: WeightFormat, levels: int) -> None:
        if folder.is_relative_to(entries):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        convert(bundle, folder, weights, levels)

    bundle = load_bundle(GOLDEN)
    expected = translations(bundle)
    shutil.rmtree(entries)
    monkeypatch.setattr(ctranslate2_cache, "convert", full)
    assert translations(bundle) == expected


def test_entries_that_nobody_uses_are_removed(entries: Path, tmp_path: Path) -> None:
    golden, other, third = load_bundle(GOLDEN), make_bundle(tmp_path / "other"), load_bundle(GOLDEN_INT8)
    translations(golden)
    [old] = entries.iterdir()
    translations(other)
    [recent] = set(entries.iterdir()) - {old}
    for entry, days in ((old, 40), (recent, 20)):
        seconds = entry.stat().st_mtime - days * 24 * 3600
        os.utime(entry, (seconds, seconds))
    foreign = entries / "opus-en-fr"  # of another program
    foreign.mkdir()
    (foreign / "model.bin").write_text("precious")
    os.utime(foreign, (1e9, 1e9))
    translations(third)
    assert not old.exists()
    assert recent.exists() and (foreign / "model.bin").exists()
    seconds = recent.stat().st_mtime - 40 * 24 * 3600
    os.utime(recent, (seconds, seconds))
    translations(other)  # a use makes it young
    translations(golden)
    assert recent.exists()


def test_the_cache_lies_where_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGARD_CACHE", "/one")
    monkeypatch.setenv("XDG_CACHE_HOME", "/two")
    monkeypatch.setenv("HOME", "/three")
    assert cache_folder() == Path("/one")
    monkeypatch.delenv("REGARD_CACHE")
    assert cache_folder() == Path("/two/regard")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path("/three/.cache/regard")


# --- which engine ---


def test_auto_takes_ctranslate2_on_cpus_and_torch_elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    bundle = load_bundle(GOLDEN)
    monkeypatch.setattr(select, "_GPU_FILES", ())
    monkeypatch.setattr("platform.system", lambda: "Linux")
    assert isinstance(make_engine(bundle), CTranslate2Engine)
    assert isinstance(make_engine(bundle, device="cpu"), CTranslate2Engine)
    assert isinstance(make_engine(bundle, "torch", "cpu"), TorchEngine)
    asked: list[str] = []

    def pick(answer: str) -> Callable[[str], torch.device]:
        def answering(name: str) -> torch.device:
            asked.append(name)
            return torch.device(answer)

        return answering

    monkeypatch.setattr(select, "_GPU_FILES", (str(tmp_path),))
    for answer, expected in (("cpu", True), ("cuda", False)):
        monkeypatch.setattr("regard.device.pick_device", pick(answer))
        assert select._is_cpu("auto") is expected
    assert asked == ["auto", "auto"]
    assert not select._is_cpu("cuda:1")


def test_what_ctranslate2_cannot_do_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = load_bundle(GOLDEN)
    names = "auto, torch, torch-int8, ctranslate2, ctranslate2-fp32, onnxruntime"
    with pytest.raises(UserError, match=f"engine must be one of {names}, but is 'fast'"):
        make_engine(bundle, "fast")
    with pytest.raises(
        UserError, match=r"device must be auto or cpu with engine ctranslate2, but is 'cuda'; use --engine torch"
    ):
        make_engine(bundle, "ctranslate2", "cuda")


def test_without_the_package_auto_is_torch_and_the_name_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = load_bundle(GOLDEN)
    monkeypatch.setattr("ctranslate2.__version__", "4.7.2rc1")
    with pytest.raises(UserError, match=r"must be 4\.8 or later, but is 4\.7\.2rc1"):
        make_engine(bundle, "ctranslate2")
    assert isinstance(make_engine(bundle, device="cpu"), TorchEngine)
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    with pytest.raises(UserError, match=r"pip install 'regard\[export\]'"):
        make_engine(bundle, "ctranslate2")
    assert isinstance(make_engine(bundle, device="cpu"), TorchEngine)


# The first command converts the model, the second finds it; then scoring.
@pytest.mark.parametrize("engine", ["auto", "ctranslate2"])
def test_a_command_that_translates_imports_no_torch(engine: str, tmp_path: Path) -> None:
    (tmp_path / "s").write_text("a b c\n")
    (tmp_path / "t").write_text("c b a\n")
    common = ["-m", str(GOLDEN), "--engine", engine, "--device", "cpu"]
    translate = ["translate", *common, "a b c"]
    score = ["score", *common, "--source", str(tmp_path / "s"), "--target", str(tmp_path / "t")]
    for command, answer in (
        (translate, "c b a"),
        (translate, "c b a"),
        (score, "-0.6"),
        ([*translate, "--nbest", "2"], "1\t"),
    ):
        code = (
            f"import sys\nfrom regard.cli import main\nassert main({command!r}) == 0\nassert 'torch' not in sys.modules"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith(answer)
