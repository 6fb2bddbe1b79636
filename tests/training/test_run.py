"""Runs through the real command line: resumed after a kill, interrupted, damaged, stopped early."""

from __future__ import annotations

import itertools
import json
import math
import os
import re
import shlex
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from safetensors.torch import load_file

from regard.bundle import load_bundle
from regard.cli import main
from regard.data.pairs import gather
from regard.data.split import sentence_key
from regard.data.store import Store
from regard.errors import Interrupted, RegardError, UserError
from regard.recipe import load_recipe, recipe_from_dict
from regard.training.checkpoint import average_weights, list_checkpoints
from regard.training.display import Display
from regard.training.finish import public_recipe
from regard.training.folder import RunFolder, claim_folder, locked
from regard.training.loop import Interval, RunLength, RunState, Trainer
from regard.training.metrics import read_metrics
from regard.training.run import train
from tests.commands import Process, finished, fork, start, wait_until
from tests.tiny import reversal_pairs, write_pairs, write_recipe
from tests.training.runs import damage, quiet


def command(recipe: Path, out: Path, *more: str) -> list[str]:
    return ["train", str(recipe), "--out", str(out), *more]


def held(folder: Path, step: int, rank: int = 0) -> str:
    """A script that is `regard`, except that the process of this rank waits at a step for ever: so it cannot end before a test
    has killed it."""
    script = folder / "held.py"
    script.write_text(
        f"""
import os, sys, time
from regard.cli import main
from regard.training.loop import Trainer

update = Trainer.update

def wait(self):
    while self.state.step == {step} and os.environ.get("RANK", "0") == "{rank}":
        time.sleep(0.01)
    return update(self)

Trainer.update = wait
sys.exit(main(sys.argv[1:]))
"""
    )
    return str(script)


def kill_when(process: Process, condition: Callable[[], bool], number: signal.Signals) -> str:
    wait_until(process, condition)
    process.send_signal(number)
    return finished(process)


def weights(run: Path) -> dict[str, torch.Tensor]:
    return load_file(str(run / "model" / "model.safetensors"))


def assert_same_weights(one: Path, other: Path) -> None:
    left, right = weights(one), weights(other)
    assert left.keys() == right.keys()
    for name, tensor in left.items():
        assert torch.equal(tensor, right[name]), name


@pytest.mark.slow
@pytest.mark.parametrize("ema", [0.0, 0.99])
def test_a_run_killed_at_three_points_and_resumed_ends_with_the_same_weights(tmp_path: Path, ema: float) -> None:
    recipe = write_recipe(
        tmp_path / "recipe", steps=150, save_every=9, validate_every=30, lr=1e-3, ema=ema, accumulate=2
    )
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    quiet(recipe, whole)
    checkpoints = killed / "checkpoints"
    points: list[Callable[[], bool]] = [
        lambda: (checkpoints / "step-000018").exists(),  # just after a checkpoint
        lambda: (
            any(checkpoints.glob(".step-00004*.tmp")) or (checkpoints / "step-000045").exists()
        ),  # while one is written
        lambda: (
            (killed / "metrics.jsonl").exists() and '"step": 65' in (killed / "metrics.jsonl").read_text()
        ),  # between
    ]
    for point in points:
        kill_when(fork([held(tmp_path, 100), *command(recipe, killed, "--resume")]), point, signal.SIGKILL)
    assert "resuming from step" in quiet(recipe, killed, resume=True)
    assert_same_weights(whole, killed)
    losses = [
        [(r["step"], r["loss"]) for r in read_metrics(run / "metrics.jsonl") if "loss" in r] for run in (whole, killed)
    ]
    assert losses[0] == losses[1]


@pytest.mark.slow
def test_ctrl_c_saves_and_says_how_to_go_on(tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path / "recipe", steps=50_000, save_every=50_000, validate_every=50_000)
    out = tmp_path / "run"
    process = fork(["-m", "regard", *command(recipe, out)])
    said = kill_when(
        process,
        lambda: (out / "metrics.jsonl").exists() and '"step": 20' in (out / "metrics.jsonl").read_text(),
        signal.SIGINT,
    )
    assert process.returncode == 130
    [saved] = list_checkpoints(out / "checkpoints")
    assert "stopping after this step; press Ctrl-C again to quit at once and lose everything after step 0\n" in said
    assert f"stopped at step {int(saved.name[5:])} and saved" in said
    assert f"regard train {out}/recipe.toml --out {out} --resume" in said
    assert "Traceback" not in said


def test_a_run_writes_what_a_run_folder_holds(tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path / "recipe")
    quiet(recipe, tmp_path / "run")
    run = tmp_path / "run"
    for name in ("recipe.toml", "metrics.jsonl", "report.html", "model/manifest.json"):
        assert (run / name).is_file()
    assert len(list_checkpoints(run / "checkpoints")) >= 5
    records = read_metrics(run / "metrics.jsonl")
    assert [r["step"] for r in records if r["kind"] == "train"] == list(range(5, 41, 5))
    assert {"loss", "nll", "lr", "grad_norm", "tokens_per_second", "epoch", "elapsed"} <= records[0].keys()
    valid = [r for r in records if r["kind"] == "valid"]
    assert [r["step"] for r in valid] == [10, 20, 30, 40, 40]
    assert [r["weights"] for r in valid[3:]] == ["last checkpoint", "average of the last 5 checkpoints"]
    assert valid[0]["samples"][0].keys() == {"source", "reference", "translation"}
    assert load_bundle(run / "model").facts["weights"] == "average of the last 5 checkpoints"


def test_the_model_is_the_mean_of_the_last_checkpoints(tmp_path: Path) -> None:
    quiet(write_recipe(tmp_path / "recipe"), tmp_path / "run")
    last = list_checkpoints(tmp_path / "run" / "checkpoints")[-5:]
    assert [path.name for path in last] == [f"step-{step:06d}" for step in (20, 25, 30, 35, 40)]
    tensors = [load_file(str(path / "model.safetensors")) for path in last]
    for name, tensor in weights(tmp_path / "run").items():
        mean = torch.stack([each[name].double() for each in tensors]).mean(dim=0)
        torch.testing.assert_close(tensor.double(), mean, atol=1e-7, rtol=1e-6)
    assert average_weights(last).keys() == tensors[0].keys()


def test_regard_average_makes_a_bundle_of_an_unfinished_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    quiet(write_recipe(tmp_path / "recipe"), run)
    shutil.rmtree(run / "model")
    assert main(["average", str(run), "--last", "2", "-o", str(tmp_path / "bundle")]) == 0
    shown = capsys.readouterr()
    assert "step-000035, step-000040" in shown.out and not shown.err
    assert main(["average", str(run), "--last", "50", "-o", str(tmp_path / "more")]) == 0
    assert (
        f"{run}: averages 6 checkpoints, not 50: the run keeps no more (train.average = 5)" in capsys.readouterr().err
    )
    for checkpoint in list_checkpoints(run / "checkpoints")[:4]:
        shutil.rmtree(checkpoint)
    (tmp_path / "recipe" / "valid.src").unlink()
    assert main(["average", str(run), "--last", "3", "-o", str(tmp_path / "few")]) == 0
    said = capsys.readouterr().err
    assert f"{run}: averages 2 checkpoints, not 3: the run has no more yet" in said
    assert "nothing is measured on the validation set: " in said and "valid.src" in said
    assert main(["translate", "-m", str(tmp_path / "bundle"), "--device", "cpu", "a b"]) == 0
    assert main(["average", str(run), "-o", str(tmp_path / "bundle")]) == 2
    assert "already exists" in capsys.readouterr().err


def test_a_folder_that_holds_a_run_is_not_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = write_recipe(tmp_path / "recipe", steps=5)
    quiet(recipe, tmp_path / "run")
    before = weights(tmp_path / "run")
    assert main(["train", str(recipe), "--out", str(tmp_path / "run")]) == 2
    assert "already holds a run; resume it with --resume" in capsys.readouterr().err
    assert main(["train", str(recipe), "--out", str(tmp_path / "recipe")]) == 2
    assert weights(tmp_path / "run").keys() == before.keys()


def test_a_run_whose_recipe_does_not_say_a_newer_field_goes_on(tmp_path: Path) -> None:
    """As versions wrote it that had no `tokenizer.protect`."""
    recipe, out = write_recipe(tmp_path / "recipe", steps=5), tmp_path / "run"
    train(load_recipe(recipe), out, display=Display())
    kept = [line for line in (out / "recipe.toml").read_text().splitlines() if not line.startswith("protect")]
    (out / "recipe.toml").write_text("\n".join(kept) + "\n")
    assert load_recipe(out / "recipe.toml").tokenizer.protect is None
    train(load_recipe(recipe, ["train.steps=7"]), out, resume=True, display=Display())
    assert load_bundle(out / "model").facts["steps"] == 7
    with pytest.raises(UserError, match=r"tokenizer\.protect must stay False, .*, but is True"):
        train(load_recipe(recipe, ["tokenizer.protect=true"]), out, resume=True, display=Display())


def test_another_recipe_is_not_resumed_but_a_longer_one_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = write_recipe(tmp_path / "recipe", steps=10)
    quiet(recipe, tmp_path / "run")
    changed = ["train", str(recipe), "--out", str(tmp_path / "run"), "--resume", "--set", "model.d_ff=128"]
    assert main(changed) == 2
    assert "model.d_ff must stay 64, as the run was started" in capsys.readouterr().err
    assert main([*changed[:-1], "model.norm_position=pre"]) == 2  # a field that the recipe leaves to the preset
    assert "model.norm_position must stay 'post', as the run was started" in capsys.readouterr().err
    quiet(recipe, tmp_path / "run", "train.steps=20", resume=True)
    assert load_bundle(tmp_path / "run" / "model").facts["steps"] == 20


def test_a_damaged_checkpoint_is_passed_over_by_name(tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path / "recipe")
    quiet(recipe, tmp_path / "whole")
    shutil.copytree(tmp_path / "whole", tmp_path / "run")
    (tmp_path / "run" / "report.html").unlink()
    newest = list_checkpoints(tmp_path / "run" / "checkpoints")[-1] / "optimizer.safetensors"
    damage(newest)
    said = quiet(recipe, tmp_path / "run", resume=True)
    assert f"skipped: {newest}" in said
    assert "resuming from step 35" in said
    noted = [r["text"] for r in read_metrics(tmp_path / "run" / "metrics.jsonl") if r["kind"] == "note"]
    assert noted[-1] == "resuming from step 35"
    assert "skipped" in (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert_same_weights(tmp_path / "whole", tmp_path / "run")


def test_a_mistake_in_the_recipe_does_not_cost_the_run_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = write_recipe(tmp_path / "recipe", steps=2)
    out = tmp_path / "run"
    assert main(["train", str(recipe), "--out", str(out), "--set", "data.valid=nothing.{src,tgt}"]) == 2
    assert "nothing.src" in capsys.readouterr().err
    assert not out.exists()
    quiet(recipe, out)


def test_a_budget_that_preparing_uses_up_is_said_to_be_too_small(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = write_recipe(tmp_path / "recipe", steps=0, minutes=1e-6)
    assert main(["train", str(recipe), "--out", str(tmp_path / "run")]) == 2
    said = capsys.readouterr().err
    assert "used up by preparing the data" in said and "there is no model yet" in said
    # The command that it names goes on.
    command = said.strip().rpartition("give it more time: regard ")[2]
    assert re.search(r"recipe.toml --out \S+run --resume --minutes [1-9]\d*$", command), said
    assert main([*shlex.split(command)[:-2], "--steps", "2"]) == 0
    assert (tmp_path / "run" / "model" / "config.json").is_file()


def test_only_the_first_signal_is_answered() -> None:
    said: list[str] = []
    display, ranks = SimpleNamespace(stopping=said.append), SimpleNamespace(size=1)
    trainer = cast(Any, SimpleNamespace(stop_requested=False, saved_step=3, display=display, ranks=ranks))
    for _ in range(3):
        Trainer._request_stop(trainer)
    assert trainer.stop_requested and len(said) == 1


def test_a_second_process_is_kept_out_of_the_folder(tmp_path: Path) -> None:
    recipe = load_recipe(write_recipe(tmp_path / "recipe", steps=2))
    folder = RunFolder(tmp_path / "run")
    with locked(folder):
        claim_folder(folder, recipe)
        folder.tokenizer.mkdir()  # what the first process is making
        mine = rf"another process is training in this folder \(process {os.getpid()} on .*\); wait for it, or stop it"
        with pytest.raises(UserError, match=mine):
            train(recipe, tmp_path / "run", display=Display())
        assert folder.tokenizer.is_dir()
        assert folder.recipe.is_file()
    train(recipe, tmp_path / "run", display=Display())


def test_a_very_long_validation_line_does_not_take_part_in_the_loss(tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path / "recipe", steps=2, validate_every=1)
    write_pairs(tmp_path / "recipe", "valid", [*reversal_pairs(5, 2), ("a " * 3000, "b")])
    quiet(recipe, tmp_path / "run")
    [*_, last] = [r for r in read_metrics(tmp_path / "run" / "metrics.jsonl") if r["kind"] == "valid"]
    assert last["loss"] < 50


def test_a_bundle_says_nothing_of_where_the_text_lay() -> None:
    values = {
        "data": {
            "source": "en", "target": "de", "root": "/home/me/secret",
            "train": ["/home/me/{a.en,b.de}", "{/home/me/a.en,/home/me/b.de}", "sub/x.{en,de}"],
            "valid": "~bob/v.tsv", "test": "/home/me/a,b/t.{en,de}",
        },
        "train": {"steps": 1},
    }  # fmt: skip
    text = public_recipe(recipe_from_dict(values)).to_toml()
    assert "/home" not in text
    assert "secret" not in text
    assert 'train = ["{a.en,b.de}", "{a.en,b.de}", "sub/x.{en,de}"]' in text
    assert 'valid = "v.tsv"' in text and 'test = "t.{en,de}"' in text


def test_a_checkpoint_that_was_not_finished_is_swept_away(tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path / "recipe", steps=20)
    quiet(recipe, tmp_path / "whole")
    quiet(recipe, tmp_path / "run", "train.steps=10")
    newest = list_checkpoints(tmp_path / "run" / "checkpoints")[-1]
    half = newest.with_name(".step-000015.999.tmp")  # what SIGKILL leaves in the middle of a write
    half.mkdir()
    (half / "model.safetensors").write_bytes((newest / "model.safetensors").read_bytes()[:1000])
    quiet(recipe, tmp_path / "run", resume=True)
    assert not half.exists()
    assert_same_weights(tmp_path / "whole", tmp_path / "run")


def test_a_diverged_run_stops_and_its_checkpoints_are_from_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    update = Trainer.update

    def break_at_seventeen(self: Trainer) -> float:
        if self.state.step == 16:  # the loss of the next update is still a number, its gradient is not
            self.model.output_weight.register_hook(lambda gradient: gradient * math.nan)
        return update(self)

    monkeypatch.setattr(Trainer, "update", break_at_seventeen)
    for validate_every in (1000, 17):  # a validation would find no translation
        recipe = write_recipe(tmp_path / "recipe", save_every=17, log_every=1000, validate_every=validate_every)
        run = tmp_path / f"run-{validate_every}"
        with pytest.raises(RegardError, match=r"gradient norm at step 17 is nan.*lower train\.lr"):
            quiet(recipe, run)
        assert list_checkpoints(run / "checkpoints") == []
        assert not any(record["kind"] == "valid" for record in read_metrics(run / "metrics.jsonl"))


def test_a_step_is_written_once_even_if_it_is_the_best_and_due(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = []
    monkeypatch.setattr("regard.training.loop.save_checkpoint", lambda _, step, *__: steps.append(step))
    monkeypatch.setattr("regard.training.run.final_weights", lambda *_: ({}, ""))
    monkeypatch.setattr("regard.tasks.translate.measure_alignment_heads", lambda *_: None)
    monkeypatch.setattr("regard.training.run.write_model", lambda *_: SimpleNamespace(facts={"weights": ""}))
    monkeypatch.setattr("regard.training.run.report_facts", lambda *_: {})
    quiet(write_recipe(tmp_path / "recipe"), tmp_path / "run")
    assert steps == list(range(5, 41, 5))


def test_accumulation_does_not_change_the_run(tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path / "recipe", lr=1e-3, log_every=1)
    losses = []
    for parts in (1, 3):
        quiet(recipe, tmp_path / str(parts), f"train.accumulate={parts}", "model.dropout=0.0")
        records = read_metrics(tmp_path / str(parts) / "metrics.jsonl")
        losses.append([record["loss"] for record in records if record["kind"] == "train"])
    assert len(losses[0]) == 40
    assert losses[0][0] > 1.2 * losses[0][-1]  # it learns, so a wrong gradient would show
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


def test_training_stops_early_when_nothing_gets_better(tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path / "recipe", steps=400, lr=1e-12, patience=2, average=1)
    quiet(recipe, tmp_path / "run", "train.schedule=linear")
    assert load_bundle(tmp_path / "run" / "model").facts["steps"] <= 50


def test_the_best_checkpoint_is_kept_and_used_when_the_end_is_worse(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    losses = iter([5.0, 1.0, 3.0, 3.0, 4.0])
    monkeypatch.setattr("regard.tasks.translate.TranslationValidator.loss", lambda *_: next(losses))
    recipe = write_recipe(tmp_path / "recipe", average=2)
    said = quiet(recipe, tmp_path / "run")
    best = tmp_path / "run" / "checkpoints" / "step-000020"
    assert load_bundle(tmp_path / "run" / "model").facts["weights"] == "best checkpoint, step 20"
    assert f"model   {tmp_path / 'run' / 'model'} (best checkpoint, step 20)" in said
    expected = load_file(str(best / "model.safetensors"))
    for name, tensor in weights(tmp_path / "run").items():
        assert torch.equal(tensor, expected[name])


def test_the_last_step_becomes_the_model_where_its_average_with_others_is_worse(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    losses = iter([5.0, 4.0, 3.0, 1.0, 2.0])
    monkeypatch.setattr("regard.tasks.translate.TranslationValidator.loss", lambda *_: next(losses))
    quiet(write_recipe(tmp_path / "recipe"), tmp_path / "run")
    assert load_bundle(tmp_path / "run" / "model").facts["weights"] == "last checkpoint"
    expected = load_file(str(tmp_path / "run" / "checkpoints" / "step-000040" / "model.safetensors"))
    for name, tensor in weights(tmp_path / "run").items():
        assert torch.equal(tensor, expected[name])


def test_held_out_pairs_are_in_no_training_text(tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path / "recipe", steps=2)
    write_pairs(tmp_path / "recipe", "train", reversal_pairs(400, 1, longest=3))  # many pairs come several times
    quiet(recipe, tmp_path / "run", "data.valid=20", "data.test=10")
    run = tmp_path / "run"
    held = [(run / "heldout" / f"{name}.src").read_text().splitlines() for name in ("valid", "test")]
    assert [len(lines) for lines in held] == [20, 10]
    store, tokenizer = Store.open(run / "store"), load_bundle(run / "model").tokenizer
    keys = {sentence_key(line) for lines in held for line in lines}
    for number in range(len(store)):
        ids, _, _, _ = gather(store, torch.tensor([number]).numpy())
        assert sentence_key(tokenizer.decode(ids.tolist())) not in keys
    assert store.account.dropped["held out"] >= 30
    assert load_bundle(run / "model").facts["test"]["sentences"] == 10


def test_the_seed_decides_the_run(tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path / "recipe", steps=4)
    quiet(recipe, tmp_path / "a")
    quiet(recipe, tmp_path / "b")
    quiet(recipe, tmp_path / "c", "train.seed=2")
    assert_same_weights(tmp_path / "a", tmp_path / "b")
    assert any(
        not torch.equal(tensor, weights(tmp_path / "c")[name]) for name, tensor in weights(tmp_path / "a").items()
    )


def test_a_time_budget_reserves_time_for_the_end() -> None:
    length = RunLength(None, 600.0)
    state = RunState(seconds=20.0, prepared=20.0)
    assert length.progress(state) == 0.0
    state.validation_seconds = 30.0
    state.seconds = 600.0 - (1.5 * 30.0 + 1.0)
    assert length.progress(state) == 1.0
    state.seconds = 20.0 + (600.0 - 20.0 - 46.0) / 4
    assert length.progress(state) == pytest.approx(0.25)
    assert length.remaining(state) == pytest.approx(3 * (state.seconds - 20.0))


def test_intervals_come_as_often_as_asked() -> None:
    assert [step for step in range(1, 31) if Interval(10, 0).due(step, 0, 0)] == [10, 20, 30]
    tenths = Interval(0, 10)
    assert [s for s in range(1, 101) if tenths.due(s, (s - 1) / 100, s / 100)] == list(range(10, 101, 10))


def test_a_validation_leaves_time_for_training() -> None:
    """In a run by the clock, unless the recipe says after how many steps."""
    trainer: Any = SimpleNamespace(
        length=RunLength(None, 600.0),
        validation=Interval(0, 10),
        state=RunState(step=30, seconds=100.0, validation_seconds=20.0),
        _validated_at=30.0,
    )

    def is_due(after: float) -> bool:
        return Trainer._is_validation_due(trainer, 0.05, after)

    assert not is_due(0.15)
    trainer.state.seconds = 110.0
    assert is_due(0.15) and not is_due(0.09) and not is_due(1.0)
    trainer.state.seconds = 100.0
    trainer.length = RunLength(1000, None)
    assert is_due(0.15)
    trainer.length, trainer.validation = RunLength(None, 600.0), Interval(10, 0)
    assert is_due(0.15)


def test_a_time_budget_ends_the_run_with_a_bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = itertools.count()
    clock = SimpleNamespace(perf_counter=lambda: next(looks) / 20)  # a twentieth of a second between two looks
    for module in ("run", "setup", "loop"):
        monkeypatch.setattr(f"regard.training.{module}.time", clock)
    recipe = write_recipe(tmp_path / "recipe", steps=0, minutes=0.2, save_every=0, validate_every=0)
    quiet(recipe, tmp_path / "run")
    facts = load_bundle(tmp_path / "run" / "model").facts
    assert facts["steps"] >= 10
    *_, trained, last, average = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert (trained["kind"], last["kind"], average["kind"]) == ("train", "valid", "valid")
    assert 8 < trained["elapsed"] < 12  # the rest was kept for the end


@pytest.mark.parametrize("options", [{}, {"bpe_dropout": 0.2}, {"optimizer": "muon", "schedule": "wsd"}], ids=str)
@pytest.mark.parametrize("fast", ["auto", "slots"])
def test_an_interrupted_run_in_python_raises_and_can_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fast: str, options: dict[str, Any]
) -> None:
    recipe = write_recipe(tmp_path / "recipe", steps=20, fast=fast, accumulate=2, ema=0.9, **options)
    update = Trainer.update

    def stop_at_seven(self: Trainer) -> float:
        result = update(self)
        self.stop_requested = self.state.step == 7
        return result

    monkeypatch.setattr(Trainer, "update", stop_at_seven)
    with pytest.raises(Interrupted, match="stopped at step 7"):
        quiet(recipe, tmp_path / "run")
    monkeypatch.undo()
    quiet(recipe, tmp_path / "run", resume=True)
    quiet(recipe, tmp_path / "whole")
    assert_same_weights(tmp_path / "run", tmp_path / "whole")


def test_a_run_in_slots_learns_through_the_command_line(tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path / "recipe", steps=300, lr=5e-3, save_every=100, validate_every=100, average=1)
    run = tmp_path / "run"
    sets = ("train.fast=slots", "train.accumulate=2", "train.log_every=10", "data.max_length=20", "model.dropout=0.1")
    arguments = [word for each in sets for word in ("--set", each)]
    assert main(["train", str(recipe), "--out", str(run), *arguments]) == 0
    state = json.loads((run / "checkpoints" / "step-000300" / "state.json").read_text())
    assert state["sampler"]["fingerprint"]["slots"][-1] == 21  # the longest sentence, </s> included
    records = read_metrics(run / "metrics.jsonl")
    losses = [record["nll"] for record in records if record["kind"] == "train"]
    assert len(losses) == 30 and losses[-1] < 0.3 * losses[0]
    # What was trained on slots is measured on batches of any shape: the two compute the same.
    valid = [record["loss"] for record in records if record["kind"] == "valid"]
    assert valid[-1] < 1.2 * losses[-1]


def test_a_run_in_slots_is_not_resumed_without_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = write_recipe(tmp_path / "recipe", steps=5, fast="slots")
    quiet(recipe, tmp_path / "run")
    (tmp_path / "run" / "report.html").unlink()  # as if it had been stopped before its end
    resumed = ["train", str(recipe), "--out", str(tmp_path / "run"), "--resume", "--set"]
    assert main([*resumed, "train.fast=off"]) == 2
    assert "--resume: the run was started with the fast path's fixed-shape batches" in capsys.readouterr().err


def test_a_run_on_a_cpu_needs_no_triton(tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path / "recipe", steps=3, save_every=0, validate_every=0)
    commands = [command(recipe, tmp_path / fast, "--set", f"train.fast={fast}") for fast in ("auto", "slots")]
    code = f"""
import sys
sys.modules["triton"] = None  # an import of it fails as if it were not there
from regard.cli import main
from regard.nn.kernels import has_triton
assert not has_triton()
assert [main(arguments) for arguments in {commands!r}] == [0, 0]
"""
    process = start(["-c", code])
    said = finished(process)
    assert process.returncode == 0, said
    for fast in ("auto", "slots"):
        assert load_bundle(tmp_path / fast / "model").facts["steps"] == 3


@pytest.mark.slow
def test_a_reversal_task_is_learned_through_the_command_line(tmp_path: Path) -> None:
    """The whole way, from two text files to translations: over 99% of unseen sequences come out exactly right."""
    text = tmp_path / "text"
    write_pairs(text, "train", reversal_pairs(8_000, 1, longest=5))
    write_pairs(text, "valid", reversal_pairs(100, 2, longest=5))
    source, target = write_pairs(text, "test", reversal_pairs(500, 3, longest=5))
    sets = {
        "tokenizer.vocab_size": 380, "data.valid": "valid.{src,tgt}", "data.test": 0,
        "model.d_model": 64, "model.d_ff": 128, "model.num_heads": 4, "model.encoder_layers": 1, "model.decoder_layers": 1,
        "model.dropout": 0.0, "train.steps": 600, "train.lr": 4e-3, "train.batch_tokens": 600, "train.device": "cpu",
        "data.source": "src", "data.target": "tgt", "data.root": str(text),
    }  # fmt: skip
    arguments = [word for key, value in sets.items() for word in ("--set", f"{key}={value}")]
    recipe = text / "recipe.toml"
    recipe.write_text(
        '[data]\ntrain = "train.{src,tgt}"\n[model]\npreset = "tiny"\nnorm_position = "pre"\n'
        '[train]\nschedule = "linear"\noptimizer = "adamw"\nema = 0.99\n'
    )
    assert main(["train", str(recipe), "--out", str(tmp_path / "run"), *arguments]) == 0
    out = tmp_path / "out.txt"
    assert main(["translate", "-m", str(tmp_path / "run"), "--device", "cpu", "-i", str(source), "-o", str(out)]) == 0
    found, expected = out.read_text().splitlines(), target.read_text().splitlines()
    exact = sum(one == other for one, other in zip(found, expected, strict=True)) / len(expected)
    assert exact > 0.99
