"""The run folder: where the parts of a run lie, and who may write there."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from regard.errors import UserError
from regard.files import write_atomic
from regard.recipe import Recipe, load_recipe
from regard.training.checkpoint import list_checkpoints

# What may change between the sittings of a run; anything else would make it another run.
_CHANGEABLE = {
    "train": {
        "steps", "epochs", "minutes", "lr", "clip", "accumulate", "patience", "average", "validate_every", "validate_sentences",
        "save_every", "log_every", "workers", "tensorboard", "device",
    },
    "data": {"test", "root"},
    "decode": {"beam", "alpha", "max_extra"},
}  # fmt: skip
_LENGTH = ("steps", "epochs", "minutes")


@dataclass(frozen=True)
class RunFolder:
    path: Path

    @property
    def recipe(self) -> Path:
        return self.path / "recipe.toml"

    @property
    def tokenizer(self) -> Path:
        return self.path / "tokenizer"

    @property
    def store(self) -> Path:
        return self.path / "store"

    @property
    def held_out(self) -> Path:
        return self.path / "heldout"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def model(self) -> Path:
        return self.path / "model"

    @property
    def report(self) -> Path:
        """The last thing that a run writes: where it is, the run is finished."""
        return self.path / "report.html"

    @property
    def resume_command(self) -> str:
        return f"regard train {shlex.quote(str(self.recipe))} --out {shlex.quote(str(self.path))} --resume"


def claim_folder(out: Path, recipe: Recipe, resume: bool) -> RunFolder:
    """Make the run folder, or take the one that is there if it may be resumed."""
    folder = RunFolder(out)
    is_run = folder.checkpoints.is_dir()
    if not is_run and out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out}: must be a new or empty folder, or a run with --resume; choose another with --out")
    if list_checkpoints(folder.checkpoints) or folder.model.exists():
        if not resume:
            raise UserError(f"{out}: holds a run already; go on with --resume, or choose another folder with --out")
        old = load_recipe(folder.recipe)
        check_same_run(old, recipe, folder.recipe)
        if any(getattr(old.train, name) != getattr(recipe.train, name) for name in _LENGTH):
            folder.report.unlink(missing_ok=True)  # a finished run that is made longer is not finished
    elif is_run:
        # Nothing was trained here yet: whatever the recipe was, this one may begin.
        for leftover in (folder.tokenizer, folder.store, folder.held_out):
            shutil.rmtree(leftover, ignore_errors=True)
    folder.checkpoints.mkdir(parents=True, exist_ok=True)
    write_atomic(folder.recipe, recipe.to_toml())
    return folder


def check_same_run(old: Recipe, new: Recipe, where: Path) -> None:
    before, after = old.to_dict(), new.to_dict()
    for section, values in before.items():
        for key in sorted(values.keys() | after[section].keys()):
            if values.get(key) != after[section].get(key) and key not in _CHANGEABLE.get(section, ()):
                raise UserError(
                    f"--resume: {section}.{key} is {after[section].get(key)!r}, but the run was started with "
                    f"{values.get(key)!r} ({where}); use the same recipe, or another folder with --out"
                )


@contextmanager
def locked(folder: RunFolder) -> Iterator[None]:
    """Keep a second process out of the folder while this one trains in it (where the system has file locks)."""
    try:
        import fcntl
    except ImportError:  # Windows
        yield
        return
    with (folder.path / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UserError(
                f"{folder.path}: another process is training in this folder; wait for it, or stop it"
            ) from None
        yield
