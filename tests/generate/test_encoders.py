"""Engines for encoders against transformers, on the same weights: those of torch, CTranslate2 and ONNX Runtime, for every head."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import regard
from regard.bundle import Bundle
from regard.errors import UserError
from regard.export import export
from regard.generate.encoding import EncoderEngine, EncoderInput
from regard.generate.engines.ctranslate2_encoder import CTranslate2Encoder
from regard.generate.engines.encoder_engine import TorchEncoder
from regard.generate.engines.onnx_encoder import OnnxEncoder
from regard.generate.engines.select import make_encoder
from regard.importing.transformers import import_model
from tests import commands, encoders
from tests.families.checkpoints import make_original

TEXTS = ["The cat sat on the mat.", "x", "Der Hund schläft nicht, sagte sie.", "Who is there?", ""]
ARCHITECTURES = ["BertModel", "BertForSequenceClassification", "BertForTokenClassification", "RobertaModel"]


@pytest.fixture(scope="module", params=ARCHITECTURES)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Bundle]:
    folder = tmp_path_factory.mktemp("encoder")
    original = encoders.write_model(folder / "original", request.param)
    return original, import_model(original, folder / "bundle", compare=False).bundle


def inputs_of(bundle: Bundle, texts: list[str]) -> list[EncoderInput]:
    framed = (bundle.tokenizer.frame(bundle.tokenizer.encode(text)) for text in texts)
    return [EncoderInput(ids, types if bundle.config.front_settings.token_types > 1 else ()) for ids, types in framed]


@torch.no_grad()
def expected(original: Path, inputs: list[EncoderInput]) -> list[np.ndarray[Any, Any]]:
    """One at a time, as transformers answers."""
    architecture = transformers.AutoConfig.from_pretrained(original).architectures[0]
    theirs = getattr(transformers, architecture).from_pretrained(original).eval()
    found = []
    for one in inputs:
        answer = theirs(torch.tensor([list(one.ids)]))
        found.append((answer.logits if "logits" in answer else answer.pooler_output)[0].numpy())
    return found


@pytest.mark.parametrize("engine", ["torch", "ctranslate2", "onnxruntime"])
def test_engines_answer_as_transformers_does(model: tuple[Path, Bundle], engine: str) -> None:
    original, bundle = model
    inputs = inputs_of(bundle, TEXTS)
    done: list[int] = []
    found = make_encoder(bundle, engine, "cpu").answers(inputs, done.extend)
    assert sorted(done) == list(range(len(TEXTS)))
    for ours, theirs in zip(found, expected(original, inputs), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=2e-5)


@pytest.mark.parametrize("make", [TorchEncoder.from_bundle, CTranslate2Encoder, OnnxEncoder])
def test_an_answer_does_not_depend_on_what_shares_its_batch(make: Any, tmp_path: Path) -> None:
    _, bundle = encoders.vector_model(tmp_path)
    engine: EncoderEngine = make(bundle)
    inputs = inputs_of(bundle, TEXTS)
    for one, shared in zip(inputs, engine.answers(inputs), strict=True):
        np.testing.assert_allclose(engine.answers([one])[0], shared, atol=1e-5)


def test_token_types_reach_the_model(tmp_path: Path) -> None:
    original = encoders.write_model(tmp_path / "original", "BertForSequenceClassification")
    bundle = import_model(original, tmp_path / "bundle", compare=False).bundle
    tokenizer = bundle.tokenizer
    ids, types = tokenizer.frame(tokenizer.encode("one cat"), tokenizer.encode("two dogs"))
    assert 1 in types
    theirs = transformers.BertForSequenceClassification.from_pretrained(original).eval()
    with torch.no_grad():
        wanted = theirs(torch.tensor([ids]), token_type_ids=torch.tensor([types])).logits[0].numpy()
    for engine in ("torch", "ctranslate2", "onnxruntime"):
        answers = make_encoder(bundle, engine, "cpu").answers([EncoderInput(ids, types), EncoderInput(ids[:4])])
        np.testing.assert_allclose(answers[0], wanted, atol=2e-5)


def test_int8_bundles_are_computed_in_int8_and_stay_near(tmp_path: Path) -> None:
    _, bundle = encoders.vector_model(tmp_path)
    export(bundle, "bundle", tmp_path / "int8", "int8")
    from regard.bundle import load_bundle

    small = load_bundle(tmp_path / "int8")
    inputs = inputs_of(bundle, TEXTS)
    exact = np.stack(make_encoder(bundle, "auto", "cpu").answers(inputs))
    near = np.stack(make_encoder(small, "auto", "cpu").answers(inputs))
    cosines = (exact * near).sum(1) / np.linalg.norm(exact, axis=1) / np.linalg.norm(near, axis=1)
    assert 0 < 1 - cosines.mean() < 1e-2
    again = np.stack(make_encoder(small, "ctranslate2-fp32", "cpu").answers(inputs))
    assert not np.array_equal(again, near)


@pytest.fixture
def filling(tmp_path: Path) -> tuple[Path, Bundle]:
    original = encoders.write_model(tmp_path / "original", "BertForMaskedLM")
    return original, import_model(original, tmp_path / "bundle", compare=False).bundle


@pytest.mark.parametrize("engine", ["torch", "onnxruntime"])
def test_tokens_are_answered_where_they_are_wanted(engine: str, filling: tuple[Path, Bundle]) -> None:
    original, bundle = filling
    ids = bundle.tokenizer.frame(bundle.tokenizer.encode("a cat"))[0]
    theirs = transformers.BertForMaskedLM.from_pretrained(original).eval()
    with torch.no_grad():
        wanted = theirs(torch.tensor([ids])).logits[0].numpy()
    longer = EncoderInput([*ids, *ids], places=[1])
    inputs = [EncoderInput(ids, places=[2, 1]), EncoderInput(ids), longer, EncoderInput(ids, places=[0])]
    found = make_encoder(bundle, engine, "cpu").answers(inputs)
    assert [one.shape for one in found] == [(count, wanted.shape[1]) for count in (2, 0, 1, 1)]
    np.testing.assert_allclose(found[0], wanted[[2, 1]], atol=2e-5)
    np.testing.assert_allclose(found[3], wanted[[0]], atol=2e-5)
    [nothing] = make_encoder(bundle, engine, "cpu").answers([EncoderInput(ids)])
    assert nothing.shape == (0, wanted.shape[1])


def test_what_an_engine_cannot_do_is_refused_by_name_or_given_to_one_that_can(
    filling: tuple[Path, Bundle], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, bundle = filling
    with pytest.raises(
        UserError,
        match=r"CTranslate2 does not compute model\.head\.kind = 'tokens' here; use --engine onnxruntime or torch",
    ):
        make_encoder(bundle, "ctranslate2", "cpu")
    for engine in ("ctranslate2", "onnxruntime"):
        with pytest.raises(UserError, match=f"device must be auto or cpu with engine {engine}"):
            make_encoder(bundle, engine, "cuda")
    with pytest.raises(UserError, match="engine torch-int8 is for language models"):
        make_encoder(bundle, "torch-int8", "cpu")
    assert isinstance(make_encoder(bundle, "auto", "cpu"), OnnxEncoder)
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    assert isinstance(make_encoder(bundle, "auto", "cpu"), TorchEncoder)


def test_albert_runs_in_onnx_runtime(tmp_path: Path) -> None:
    make_original("albert-classes").save_pretrained(tmp_path / "original")
    bundle = import_model(tmp_path / "original", tmp_path / "bundle", compare=False).bundle
    engine = make_encoder(bundle, "auto", "cpu")
    assert isinstance(engine, OnnxEncoder)
    inputs = [EncoderInput([9, 8, 7, 6]), EncoderInput([5, 20], [0, 1]), EncoderInput(range(8, 37))]
    theirs = transformers.AlbertForSequenceClassification.from_pretrained(tmp_path / "original").eval()
    for one, answer in zip(inputs, engine.answers(inputs), strict=True):
        types = torch.tensor([list(one.types) or [0] * len(one)])
        with torch.no_grad():
            wanted = theirs(torch.tensor([list(one.ids)]), token_type_ids=types).logits[0]
        np.testing.assert_allclose(answer, wanted.numpy(), atol=1e-5)


def test_a_cached_graph_is_run_without_torch(tmp_path: Path, filling: tuple[Path, Bundle]) -> None:
    """A new process answers the same, and has not imported torch."""
    _, bundle = filling
    text = "a [MASK] cat"
    code = (
        "import sys, regard\n"
        f"filled = regard.load({str(bundle.folder)!r}, engine='onnxruntime', device='cpu').fill({text!r})\n"
        "print(filled.filled)\nassert 'torch' not in sys.modules"
    )
    here = regard.load(bundle.folder, engine="torch", device="cpu").fill(text)
    assert not isinstance(here, list)
    assert commands.finished(commands.start(["-c", code])) == here.filled + "\n"
