"""A recipe for plain files, chosen by their task for the text and the machine, and what a run of a recipe would be."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from regard.config import ModelConfig
from regard.data.corpus import Texts
from regard.device import compute_dtype, describe
from regard.errors import UserError
from regard.models.presets import PRESETS, depth_settings
from regard.models.transformer import Transformer
from regard.parallel.processes import process_info
from regard.progress import counted, duration, epochs, progress
from regard.recipe import Recipe, TrainRecipe, apply_overrides, recipe_from_dict, resolve_paths
from regard.task_table import TASK_SETTINGS
from regard.tasks import TASKS
from regard.tasks.task import Prospect
from regard.training.check import check_machine
from regard.training.fine_tuning import check_init, init_notes, load_init_bundle, resolve_recipe
from regard.training.prepare import choose_evaluation_sets, find_corpora
from regard.training.speed import Speed, measure_speed, own_process_device


@dataclass(frozen=True)
class Choice:
    """A chosen recipe, and the text it was chosen for."""

    recipe: Recipe
    found: str
    records: int
    tokens: int

    def describe(self, is_dry_run: bool = False) -> list[str]:
        """The choice in a few lines for the terminal. Trains for about two seconds to measure the speed; a dry run also reads the
        text a second time, for the records that the run would hold out."""
        recipe = _resolved(self.recipe)
        return [
            f"{self.found}{TASKS[recipe.task].describe(recipe)}",
            *_run_lines(recipe, self.records, self.tokens, is_dry_run, "--init"),
        ]


def choose_recipe(
    task: str,
    inputs: Sequence[Path],
    overrides: Sequence[str] = (),
    check: Callable[[Recipe], None] = lambda recipe: None,
) -> Choice:
    """Choose a recipe of this task for the files and the machine; `overrides` are those of `--set`.

    `check` refuses recipes before the text is read: it must accept at least one of those that could be chosen.
    """
    given: dict[str, Any] = {}
    apply_overrides(given, overrides)
    device = own_process_device(str(given.get("train", {}).get("device", "auto")))
    plan = TASKS[task].plan(inputs, given, device.type == "cpu")

    def completed(values: dict[str, Any]) -> Recipe:
        values = {"task": task, **deepcopy(values)}
        if device.type == "cuda" and (size := process_info().size) > 1:
            values["train"]["accumulate"] = size  # one micro-batch for each process
        if {"steps", "minutes"} & set(given.get("train", {})):
            del values["train"]["epochs"]
        if depth := given.get("model", {}).get("depth"):
            _make_room(values, depth)
        apply_overrides(values, overrides)
        resolve_paths(values, Path())
        # What is chosen is valid, so an error comes from the overrides.
        return recipe_from_dict(values, "the given settings" if overrides else "the chosen recipe")

    _refuse_all(plan.possible, completed, check)
    decision = plan.decide()
    return Choice(completed(decision.values), decision.found, decision.records, decision.tokens)


def _make_room(values: dict[str, Any], depth: Any) -> None:
    """Remove the chosen shape, which `model.depth` replaces. The chosen rate fits its width and is changed with it, by the rule of
    `depth_settings`; the batch size fits the text, and stays."""
    model, train = values["model"], values["train"]
    before = {**PRESETS.get(model["preset"], {}), **model}.get("d_model")
    for name in depth_settings(1)["model"]:
        model.pop(name, None)
    if isinstance(depth, int) and depth > 0 and before and train.get("lr"):
        train["lr"] = float(f"{train['lr'] * (before / depth_settings(depth)['model']['d_model']) ** 0.5:.2g}")


def _refuse_all(
    choices: Sequence[dict[str, Any]], completed: Callable[[dict[str, Any]], Recipe], check: Callable[[Recipe], None]
) -> None:
    """Raise the first choice's error if `check` refuses every choice."""
    errors = []
    for values in choices:
        try:
            check(completed(values))
            return
        except UserError as error:
            errors.append(error)
    raise errors[0]


def describe_run(recipe: Recipe) -> list[str]:
    """What a run of this recipe would be, for `--dry-run`; reads the text and trains for about two seconds to measure the speed."""
    recipe = _resolved(recipe)
    check_machine(recipe, own_process_device(recipe.train.device), process_info().size)
    check_init(recipe)
    task = TASKS[recipe.task]
    records, tokens, notes = 0.0, 0.0, list[str]()
    for corpus in find_corpora(recipe):
        corpus_records, corpus_tokens = task.count(corpus, recipe, notes.append)
        records += corpus.weight * corpus_records
        tokens += corpus.weight * corpus_tokens
    return [
        f"{task.describe(recipe)}: {counted(round(records), task.NOUN)} per epoch",
        *notes,
        *_run_lines(recipe, int(records), int(tokens), True, "train.init"),
    ]


def _run_lines(recipe: Recipe, records: int, tokens: int, is_dry_run: bool, init_option: str) -> list[str]:
    """What would be held out, the model, the machine, the time, and whether all of it can suffice."""
    with progress("measuring the speed of training", None):
        speed = measure_speed(recipe)
    task = TASKS[recipe.task]
    held_out, scored = list[str](), list[Texts]()
    if is_dry_run:
        corpora = find_corpora(recipe)
        held_out += task.doubts(recipe, corpora)
        sets = choose_evaluation_sets(recipe, corpora, held_out.append)
        scored = sets.test or sets.valid
        if sets.held_out is not None:
            parts = (
                ("validation", recipe.data.valid, sets.held_out.valid),
                ("testing", recipe.data.test, sets.held_out.test),
            )
            whole = TASK_SETTINGS[recipe.task].has_labels  # records are held out whole, and not the ends of them
            named = [
                f"{_amount(wanted, len(each), task.NOUN, whole)} for {name}"
                for name, wanted, each in parts
                if each and not isinstance(wanted, tuple)
            ]
            held_out.append(f"held out: {' and '.join(named)}")
    length = None if speed.rate is None else _epochs(recipe.train, speed.rate, tokens)
    prospect = Prospect(recipe, records, tokens, speed.rate, length, scored, is_dry_run, init_option)
    return [*held_out, *_model_lines(recipe), _duration_line(recipe, speed, tokens), *task.outlook(prospect)]


def _amount(wanted: str | float, number: int, noun: str, whole: bool) -> str:
    """How much is held out.

    >>> _amount("valid.tsv", 20, "pair", False), _amount(0.1, 1, "document", False), _amount(0.1, 1000, "text", True)
    ('20 pairs', 'the last 10% of 1 document', '1,000 texts (10%)')
    """
    if not isinstance(wanted, float):
        return counted(number, noun)
    share = f"{100 * wanted:.3g}%"
    return f"{counted(number, noun)} ({share})" if whole else f"the last {share} of {counted(number, noun)}"


def _resolved(recipe: Recipe) -> Recipe:
    """The resolved recipe, with the vocabulary size of the init model if there is one."""
    recipe = resolve_recipe(recipe)
    if not recipe.train.init:
        return recipe
    size = load_init_bundle(recipe).config.vocab_size + recipe.tokenizer.extend
    return replace(recipe, tokenizer=replace(recipe.tokenizer, vocab_size=size))


def _model_lines(recipe: Recipe) -> list[str]:
    config = recipe.model.config(recipe.tokenizer.vocab_size)
    device, size = own_process_device(recipe.train.device), process_info().size
    dtype = compute_dtype(recipe.train.precision, device)
    name = "as in train.init, " if recipe.train.init else f"{recipe.model.preset}, "
    if not recipe.train.init and "d_model" in recipe.model.fields:
        name = ""  # a shape of its own
    layers = " + ".join(str(stack.layers) for stack in config.stacks.values())
    return [
        *(init_notes(recipe) if recipe.train.init else []),
        _vocabulary_line(recipe),
        f"model: {name}{layers} layer{'' if layers == '1' else 's'} of {config.d_model}, "
        f"about {_num_parameters(config) / 1e6:.1f} million parameters",
        f"machine: {describe(device)}, {'fp32' if dtype is None else 'bf16'}"
        + (f"; {size} processes, each on its own device" if size > 1 else ""),
    ]


def _vocabulary_line(recipe: Recipe) -> str:
    if recipe.tokenizer.unit == "character":
        return "vocabulary: the characters of the text"
    most = "up to " if recipe.tokenizer.extend else ""
    joint = ", joint" if recipe.settings.has_sides else ""
    return f"vocabulary: {most}{recipe.tokenizer.vocab_size:,} pieces{joint}"


def _num_parameters(config: ModelConfig) -> int:
    with torch.device("meta"):
        return Transformer(config).num_parameters()


def _duration_line(recipe: Recipe, speed: Speed, tokens: int) -> str:
    train = recipe.train
    if speed.rate is None:
        return f"time: not measured, since {speed.note}"
    measured = f"{speed.rate:,.0f} {recipe.settings.tokens}/s ({speed.note})"
    number = _epochs(train, speed.rate, tokens)
    if train.minutes:
        minutes = f"{train.minutes:g} minute{'' if train.minutes == 1 else 's'}"
        return f"time: {minutes}, about {epochs(number)} at {measured}"
    return (
        f"time: about {duration(number * tokens / speed.rate)} for {epochs(number)} at {measured}, without validations"
    )


def _epochs(train: TrainRecipe, rate: float, tokens: int) -> float:
    """The length of a run in epochs of so many tokens."""
    if train.epochs:
        return train.epochs
    return (train.minutes * 60 * rate if train.minutes else train.steps * train.batch_tokens) / max(1, tokens)
