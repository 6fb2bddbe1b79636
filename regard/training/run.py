"""A training run from a recipe to a bundle: the way of the data on one screen.

recipe -> corpora -> held-out pairs -> tokenizer -> store -> sampler
       -> loop (model, loss, optimizer) -> average -> bundle -> test -> report
"""

from __future__ import annotations

import copy
import time
import zlib
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from regard.bundle import Bundle, load_bundle
from regard.data.arrays import IntArray
from regard.data.bpe_dropout import BpeDropout
from regard.data.corpus import Pair
from regard.data.feed import Feed
from regard.data.sampler import Sampler
from regard.data.slot_batch import fit_slots
from regard.data.store import Store
from regard.data.tokenizer import Tokenizer
from regard.device import compute_dtype, describe
from regard.errors import Interrupted, RegardError, UserError
from regard.models.transformer import Transformer
from regard.parallel.ranks import EndedElsewhere, Ranks, join
from regard.recipe import Recipe, TrainRecipe, load_recipe
from regard.training.check import check_checkpoint, check_run, pick_fast_path
from regard.training.checkpoint import load_checkpoint, newest_intact
from regard.training.display import Display, make_display
from regard.training.fast import FastPath, missing_requirement
from regard.training.fine_tuning import check_init, load_init_weights, resolve_recipe
from regard.training.finish import (
    final_weights,
    num_final_validations,
    report_facts,
    score_test_set,
    warn_if_worse,
    write_model,
)
from regard.training.folder import RunFolder, claim_folder, describe_changes, is_finished, locked, write_recipe
from regard.training.loop import RunLength, RunState, Trainer
from regard.training.metrics import MetricsLog, RecordWriter, TensorBoardLog, read_metrics
from regard.training.optimizer import make_optimizer
from regard.training.prepare import make_evaluation_sets, make_store, make_tokenizer
from regard.training.recompute import recompute_layers
from regard.training.report import write_report
from regard.training.sharded import shard
from regard.training.update import PlainUpdate, SlotUpdate, UpdateOptions
from regard.training.validate import Validator


@dataclass(frozen=True)
class Prepared:
    """What the text has become. Of several processes only the first has validation and test pairs."""

    tokenizer: Tokenizer
    store: Store
    valid: list[Pair] | None
    test: list[Pair]
    newest: str | None = None  # the checkpoint to go on from
    damaged: tuple[str, ...] = ()  # a word on each newer one that was passed over


def train(
    recipe: Recipe, out: Path | str | None = None, *, resume: bool = False, display: Display | None = None
) -> Bundle:
    """Train a model as the recipe says, into the run folder `out` (runs/SOURCE-TARGET), and return its bundle.

    Started by torchrun, several processes train together (`distributed.py`); the first one prepares, writes and prints.
    """
    started = time.perf_counter()
    folder = RunFolder(Path(out or f"runs/{recipe.data.source}-{recipe.data.target}"))
    with ExitStack() as stack:
        ranks = stack.enter_context(join(recipe.train.device, recipe.train.shard))
        display = display or (make_display() if ranks.is_first else Display())
        given = recipe
        in_full = ranks.run_on_first(lambda: resolve_recipe(given, folder.started_recipe))
        recipe = in_full or resolve_recipe(given, folder.started_recipe)
        prepared = ranks.run_on_first(lambda: prepare_run(recipe, folder, resume, display, stack, ranks))
        if ranks.broadcast(prepared is None):
            display.say(f"{folder.path} is finished; its model is in {folder.model}")
            return load_bundle(folder.model)
        prepared = prepared or find_prepared(folder)
        if ranks.shards:  # validation goes through the model that they share
            valid = [(source, target) for source, target in ranks.broadcast(prepared.valid)]
            prepared = replace(prepared, valid=valid)
        trainer = make_trainer(recipe, prepared, folder, display, started, ranks)
        stack.callback(trainer.feed.close)
        for log in trainer.logs:
            stack.callback(log.close)
        if ranks.is_first:
            write_recipe(folder, recipe)
        try:
            if not trainer.run():
                raise KeyboardInterrupt
            bundle = ranks.run_on_first(lambda: finish(recipe, trainer, prepared, folder))
        except KeyboardInterrupt:
            if not ranks.is_first:
                raise EndedElsewhere from None
            step, command = trainer.saved_step, folder.resume_command
            if ranks.size > 1:
                command = f"torchrun ... -m {command}"
            if not step:
                raise Interrupted(
                    f"stopped before the first step, with nothing to save; begin again with: {command}"
                ) from None
            raise Interrupted(f"stopped at step {step} and saved; go on with: {command}") from None
        if bundle is None:  # the first process has it
            return load_bundle(folder.model)
        display.close()
        write_report(folder.path, recipe.to_dict(), read_metrics(folder.metrics), report_facts(bundle, prepared.store))
    display.say(
        f"model   {folder.model} ({bundle.facts['weights']})\nreport  {folder.report}\n"
        f'try it  regard translate -m {folder.path} "..."'
    )
    return bundle


def prepare_run(
    recipe: Recipe, folder: RunFolder, resume: bool, display: Display, stack: ExitStack, ranks: Ranks
) -> Prepared | None:
    """From the recipe to token ids in the run folder, which is locked from here on; None for a run that is finished."""
    corpora = check_run(recipe, folder, resume, ranks.device, ranks.size)
    was_begun = folder.is_started
    stack.enter_context(locked(folder))
    stack.callback(display.close)
    claim_folder(folder, recipe)
    finished = is_finished(folder, recipe)
    for change in describe_changes(load_recipe(folder.recipe), recipe) if was_begun else []:
        display.say(f"not changed, since the run is finished: {change}" if finished else f"changed: {change}")
    if finished:
        return None
    newest, damaged = newest_intact(folder.checkpoints) if resume else (None, [])
    if newest is not None:
        check_checkpoint(newest, pick_fast_path(recipe.train, ranks.device, ranks.size))
    elif was_begun:  # every checkpoint is damaged: it begins anew
        check_init(recipe)
    held_out, valid, test = make_evaluation_sets(recipe, corpora, folder, display)
    tokenizer = make_tokenizer(recipe, corpora, held_out, folder, display)
    store = make_store(recipe, corpora, held_out, tokenizer, folder, display)
    return Prepared(tokenizer, store, valid, test, newest.name if newest else None, tuple(damaged))


def find_prepared(folder: RunFolder) -> Prepared:
    """What the first process has made, for the others."""
    if not (folder.store / "store.json").is_file():
        raise RegardError(
            f"{folder.store}: is not there; the run folder must lie on a file system that all machines of the run share"
        )
    return Prepared(Tokenizer.load(folder.tokenizer), Store.open(folder.store), None, [])


def finish(recipe: Recipe, trainer: Trainer, prepared: Prepared, folder: RunFolder) -> Bundle:
    """From the last checkpoint to the bundle and its scores."""
    weights, chosen = final_weights(recipe.train, trainer, folder)
    warn_if_worse(trainer)
    bundle = write_model(recipe, trainer, weights, chosen, folder, None)
    if prepared.test:
        scores = score_test_set(recipe, bundle, prepared.test, trainer)
        bundle = write_model(recipe, trainer, weights, chosen, folder, scores)
    return bundle


def make_trainer(
    recipe: Recipe,
    prepared: Prepared,
    folder: RunFolder,
    display: Display,
    started: float,
    ranks: Ranks,
) -> Trainer:
    """Everything that the loop needs, fresh or as the newest intact checkpoint left it."""
    device, store, tokenizer = ranks.device, prepared.store, prepared.tokenizer
    if device.type == "cuda":
        torch.cuda.set_device(device)  # where Triton launches its kernels
    autocast = compute_dtype(recipe.train.precision, device)
    step = ranks.broadcast(prepared.newest)
    model, shadow = make_model(recipe, tokenizer, ranks, is_fresh=step is None)
    optimizer = make_optimizer(model, recipe.train)
    path = pick_fast_path(recipe.train, device, ranks.size)
    feed = make_feed(recipe, store, tokenizer, path, ranks)
    length = run_length(recipe.train, feed)
    state, notes = RunState(), []
    seed_rank(recipe.train.seed, ranks, step)
    if step is not None:
        average = shadow if recipe.train.ema else None
        saved = load_checkpoint(folder.checkpoints / step, model, optimizer, average, ranks)
        feed.load_state(saved["sampler"])
        state = RunState(**saved["run"])
        notes = [f"going on from step {state.step}"]
    else:
        state.seconds = state.prepared = ranks.broadcast(time.perf_counter() - started)
    if state.step == 0 and length.progress(state) >= 1.0:
        raise UserError(
            f"train.minutes = {recipe.train.minutes:g} was used up by preparing the data ({state.prepared:.0f} s); give it more"
        )
    logs = open_logs(recipe.train, folder, state.step if step is not None else None) if ranks.is_first else []
    for note in [*(f"passed over: {word}" for word in prepared.damaged), *notes]:
        display.say(note)
        for log in logs:
            log.write({"kind": "note", "text": note})
    validator = None
    if prepared.valid is not None:
        sentences = 0 if ranks.shards else min(recipe.train.validate_sentences, len(prepared.valid))
        validator = Validator(prepared.valid, tokenizer, recipe.data.target, recipe.data.max_length, sentences)
    if recipe.train.fast == "auto" and device.type == "cuda" and (missing := missing_requirement(device, autocast)):
        display.say(f"on the plain path, several times slower than the fast one, which needs {missing}")
    display.say(
        f"{recipe.data.source} → {recipe.data.target}: {model.num_parameters():,} parameters, {len(store):,} pairs, "
        f"{feed.updates_per_epoch:,.0f} updates an epoch; {describe(device)}, {'fp32' if autocast is None else 'bf16'}"
        + (f"; {ranks.size} processes" if ranks.size > 1 else "")
    )
    display.start(length.total_steps, length.total_seconds)
    apply = make_update(recipe.train, model, optimizer, feed, path, autocast, display, ranks)
    return Trainer(
        recipe.train, model, shadow, optimizer, feed, apply, store, tokenizer, validator, length, state, folder.checkpoints,
        logs, display, autocast, ranks,
    )  # fmt: skip


def make_model(recipe: Recipe, tokenizer: Tokenizer, ranks: Ranks, is_fresh: bool) -> tuple[Transformer, Transformer]:
    """The model and its copy for averages and validation, where they compute: on this process's device, or split over all."""
    torch.manual_seed(recipe.train.seed)
    model = Transformer(recipe.model.config(tokenizer.vocab_size))
    if recipe.train.init and is_fresh:
        load_init_weights(recipe, model, tokenizer)
    shadow = copy.deepcopy(model).requires_grad_(False)
    for each in (model, shadow):
        if ranks.shards:
            shard(each, ranks)
        else:
            each.to(ranks.device)
    if recipe.train.recompute:
        recompute_layers(model)
    return model, shadow


def seed_rank(seed: int, ranks: Ranks, step: str | None) -> None:
    """Every process drops other elements than the first one, whose random numbers are those of a process alone."""
    if not ranks.is_first:
        mixed = np.random.SeedSequence([seed % 2**64, ranks.rank, zlib.crc32((step or "").encode())])
        torch.manual_seed(int(mixed.generate_state(1, np.uint64)[0] >> np.uint64(1)))


def make_update(
    train: TrainRecipe,
    model: Transformer,
    optimizer: torch.optim.Optimizer,
    feed: Feed,
    path: FastPath | None,
    autocast: torch.dtype | None,
    display: Display,
    ranks: Ranks,
) -> PlainUpdate | SlotUpdate:
    options = UpdateOptions(train.label_smoothing, train.clip, autocast, train.rdrop)
    if path is None:
        return PlainUpdate(model, optimizer, options, ranks)
    assert feed.slots is not None
    return SlotUpdate(model, optimizer, options, feed.slots, feed.share, path, display.say, ranks)


def open_logs(train: TrainRecipe, folder: RunFolder, resume_step: int | None) -> list[RecordWriter]:
    logs: list[RecordWriter] = [MetricsLog(folder.metrics, resume_step)]
    if train.tensorboard:
        logs.append(TensorBoardLog(folder.path / "tensorboard", resume_step))
    return logs


def make_feed(recipe: Recipe, store: Store, tokenizer: Tokenizer, path: FastPath | None, ranks: Ranks) -> Feed:
    """Batches of similar lengths, or on the fast path batches of one fixed shape with sentences of all lengths."""
    train, longest = recipe.train, recipe.data.max_length
    dropout = None
    lengths: tuple[IntArray, IntArray] = store.src_lengths, store.tgt_lengths
    if train.bpe_dropout:
        dropout = BpeDropout(store, tokenizer, train.bpe_dropout, train.seed, longest)
        lengths = dropout.src_lengths, dropout.tgt_lengths
    slots, tokens = None, train.batch_tokens
    if path is not None:
        tokens = -(-train.batch_tokens // train.accumulate)
        slots = fit_slots(*lengths, store.corpora, tokens, longest + 1)
    sampler = Sampler(*lengths, tokens, train.seed, store.corpora, slots)
    marks = tokenizer.bos_id, tokenizer.eos_id
    return Feed(
        store,
        sampler,
        *marks,
        train.accumulate,
        slots,
        ranks.device,
        ranks.rank,
        ranks.size,
        dropout,
        longest,
        ranks.shards,
    )


def run_length(recipe: TrainRecipe, feed: Feed) -> RunLength:
    if recipe.minutes:
        return RunLength(None, recipe.minutes * 60.0, num_final_validations(recipe))
    steps = recipe.steps or max(1, round(recipe.epochs * feed.updates_per_epoch))
    return RunLength(steps, None)
