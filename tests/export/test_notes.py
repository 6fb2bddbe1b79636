"""What Regard does around a model and other programs do not is said when the model leaves."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from regard.data.tokenizer import Tokenizer
from regard.export import export
from regard.recipe import DecodeRecipe
from tests.build import HEADS, build, tiny_config
from tests.tiny import save_encoder, save_model


def test_an_export_says_what_stays_behind(tmp_path: Path) -> None:
    lines = ["see the page for more", "mehr steht auf der Seite"] * 20
    for protects in (False, True):
        tokenizer = Tokenizer.train(lines, 400, tmp_path / f"tokenizer-{protects}", protects=protects)
        model = build(tiny_config(vocab_size=tokenizer.vocab_size))
        decode = DecodeRecipe(max_extra=10, guard=protects)
        bundle = save_model(tmp_path / f"bundle-{protects}", model, tokenizer, decode=decode)
        notes = export(bundle, "ctranslate2", tmp_path / f"ctranslate2-{protects}").notes
        assert [note.split(" ")[0] for note in notes] == (["this", "decode.guard"] if protects else [])
        assert export(bundle, "bundle", tmp_path / f"int8-{protects}").notes == ()  # Regard goes on doing it


@pytest.mark.parametrize("name", ["vector", "vector-of-length-1"])
def test_an_export_says_which_parts_of_a_vector_stay_behind(name: str, tmp_path: Path) -> None:
    """sentence-transformers has no pooling such as BERT's pooler, and CTranslate2 knows nothing of prompts."""
    settings = {**HEADS[name], "front": {"token_types": 2}}
    bundle = save_encoder(tmp_path / "bundle", build(tiny_config(vocab_size=345, **settings)))
    bundle = dataclasses.replace(bundle, prompts={"query": "find: "})
    is_pooler = name == "vector-of-length-1"
    first = ["sentence-transformers has no such pooling (model.head.pooling = 'tanh-first'): the folder is for transformers alone, "
             "whose pooler_output is the vector, to be scaled to length 1"]  # fmt: skip
    second = [
        "this model's prompts (query) are not in the folder: put them before a text; regard info --json shows them"
    ]
    notes = {to: list(export(bundle, to, tmp_path / to).notes) for to in ("transformers", "ctranslate2", "onnx")}
    assert notes == {"transformers": first + second if is_pooler else [], "ctranslate2": second, "onnx": []}
