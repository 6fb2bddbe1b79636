"""Everything that the training loop needs, built from the recipe and the prepared data, or restored from a checkpoint."""

from __future__ import annotations

import copy
import time
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch

from regard.data.feed import Feed
from regard.data.store import Store
from regard.data.tokenizer import Tokenizer
from regard.device import compute_dtype, describe
from regard.errors import UserError
from regard.models.transformer import Transformer
from regard.parallel.ranks import Ranks
from regard.progress import counted, duration
from regard.recipe import Recipe, TrainRecipe
from regard.tasks import TASKS
from regard.tasks.task import LossFunction, Validator
from regard.training.check import pick_fast_path
from regard.training.checkpoint import load_checkpoint, load_start, save_start
from regard.training.display import Display
from regard.training.fast import FastPath, missing_requirement
from regard.training.fine_tuning import init_shown, load_init_weights
from regard.training.finish import num_final_validations
from regard.training.folder import RunFolder, out_of_time
from regard.training.loop import RunLength, RunState, Trainer
from regard.training.metrics import MetricsLog, RecordWriter, TensorBoardLog
from regard.training.open_run import OpenRun
from regard.training.optimizer import make_optimizer
from regard.training.prepare import PreparedData
from regard.training.recompute import recompute_layers
from regard.training.same_data import data_fingerprint
from regard.training.sharded import shard
from regard.training.update import PlainUpdate, SlotUpdate, UpdateOptions


def make_trainer(
    recipe: Recipe,
    data: PreparedData,
    opened: OpenRun,
    folder: RunFolder,
    display: Display,
    started: float,
    ranks: Ranks,
) -> Trainer:
    """A trainer at step 0, or as the checkpoint in `opened` left it. `started` is the time at which the run was called."""
    device, store, tokenizer, task = ranks.device, data.store, data.tokenizer, TASKS[recipe.task]
    if device.type == "cuda":
        torch.cuda.set_device(device)  # where Triton launches its kernels
    autocast = compute_dtype(recipe.train.precision, device)
    checkpoint = ranks.broadcast(opened.checkpoint)
    model, shadow = make_model(recipe, data, folder, display, ranks, is_fresh=checkpoint is None)
    loss = make_loss(recipe, model, folder, ranks, is_fresh=checkpoint is None)
    optimizer = make_optimizer(model, recipe.train)
    path = pick_fast_path(recipe.train, model.config, device, ranks.size)
    feed = make_feed(recipe, store, tokenizer, path, ranks)
    length = run_length(recipe.train, feed)
    state, notes = RunState(), [f"skipped: {reason}" for reason in opened.damaged]
    seed_rank(recipe.train.seed, ranks, checkpoint)
    if checkpoint is not None:
        average = shadow if recipe.train.ema else None
        saved = load_checkpoint(folder.checkpoints / checkpoint, model, optimizer, average, ranks)
        feed.load_state(saved["sampler"])
        state = restored_state(saved["run"], folder.checkpoints / checkpoint)
        notes.append(f"resuming from step {state.step:,}")
    else:
        state.seconds = state.prepared = ranks.broadcast(time.perf_counter() - started)
    if state.step == 0 and length.progress(state) >= 1.0:
        raise out_of_time(folder, recipe.train.minutes, "preparing the data", state.prepared)
    logs = open_logs(recipe.train, folder, state.step if checkpoint is not None else None) if ranks.is_first else []
    for note in notes:
        display.say(note)
        for log in logs:
            log.write({"kind": "note", "text": note})
    validator = make_validator(recipe, data, ranks)
    if recipe.train.fast == "auto" and device.type == "cuda" and (missing := missing_requirement(device, autocast)):
        display.say(f"using the plain path; the fast path, several times faster, needs {missing}")
    display.say(
        f"{task.describe(recipe)}: {model.num_parameters():,} parameters, "
        f"{counted(len(store), task.NOUN)}, {counted(round(feed.updates_per_epoch), 'update')} per epoch; "
        f"{describe(device)}, {'fp32' if autocast is None else 'bf16'}"
        + (f"; {ranks.size} processes" if ranks.size > 1 else "")
    )
    display.start(length.total_steps, length.total_seconds)
    apply = make_update(recipe, loss, model, optimizer, feed, path, autocast, display, ranks)
    return Trainer(
        recipe.train, model, shadow, optimizer, feed, apply, store, tokenizer, validator, length, state, folder.checkpoints,
        logs, display, autocast, ranks, data_fingerprint(tokenizer, store, data.valid),
    )  # fmt: skip


def restored_state(saved: dict[str, Any], checkpoint: Path) -> RunState:
    """The counters and scores in a checkpoint; fields that it lacks keep their defaults."""
    state = RunState()
    for name, value in saved.items():
        default = getattr(state, name, ())
        values = value if name == "window" and isinstance(value, list) and len(value) == 4 else [value]
        is_number = all(isinstance(each, int | float) and not isinstance(each, bool) for each in values)
        if not (is_number or (value is None and default is None)) or default == ():
            raise UserError(
                f"{checkpoint / 'state.json'}: run.{name} must be a number, but is {value!r}; delete {checkpoint} to resume from "
                "the checkpoint before it"
            )
    return RunState(**saved)


def make_model(
    recipe: Recipe, data: PreparedData, folder: RunFolder, display: Display, ranks: Ranks, is_fresh: bool
) -> tuple[Transformer, Transformer]:
    """The model and its copy for averaging and validation, on this process's device or sharded over all processes."""
    torch.manual_seed(recipe.train.seed)
    model = Transformer(recipe.model.config(data.tokenizer.vocab_size))
    if is_fresh:
        TASKS[recipe.task].begin(model, data.store)
    if recipe.train.init and is_fresh:
        load_init_weights(recipe, model, data.tokenizer)
        fit_head(recipe, model, data, display, ranks)
        if ranks.is_first:
            save_start(folder.start, model.state_dict())
    shadow = copy.deepcopy(model).requires_grad_(False)
    for each in (model, shadow):
        if ranks.shards:
            shard(each, ranks)
        else:
            each.to(ranks.device)
    if recipe.train.recompute:
        recompute_layers(model)
    return model, shadow


def make_loss(recipe: Recipe, model: Transformer, folder: RunFolder, ranks: Ranks, is_fresh: bool) -> LossFunction:
    """The task's loss, or with `train.anchor` one that compares with the model as it was before the first step."""
    task = TASKS[recipe.task]
    if not recipe.train.anchor:
        return task.loss
    side = recipe.data.anchored_column(recipe.train.anchor)
    assert side is not None  # a recipe whose text does not fit is refused
    start = copy.deepcopy(model)
    if not is_fresh:
        try:
            start.load_state_dict(load_start(folder.start))
        except UserError as error:
            raise UserError(
                f"train.anchor compares with the model before the first step: {error}; without it start a new run with --out"
            ) from None
    return task.anchored_loss(start.to(ranks.device), side)


def fit_head(recipe: Recipe, model: Transformer, data: PreparedData, display: Display, ranks: Ranks) -> None:
    """Fit the head where the recipe asks for it: on the first process, for all."""
    if not recipe.train.fit_head:
        return
    task = TASKS[recipe.task]
    started = time.perf_counter()
    ranks.run_on_first(lambda: task.fit_head(recipe, model, data.store, data.tokenizer, ranks.device))
    if ranks.is_first:
        took = duration(time.perf_counter() - started)
        encoder = init_shown(recipe.train.init)
        display.say(f"head: fitted to the vectors of {encoder} by regression, in {took} (train.fit_head)")
    if ranks.size > 1:
        own = model.head.state_dict()
        for name, values in ranks.broadcast({name: tensor.tolist() for name, tensor in own.items()}).items():
            own[name].copy_(torch.tensor(values))


def seed_rank(seed: int, ranks: Ranks, checkpoint: str | None) -> None:
    """Give every process but the first its own dropout; the first draws the random numbers of a run with one process."""
    if not ranks.is_first:
        mixed = np.random.SeedSequence([seed % 2**64, ranks.rank, zlib.crc32((checkpoint or "").encode())])
        torch.manual_seed(int(mixed.generate_state(1, np.uint64)[0] >> np.uint64(1)))


def make_feed(recipe: Recipe, store: Store, tokenizer: Tokenizer, path: FastPath | None, ranks: Ranks) -> Feed:
    """Batches of any shape; on the fast path, of one fixed shape."""
    sampler, packing = TASKS[recipe.task].make_batches(recipe, store, tokenizer, with_slots=path is not None)
    return Feed(
        store, sampler, packing, recipe.train.accumulate, ranks.device, ranks.rank, ranks.size, equal=ranks.shards
    )


def run_length(train: TrainRecipe, feed: Feed) -> RunLength:
    """The time budget, or the number of steps, which `train.epochs` is converted to."""
    if train.minutes:
        return RunLength(None, train.minutes * 60.0, num_final_validations(train))
    steps = train.steps or max(1, round(train.epochs * feed.updates_per_epoch))
    return RunLength(steps, None)


def open_logs(train: TrainRecipe, folder: RunFolder, resume_step: int | None) -> list[RecordWriter]:
    """The metrics file and, if enabled, TensorBoard; `resume_step` None starts them new."""
    logs: list[RecordWriter] = [MetricsLog(folder.metrics, resume_step)]
    if train.tensorboard:
        logs.append(TensorBoardLog(folder.path / "tensorboard", resume_step))
    return logs


def make_validator(recipe: Recipe, data: PreparedData, ranks: Ranks) -> Validator | None:
    """None on a process that does not validate. A sharded model is validated by its loss alone."""
    if data.valid is None:
        return None
    return TASKS[recipe.task].make_validator(recipe, data.valid, data.tokenizer, loss_only=ranks.shards)


def make_update(
    recipe: Recipe,
    loss: LossFunction,
    model: Transformer,
    optimizer: torch.optim.Optimizer,
    feed: Feed,
    path: FastPath | None,
    autocast: torch.dtype | None,
    display: Display,
    ranks: Ranks,
) -> PlainUpdate | SlotUpdate:
    """Computes updates on the plain path (`path` is None) or on the fast path."""
    train = recipe.train
    options = UpdateOptions(train.label_smoothing, train.clip, autocast, train.rdrop)
    if path is None:
        return PlainUpdate(loss, model, optimizer, options, ranks)
    assert feed.slots is not None
    return SlotUpdate(loss, model, optimizer, options, feed.slots, feed.share, path, display.say, ranks)
