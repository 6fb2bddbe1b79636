"""A training run from recipe to bundle, the whole pipeline on one screen.

recipe -> corpora -> held-out records -> tokenizer -> store -> sampler
       -> loop (model, loss, optimizer) -> average -> bundle -> test scores -> report
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from regard.arguments import check_instance
from regard.bundle import Bundle, load_bundle
from regard.errors import Interrupted, RegardError
from regard.parallel.ranks import EndedElsewhere, Ranks, join
from regard.progress import hidden_progress
from regard.recipe import Recipe, recipe_from_dict, resolve_paths
from regard.tasks import TASKS
from regard.training.display import Display, LogDisplay, make_display
from regard.training.fine_tuning import resolve_recipe
from regard.training.finish import (
    examine,
    final_weights,
    report_facts,
    score_test_set,
    warn_if_worse,
    write_lora,
    write_model,
)
from regard.training.folder import RunFolder, removed_if_empty, write_recipe
from regard.training.loop import Trainer
from regard.training.metrics import read_metrics
from regard.training.open_run import OpenRun, open_run
from regard.training.prepare import (
    PreparedData,
    adopt_prepared,
    load_prepared,
    make_baseline,
    make_evaluation_sets,
    make_store,
    make_tokenizer,
    split_line,
)
from regard.training.report import write_report
from regard.training.same_data import check_store, check_tokenizer, check_valid
from regard.training.setup import make_trainer
from regard.training.verdict import verdict


def train(
    recipe: Recipe,
    out: Path | str | None = None,
    *,
    resume: bool = False,
    display: Display | None = None,
    progress: bool = True,
    started: float | None = None,
    prepared: Path | str | None = None,
) -> Bundle:
    """Train a model from a recipe in the run folder `out` (default: runs/SOURCE-TARGET, or runs/TASK) and return its bundle.

    With `progress=False` nothing is printed: the same lines go to `logging`, logger regard.training, level INFO. `train.minutes`
    counts from `started`, a time of `time.perf_counter` (default: now). `prepared` is the folder of another run of the same text,
    whose vocabulary and token ids are used again.

    Under torchrun several processes train together (`regard/parallel/ranks.py`); the first one prepares, writes and prints.
    """
    started = time.perf_counter() if started is None else started
    check_instance("recipe", recipe, Recipe, "load_recipe(path) reads one")
    folder = RunFolder(Path(out or Path("runs") / recipe.name))
    with ExitStack() as stack:
        ranks = stack.enter_context(join(recipe.train.device, recipe.train.shard))
        if not progress:
            stack.enter_context(hidden_progress())
        if display is None and ranks.is_first:
            display = make_display() if progress else LogDisplay()
        display = display or Display()
        if ranks.is_first:
            stack.enter_context(removed_if_empty(folder))
        recipe = resolve_on_first(recipe, folder, ranks)
        opened = ranks.run_on_first(lambda: open_run(recipe, folder, resume, display, stack, ranks)) or OpenRun()
        if ranks.broadcast(opened.is_finished):
            display.say(f"{folder.path} is finished; its model is in {folder.model}")
            return load_bundle(folder.model)
        if prepared is not None:
            other = RunFolder(Path(prepared))
            ranks.run_on_first(lambda: adopt_prepared(recipe, folder, other))
        mine = ranks.run_on_first(lambda: prepare_data(recipe, opened, folder, display))
        data = share_validation_records(mine or load_prepared(folder), ranks)
        trainer = make_trainer(recipe, data, opened, folder, display, started, ranks)
        stack.callback(trainer.feed.close)
        for log in trainer.logs:
            stack.callback(log.close)
        if ranks.is_first:
            write_recipe(folder, recipe)
        try:
            if not trainer.run():
                raise KeyboardInterrupt
            bundle = ranks.run_on_first(lambda: finish(recipe, trainer, data, folder))
        except KeyboardInterrupt:
            raise stopped(trainer, folder) from None
        if bundle is None:  # not the first process
            return load_bundle(folder.model)
        display.close()
        records = read_metrics(folder.metrics)
        write_report(folder.path, recipe.to_dict(), records, report_facts(recipe, bundle, data.store))
    display.say(
        f"model   {folder.model} ({bundle.facts['weights']})\nreport  {folder.report}\n"
        + verdict(recipe, folder, bundle, data, records)
    )
    return bundle


def resolve_on_first(recipe: Recipe, folder: RunFolder, ranks: Ranks) -> Recipe:
    """The first process resolves the recipe; the others receive the result."""
    resolved = ranks.run_on_first(lambda: resolve_recipe(recipe, folder.started_recipe))
    values = ranks.broadcast(resolved and resolved.to_dict())
    if resolved is not None:
        return resolved
    resolve_paths(values, Path())  # a built-in model may be elsewhere on this machine
    return recipe_from_dict(values, "the first process's recipe")


def prepare_data(recipe: Recipe, opened: OpenRun, folder: RunFolder, display: Display) -> PreparedData:
    """Turn text into token ids in the run folder; what an earlier start of the run has made is used again."""
    task, started = TASKS[recipe.task], opened.fingerprint
    if not started:
        for note in task.doubts(recipe, opened.corpora):
            display.say(note)
    sets = make_evaluation_sets(recipe, opened.corpora, folder, display)
    check_valid(started, sets.valid, task.NOUN)
    tokenizer = make_tokenizer(recipe, sets.corpora, sets.held_out, folder, display)
    check_tokenizer(started, tokenizer, folder)
    store = make_store(recipe, sets.corpora, sets.held_out, tokenizer, folder, display)  # cleans the records on the way
    check_store(started, store, sets.corpora, folder)
    if not started:
        config = recipe.model.config(tokenizer.vocab_size)
        notes = [split_line(recipe, len(store), sets), task.too_little(recipe, len(store))]
        notes += task.about_store(recipe, store, tokenizer, config)
        for note in filter(None, notes):
            display.say(note)
    return PreparedData(tokenizer, store, sets.valid, sets.test, make_baseline(recipe, sets, folder, display))


def share_validation_records(data: PreparedData, ranks: Ranks) -> PreparedData:
    """A sharded model needs every process to validate, so all receive the records of the first one."""
    if not ranks.shards:
        return data
    return replace(data, valid=[tuple(texts) for texts in ranks.broadcast(data.valid)])


def finish(recipe: Recipe, trainer: Trainer, data: PreparedData, folder: RunFolder) -> Bundle:
    """Choose or average the final weights, write the bundle, and score it on the test set if there is one."""
    weights, chosen = final_weights(recipe.train, trainer, folder)
    warn_if_worse(trainer)
    measured = TASKS[recipe.task].measure_weights(recipe, weights, trainer.tokenizer, data.valid or [], trainer.device)
    bundle = write_model(recipe, trainer, weights, chosen, folder, None, measured, data.baseline)
    if recipe.train.lora:
        write_lora(recipe, trainer, weights, chosen, folder)
    if data.test:
        scores = score_test_set(recipe, bundle, data.test, trainer)
        bundle = write_model(recipe, trainer, weights, chosen, folder, scores, measured, data.baseline)
    examine(recipe, bundle, data, trainer)
    return bundle


def stopped(trainer: Trainer, folder: RunFolder) -> RegardError:
    """The error that ends a run after Ctrl-C or SIGTERM and says how to resume; only the first process shows one."""
    ranks, command = trainer.ranks, folder.resume_command
    if not ranks.is_first:
        return EndedElsewhere()
    if ranks.size > 1:
        command = f"torchrun ... -m {command}"
    if not trainer.saved_step:
        return Interrupted(f"stopped before the first step, so nothing was saved; start again with: {command}")
    return Interrupted(f"stopped at step {trainer.saved_step:,} and saved; resume with: {command}")
