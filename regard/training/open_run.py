"""Opening a run: checks, the lock on the run folder, and the checkpoint to resume from."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from regard.data.corpus import RecordSource
from regard.errors import UserError
from regard.files import read_json
from regard.parallel.ranks import Ranks
from regard.recipe import Recipe, load_recipe
from regard.training.check import check_run, pick_fast_path
from regard.training.checkpoint import FORMAT, newest_intact, read_state
from regard.training.display import Display
from regard.training.fast import FastPath
from regard.training.fine_tuning import check_init
from regard.training.folder import RunFolder, claim_folder, describe_changes, is_finished, locked
from regard.training.metrics import read_metrics
from regard.training.same_data import saved_fingerprint


@dataclass(frozen=True)
class OpenRun:
    """The state of a run folder as the first process found it; the other processes have an empty one."""

    corpora: list[RecordSource] = field(default_factory=list)  # training text
    is_finished: bool = False  # nothing left to train
    checkpoint: str | None = None  # name of the checkpoint to resume from; None: start fresh
    damaged: tuple[str, ...] = ()  # why each newer checkpoint was skipped
    fingerprint: dict[str, Any] = field(default_factory=dict)  # of the data, as the checkpoint has it


def open_run(
    recipe: Recipe, folder: RunFolder, resume: bool, display: Display, stack: ExitStack, ranks: Ranks
) -> OpenRun:
    """Check the run, lock its folder until `stack` closes, and find out where the run stands."""
    corpora = check_run(recipe, folder, resume, ranks.device, ranks.size)
    was_started = folder.is_started
    stack.enter_context(locked(folder))
    stack.callback(display.close)
    claim_folder(folder, recipe)
    finished = is_finished(folder, recipe)
    for change in describe_changes(load_recipe(folder.recipe), recipe) if was_started else []:
        display.say(f"ignored, since the run is finished: {change}" if finished else f"changed: {change}")
    if finished:
        return OpenRun(is_finished=True)
    newest, damaged = newest_intact(folder.checkpoints) if resume else (None, [])
    if newest is None:
        if was_started:  # every checkpoint is damaged, so the run starts over
            check_init(recipe)
        return OpenRun(corpora, damaged=tuple(damaged))
    check_checkpoint(newest, pick_fast_path(recipe.train, recipe.model.config(1000), ranks.device, ranks.size))
    if folder.metrics.exists():
        read_metrics(folder.metrics)  # refuses a damaged file now, and not when the report is written
    return OpenRun(corpora, False, newest.name, tuple(damaged), saved_fingerprint(newest, folder))


def check_checkpoint(checkpoint: Path, path: FastPath | None) -> None:
    """Refuse to resume from a checkpoint of another format, or of a run with another kind of batches."""
    version = read_json(checkpoint / "state.json").get("format")
    if version != FORMAT:
        raise UserError(
            f"{checkpoint}: checkpoint format must be {FORMAT} for this version of Regard, but is {version}; "
            "resume with the version that started the run, or start a new one"
        )
    state = read_state(checkpoint)
    had_slots, has_slots = "slots" in state["sampler"]["fingerprint"], path is not None
    if had_slots != has_slots:
        kinds = {True: "the fast path's fixed-shape batches", False: "the plain path's batches"}
        remedy = (
            "resume on a GPU with the fast path, or with train.fast = slots"
            if had_slots
            else "resume with train.fast = off, or on a CPU"
        )
        raise UserError(
            f"--resume: the run was started with {kinds[had_slots]} but would resume with {kinds[has_slots]}, in another order; "
            f"{remedy}, or start a new run"
        )
