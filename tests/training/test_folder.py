"""The run folder: whose it is, what a kill leaves in it, what may change between sittings."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from regard.bundle import load_bundle
from regard.cli import main
from regard.errors import UserError
from regard.training.checkpoint import list_checkpoints, prune, scheduled_checkpoints
from tests.tiny import write_recipe
from tests.training.runs import damage, quiet


@pytest.mark.parametrize("recipe", [None, "name = 'another program'\n"])
def test_a_folder_of_another_program_is_left_alone(tmp_path: Path, recipe: str | None) -> None:
    project = tmp_path / "project"
    files = ["checkpoints/epoch-1.ckpt", "tokenizer/my.model", "store/orders.db", "heldout/gold.txt"]
    for name in files:
        (project / name).parent.mkdir(parents=True)
        (project / name).write_text("precious")
    if recipe is not None:
        (project / "recipe.toml").write_text(recipe)
        (project / "checkpoints/epoch-1.ckpt").unlink()
        files = files[1:]
    before = sorted(project.rglob("*"))
    with pytest.raises(UserError, match="must be a new or empty folder, or a run with --resume"):
        quiet(write_recipe(tmp_path / "recipe", steps=2), project)
    assert sorted(project.rglob("*")) == before
    assert all((project / name).read_text() == "precious" for name in files)


def test_a_run_that_was_only_prepared_may_begin_with_another_recipe(tmp_path: Path) -> None:
    recipe, out = write_recipe(tmp_path / "recipe", steps=2), tmp_path / "run"
    quiet(recipe, out)
    for path in (out / "checkpoints").iterdir():
        path.rename(path.with_name(f"damaged-{path.name}"))
    shutil.rmtree(out / "model")
    (out / "report.html").unlink()
    quiet(recipe, out, "train.steps=3")
    assert load_bundle(out / "model").facts["steps"] == 3


def test_a_checkpoint_that_is_removed_is_whole_or_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kill in the middle of the removal, when state.json is gone and the rest is there."""
    recipe, out = write_recipe(tmp_path / "recipe", steps=20), tmp_path / "run"
    quiet(recipe, out)
    rmtree = shutil.rmtree

    class Killed(BaseException):
        pass

    def half(path: Path, *rest: Any, **options: Any) -> None:
        if (path / "state.json").exists():
            (path / "state.json").unlink()
            raise Killed
        rmtree(path, *rest, **options)

    checkpoints = out / "checkpoints"
    monkeypatch.setattr("regard.training.checkpoint.shutil.rmtree", half)
    with pytest.raises(Killed):
        prune(checkpoints, 1, [])
    monkeypatch.undo()
    assert all((path / "state.json").exists() for path in list_checkpoints(checkpoints))
    (out / "report.html").unlink()
    quiet(recipe, out, "train.steps=30", resume=True)
    assert load_bundle(out / "model").facts["steps"] == 30
    assert not [name for name in os.listdir(checkpoints) if name.startswith(".")]


def test_a_checkpoint_without_its_state_is_not_averaged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As an earlier version may have left it."""
    out = tmp_path / "run"
    quiet(write_recipe(tmp_path / "recipe", steps=20), out)
    *_, before, last = scheduled_checkpoints(out / "checkpoints")
    (before / "state.json").unlink()
    assert main(["average", str(out), "--last", "1", "-o", str(tmp_path / "one")]) == 0
    assert f"average of {last.name}" in capsys.readouterr().out
    assert before not in scheduled_checkpoints(out / "checkpoints")


def test_a_damaged_older_checkpoint_does_not_keep_a_run_from_its_end(tmp_path: Path) -> None:
    recipe, out = write_recipe(tmp_path / "recipe", steps=20), tmp_path / "run"
    quiet(recipe, out)
    harmed = list_checkpoints(out / "checkpoints")[-2] / "model.safetensors"
    damage(harmed)
    said = quiet(recipe, out, "train.steps=25", resume=True)
    assert f"skipped: {harmed}" in said
    assert load_bundle(out / "model").facts["weights"] == "average of the last 4 checkpoints"
    assert "skipped" in (out / "report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("last", "average", "chosen"),
    [
        (6.0, 5.0, "average of the last 2 checkpoints"),
        (5.0, 5.0, "average of the last 2 checkpoints"),
        (5.0, 6.0, "last checkpoint"),
    ],
)
def test_a_damaged_best_checkpoint_gives_way_to_the_better_of_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, last: float, average: float, chosen: str
) -> None:
    losses = iter([5.0, 1.0, 3.0, 4.0, 4.0, last, average])
    monkeypatch.setattr("regard.tasks.translate.TranslationValidator.loss", lambda *_: next(losses))
    recipe, out = write_recipe(tmp_path / "recipe", average=2), tmp_path / "run"
    quiet(recipe, out)
    best = out / "checkpoints" / "step-000020"
    assert load_bundle(out / "model").facts["weights"] == "best checkpoint, step 20"
    damage(best / "model.safetensors")
    said = quiet(recipe, out, "train.steps=45", resume=True)
    assert f"skipped, though it was the best: {best}" in said
    assert load_bundle(out / "model").facts["weights"] == chosen


def test_average_says_what_it_leaves_out_and_that_nothing_is_left(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    quiet(write_recipe(tmp_path / "recipe", steps=10), out)
    first, *others = list_checkpoints(out / "checkpoints")
    damage(first / "model.safetensors")
    assert main(["average", str(out), "-o", str(tmp_path / "one")]) == 0
    said = capsys.readouterr()
    assert f"skipped: {first / 'model.safetensors'}: differs" in said.err and first.name not in said.out
    for path in others:
        damage(path / "model.safetensors")
    assert main(["average", str(out), "-o", str(tmp_path / "two")]) == 2
    assert "the file is damaged or was changed; no intact checkpoint is left" in capsys.readouterr().err


@pytest.mark.parametrize("test", ["10", "0", '"valid.{src,tgt}"'])
def test_held_out_test_pairs_stay_what_they_were(tmp_path: Path, test: str) -> None:
    recipe, out = write_recipe(tmp_path / "recipe", steps=5), tmp_path / "run"
    quiet(recipe, out, "data.valid=8", "data.test=8")
    before = {path: path.read_bytes() for path in (out / "heldout").iterdir()}
    with pytest.raises(UserError, match=r"--resume: data\.test must stay 8, as the run was started"):
        quiet(recipe, out, "data.valid=8", f"data.test={test}", "train.steps=7", resume=True)
    assert {path: path.read_bytes() for path in (out / "heldout").iterdir()} == before
    quiet(recipe, out, "data.valid=8", "data.test=8", "train.steps=7", resume=True)


def test_fewer_held_out_pairs_than_were_asked_for_are_said(tmp_path: Path) -> None:
    said = quiet(write_recipe(tmp_path / "recipe", steps=2), tmp_path / "run", "data.valid=8", "data.test=1000")
    held = len((tmp_path / "run" / "heldout" / "test.src").read_text().splitlines())
    assert f"data.test: held out {held} pairs, not 1,000: at most a tenth of the text is held out" in said and held < 40


def test_a_test_set_in_files_may_come_later(tmp_path: Path) -> None:
    recipe, out = write_recipe(tmp_path / "recipe", steps=5), tmp_path / "run"
    quiet(recipe, out)
    quiet(recipe, out, "data.test=valid.{src,tgt}", "train.steps=7", resume=True)
    assert load_bundle(out / "model").facts["test"]


def test_a_refused_resumption_leaves_a_finished_run_finished(tmp_path: Path) -> None:
    recipe, out = write_recipe(tmp_path / "recipe", steps=5), tmp_path / "run"
    quiet(recipe, out)
    report = (out / "report.html").read_bytes()
    with pytest.raises(UserError, match=r"train\.fast"):
        quiet(recipe, out, "train.steps=7", "train.fast=slots", resume=True)
    assert (out / "report.html").read_bytes() == report
    assert "is finished" in quiet(recipe, out, resume=True)
    said = quiet(recipe, out, "decode.beam=7", resume=True)
    assert "ignored, since the run is finished: decode.beam 4 → 7" in said
