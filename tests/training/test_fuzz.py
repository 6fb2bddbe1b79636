"""Every file of a run folder, damaged in a fixed number of ways: one line that says so, or the right result."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from regard.cli import main
from regard.data.pair_packing import make_sampler
from regard.data.pairs import gather
from regard.data.store import Store
from regard.errors import UserError
from regard.files import MANIFEST, write_manifest
from regard.parallel.ranks import Ranks
from regard.recipe import load_recipe
from regard.serve.watch import describe
from regard.training.checkpoint import load_checkpoint, newest_intact, save_checkpoint
from regard.training.folder import RunFolder
from regard.training.loop import RunState
from regard.training.metrics import MetricsLog, read_metrics
from regard.training.open_run import check_checkpoint
from regard.training.prepare import find_corpora
from regard.training.report import render_report
from regard.training.same_data import saved_fingerprint
from regard.training.setup import restored_state
from tests.mutations import mutations
from tests.tiny import write_recipe
from tests.training.runs import quiet

CASES = 80  # of each file that is quick to read


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
    ids = [array.tolist() for array in gather(store, np.arange(len(store)))]
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


class Run:
    """A small run as far as checkpoints know it."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model, self.average = torch.nn.Linear(5, 3), torch.nn.Linear(5, 3)
        self.optimizer = torch.optim.Adam(self.model.parameters())
        self.model(torch.ones(5)).sum().backward()
        self.optimizer.step()
        self.sampler = make_sampler(np.arange(1, 40), np.arange(1, 40), 100, seed=1)
        self.state = RunState()

    def save(self, folder: Path) -> None:
        state = {"run": asdict(self.state), "sampler": self.sampler.state(), "data": {"tokenizer": "x"}}
        save_checkpoint(
            folder,
            self.state.step,
            self.model,
            self.optimizer,
            self.average,
            state,
            {"cpu": torch.get_rng_state()},
            Ranks(),
        )

    def load(self, path: Path) -> None:
        check_checkpoint(path, None)
        state = load_checkpoint(path, self.model, self.optimizer, self.average, Ranks())
        self.sampler.load_state(state["sampler"])
        self.state = restored_state(state["run"], path)
        saved_fingerprint(path, RunFolder(path.parents[1]))
        next(self.sampler)

    def content(self) -> list[object]:
        tensors = [*self.model.state_dict().values(), *self.average.state_dict().values()]
        tensors += [value for entry in self.optimizer.state_dict()["state"].values() for value in entry.values()]
        return [self.state, self.sampler.state(), torch.get_rng_state().tolist(), *(each.tolist() for each in tensors)]


CHECKPOINT = (
    "state.json",
    MANIFEST,
    "random.safetensors",
    "model.safetensors",
    "optimizer.safetensors",
    "average.safetensors",
)


@pytest.mark.parametrize("name", CHECKPOINT)
def test_a_damaged_checkpoint_is_passed_over_or_the_same(tmp_path: Path, name: str) -> None:
    run = Run()
    for step in (1, 2):
        run.state.step = step
        run.save(tmp_path / "run")
    Run().load(tmp_path / "run" / "step-000002")
    run.load(tmp_path / "run" / "step-000002")
    before = run.content()
    for damaged in mutations((tmp_path / "run" / "step-000002" / name).read_bytes(), CASES // 4, name):
        shutil.rmtree(tmp_path / "copy", ignore_errors=True)
        shutil.copytree(tmp_path / "run", tmp_path / "copy")
        (tmp_path / "copy" / "step-000002" / name).write_bytes(damaged)
        newest, reasons = newest_intact(tmp_path / "copy")
        assert newest is not None
        if reasons:
            assert newest.name == "step-000001"
            assert "\n" not in reasons[0]
            assert "damaged-step-000002" in reasons[0]
        else:
            other = Run()
            other.load(newest)
            assert other.content() == before


@pytest.mark.parametrize("name", [name for name in CHECKPOINT if name != MANIFEST])
def test_a_checkpoint_of_nonsense_with_right_hashes_is_refused_or_loaded(tmp_path: Path, name: str) -> None:
    """As if the file had been written so: only what the file itself shows can be refused."""
    run = Run()
    run.save(tmp_path / "run")
    path = tmp_path / "run" / "step-000000"
    for damaged in mutations((path / name).read_bytes(), CASES, name):
        (path / name).write_bytes(damaged)
        write_manifest(path, format=1)
        with refused_in_one_line():
            Run().load(path)


def resume(folder: Path) -> int:
    return main(
        ["train", str(folder / "recipe.toml"), "--out", str(folder / "run"), "--resume", "--set", "train.steps=3"]
    )


def test_a_damaged_run_folder_ends_with_one_line_or_the_same_model(
    begun: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The whole command, for every file of the folder."""
    shutil.copytree(begun, tmp_path / "whole", copy_function=shutil.copy2)
    assert resume(tmp_path / "whole") == 0
    wanted = load_file(str(tmp_path / "whole" / "run" / "model" / "model.safetensors"))
    found = [path.relative_to(begun) for path in sorted((begun / "run").rglob("*")) if path.is_file()]
    names = [
        name for name in found if name.parts[1] != "model" and "step-000001" not in name.parts
    ]  # what resuming reads
    assert len(names) > 12
    codes = []
    for name in names:
        shutil.rmtree(tmp_path / "begun", ignore_errors=True)
        shutil.copytree(begun, tmp_path / "begun", copy_function=shutil.copy2)
        content = (begun / name).read_bytes()
        (tmp_path / "begun" / name).write_bytes(list(mutations(content or b"x", 2, str(name)))[1])
        capfd.readouterr()
        codes.append(resume(tmp_path / "begun"))
        shown = capfd.readouterr().err.splitlines()
        errors = [line for line in shown if line.startswith("regard: ")]
        assert (codes[-1], len(errors)) in ((0, 0), (2, 1)), (name, shown)
        if codes[-1] == 0:
            made = load_file(str(tmp_path / "begun" / "run" / "model" / "model.safetensors"))
            assert all(bool((made[key] == wanted[key]).all()) for key in wanted), name
    assert set(codes) == {0, 2}
