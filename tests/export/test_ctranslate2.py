"""Models for CTranslate2: complete folders that it loads by itself, compared with the original before they get their name."""

from __future__ import annotations

import json
import re
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from regard.api import load
from regard.bundle import load_bundle
from regard.errors import RegardError, UserError
from regard.export import export
from regard.generate.engines import ctranslate2_model
from tests.tiny import make_bundle

pytest.importorskip("ctranslate2")

GOLDEN = Path(__file__).parents[1] / "golden" / "bundle-1"


@pytest.mark.parametrize("weights", ["fp32", "fp16", "int8"])
def test_an_exported_model_computes_what_the_bundle_does(weights: str, tmp_path: Path) -> None:
    report = export(load_bundle(GOLDEN), "ctranslate2", tmp_path / "out", weights)
    assert (report.folder, report.weights) == (tmp_path / "out", weights)
    assert {"fp32": 0.0, "fp16": 1e-5, "int8": 1e-3}[weights] < report.difference.mean < report.tolerance
    assert {path.name for path in report.folder.iterdir()} == {
        "model.bin", "config.json", "shared_vocabulary.json", "tokenizer", "README.md"
    }  # fmt: skip


def test_smaller_weights_make_a_smaller_file(tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path / "bundle")
    sizes = [
        (export(bundle, "ctranslate2", tmp_path / weights, weights).folder / "model.bin").stat().st_size
        for weights in ("fp32", "fp16", "int8")
    ]
    table = 1024 * 32 * 4  # of positions, which int8 leaves as it is
    assert sizes[1] == pytest.approx(sizes[0] / 2, rel=0.05)
    assert sizes[2] - table < 0.35 * (sizes[0] - table)


def test_the_page_beside_the_model_says_how_to_use_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = export(load_bundle(GOLDEN), "ctranslate2", tmp_path / "out").folder
    [code] = re.findall(r"```python\n(.*?)```", (folder / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    code = code.replace("FOLDER", str(folder)).replace('["one sentence"]', '["a b c", "p o n m"]')
    exec(compile(code, "README.md", "exec"), {})
    assert capsys.readouterr().out.splitlines() == load(GOLDEN, engine="torch").translate(["a b c", "p o n m"])


def test_a_model_that_comes_out_wrong_is_not_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def zeros(length: int, d_model: int) -> Any:
        return np.zeros((length, d_model), np.float32)

    monkeypatch.setattr(ctranslate2_model, "sinusoids", zeros)
    with pytest.raises(RegardError, match="the ctranslate2 model does not compute what the original does"):
        export(load_bundle(GOLDEN), "ctranslate2", tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_a_setting_that_the_shorter_way_does_not_know_goes_through_ctranslate2s_specs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = load_bundle(GOLDEN)
    short = export(bundle, "ctranslate2", tmp_path / "short")
    monkeypatch.setitem(ctranslate2_model._KNOWN, "norm_position", {"post": 0})
    with pytest.raises(UserError, match=r"CTranslate2 does not support model\.norm_position = 'pre'"):
        ctranslate2_model.convert(bundle, tmp_path, "fp32")
    long = export(bundle, "ctranslate2", tmp_path / "long")
    assert long.difference == short.difference
    assert {path.name for path in long.folder.iterdir()} == {path.name for path in short.folder.iterdir()}


def test_the_folder_needs_no_regard(tmp_path: Path) -> None:
    folder = export(load_bundle(GOLDEN), "ctranslate2", tmp_path / "out").folder
    translator = import_module("ctranslate2").Translator(str(folder), intra_threads=1)
    pieces = json.loads((folder / "shared_vocabulary.json").read_text(encoding="utf-8"))
    tokenizer = load_bundle(GOLDEN).tokenizer
    [result] = translator.translate_batch([[pieces[i] for i in tokenizer.encode("h e l")]], beam_size=4)
    assert tokenizer.decode([pieces.index(piece) for piece in result.hypotheses[0]]) == "l e h"
