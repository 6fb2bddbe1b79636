"""benchmarks/generate_cpu.py at a tiny size: its Q8_0 file, and a run of the contenders that need no other package."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from safetensors.torch import load_file

from benchmarks.generate_cpu import Case, main, parse, write_q8
from regard.importing.gguf import import_gguf
from tests.families.checkpoints import make_original
from tests.families.test_gguf import WIDE, write_gguf

pytest.importorskip("ctranslate2")
pytest.importorskip("onnxruntime")


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gguf") / "model.gguf"
    changes = {"vocab_size": 401, "max_position_embeddings": 512, **WIDE}
    write_gguf(path, make_original("llama", **changes))
    return path


def test_q8_has_the_same_weights_up_to_rounding(file: Path, tmp_path: Path) -> None:
    write_q8(file, tmp_path / "q8.gguf")
    assert (tmp_path / "q8.gguf").stat().st_size < 0.6 * file.stat().st_size
    exact, rounded = (
        import_gguf(path, tmp_path / name, compare=False).bundle
        for path, name in ((file, "exact"), (tmp_path / "q8.gguf", "rounded"))
    )
    assert exact.tokenizer.encode("the dog") == rounded.tokenizer.encode("the dog")
    ours, theirs = load_file(exact.weights), load_file(rounded.weights)
    for name, weight in ours.items():
        assert (weight - theirs[name]).abs().max() <= weight.abs().max() / 127, name


@pytest.mark.slow
def test_a_tiny_run(file: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "results.json"
    main(
        [
            "--gguf",
            str(file),
            "--contenders",
            "regard,regard-int8",
            "--cases",
            "1x32+20,2x40+1",
            "--rounds",
            "1",
            "--out",
            str(out),
        ]
    )
    rows = json.loads(out.read_text())["rows"]
    assert [row["case"] for row in rows] == ["1x32+20"] * 2 + ["2x40+1"] * 2
    assert all(row["tokens/s, median"] > 0 and "HAS" not in row["contender"] for row in rows)
    assert all(row["CPU ms/token"] > 0 for row in rows)
    assert "tokens/s" in capfd.readouterr().out


def test_unknown_names_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["--gguf", "x", "--contenders", "mlx"], ["--rounds", "1"], ["--gguf", "x", "--cases", "8"]):
        with pytest.raises(SystemExit):
            parse(arguments)
    said = capsys.readouterr().err
    assert "--gguf is needed" in said and "BATCHxPROMPT+NEW" in said
    assert Case.parse("8x32+128").tokens == 8 * 128 and Case.parse("2x512+1").tokens == 2 * 512
