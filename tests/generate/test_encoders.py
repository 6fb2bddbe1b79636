"""Engines for encoders against transformers, on the same weights: torch's and CTranslate2's, for every head."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from regard.bundle import Bundle
from regard.errors import UserError
from regard.export import export
from regard.generate.encoding import EncoderEngine, EncoderInput
from regard.generate.engines.ctranslate2_encoder import CTranslate2Encoder
from regard.generate.engines.encoder_engine import TorchEncoder
from regard.generate.engines.select import make_encoder
from regard.importing.transformers import import_model
from tests import encoders

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


@pytest.mark.parametrize("engine", ["torch", "ctranslate2"])
def test_engines_answer_as_transformers_does(model: tuple[Path, Bundle], engine: str) -> None:
    original, bundle = model
    inputs = inputs_of(bundle, TEXTS)
    done: list[int] = []
    found = make_encoder(bundle, engine, "cpu").answers(inputs, done.extend)
    assert sorted(done) == list(range(len(TEXTS)))
    for ours, theirs in zip(found, expected(original, inputs), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=2e-5)


@pytest.mark.parametrize("make", [TorchEncoder.from_bundle, CTranslate2Encoder])
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
    for engine in ("torch", "ctranslate2"):
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


def test_what_an_engine_cannot_do_is_refused_by_name_or_given_to_one_that_can(tmp_path: Path) -> None:
    original = encoders.write_model(tmp_path / "original", "BertForMaskedLM")
    bundle = import_model(original, tmp_path / "bundle", compare=False).bundle
    with pytest.raises(
        UserError, match=r"CTranslate2 does not compute model\.head\.kind = 'tokens' here; use --engine torch"
    ):
        make_encoder(bundle, "ctranslate2", "cpu")
    engine = make_encoder(bundle, "auto", "cpu")
    assert isinstance(engine, TorchEncoder)
    ids = bundle.tokenizer.frame(bundle.tokenizer.encode("a cat"))[0]
    theirs = transformers.BertForMaskedLM.from_pretrained(original).eval()
    with torch.no_grad():
        wanted = theirs(torch.tensor([ids])).logits[0].numpy()
    found = engine.answers([EncoderInput(ids, places=[2, 1]), EncoderInput(ids), EncoderInput(ids, places=[0])])
    assert [one.shape for one in found] == [(2, wanted.shape[1]), (0, wanted.shape[1]), (1, wanted.shape[1])]
    np.testing.assert_allclose(found[0], wanted[[2, 1]], atol=2e-5)
    np.testing.assert_allclose(found[2], wanted[[0]], atol=2e-5)
    with pytest.raises(UserError, match="device must be auto or cpu with engine ctranslate2"):
        make_encoder(bundle, "ctranslate2", "cuda")
