"""A full disk ends a run with one line that names the file and the bytes, and costs nothing that was saved before.

A limit on the size of files stands for the disk: it fails in the same calls, and needs no disk of its own.
"""

from __future__ import annotations

import errno
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from regard.cli import main
from regard.data.clean import CleanOptions
from regard.data.corpus import Corpus
from regard.data.store import prepare_store
from regard.data.tokenizer import Tokenizer
from regard.data.writer import CorpusWriter
from regard.errors import RegardError
from regard.files import atomic_folder, write_atomic, writing
from regard.parallel.ranks import Ranks
from regard.training.checkpoint import list_checkpoints, save_checkpoint
from regard.training.metrics import MetricsLog, read_metrics
from regard.translation.lines import LineFile
from tests.tiny import reversal_pairs, write_pairs, write_recipe


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """No file may grow beyond this many bytes. Python ignores the signal, so that writing fails with an error."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


NO_ROOM = r"cannot be written, since no file may become so large here \(ulimit -f\); it needs {} bytes: make room"


@pytest.mark.parametrize("shard", [False, True])
def test_a_checkpoint_that_does_not_fit_is_named_with_its_bytes(
    tmp_path: Path, shard: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    recipe, run = write_recipe(tmp_path, steps=4, save_every=2, validate_every=100, shard=shard), tmp_path / "run"
    command = ["train", str(recipe), "--out", str(run), "--set", "train.steps=2"]
    assert main(command) == 0
    capfd.readouterr()
    with largest_file(60_000):  # room for the rest of a run
        assert main([*command, "--resume", "--set", "train.steps=4"]) == 1
    shown = capfd.readouterr().err
    assert "Traceback" not in shown
    last = shown.splitlines()[-1]
    assert last.startswith(f"regard: {run}/checkpoints/step-000004")
    assert "cannot be written, since no file may become so large here (ulimit -f); it needs" in last
    assert [path.name for path in (run / "checkpoints").iterdir()] == ["step-000002"]
    assert main([*command, "--resume", "--set", "train.steps=4"]) == 0
    assert list_checkpoints(run / "checkpoints")[-1].name == "step-000004"


def test_the_file_and_its_bytes_are_those_of_the_tensors(tmp_path: Path) -> None:
    model = torch.nn.Linear(100, 100)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(100)).sum().backward()
    optimizer.step()
    random = {"cpu": torch.get_rng_state()}
    with (
        largest_file(50_000),  # for the weights, but not for the optimizer
        pytest.raises(RegardError, match=r"step-000001/optimizer\.safetensors: " + NO_ROOM.format("80,808")),
    ):
        save_checkpoint(tmp_path, 1, model, optimizer, None, {}, random, Ranks())
    assert list(tmp_path.iterdir()) == []


def test_a_store_that_does_not_fit_is_named_as_it_would_have_been(tmp_path: Path) -> None:
    pairs = reversal_pairs(400, 1)
    tokenizer = Tokenizer.train([source for source, _ in pairs], 400, tmp_path / "tokenizer")
    corpus = Corpus("train", *write_pairs(tmp_path, "train", pairs))
    message = rf"{tmp_path}/store/source\.ids: " + NO_ROOM.format("3,570")
    with largest_file(2_000), pytest.raises(RegardError, match=message):
        prepare_store(tmp_path / "store", [corpus], tokenizer, CleanOptions())
    assert not [path for path in tmp_path.iterdir() if "store" in path.name]


def test_a_small_file_and_a_folder_are_named(tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("before")
    with largest_file(100), pytest.raises(RegardError, match="notes: " + NO_ROOM.format("1,000")):
        write_atomic(tmp_path / "notes", "x" * 1000)
    assert (tmp_path / "notes").read_text() == "before"

    def write_folder() -> None:
        with atomic_folder(tmp_path / "model") as folder:
            (folder / "weights").write_bytes(b"x" * 1000)

    with largest_file(100), pytest.raises(RegardError, match="model: " + NO_ROOM.format("100")):
        write_folder()
    assert [path.name for path in tmp_path.iterdir()] == ["notes"]


@pytest.mark.parametrize(
    ("number", "reason"), [(errno.ENOSPC, "the disk is full"), (errno.EDQUOT, "the disk quota is used up")]
)
def test_each_cause_has_its_words(tmp_path: Path, number: int, reason: str) -> None:
    def fail() -> None:
        with writing(tmp_path / "x", 12_345):
            raise OSError(number, "no")

    with pytest.raises(RegardError, match=f"x: cannot be written, since {reason}; it needs 12,345 bytes"):
        fail()
    with pytest.raises(PermissionError), writing(tmp_path / "x", 1):  # not a matter of room
        raise PermissionError(errno.EACCES, "no")


def test_a_line_of_metrics_that_does_not_fit_is_lost_alone(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    log = MetricsLog(path)
    record: dict[str, Any] = {"kind": "note", "text": "a" * 100}
    log.write(record)
    with largest_file(150), pytest.raises(RegardError, match=r"metrics\.jsonl: " + NO_ROOM.format("129")):
        log.write(record)
    log.close()
    assert read_metrics(path) == [record]


def test_a_corpus_that_does_not_fit_is_named_and_resumed(tmp_path: Path) -> None:
    path = tmp_path / "new.tsv"
    pairs = [("source", "target")] * 100
    with CorpusWriter([path], {}, resume=False) as writer:
        writer.append(pairs, {"done": 1})
        with largest_file(2_000), pytest.raises(RegardError, match=r"new\.tsv\.partial: " + NO_ROOM.format("2,800")):
            writer.append(pairs, {"done": 2})
    with CorpusWriter([path], {}, resume=True) as writer:
        assert writer.saved == {"done": 1}
        writer.append(pairs, {"done": 2})
        writer.finish()
    assert path.read_text() == "source\ttarget\n" * 200


def test_translations_that_do_not_fit_are_named(tmp_path: Path) -> None:
    def write() -> None:
        with LineFile(tmp_path / "out.txt", settings={}) as out:
            out.write("line\n" * 10)
            out.flush()
            out.write("line\n" * 100)
            out.flush()

    with largest_file(200), pytest.raises(RegardError, match=r"out\.txt\.partial: " + NO_ROOM.format("550")):
        write()
    with LineFile(tmp_path / "out.txt", resume=True, settings={}) as out:
        assert out.lines_done == 40
