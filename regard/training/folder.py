"""The run folder: its files, which recipes may resume in it, and the lock that keeps a second process out."""

from __future__ import annotations

import dataclasses
import math
import os
import platform
import shlex
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from regard.errors import UserError
from regard.files import lock, sweep_temporaries, write_atomic, writing
from regard.recipe import Recipe, load_recipe
from regard.training.checkpoint import list_checkpoints

# Fields that a resumed run may change; changing anything else would make it a different run.
_CHANGEABLE = {
    "train": {
        "steps", "epochs", "minutes", "lr", "clip", "accumulate", "patience", "average", "validate_every", "validate_sentences",
        "save_every", "log_every", "workers", "tensorboard", "device", "fast", "recompute",
    },
    "data": {"test", "root"},  # test only as a corpus, not as pairs held out from the training text
    "tokenizer": {"folder"},  # the run has its own copy
    "decode": {"beam", "alpha", "max_extra", "guard"},
}  # fmt: skip
LOCK = ".lock"
_LENGTH = ("steps", "epochs", "minutes")


class RunFolder:
    """Paths of everything that a run writes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.recipe = path / "recipe.toml"
        self.tokenizer = path / "tokenizer"
        self.store = path / "store"
        self.held_out = path / "heldout"
        self.checkpoints = path / "checkpoints"
        self.start = path / "start"  # fine-tuning: the weights before the first step
        self.metrics = path / "metrics.jsonl"
        self.model = path / "model"
        self.adapter = path / "adapter"  # LoRA: what changed, apart from the model
        self.report = path / "report.html"  # written last: its presence marks a finished run

    @property
    def is_started(self) -> bool:
        """Whether anything was trained here."""
        return bool(list_checkpoints(self.checkpoints)) or self.model.exists()

    @property
    def started_recipe(self) -> Recipe | None:
        """The recipe of the run, if anything was trained here."""
        return load_recipe(self.recipe) if self.is_started and self.recipe.is_file() else None

    @property
    def baseline(self) -> Path:
        return self.path / "baseline.json"

    @property
    def resume_command(self) -> str:
        """The shell command that resumes the run."""
        return f"regard train {shlex.quote(str(self.recipe))} --out {shlex.quote(str(self.path))} --resume"


def out_of_time(folder: RunFolder, minutes: float, doing: str, seconds: float, remedy: str = "") -> UserError:
    """The error of a run whose time was used up before its first step, with the command that gives it more."""
    enough = math.ceil(max(2 * minutes, 5 * seconds / 60))
    return UserError(
        f"train.minutes = {minutes:g} was used up by {doing} ({seconds:.0f} s), so there is no model yet; give it more time: "
        f"{folder.resume_command} --minutes {enough}{remedy}"
    )


def check_folder(folder: RunFolder, recipe: Recipe, resume: bool) -> None:
    """Refuse a folder with other content, or with a run that this recipe cannot resume. Writes nothing."""
    path = folder.path
    if folder.is_started:
        if not resume:
            raise UserError(
                f"{path}: already holds a run; resume it with --resume, or choose another folder with --out"
            )
        check_same_run(load_recipe(folder.recipe), recipe, folder.recipe)
    elif not _is_empty(path) and not _is_prepared(folder):
        raise UserError(f"{path}: must be a new or empty folder, or a run with --resume; choose another with --out")


def _is_empty(path: Path) -> bool:
    return not path.exists() or (path.is_dir() and all(entry.name == LOCK for entry in path.iterdir()))


def _is_prepared(folder: RunFolder) -> bool:
    """Whether a run was prepared here but not trained. The recipe must be ours: other programs have checkpoint folders, too."""
    ours = ("damaged-step-", ".")  # "." begins the names of temporary files
    if not folder.checkpoints.is_dir() or any(not each.name.startswith(ours) for each in folder.checkpoints.iterdir()):
        return False
    try:
        load_recipe(folder.recipe)
    except UserError:
        return False
    return True


def claim_folder(folder: RunFolder, recipe: Recipe) -> None:
    """Write the recipe into a checked and locked folder, removing what an interrupted preparation left there."""
    sweep_temporaries(folder.path)
    if not folder.is_started:
        for leftover in (folder.tokenizer, folder.store, folder.held_out, folder.start):
            shutil.rmtree(leftover, ignore_errors=True)
        folder.baseline.unlink(missing_ok=True)
        write_recipe(folder, recipe)
    folder.checkpoints.mkdir(exist_ok=True)


@contextmanager
def removed_if_empty(folder: RunFolder) -> Iterator[None]:
    """Remove a new run folder if the block fails before it has made anything worth keeping: tokenized text, or a checkpoint."""
    was_there = folder.path.exists()
    try:
        yield
    except BaseException:
        if not was_there and not folder.is_started and not (folder.store / "store.json").is_file():
            shutil.rmtree(folder.path, ignore_errors=True)
        raise


def is_finished(folder: RunFolder, recipe: Recipe) -> bool:
    """Whether nothing is left to do. A finished run becomes unfinished when the recipe makes it longer."""
    if not folder.report.is_file():
        return False
    old = load_recipe(folder.recipe)
    return all(getattr(old.train, name) == getattr(recipe.train, name) for name in _LENGTH)


def write_recipe(folder: RunFolder, recipe: Recipe) -> None:
    """Save the recipe and mark the run unfinished; a resumed run does this only after its checkpoint was found to fit."""
    folder.report.unlink(missing_ok=True)
    write_atomic(folder.recipe, recipe.to_toml())


def describe_changes(old: Recipe, new: Recipe) -> list[str]:
    """Changed fields, such as "train.lr 0.001 → 0.0005"."""
    return [f"{section}.{key} {before} → {after}" for section, key, before, after in _differences(old, new)]


def check_same_run(old: Recipe, new: Recipe, where: Path) -> None:
    """Refuse to resume with a recipe that changes more than a resumed run may change."""
    if old.task != new.task:
        raise UserError(
            f"--resume: task must stay {old.task!r}, as the run was started ({where}), but is {new.task!r}; "
            f"use the same recipe, or another folder with --out"
        )
    for section, key, before, after in _differences(old, new):
        is_held_out = key == "test" and any(isinstance(value, int | float) and value for value in (before, after))
        if is_held_out or key not in _CHANGEABLE.get(section, ()):
            raise UserError(
                f"--resume: {section}.{key} must stay {before!r}, as the run was started ({where}), but is {after!r}; "
                f"use the same recipe, or another folder with --out"
            )


def _differences(old: Recipe, new: Recipe) -> Iterator[tuple[str, str, Any, Any]]:
    """Section, field, old value, new value. Recipes of early versions lack some fields, so defaults are filled in."""
    before, after = (recipe.with_defaults(protect=False, guard=False).to_dict() for recipe in (old, new))
    for values, recipe in (
        (before, old),
        (after, new),
    ):  # every field, since a preset sets fields that the recipe does not name
        values["model"] = {**dataclasses.asdict(recipe.model.config(1000)), **recipe.model.fields}
    for section, values in before.items():
        if section == "task":
            continue
        for key in sorted(values.keys() | after[section].keys()):
            if values.get(key) != after[section].get(key):
                yield section, key, values.get(key), after[section].get(key)


@contextmanager
def locked(folder: RunFolder) -> Iterator[None]:
    """Keep a second process out of the folder while this one trains in it (where the file system has locks).

    The file names the holder for the error message, and the system releases the lock however the process ends. Not the filelock
    package: on file systems without locks it fails, or falls back to a marker file that `kill -9` leaves behind.
    """
    folder.path.mkdir(parents=True, exist_ok=True)
    with (folder.path / LOCK).open("a+") as file:
        if not lock(file):
            file.seek(0)
            who = file.read(100).strip()
            named = f" ({who})" if who else ""
            raise UserError(
                f"{folder.path}: another process is training in this folder{named}; wait for it, or stop it"
            )
        holder = f"process {os.getpid()} on {platform.node()}\n"
        with writing(folder.path / LOCK, len(holder)):
            file.truncate(0)
            file.write(holder)
            file.flush()
        yield
