"""Training that is killed, and run folders that a disk or a person changed before it is resumed."""

from __future__ import annotations

import os
import random
import resource
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.attacks.on_files import flip_bit
from benchmarks.attacks.outcome import Tally, run_command
from regard.cli import main
from regard.files import sha256
from tests.tiny import write_recipe

STEPS, MIDDLE = 60, 30
# Files of a run folder that hold no data of the run: whatever happens to them, the weights are the same.
_FREE = ("report.html",)


def attack_runs(scratch: Path, kills: int, flips: int) -> Iterator[Tally]:
    """Kills in a row, flipped bits, exchanged lines and a full disk; each resumed run must end with the weights of a run that
    nobody touched, or be refused."""
    recipe = write_recipe(scratch / "recipe", steps=STEPS, save_every=5, validate_every=30)
    whole = scratch / "whole"
    done = run_command(_train(recipe, whole), seconds=300)
    assert done.code == 0, done.err
    right = _weights(whole)
    yield _kill(recipe, scratch / "killed", kills, right)
    middle = scratch / "middle"
    _run_until(recipe, middle, MIDDLE)
    tally, draw = Tally("bits flipped in a run folder"), random.Random(3)
    for number in range(flips):
        run = _copy(middle, scratch / "flipped")
        files = sorted(path for path in run.rglob("*") if path.is_file() and path.name not in _FREE)
        path = draw.choice(files)
        flip_bit(path, draw)
        _resume(tally, f"{number} {path.relative_to(run)}", recipe, run, right)
    yield tally
    yield _other_data(recipe, middle, scratch, right)
    yield _full_disk(recipe, scratch)


def _train(recipe: Path, out: Path, *more: str) -> list[str]:
    return ["train", str(recipe), "--out", str(out), *more]


def _weights(run: Path) -> str:
    return sha256(run / "model" / "model.safetensors")


def _copy(run: Path, to: Path) -> Path:
    shutil.rmtree(to, ignore_errors=True)
    return Path(shutil.copytree(run, to))


def _resume(tally: Tally, case: str, recipe: Path, run: Path, right: str) -> None:
    done = run_command(_train(recipe, run, "--resume"), seconds=180)
    verdict = done.verdict()
    if done.code == 0 and _weights(run) != right:
        verdict = "silent"
    tally.add(case, verdict, done.err + done.out)


def _run_until(recipe: Path, out: Path, step: int, *, patience: float = 180) -> None:
    """Train in a process of its own, and kill it as soon as it has saved this step."""
    child = os.fork()
    if child == 0:
        null = os.open(os.devnull, os.O_RDWR)
        for stream in range(3):
            os.dup2(null, stream)
        os._exit(main(_train(recipe, out, "--resume") if out.exists() else _train(recipe, out)))
    end = time.monotonic() + patience
    saved = out / "checkpoints" / f"step-{step:06d}"
    while not saved.exists() and time.monotonic() < end and os.waitpid(child, os.WNOHANG)[0] == 0:
        time.sleep(0.001)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert saved.exists(), f"{saved} was not written"


def _kill(recipe: Path, run: Path, kills: int, right: str) -> Tally:
    """Killed as soon as each of several checkpoints is there, that is, while the next thing is being done."""
    tally = Tally("training killed")
    steps = range(5, STEPS, 5)[:kills]
    for step in steps:
        _run_until(recipe, run, step)
    done = run_command(_train(recipe, run, "--resume"), seconds=180)
    verdict = done.verdict()
    if done.code == 0 and _weights(run) != right:
        verdict = "silent"
    for step in steps:
        tally.add(f"after step {step}", verdict, done.err)
    return tally


def _other_data(recipe: Path, middle: Path, scratch: Path, right: str) -> Tally:
    """A corpus that changed between two sittings, though its lines and their lengths did not."""
    tally = Tally("a corpus changed before a run is resumed")
    folder = recipe.parent
    for name in ("train.src", "train.tgt"):
        path = folder / name
        before = path.read_text()
        lines = before.splitlines(keepends=True)
        by_length: dict[int, list[int]] = {}
        for number, line in enumerate(lines):
            by_length.setdefault(len(line), []).append(number)
        one, other = next(
            (numbers[0], number)
            for numbers in by_length.values()
            for number in numbers
            if lines[numbers[0]] != lines[number]
        )
        changed = list(lines)
        changed[one], changed[other] = lines[other], lines[one]
        for content in ("".join(changed), "".join(lines[:-1]), before.replace("a", "z", 1)):
            path.write_text(content)
            _resume(tally, name, recipe, _copy(middle, scratch / "changed"), right)
        path.write_text(before)
    return tally


def _full_disk(recipe: Path, scratch: Path) -> Tally:
    """No file may have more than some bytes: from the store to the checkpoint, something will not fit."""
    tally = Tally("a full disk while training")
    for most in (1_000, 8_000, 20_000, 60_000, 120_000):

        def fill(most: int = most) -> None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))

        run = scratch / f"full-{most}"
        done = run_command(_train(recipe, run), seconds=180, before=fill)
        verdict = done.verdict(must_refuse=True)
        if verdict == "survived" and list(run.rglob("*.tmp")):
            verdict = "silent"  # half a file stayed
        tally.add(f"{most} bytes", verdict, done.err)
        shutil.rmtree(run, ignore_errors=True)
    return tally
