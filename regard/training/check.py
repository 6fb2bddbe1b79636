"""Checks before any text is read, so that a mistake shows at once and not after minutes.

What only the text can show, such as its lengths and characters, is checked when it is read.
"""

from __future__ import annotations

import torch

from regard.config import ModelConfig
from regard.data.corpus import RecordSource
from regard.data.feed import check_shares
from regard.device import compute_dtype
from regard.errors import UserError
from regard.recipe import Recipe, TrainRecipe
from regard.training.fast import FastPath, fast_path, plain_path_field
from regard.training.fine_tuning import check_init
from regard.training.folder import RunFolder, check_folder
from regard.training.metrics import import_tensorboard
from regard.training.prepare import find_corpora, load_vocabulary


def check_run(
    recipe: Recipe, folder: RunFolder, resume: bool, device: torch.device, num_ranks: int
) -> list[RecordSource]:
    """Refuse a run that this recipe, machine or folder does not allow; returns the training corpora. Writes nothing."""
    check_machine(recipe, device, num_ranks)
    check_folder(folder, recipe, resume)
    if not folder.is_started:
        check_init(recipe)
        if recipe.tokenizer.folder:
            load_vocabulary(recipe)
    return find_corpora(recipe)


def check_machine(recipe: Recipe, device: torch.device, num_ranks: int) -> None:
    """Refuse what this machine or number of processes cannot do."""
    train = recipe.train
    if pick_fast_path(train, recipe.model.config(1000), device, num_ranks) is not None:
        check_shares(train.accumulate, num_ranks)
    if train.recompute and device.type == "mps" and recipe.model.config(1000).dropout:
        raise UserError(
            "train.recompute must be false on mps, where torch cannot repeat dropout; remove it, set model.dropout = 0 or another "
            "train.device"
        )
    if train.tensorboard:
        import_tensorboard()


def pick_fast_path(train: TrainRecipe, config: ModelConfig, device: torch.device, num_ranks: int) -> FastPath | None:
    """The parts of the fast path that a run uses on this device; None: the plain path."""
    dtype = compute_dtype(train.precision, device)
    return fast_path(train.fast, device, dtype, num_ranks, train.rdrop > 0, plain_path_field(train, config))
