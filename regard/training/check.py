"""What can be wrong with a run, looked at before any text is read: nobody waits minutes for a line that could come at once.

What only the text can show (its lengths, its characters) comes with the text.
"""

from __future__ import annotations

from pathlib import Path

import torch

from regard.data.corpus import Corpus
from regard.data.feed import check_shares
from regard.device import compute_dtype
from regard.errors import UserError
from regard.files import read_json
from regard.recipe import Recipe, TrainRecipe
from regard.training.checkpoint import FORMAT
from regard.training.fast import FastPath, fast_path, plain_path_field
from regard.training.fine_tuning import check_init
from regard.training.folder import RunFolder, check_folder
from regard.training.metrics import import_tensorboard
from regard.training.prepare import find_corpora


def check_run(recipe: Recipe, folder: RunFolder, resume: bool, device: torch.device, num_ranks: int) -> list[Corpus]:
    """Refuse what cannot be trained, or not here; nothing is written yet. The training corpora, since they have been looked for."""
    check_machine(recipe, device, num_ranks)
    check_folder(folder, recipe, resume)
    if not folder.is_started:
        check_init(recipe)
    return find_corpora(recipe)


def check_machine(recipe: Recipe, device: torch.device, num_ranks: int) -> None:
    """Refuse what this machine, or this number of processes, cannot do."""
    train = recipe.train
    if pick_fast_path(train, device, num_ranks) is not None:
        check_shares(train.accumulate, num_ranks)
    if train.recompute and device.type == "mps" and recipe.model.config(1000).dropout:
        raise UserError(
            "train.recompute: torch cannot repeat dropout on mps; leave it out, or set model.dropout or train.device"
        )
    if train.tensorboard:
        import_tensorboard()


def pick_fast_path(train: TrainRecipe, device: torch.device, num_ranks: int) -> FastPath | None:
    """The parts of the fast path that a run takes on this device; None: the plain path."""
    dtype = compute_dtype(train.precision, device)
    return fast_path(train.fast, device, dtype, num_ranks, train.rdrop > 0, plain_path_field(train))


def check_checkpoint(checkpoint: Path, path: FastPath | None) -> None:
    """Refuse to go on from a checkpoint that another Regard or another kind of batches made."""
    state = read_json(checkpoint / "state.json")
    if state.get("format") != FORMAT:
        raise UserError(
            f"{checkpoint}: is a checkpoint of format {state.get('format')}, and this Regard reads {FORMAT}; "
            "go on with the version that began the run, or start a new one"
        )
    had_slots, has_slots = "slots" in state["sampler"]["fingerprint"], path is not None
    if had_slots != has_slots:
        kinds = {True: "the fast path's batches of one shape", False: "the plain path's batches"}
        remedy = (
            "go on on such a GPU, or with train.fast = slots"
            if had_slots
            else "go on with train.fast = off, or on a CPU"
        )
        raise UserError(
            f"--resume: the run was begun with {kinds[had_slots]} and would go on with {kinds[has_slots]}, in another order; "
            f"{remedy}, or start a new run"
        )
