"""Pipes as input: read where that is possible, refused where it is not, and never waited for in vain."""

from __future__ import annotations

import gzip
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import regard
from regard.cli import main
from regard.data.corpus import read_lines
from regard.errors import UserError
from regard.files import read_json
from regard.recipe import load_recipe
from regard.training.metrics import read_metrics
from tests.commands import fails
from tests.tiny import make_bundle, write_recipe


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("pipes") / "bundle"
    make_bundle(folder)
    return str(folder)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regard.files.PIPE_SECONDS", 0.05)


@contextmanager
def written(path: Path, content: bytes) -> Iterator[None]:
    """A named pipe that another thread writes to."""
    os.mkfifo(path)
    thread = threading.Thread(target=path.write_bytes, args=(content,))
    thread.start()
    yield
    thread.join()


@pytest.mark.parametrize(
    "arguments",
    [
        ["translate", "-i", "pipe"],
        ["translate", "-i", "pipe.gz"],
        ["translate", "-i", "pipe.zst"],
        ["translate", "-i", "file", "--glossary", "pipe"],
        ["evaluate", "--hypothesis", "file", "--reference", "pipe"],
        ["evaluate", "--hypothesis", "pipe", "--reference", "file"],
        ["evaluate", "--source", "pipe", "--reference", "file"],
        ["score", "--source", "pipe", "--target", "file"],
        ["score", "--source", "file", "--target", "pipe"],
        ["train", "pipe.toml"],
    ],
)
def test_a_pipe_that_nobody_writes_to_is_refused(
    arguments: list[str], model: str, impatient: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("a b\n")
    for name in ("pipe", "pipe.gz", "pipe.zst", "pipe.toml"):
        os.mkfifo(tmp_path / name)
    needs_model = arguments[0] != "train" and "--hypothesis" not in arguments
    shown = fails(capfd, *arguments, *(["-m", model] if needs_model else []))
    assert ": is a pipe that nobody writes to; start the program that writes to it, or name a file instead" in shown
    # The one that loads the classifier of languages may still be there.
    assert not [thread for thread in threading.enumerate() if "wait_for_writer" in thread.name]


@pytest.mark.parametrize("verb", [["augment", "--noise", "-i", "pipe.tsv", "-o", "new.tsv"], ["train", "x.toml"]])
def test_a_pipe_as_corpus_is_refused_at_once(
    verb: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_recipe(tmp_path).rename(tmp_path / "x.toml")
    os.mkfifo(tmp_path / "pipe.tsv")
    more = ["--set", "data.valid=pipe.tsv"] if verb[0] == "train" else ["--source", "en", "--target", "de"]
    assert "pipe.tsv: must be a regular file, since a corpus is read more than once" in fails(capfd, *verb, *more)


def test_a_pipe_that_somebody_writes_to_is_read(tmp_path: Path) -> None:
    with written(tmp_path / "pipe", b"one\ntwo\n"):
        assert list(read_lines(tmp_path / "pipe")) == ["one", "two"]
    with written(tmp_path / "pipe.gz", gzip.compress(b"one\ntwo\n")):
        assert list(read_lines(tmp_path / "pipe.gz")) == ["one", "two"]
    recipe = write_recipe(tmp_path)
    with written(tmp_path / "pipe.toml", recipe.read_bytes()):
        assert load_recipe(tmp_path / "pipe.toml") == load_recipe(recipe)


def test_a_pipe_of_the_shell_is_translated(model: str, capfd: pytest.CaptureFixture[str]) -> None:
    ends = os.pipe()
    os.write(ends[1], b"a b\n\n")
    os.close(ends[1])
    try:
        assert main(["translate", "-m", model, "-i", f"/dev/fd/{ends[0]}"]) == 0
    finally:
        os.close(ends[0])
    assert capfd.readouterr().out.count("\n") == 2


def test_files_of_a_run_or_a_bundle_must_be_files(tmp_path: Path, model: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    os.mkfifo(tmp_path / "pipe.docx")
    for read in (read_json, read_metrics, regard.load(model).translate_file):
        with pytest.raises(
            UserError, match=r"must be a regular file, since .*, but is a pipe; write its content to a file"
        ):
            read(tmp_path / ("pipe" if read in (read_json, read_metrics) else "pipe.docx"))
