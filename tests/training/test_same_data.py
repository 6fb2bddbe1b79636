"""A resumed run goes on with the data that it was started with, or is refused with the name of what differs."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from regard.cli import main
from regard.data.tokenizer import Tokenizer
from regard.files import write_manifest
from regard.training.checkpoint import list_checkpoints
from tests.tiny import write_recipe
from tests.training.runs import damage, quiet


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recipe and a run of two steps, in one folder."""
    folder = tmp_path_factory.mktemp("begun")
    quiet(write_recipe(folder, steps=2, validate_every=1), folder / "run")
    return folder


@pytest.fixture
def run(begun: Path, tmp_path: Path) -> Path:
    """A copy that a test may damage. The recipe's text has the same names, sizes and times there."""
    shutil.copytree(begun, tmp_path / "begun", copy_function=shutil.copy2)
    return tmp_path / "begun" / "run"


def resume(run: Path) -> list[str]:
    return ["train", str(run.parent / "recipe.toml"), "--out", str(run), "--resume", "--set", "train.steps=4"]


def fails(capfd: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Run a command that must be refused; its one line, after those that say what it did until then."""
    capfd.readouterr()
    assert main(arguments) == 2
    shown = capfd.readouterr().err.splitlines()
    assert [line for line in shown if line.startswith("regard: ")] == shown[-1:]
    return shown[-1]


def exchange(path: Path, equal: Callable[[str], object]) -> None:
    """Exchange two lines that differ, but for which `equal` is equal."""
    lines = path.read_text().splitlines()
    i, j = next(
        (i, j) for i, a in enumerate(lines) for j, b in enumerate(lines) if i < j and a != b and equal(a) == equal(b)
    )
    lines[i], lines[j] = lines[j], lines[i]
    path.write_text("".join(f"{line}\n" for line in lines))


@pytest.mark.parametrize("name", ["source.ids", "source.offsets", "target.ids", "target.offsets"])
def test_a_damaged_store_is_not_trained_on(run: Path, capfd: pytest.CaptureFixture[str], name: str) -> None:
    quiet(run.parent / "recipe.toml", run, "train.steps=3", resume=True)  # a store of this place
    damage(run / "store" / name)
    shown = fails(capfd, *resume(run))
    assert f"store/{name}" in shown and f"delete {run}/store, and it is made anew" in shown
    shutil.rmtree(run / "store")
    assert main(resume(run)) == 0


def test_a_corpus_with_exchanged_lines_of_equal_length_is_refused(run: Path, capfd: pytest.CaptureFixture[str]) -> None:
    tokenizer = Tokenizer.load(run / "tokenizer")
    path = run.parent / "train.tgt"
    before = path.read_text()
    exchange(path, lambda line: (len(line), len(tokenizer.encode(line))))
    assert len(path.read_text()) == len(before)
    shown = fails(capfd, *resume(run))
    assert "train.tgt: does not hold the text that the run was started with; resume with the text" in shown
    path.write_text(before)
    assert main(resume(run)) == 0


def test_other_validation_pairs_are_refused(run: Path, capfd: pytest.CaptureFixture[str]) -> None:
    exchange(run.parent / "valid.src", len)
    assert "data.valid: the pairs are not those that the run was started with" in fails(capfd, *resume(run))


def test_the_same_text_elsewhere_resumes(run: Path) -> None:
    """Another folder and other times of change: the store is made again, and holds the same."""
    for path in run.parent.glob("train.*"):
        os.utime(path, (1, 1))
    assert main(resume(run)) == 0


@pytest.mark.parametrize("how", ["changed", "unreadable"])
def test_a_damaged_tokenizer_is_refused_and_made_anew_once_deleted(
    run: Path, capfd: pytest.CaptureFixture[str], how: str
) -> None:
    model = run / "tokenizer" / "joint.model"
    intact = model.read_bytes()
    # A piece that becomes another one is still a sentencepiece model.
    place = intact.index("▁a".encode()) + 3
    model.write_bytes(intact[:place] + b"z" + intact[place + 1 :] if how == "changed" else intact[:50])
    shown = fails(capfd, *resume(run))
    assert f"{run}/tokenizer" in shown and "delete" in shown and "made anew" in shown
    shutil.rmtree(run / "tokenizer")
    assert main(resume(run)) == 0
    assert model.read_bytes() == intact


def test_average_refuses_another_tokenizer(run: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    model = run / "tokenizer" / "joint.model"
    content = model.read_bytes()
    place = content.index("▁a".encode()) + 3
    model.write_bytes(content[:place] + b"z" + content[place + 1 :])
    shown = fails(capfd, "average", str(run), "-o", str(tmp_path / "new"))
    assert "is not the tokenizer that the run was started with" in shown


def test_a_run_of_an_earlier_version_resumes_and_gets_its_fingerprints(run: Path) -> None:
    quiet(run.parent / "recipe.toml", run, "train.steps=3", resume=True)
    for checkpoint in list_checkpoints(run / "checkpoints"):
        state = json.loads((checkpoint / "state.json").read_text())
        del state["data"]
        (checkpoint / "state.json").write_text(json.dumps(state))
        write_manifest(checkpoint, format=1)
    info = json.loads((run / "store" / "store.json").read_text())
    for name in ("checksums", "texts", "sha256"):
        del info[name]
    (run / "store" / "store.json").write_text(json.dumps(info))
    said = quiet(run.parent / "recipe.toml", run, "train.steps=4", resume=True)
    assert f"{run}/store: has no checksums, since an earlier version of Regard wrote it; they are added now" in said
    last = list_checkpoints(run / "checkpoints")[-1]
    assert json.loads((last / "state.json").read_text())["data"]["store"]
    assert json.loads((run / "store" / "store.json").read_text())["checksums"]


def test_damaged_metrics_are_refused_before_anything_is_made(run: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Also a line that is JSON, but not a record: it would have been noticed only by the report, at the end."""
    metrics = run / "metrics.jsonl"
    intact = metrics.read_text()
    metrics.write_text(intact + '{"kind": "train", "step": 2, "loss": "low"}\n')
    shutil.rmtree(run / "store")
    shown = fails(capfd, *resume(run))
    assert (
        f"metrics.jsonl, line {intact.count(chr(10)) + 1}: `loss` must be a number, but is 'low'; delete the line"
        in shown
    )
    assert not (run / "store").exists()
    metrics.unlink()
    assert main(resume(run)) == 0
    assert (run / "report.html").is_file()
