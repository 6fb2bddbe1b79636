"""Blanks, filled as transformers fills them; what a user writes stays text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import regard
from regard.api import Model
from regard.bundle import save_bundle
from regard.cli import main
from regard.config import ModelConfig
from regard.data.tokenizer import Tokenizer
from regard.errors import UserError
from regard.importing.transformers import import_model
from regard.models.transformer import Transformer
from regard.recipe import DecodeRecipe
from tests import encoders, tiny

TEXTS = ["The cat sat on the {}.", "{} is there?", "Who {} the {}, and why?"]


@pytest.fixture(scope="module", params=["Bert", "Roberta"])
def models(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Model, str]:
    folder = tmp_path_factory.mktemp("fill")
    original = encoders.write_model(folder / "original", f"{request.param}ForMaskedLM")
    import_model(original, folder / "bundle", compare=False)
    return original, regard.load(folder / "bundle"), {"Bert": "[MASK]", "Roberta": "<mask>"}[request.param]


@torch.no_grad()
def their_probabilities(original: Path, text: str) -> tuple[Any, torch.Tensor]:
    """The probabilities of all tokens in each blank, as transformers computes them."""
    tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(original)
    model = transformers.AutoModelForMaskedLM.from_pretrained(original).eval()
    ids = tokenizer(text, return_tensors="pt")["input_ids"]
    return tokenizer, model(ids).logits[ids == tokenizer.mask_token_id].softmax(-1)


@pytest.mark.parametrize("text", TEXTS)
def test_blanks_are_filled_as_transformers_fills_them(models: tuple[Path, Model, str], text: str) -> None:
    original, model, mask = models
    tokenizer, wanted = their_probabilities(original, text.replace("{}", mask))
    filled = model.fill(text.replace("{}", mask), k=8)
    assert not isinstance(filled, list) and len(filled.blanks) == text.count("{}") == len(wanted)
    for candidates, probabilities in zip(filled.blanks, wanted, strict=True):
        order = [i for i in probabilities.argsort(descending=True).tolist() if i not in tokenizer.all_special_ids][:8]
        assert [one.probability for one in candidates] == pytest.approx(probabilities[order].tolist(), abs=1e-5)
        names = [tokenizer.convert_ids_to_tokens(i).removeprefix("##") for i in order]
        if mask == "[MASK]":
            assert [one.text for one in candidates] == names
    assert mask not in filled.filled and filled.blanks[0][0].text in filled.filled


def test_a_piece_that_continues_a_word_joins_it(models: tuple[Path, Model, str]) -> None:
    _, model, mask = models
    filler, tokenizer = model.filler, model.bundle.tokenizer
    pieces = tokenizer.pieces(range(tokenizer.vocab_size))
    inner, first = (
        next(
            i
            for i, piece in enumerate(pieces)
            if filler.is_text[i] and piece.startswith("\u2581") == begins and piece.strip("\u2581").isalpha()
        )
        for begins in (False, True)
    )
    for token, gap in ((inner, ""), (first, " ")):
        logits = np.zeros((1, model.bundle.config.vocab_size), np.float32)
        logits[0, token] = 9.0
        filled = filler.join(filler.read(f"a cat {mask} x"), [logits], 1)
        assert filled.filled == f"a cat{gap}{pieces[token].strip(chr(0x2581))} x"


def test_three_underscores_are_a_blank(models: tuple[Path, Model, str]) -> None:
    _, model, mask = models
    for text in TEXTS:
        assert model.fill(text.replace("{}", "___")) == model.fill(text.replace("{}", mask))


def test_no_other_name_becomes_a_control_token(models: tuple[Path, Model, str]) -> None:
    _, model, mask = models
    tokenizer = model.bundle.tokenizer
    names = [name for name in tokenizer.control_names if name != mask]
    read = model.filler.read(f"{mask} {' '.join(names)} cat")
    ids = read.inputs[0].ids[len(tokenizer.opening) : -len(tokenizer.closing)]
    special = set(tokenizer.control_names.values()) - {tokenizer.unk_id}
    assert len(names) > 3 and [i for i in ids if i in special] == [tokenizer.mask_id]


def test_long_texts_are_read_around_each_blank(models: tuple[Path, Model, str]) -> None:
    """Nothing is cut off in silence: a blank is read with as much text on both sides as the model takes."""
    _, model, mask = models
    text = "the cat sat. " * 20 + f"a {mask} b " + "the dog ran. " * 20 + f"c {mask} d"
    read = model.filler.read(text)
    longest = model.bundle.max_length
    assert [len(one.ids) for one in read.inputs] == [longest] * 2
    assert [one.ids[one.places[0]] for one in read.inputs] == [model.bundle.tokenizer.mask_id] * 2
    assert abs(read.inputs[0].places[0] - longest // 2) <= 2
    filled = model.fill(text)
    assert not isinstance(filled, list) and len(filled.blanks) == 2


def test_a_model_trained_here_fills_too(tmp_path: Path) -> None:
    tokenizer = Tokenizer.train([" ".join(pair) for pair in tiny.reversal_pairs(50, 1)], 400, tmp_path / "tokenizer")
    config = ModelConfig(tokenizer.vocab_size, d_model=32, d_ff=48, num_heads=2, encoder_layers=1, decoder_layers=0)
    torch.manual_seed(1)
    model = Transformer(config)
    decode = DecodeRecipe(beam=1)
    save_bundle(
        tmp_path / "m", model.state_dict(), config, tokenizer, "", source="", target="", decode=decode, max_length=24,
        facts={}, task="fill",
    )  # fmt: skip
    loaded = regard.load(tmp_path / "m")
    filled = loaded.fill("a ___ c")
    assert not isinstance(filled, list) and len(filled.blanks[0]) == 5
    assert loaded.fill("a [MASK] c") == filled
    # As in training, where a mask takes the place of pieces such as "\u2581b", whose space is their own.
    a, b, c = tokenizer.encode("a b c")
    for text, ids in {
        "a ___ c": [a, -1, c],
        "___ b c": [-1, b, c],
        "___ ___ c": [-1, -1, c],
        "a b ___": [a, b, -1],
    }.items():
        wanted = [tokenizer.mask_id if i < 0 else i for i in ids]
        assert list(loaded.filler.read(text).inputs[0].ids) == [*wanted, tokenizer.eos_id]
    joined = loaded.filler.read("a ___.").inputs[0].ids
    assert list(joined) == [a, tokenizer.mask_id, *tokenizer.encode(".", at_start=False), tokenizer.eos_id]


def test_the_command(models: tuple[Path, Model, str], capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    _, model, mask = models
    named = ("-m", str(model.bundle.folder))
    assert main(["fill", f"The {mask} sat.", "-k", "2", *named, "--json"]) == 0
    [document] = json.loads(capsys.readouterr().out)
    filled = model.fill(f"The {mask} sat.", 2)
    assert not isinstance(filled, list) and document["filled"] == filled.filled
    assert [one["text"] for one in document["blanks"][0]] == [one.text for one in filled.blanks[0]]
    assert main(["fill", f"The {mask} sat.", "-k", "2", *named]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == filled.filled and len(lines) == 3 and lines[1].endswith(filled.blanks[0][0].text)
    for arguments, message in [
        (["no blank", *named], f"must have a blank, written as {mask} or ___, but has none"),
        (["a ___", "no blank", *named], f"text 2 of 2: a text to fill must have a blank, written as {mask} or ___"),
        (["a ___"], "fill needs -m MODEL, a masked language model"),
        (["a ___", "-k", "0", *named], "k must be"),
        (["a ___", *named, "--engine", "ctranslate2"], "CTranslate2 does not compute"),
    ]:
        assert main(["fill", *arguments]) == 2
        assert message in capsys.readouterr().err
    (tmp_path / "empty.txt").touch()
    assert main(["fill", "-i", str(tmp_path / "empty.txt"), *named]) == 0
    assert capsys.readouterr().out == ""


def test_models_for_other_tasks_are_refused(models: tuple[Path, Model, str]) -> None:
    with pytest.raises(UserError, match="must be a model for the task embed, but is one for the task fill"):
        models[1].embed("a")
