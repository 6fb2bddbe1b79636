"""benchmarks/language_models.py at a tiny size, on a CPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.language_contenders import make_shape, model_flops
from benchmarks.language_models import compare, main, parse
from regard.models.transformer import Transformer


def test_a_tiny_run_measures_all_contenders(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "results.json"
    tiny = ["--size", "tiny", "--seconds", "0", "--log-every", "1", "--batches", "1", "--device", "cpu"]
    main([*tiny, "--precision", "fp32", "--peers", "hf,torch", "--out", str(out)])
    results = json.loads(out.read_text())
    rows = {(row["model"], row["short name"]): row for row in results["rows"]}
    assert list(rows) == [
        *(("gpt2", name) for name in ("regard", "regard-apart", "hf", "torch")),
        *(("bert", name) for name in ("regard", "hf")),
    ]
    for key, row in rows.items():
        assert "error" not in row, (key, row)
        assert row["steps"] >= 1 and row["tokens/s"] > 0 and 0 < row["last loss"] < 10, (key, row)
        assert ("Regard is faster by" in row) == (not key[1].startswith("regard"))
    for key in (("gpt2", "regard"), ("gpt2", "hf"), ("gpt2", "torch")):  # the same work
        assert rows[key]["tokens"] == 256 * rows[key]["steps"]
    shown = capsys.readouterr().out
    assert "tokens/s" in shown and "Hugging Face transformers" in shown and str(out) in shown


def test_a_failure_costs_only_its_own_row() -> None:
    rows: list[dict[str, Any]] = [
        {"model": "gpt2", "short name": "regard", "tokens/s": 300},
        {"model": "gpt2", "short name": "hf", "tokens/s": 100},
        {"model": "gpt2", "short name": "torch", "error": "out of memory"},
        {"model": "bert", "short name": "hf", "tokens/s": 100},
    ]
    compare(rows)
    assert [row.get("Regard is faster by") for row in rows] == [None, 3.0, None, None]


def test_what_a_token_costs() -> None:
    """Against the parameters: those of GPT-2 count six times, without positions, norms and biases; so do embeddings, as output."""
    shape = make_shape("gpt2", False, 0)
    assert (shape.config.vocab_size, shape.length) == (50_257, 1024)
    with torch.device("meta"):
        model = Transformer(shape.config)
    matrices = sum(
        weight.numel() for name, weight in model.named_parameters() if weight.ndim == 2 and "pos" not in name
    )
    assert model.num_parameters() == 124_439_808
    assert model_flops(shape.config, 0.0, 1.0) == 6.0 * matrices
    causal = model_flops(shape.config, 1024, 1.0) - model_flops(shape.config, 0.0, 1.0)
    assert causal == 12 * 6.0 * 768 * 1024  # 12 layers; each score is needed once in the upper or lower half


def test_unknown_names_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for option, value in (("--only", "gpt3"), ("--peers", "hf,mlx"), ("--log-every", "0")):
        with pytest.raises(SystemExit):
            parse([option, value, "--device", "cpu"])
        assert option in capsys.readouterr().err
    parsed, _ = parse(["--peers", "none", "--only", "bert", "--device", "cpu"])
    assert (parsed.peers, parsed.only, parsed.size) == ([], ["bert"], "tiny")
