"""benchmarks/generate_throughput.py at a tiny size, on a CPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from benchmarks.generate_throughput import Task, main, make_model, parse, step_bytes


def test_a_tiny_run_measures_both_contenders(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "results.json"
    main(["--size", "tiny", "--rounds", "1", "--calls", "1", "--new", "24", "--device", "cpu", "--out", str(out)])
    rows = {(row["model"], row["batch"], row["short name"]): row for row in json.loads(out.read_text())["rows"]}
    assert list(rows) == [
        (model, batch, who) for model in ("gpt2", "llama") for batch in (1, 4) for who in ("regard", "hf")
    ]
    for key, row in rows.items():
        assert "error" not in row, (key, row)
        assert row["tokens/s"] > 0 and row["% of bandwidth"] > 0
        assert row["same tokens"] == 24, key  # in fp32 both write the same
        assert ("Regard is faster by" in row) == (key[2] == "hf")
    assert "Hugging Face generate" in capsys.readouterr().out


def test_what_a_step_reads() -> None:
    """Against the parameters: GPT-2's output matrix is its embedding, LLaMA's is another; positions are looked up."""
    for name, unread in (("gpt2", ["decoder.positions.weight"]), ("llama", ["embedding.weight"])):
        model = make_model(name, is_tiny=True)
        named = dict(model.named_parameters())
        unread = [key for key in named if key in unread or (name == "llama" and key == "tgt_embedding.weight")]
        assert unread
        weights = sum(weight.numel() for key, weight in named.items() if key not in unread)
        kv_heads, d_head = (2, 16) if name == "gpt2" else (2, 8)
        cached = (
            2 * 2 * kv_heads * d_head * (6 + 1.5)
        )  # keys and values of two layers, before the first to the fourth token
        assert step_bytes(model.config, Task(6, 4, 3, 1), 2) == 2 * (weights + 3 * cached)


def test_the_sizes_are_those_that_are_named() -> None:
    with torch.device("meta"):
        sizes = [make_model(name, is_tiny=False).num_parameters() for name in ("gpt2", "llama")]
    assert sizes[0] == 124_439_808 and 3.3e8 < sizes[1] < 3.6e8


def test_unknown_names_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for option, value in (("--only", "gpt3"), ("--contenders", "hf,mlx"), ("--rounds", "0"), ("--batch", "1,x")):
        with pytest.raises(SystemExit):
            parse([option, value, "--device", "cpu"])
        assert option in capsys.readouterr().err
