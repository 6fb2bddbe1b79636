"""Claims: a measurement is on disk at once, a resumed run forgets what it will measure again, a crash costs a line."""

from __future__ import annotations

import importlib
import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from regard.errors import UserError
from regard.training.metrics import MetricsLog, TensorBoardLog, read_metrics


def train(step: int) -> dict[str, Any]:
    return {"kind": "train", "step": step, "epoch": step / 100, "loss": 4.0, "nll": 3.0, "lr": 1e-3}


def steps(path: Path) -> list[Any]:
    return [record.get("step", record["kind"]) for record in read_metrics(path)]


def test_each_record_is_on_disk_when_write_returns(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    log = MetricsLog(path)
    log.write(train(100))
    assert path.read_bytes().endswith(b"\n")
    assert read_metrics(path) == [train(100)]
    log.write({"kind": "note", "text": "Größe ✓"})
    assert "Größe ✓" in path.read_text("utf-8")
    log.close()


def test_resumed_log_forgets_what_lies_beyond_the_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    log = MetricsLog(path)
    for record in (
        {"kind": "note", "text": "begins"},
        train(100),
        train(200),
        {"kind": "note", "text": "after 200"},
        train(300),
        {"kind": "note", "text": "after 300"},
    ):
        log.write(record)
    log.close()
    resumed = MetricsLog(path, resume_step=200)
    assert steps(path) == ["note", 100, 200, "note"]
    resumed.write(train(300))
    resumed.close()
    assert steps(path) == ["note", 100, 200, "note", 300]
    assert [file.name for file in tmp_path.iterdir()] == ["metrics.jsonl"]


def test_log_without_resume_starts_afresh(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(json.dumps(train(100)) + "\n")
    MetricsLog(path).close()
    assert read_metrics(path) == []


def test_resume_without_a_file_starts_one(tmp_path: Path) -> None:
    MetricsLog(tmp_path / "metrics.jsonl", resume_step=50).close()
    assert read_metrics(tmp_path / "metrics.jsonl") == []


@pytest.mark.parametrize("torn", [b'{"kind": "train", "st', '{"kind": "note", "text": "Gr\u00f6'.encode()[:-1], b"12"])
def test_line_torn_by_a_kill_is_passed_over_and_dropped_on_resume(tmp_path: Path, torn: bytes) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(json.dumps(train(100)).encode() + b"\n" + torn)
    assert steps(path) == [100]
    log = MetricsLog(path, resume_step=100)
    log.write(train(200))
    log.close()
    assert steps(path) == [100, 200]


def test_broken_line_in_the_middle_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(json.dumps(train(100)) + "\n{broken\n" + json.dumps(train(200)) + "\n")
    with pytest.raises(UserError, match=r"metrics\.jsonl, line 2: must be a JSON object, but is '\{broken'"):
        read_metrics(path)


@pytest.mark.parametrize(
    "record",
    [
        {},
        {"kind": 3},
        {"kind": "note"},
        {"kind": "train", "step": "1"},
        {"kind": "train", "step": -1},
        {"kind": "train", "step": 1, "loss": "low"},
        {"kind": "train", "step": 1, "lr": 1e-320},
        {"kind": "valid", "step": 1, "bleu": [1]},
        {"kind": "valid", "step": 1, "samples": [{"source": "a"}]},
        {"kind": "test", "name": "x", "scores": {"metrics": {"bleu": {"score": "high"}}}},
    ],
)
def test_a_record_that_a_report_could_not_show_is_refused_with_the_remedy(
    tmp_path: Path, record: dict[str, Any]
) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(json.dumps(train(1)) + "\n" + json.dumps(record) + "\n")
    with pytest.raises(
        UserError, match=r"metrics\.jsonl, line 2: .*; delete the line, or the whole file to begin it anew"
    ):
        read_metrics(path)


def test_numbers_that_json_lacks_become_null_and_foreign_numbers_plain(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    log = MetricsLog(path)
    log.write({"kind": "train", "step": np.int64(1), "loss": math.nan, "nll": np.float32(0.5), "list": [math.inf]})
    log.close()
    assert read_metrics(path) == [{"kind": "train", "step": 1, "loss": None, "nll": 0.5, "list": [None]}]
    assert "NaN" not in path.read_text()


def test_lone_surrogate_does_not_break_the_log(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path / "metrics.jsonl")
    log.write({"kind": "note", "text": "bad \udce9", "also \udce9": 1})
    log.close()
    assert read_metrics(tmp_path / "metrics.jsonl")[0]["text"] == "bad ?"


def test_missing_tensorboard_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(UserError, match=r"needs the extra: pip install 'regard\[tensorboard\]'"):
        TensorBoardLog(tmp_path)


def test_tensorboard_gets_the_numbers_of_every_kind(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    accumulator = importlib.import_module("tensorboard.backend.event_processing.event_accumulator")

    log = TensorBoardLog(tmp_path)
    log.write(train(100))
    sample = {"source": "a", "reference": "b", "translation": "c"}
    log.write({"kind": "valid", "step": 100, "loss": 2.5, "bleu": 20.0, "best": True, "samples": [sample]})
    log.write({"kind": "test", "name": "flickr", "scores": {"metrics": {"bleu": {"name": "BLEU", "score": 21.0}}}})
    log.write({"kind": "note", "text": "done"})
    log.close()
    events = accumulator.EventAccumulator(str(tmp_path))
    events.Reload()
    assert set(events.Tags()["scalars"]) == {
        *(f"train/{name}" for name in ("epoch", "loss", "nll", "lr")),
        *("valid/loss", "valid/bleu", "test/flickr/BLEU"),
    }
    assert [(event.step, event.value) for event in events.Scalars("valid/bleu")] == [(100, 20.0)]
    assert len(events.Tags()["tensors"]) == 2
