"""Every file of a run folder, damaged in a fixed number of ways: one line that says so, or the right result."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file

from regard.cli import main
from regard.data.store import Store
from regard.errors import UserError
from regard.files import MANIFEST, write_manifest
from regard.recipe import load_recipe
from regard.serve.watch import describe
from regard.training.checkpoint import list_checkpoints
from regard.training.metrics import MetricsLog, read_metrics
from regard.training.prepare import find_corpora
from regard.training.report import render_report
from tests.mutations import mutations
from tests.tiny import write_recipe
from tests.training.runs import quiet

CASES = 120  # of each file that is quick to read
RUNS = 10  # of each file of a checkpoint: a whole command each


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recipe and a run of two steps, in one folder."""
    folder = tmp_path_factory.mktemp("begun")
    quiet(write_recipe(folder, steps=2, validate_every=1, log_every=1, ema=0.9), folder / "run")
    return folder


@contextmanager
def refused_in_one_line() -> Iterator[None]:
    """The block ends well, or with a UserError of one line; any other exception is a bug."""
    try:
        yield
    except UserError as raised:
        shown = str(raised)
        assert shown
        assert "\n" not in shown


def store_content(store: Store) -> tuple[object, ...]:
    ids = [array.tolist() for array in store.gather(np.arange(len(store)))]
    return ids, store.corpora, store.account, store.key, store.content


@pytest.mark.parametrize("name", ["store.json", "source.ids", "source.offsets", "target.ids", "target.offsets"])
def test_a_damaged_store_is_refused_or_the_same(begun: Path, tmp_path: Path, name: str) -> None:
    shutil.copytree(begun / "run" / "store", tmp_path / "store")
    path = tmp_path / "store" / name
    intact, before = path.read_bytes(), store_content(Store.open(tmp_path / "store"))
    for damaged in mutations(intact, CASES, name):
        path.write_bytes(damaged)
        with refused_in_one_line():
            assert store_content(Store.open(tmp_path / "store")) == before
    path.write_bytes(intact)
    assert store_content(Store.open(tmp_path / "store")) == before


def test_damaged_metrics_are_refused_or_reported(begun: Path, tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    log = MetricsLog(path)
    for record in read_metrics(begun / "run" / "metrics.jsonl"):
        log.write(record)
    metric = {"name": "BLEU", "score": 21.5, "confidence": 0.4, "signature": "nrefs:1|case:mixed"}
    scores = {"metrics": {"bleu": metric}, "sentences": 1000, "notes": ["a note"]}
    log.write({"kind": "test", "name": "flickr", "scores": scores})
    log.close()
    read = 0
    for damaged in mutations(path.read_bytes(), 2 * CASES, "metrics"):
        path.write_bytes(damaged)
        with refused_in_one_line():
            records = read_metrics(path)
            render_report("run", {}, records, {})
            describe(records)
            MetricsLog(path, resume_step=1).close()
            read += 1
    assert read > 20  # it is not that everything is refused


def test_a_damaged_recipe_is_refused_or_a_recipe(begun: Path, tmp_path: Path) -> None:
    path = tmp_path / "recipe.toml"
    for intact in ((begun / "recipe.toml").read_bytes(), (begun / "run" / "recipe.toml").read_bytes()):
        for damaged in mutations(intact, 3 * CASES, "recipe"):
            path.write_bytes(damaged)
            with refused_in_one_line():
                recipe = load_recipe(path)
                path.write_text(recipe.to_toml(), encoding="utf-8")
                assert load_recipe(path) == recipe
                find_corpora(recipe)


def resume(folder: Path) -> int:
    return main(
        ["train", str(folder / "recipe.toml"), "--out", str(folder / "run"), "--resume", "--set", "train.steps=3"]
    )


@pytest.mark.parametrize("has_right_hashes", [False, True])
@pytest.mark.parametrize(
    "name", ["state.json", MANIFEST, "random.safetensors", "model.safetensors", "optimizer.safetensors"]
)
def test_a_damaged_checkpoint_is_refused_passed_over_or_the_same(
    begun: Path, tmp_path: Path, name: str, has_right_hashes: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    """With `has_right_hashes` the manifest fits the damage, as if the file had been written so; then only what can be seen from
    the file itself is refused."""
    shutil.copytree(begun, tmp_path / "whole", copy_function=shutil.copy2)
    assert resume(tmp_path / "whole") == 0
    wanted = load_file(str(tmp_path / "whole" / "run" / "model" / "model.safetensors"))
    checkpoint = list_checkpoints(begun / "run" / "checkpoints")[-1]  # if it is passed over, there is one before it
    for damaged in mutations((checkpoint / name).read_bytes(), RUNS, name):
        shutil.rmtree(tmp_path / "begun", ignore_errors=True)
        shutil.copytree(begun, tmp_path / "begun", copy_function=shutil.copy2)
        copy = tmp_path / "begun" / "run" / "checkpoints" / checkpoint.name
        (copy / name).write_bytes(damaged)
        if has_right_hashes and name != MANIFEST:
            write_manifest(copy, format=1)
        capfd.readouterr()
        code = resume(tmp_path / "begun")
        shown = capfd.readouterr().err.splitlines()
        errors = [line for line in shown if line.startswith("regard: ")]
        assert (code, len(errors)) in ((0, 0), (2, 1)), shown
        if code == 0 and not has_right_hashes:
            found = load_file(str(tmp_path / "begun" / "run" / "model" / "model.safetensors"))
            assert all(bool((found[key] == wanted[key]).all()) for key in wanted)
