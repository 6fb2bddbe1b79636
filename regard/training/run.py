"""A training run from a recipe to a bundle: the way of the data on one screen.

recipe -> corpora -> held-out pairs -> tokenizer -> store -> sampler
       -> loop (model, loss, optimizer) -> average -> bundle -> test -> report
"""

from __future__ import annotations

import copy
import time
from contextlib import ExitStack
from pathlib import Path

import torch

from regard.bundle import Bundle, load_bundle
from regard.data.feed import Feed
from regard.data.sampler import Sampler
from regard.data.slots import fit_slots
from regard.data.split import Pair
from regard.data.store import Store
from regard.data.tokenizer import Tokenizer
from regard.device import compute_dtype, describe, pick_device
from regard.errors import Interrupted, UserError
from regard.models.transformer import Transformer
from regard.recipe import Recipe, TrainRecipe
from regard.training.checkpoint import load_checkpoint, newest_intact
from regard.training.display import Display, make_display
from regard.training.fast import FastPath, fast_path, obstacle
from regard.training.finish import final_weights, report_facts, score_test_set, write_model
from regard.training.folder import RunFolder, check_folder, claim_folder, locked, write_recipe
from regard.training.loop import Length, RunState, Trainer
from regard.training.metrics import MetricsLog, RecordWriter, TensorBoardLog, read_metrics
from regard.training.optimizer import make_optimizer
from regard.training.prepare import evaluation_pairs, find_inputs, make_store, make_tokenizer
from regard.training.report import write_report
from regard.training.update import PlainUpdate, SlotUpdate, UpdateOptions
from regard.training.validate import Validator


def train(
    recipe: Recipe, out: Path | str | None = None, *, resume: bool = False, display: Display | None = None
) -> Bundle:
    """Train a model as the recipe says, into the run folder `out` (runs/SOURCE-TARGET), and return its bundle."""
    started = time.perf_counter()
    display = display or make_display()
    corpora = find_inputs(recipe)
    pick_device(recipe.train.device)
    folder = RunFolder(Path(out or f"runs/{recipe.data.source}-{recipe.data.target}"))
    check_folder(folder, recipe, resume)
    with ExitStack() as stack:
        stack.enter_context(locked(folder))
        stack.callback(display.close)
        claim_folder(folder, recipe)
        if folder.report.is_file():
            display.say(f"{folder.path} is finished; its model is in {folder.model}")
            return load_bundle(folder.model)
        held_out, valid, test = evaluation_pairs(recipe, corpora, folder)
        tokenizer = make_tokenizer(recipe, corpora, held_out, folder, display)
        store = make_store(recipe, corpora, held_out, tokenizer, folder, display)
        trainer = make_trainer(recipe, tokenizer, store, valid, folder, display, resume, started)
        write_recipe(folder, recipe)
        stack.callback(trainer.feed.close)
        for log in trainer.logs:
            stack.callback(log.close)
        try:
            if not trainer.run():
                raise KeyboardInterrupt
            weights, chosen = final_weights(recipe.train, trainer, folder)
            bundle = write_model(recipe, trainer, weights, chosen, folder, None)
            if test:
                scores = score_test_set(recipe, bundle, test, trainer)
                bundle = write_model(recipe, trainer, weights, chosen, folder, scores)
        except KeyboardInterrupt:
            step = trainer.saved_step
            raise Interrupted(f"stopped at step {step} and saved; go on with: {folder.resume_command}") from None
    write_report(folder.path, recipe.to_dict(), read_metrics(folder.metrics), report_facts(bundle, store))
    display.say(f'model   {folder.model}\nreport  {folder.report}\ntry it  regard translate -m {folder.path} "..."')
    return bundle


def make_trainer(
    recipe: Recipe,
    tokenizer: Tokenizer,
    store: Store,
    valid: list[Pair],
    folder: RunFolder,
    display: Display,
    resume: bool,
    started: float,
) -> Trainer:
    """Everything that the loop needs, fresh or as the newest intact checkpoint left it."""
    device = pick_device(recipe.train.device)
    if device.type == "cuda":
        torch.cuda.set_device(device)  # where Triton launches its kernels
    autocast = compute_dtype(recipe.train.precision, device)
    torch.manual_seed(recipe.train.seed)
    model = Transformer(recipe.model.config(tokenizer.vocab_size)).to(device)
    shadow = copy.deepcopy(model).requires_grad_(False)
    optimizer = make_optimizer(model, recipe.train)
    path = fast_path(recipe.train.fast, device, autocast)
    feed = make_feed(recipe, store, tokenizer, device, path)
    length = run_length(recipe.train, feed)
    state, notes = RunState(), []
    newest, damaged = newest_intact(folder.checkpoints) if resume else (None, [])
    if newest is not None:
        saved = load_checkpoint(newest, model, optimizer, shadow if recipe.train.ema else None)
        feed.load_state(saved["sampler"])
        state = RunState(**saved["run"])
        notes = [f"going on from step {state.step}"]
    else:
        state.seconds = state.prepared = time.perf_counter() - started
    if state.step == 0 and length.progress(state) >= 1.0:
        raise UserError(
            f"train.minutes = {recipe.train.minutes:g} was used up by preparing the data ({state.prepared:.0f} s); give it more"
        )
    logs = open_logs(recipe.train, folder, state.step if newest is not None else None)
    for note in [*(f"passed over: {word}" for word in damaged), *notes]:
        display.say(note)
        for log in logs:
            log.write({"kind": "note", "text": note})
    sentences = min(recipe.train.validate_sentences, len(valid))
    validator = Validator(valid, tokenizer, recipe.data.target, recipe.data.max_length, sentences)
    if recipe.train.fast == "auto" and device.type == "cuda" and (missing := obstacle(device, autocast)):
        display.say(f"on the plain path, several times slower than the fast one, which needs {missing}")
    display.say(
        f"{recipe.data.source} → {recipe.data.target}: {model.num_parameters():,} parameters, {len(store):,} pairs, "
        f"{feed.updates_per_epoch:,.0f} updates an epoch; {describe(device)}, {'fp32' if autocast is None else 'bf16'}"
    )
    display.start(length.total_steps, length.total_seconds)
    apply = make_update(recipe.train, model, optimizer, feed, path, autocast, display)
    return Trainer(
        recipe.train, model, shadow, optimizer, feed, apply, store, tokenizer, validator, length, state, folder.checkpoints,
        logs, display, autocast,
    )  # fmt: skip


def make_update(
    train: TrainRecipe,
    model: Transformer,
    optimizer: torch.optim.Optimizer,
    feed: Feed,
    path: FastPath | None,
    autocast: torch.dtype | None,
    display: Display,
) -> PlainUpdate | SlotUpdate:
    options = UpdateOptions(train.label_smoothing, train.clip, autocast)
    if path is None:
        return PlainUpdate(model, optimizer, options)
    assert feed.slots is not None
    return SlotUpdate(model, optimizer, options, feed.slots, train.accumulate, path, display.say)


def open_logs(train: TrainRecipe, folder: RunFolder, resume_step: int | None) -> list[RecordWriter]:
    logs: list[RecordWriter] = [MetricsLog(folder.metrics, resume_step)]
    if train.tensorboard:
        logs.append(TensorBoardLog(folder.path / "tensorboard", resume_step))
    return logs


def make_feed(recipe: Recipe, store: Store, tokenizer: Tokenizer, device: torch.device, path: FastPath | None) -> Feed:
    """Batches of similar lengths, or on the fast path batches of one fixed shape with sentences of all lengths."""
    train, lengths = recipe.train, (store.src_lengths, store.tgt_lengths)
    slots, tokens = None, train.batch_tokens
    if path is not None:
        tokens = -(-train.batch_tokens // train.accumulate)
        slots = fit_slots(*lengths, store.corpora, tokens, recipe.data.max_length + 1)
    sampler = Sampler(*lengths, tokens, train.seed, store.corpora, slots)
    return Feed(store, sampler, tokenizer.bos_id, tokenizer.eos_id, train.accumulate, slots, device)


def run_length(recipe: TrainRecipe, feed: Feed) -> Length:
    if recipe.minutes:
        return Length(None, recipe.minutes * 60.0)
    steps = recipe.steps or max(1, round(recipe.epochs * feed.updates_per_epoch))
    return Length(steps, None)
