"""The graph of an encoder for ONNX Runtime: every setting of a model computes what the packed model does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch

from regard.bundle import Bundle
from regard.config import ModelConfig
from regard.generate.engines import onnx_encoder_graph
from regard.generate.engines.onnx_encoder_graph import DATA, MODEL, OPSET, convert
from regard.models.transformer import Transformer
from tests.build import HEADS, LATER, ONE_STACK, SWITCHES, build, pack, pad, random_sentences, tiny_config
from tests.tiny import save_encoder

onnxruntime = pytest.importorskip("onnxruntime")

LENGTHS = [5, 1, 9]
NAMES = {
    "tokens": ["logits"],
    "tags": ["logits"],
    "classes": ["logits"],
    "vector": ["sentence_embedding", "last_hidden_state"],
}


def encoders() -> dict[str, dict[str, Any]]:
    """Every setting that tests know, in a model of one encoder."""
    found = {}
    for name, given in {**SWITCHES, **LATER, **ONE_STACK, **HEADS}.items():
        settings = {key: value for key, value in given.items() if key not in ("decoder", "encoder_layers")}
        if name != "states":  # a model without a head has no task
            found[name] = {**settings, "decoder_layers": 0}
    return found


def make(folder: Path, settings: dict[str, Any]) -> tuple[Transformer, Bundle]:
    model = build(tiny_config(vocab_size=345, **settings))
    return model, save_encoder(folder / "bundle", model)


def opened(folder: Path) -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(str(folder / MODEL), options, providers=["CPUExecutionProvider"])


def feed(config: ModelConfig, columns: int = 0, filler: int = 0) -> dict[str, np.ndarray[Any, Any]]:
    """A padded batch of random sentences, with more columns of padding and kinds of tokens if the model has some."""
    ids, mask = pad(random_sentences(LENGTHS, config.vocab_size, seed=1), filler)
    wide = torch.nn.functional.pad(ids, (0, columns), value=filler), torch.nn.functional.pad(mask.long(), (0, columns))
    given = {"input_ids": wide[0].numpy(), "attention_mask": wide[1].numpy()}
    if (kinds := config.front_settings.token_types) > 1:
        given["token_type_ids"] = np.random.default_rng(2).integers(kinds, size=wide[0].shape)
    return given


@torch.no_grad()
def expected(model: Transformer, given: dict[str, np.ndarray[Any, Any]]) -> list[np.ndarray[Any, Any]]:
    """What the packed model answers to the same batch."""
    sentences = random_sentences(LENGTHS, model.config.vocab_size, seed=1)
    is_token = torch.from_numpy(given["attention_mask"]).bool()
    types = torch.from_numpy(given["token_type_ids"])[is_token] if "token_type_ids" in given else None
    found = [model(*pack(sentences), token_types=types)]
    if model.config.head_settings.kind == "vector":
        found.append(model.states(*pack(sentences), token_types=types))
    return [one.numpy() for one in found]


@pytest.mark.parametrize("settings", encoders().values(), ids=encoders())
def test_the_graph_computes_what_the_packed_model_does(settings: dict[str, Any], tmp_path: Path) -> None:
    model, bundle = make(tmp_path, settings)
    convert(bundle, tmp_path)
    onnx.checker.check_model(str(tmp_path / MODEL), full_check=True)
    proto = onnx.load(str(tmp_path / MODEL))
    assert [(one.domain, one.version) for one in proto.opset_import] == [("", OPSET)]
    session = opened(tmp_path)
    assert [one.name for one in session.get_outputs()] == NAMES[model.config.head_settings.kind]
    for columns, filler in ((0, 0), (4, 7)):
        given = feed(model.config, columns, filler)
        for ours, theirs in zip(session.run(None, given), expected(model, given), strict=True):
            packed = ours[given["attention_mask"] == 1] if ours.ndim == 3 else ours
            np.testing.assert_allclose(packed, theirs, atol=1e-5, rtol=0)


def test_a_sequence_of_padding_alone_gives_numbers(tmp_path: Path) -> None:
    model, bundle = make(tmp_path, HEADS["vector"])
    convert(bundle, tmp_path)
    given = feed(model.config)
    given["attention_mask"][1] = 0
    vectors, states = opened(tmp_path).run(None, given)
    assert np.isfinite(vectors).all() and np.isfinite(states).all()


@pytest.mark.parametrize("positions", ["learned", "sinusoidal", "rotary"])
def test_only_tables_of_positions_limit_the_length(positions: str, tmp_path: Path) -> None:
    more = {"max_positions": 30} if positions == "learned" else {}
    _, bundle = make(tmp_path, {"decoder_layers": 0, "positions": positions, **more})
    convert(bundle, tmp_path)
    session, limit = opened(tmp_path), onnx_encoder_graph.longest_input(bundle)
    assert limit == {"learned": 30, "sinusoidal": 512, "rotary": None}[positions]
    for length in (limit or 600, *([limit + 1] if limit else [])):
        given = {"input_ids": np.full((1, length), 9), "attention_mask": np.ones((1, length), np.int64)}
        if limit is None or length <= limit:
            assert session.run(None, given)[0].shape[1] == length
        else:
            with pytest.raises(Exception, match=r"broadcast an axis|out of.*bound"):
                session.run(None, given)


def test_weights_that_are_too_many_for_one_file_go_into_a_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, bundle = make(tmp_path, HEADS["classes"])
    monkeypatch.setattr(onnx_encoder_graph, "_MAX_BYTES", 100_000)
    convert(bundle, tmp_path)
    assert (tmp_path / DATA).stat().st_size > 100_000 > (tmp_path / MODEL).stat().st_size
    given = feed(model.config)
    [found] = opened(tmp_path).run(None, given)
    np.testing.assert_allclose(found, expected(model, given)[0], atol=1e-5, rtol=0)


def test_shared_layers_and_tied_matrices_are_stored_once(tmp_path: Path) -> None:
    model, bundle = make(tmp_path, ONE_STACK["albert"])
    convert(bundle, tmp_path)
    arrays = onnx.load(str(tmp_path / MODEL)).graph.initializer
    assert len({one.name for one in arrays}) == len(arrays)
    stored = sum(onnx.numpy_helper.to_array(one).size for one in arrays)
    assert model.num_parameters() <= stored < model.num_parameters() + 100
