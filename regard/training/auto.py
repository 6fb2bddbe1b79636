"""A recipe for two plain files: languages, vocabulary, model and batch size chosen for the corpus and the machine."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from regard.config import ModelConfig
from regard.data.corpus import Corpus, RecordSource, Texts, check_corpus, read_lines
from regard.device import compute_dtype, describe
from regard.errors import UserError
from regard.models.transformer import Transformer
from regard.parallel.processes import process_info
from regard.progress import counted
from regard.recipe import Recipe, TrainRecipe, apply_overrides, recipe_from_dict, resolve_paths
from regard.tasks import TASKS
from regard.tasks.translate import too_little
from regard.training.check import check_machine
from regard.training.expect import Amount, duration, epochs, other_start, too_short_warning
from regard.training.fine_tuning import FINE_TUNING_LR, check_init, init_notes, load_init_bundle, resolve_recipe
from regard.training.prepare import choose_evaluation_sets, find_corpora
from regard.training.speed import Speed, measure_speed, own_process_device
from regard.translation.languages import guess_language

SAMPLE_LINES = 500
_FINE_TUNING_EPOCHS = 5  # at most
PIECES_PER_WORD = 1.4  # of a subword vocabulary, roughly


@dataclass(frozen=True)
class Tier:
    """Settings for a corpus of up to `max_pairs` pairs."""

    max_pairs: float
    preset: str
    vocab_size: int
    epochs: float
    batch_tokens: int
    model: dict[str, Any]
    train: dict[str, Any]


_PRE = {"norm_position": "pre"}
_DEEPER = {**_PRE, "encoder_layers": 4, "decoder_layers": 4}
_QUICK = {"optimizer": "adamw", "schedule": "linear", "weight_decay": 0.01, "ema": 0.999, "monitor": "bleu"}

# Pre-norm with a high learning rate learns fastest from little text in little time; with a GPU and a million pairs the paper's
# own recipe is used. The small tiers were tuned on the validation sets of Multi30k and Tatoeba (docs/results.md).
CPU_TIERS = (
    Tier(30_000, "tiny", 6_000, 25, 1_500, {**_PRE, "dropout": 0.2}, {**_QUICK, "lr": 3e-3}),
    Tier(100_000, "tiny", 6_000, 15, 1_500, {**_PRE, "dropout": 0.1}, {**_QUICK, "lr": 3e-3}),
    Tier(400_000, "small", 8_000, 5, 1_500, {**_PRE, "dropout": 0.05}, {**_QUICK, "lr": 2e-3}),
    Tier(math.inf, "small", 16_000, 2, 3_000, {**_PRE, "dropout": 0.05}, {**_QUICK, "lr": 2e-3}),
)
GPU_TIERS = (
    Tier(30_000, "small", 6_000, 60, 5_000, {**_DEEPER, "dropout": 0.35}, {**_QUICK, "lr": 2e-3}),
    Tier(100_000, "small", 8_000, 40, 5_000, {**_DEEPER, "dropout": 0.3}, {**_QUICK, "lr": 2e-3}),
    Tier(400_000, "small", 8_000, 30, 8_000, {**_DEEPER, "dropout": 0.15}, {**_QUICK, "lr": 2e-3}),
    Tier(1_500_000, "base", 16_000, 12, 12_000, {}, {}),
    Tier(math.inf, "base", 32_000, 10, 25_000, {}, {}),
)


@dataclass(frozen=True)
class Choice:
    """A chosen recipe, and the corpus it was chosen for."""

    recipe: Recipe
    files: str
    pairs: int
    words: int

    def describe(self, is_dry_run: bool = False) -> list[str]:
        """The choice in a few lines for the terminal. Trains for about two seconds to measure the speed; a dry run also reads the
        text a second time, for the pairs that the run would hold out."""
        data = self.recipe.data
        return [
            f"{self.files}: {counted(self.pairs, 'pair')}, {data.source} → {data.target}",
            *_run_lines(_resolved(self.recipe), self.pairs, self.words, is_dry_run, "--init"),
        ]


def choose_recipe(
    source: Path, target: Path, overrides: Sequence[str] = (), check: Callable[[Recipe], None] = lambda recipe: None
) -> Choice:
    """Choose a recipe for the corpus and the machine; `overrides` are those of `--set`.

    `check` refuses recipes before the text is read: it must accept at least one of those that could be chosen.
    """
    corpus = Corpus(source.name, source, target)
    check_corpus(corpus)
    given: dict[str, Any] = {}
    apply_overrides(given, overrides)
    languages = _languages(source, target, given.get("data", {}))
    device = own_process_device(str(given.get("train", {}).get("device", "auto")))
    tiers = CPU_TIERS if device.type == "cpu" else GPU_TIERS
    root, spec = _corpus_spec(source, target)

    def chosen(tier: Tier, held_out: int) -> Recipe:
        values: dict[str, Any] = {
            "data": {
                "source": languages[0],
                "target": languages[1],
                "root": root,
                "train": spec,
                "valid": held_out,
                "test": held_out,
            },
            "tokenizer": {"vocab_size": tier.vocab_size},
            "model": {"preset": tier.preset, **tier.model},
            "train": {"epochs": tier.epochs, "batch_tokens": tier.batch_tokens, **tier.train},
        }
        if given.get("train", {}).get("init"):  # fine-tuning: shape and vocabulary are given
            values["tokenizer"], values["model"] = {}, {"preset": "init"}
            values["train"] |= {**_QUICK, "lr": FINE_TUNING_LR, "epochs": min(tier.epochs, _FINE_TUNING_EPOCHS)}
        if device.type == "cuda" and (size := process_info().size) > 1:
            values["train"]["accumulate"] = size  # one micro-batch for each process
        if {"steps", "minutes"} & set(given.get("train", {})):
            del values["train"]["epochs"]
        apply_overrides(values, overrides)
        resolve_paths(values, Path())
        # What is chosen is valid, so an error comes from the overrides.
        return recipe_from_dict(values, "the given settings" if overrides else "the chosen recipe")

    _refuse_all([partial(chosen, tier, 1) for tier in tiers], check)
    pairs, words = _count(corpus)
    tier = next(tier for tier in tiers if pairs <= tier.max_pairs)
    recipe = chosen(tier, max(1, min(2_000, pairs // 50)))
    return Choice(recipe, f"{source.name} and {target.name}", pairs, words)


def _refuse_all(choices: Sequence[Callable[[], Recipe]], check: Callable[[Recipe], None]) -> None:
    """Raise the first choice's error if `check` refuses every choice."""
    errors = []
    for choose in choices:
        try:
            check(choose())
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
    pairs, words, notes = 0.0, 0.0, list[str]()
    for corpus in find_corpora(recipe):
        corpus_pairs, corpus_words = _count(corpus, notes.append)
        pairs += corpus.weight * corpus_pairs
        words += corpus.weight * corpus_words
    return [
        f"{task.describe(recipe)}: {counted(round(pairs), task.NOUN)} per epoch",
        *notes,
        *_run_lines(recipe, int(pairs), int(words), True, "train.init"),
    ]


def _run_lines(recipe: Recipe, pairs: int, words: int, is_dry_run: bool, init: str) -> list[str]:
    """What would be held out, the model, the machine, the time, and whether all of it can suffice."""
    speed, tokens = measure_speed(recipe), int(words * PIECES_PER_WORD) + pairs
    held_out = list[str]()
    scored = list[Texts]()
    if is_dry_run:
        corpora = find_corpora(recipe)
        held_out += TASKS[recipe.task].doubts(recipe, corpora)
        sets = choose_evaluation_sets(recipe, corpora, held_out.append)
        scored = sets.test or sets.valid
        if sets.held_out is not None:
            parts = (("validation", sets.held_out.valid), ("testing", sets.held_out.test))
            named = [f"{counted(len(each), TASKS[recipe.task].NOUN)} for {name}" for name, each in parts if each]
            held_out.append(f"held out: {' and '.join(named)}")
    lines = [*held_out, *_model_lines(recipe), _duration_line(recipe, speed, tokens)]
    if recipe.task != "translate":
        return lines
    warning = too_little(recipe, pairs)
    if warning and not is_dry_run:
        return lines  # the run itself warns of too little text
    if not warning and speed.rate is not None:
        amount = Amount(pairs, tokens, _epochs(recipe.train, speed.rate, tokens))
        warning = too_short_warning(recipe, amount, speed.rate)
    return [*lines, warning + other_start(recipe, scored, init)] if warning else lines


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
    name = "as in train.init" if recipe.train.init else recipe.model.preset
    most = "up to " if recipe.tokenizer.extend else ""
    layers = " + ".join(str(stack.layers) for stack in config.stacks.values())
    return [
        *(init_notes(recipe) if recipe.train.init else []),
        f"vocabulary: {most}{recipe.tokenizer.vocab_size:,} pieces" + (", joint" if recipe.task == "translate" else ""),
        f"model: {name}, {layers} layers of {config.d_model}, "
        f"about {_num_parameters(config) / 1e6:.1f} million parameters",
        f"machine: {describe(device)}, {'fp32' if dtype is None else 'bf16'}"
        + (f"; {size} processes, each on its own device" if size > 1 else ""),
    ]


def _count(corpus: RecordSource, note: Callable[[str], None] = lambda text: None) -> tuple[int, int]:
    """The number of records, and of words in their last column; reading checks the files. `note` receives what is ignored."""
    pairs = words = 0
    for record in corpus.records(note):
        tgt = record.texts[-1]
        pairs += record.begins
        words += max(1, len(tgt.split()), len(tgt) // 12)
    return pairs, words


def _languages(source: Path, target: Path, given: dict[str, Any]) -> tuple[str, str]:
    found = []
    for key, path in (("source", source), ("target", target)):
        label = given.get(key) or guess_language(path, list(islice(read_lines(path), SAMPLE_LINES)))
        found.append(str(label))
    if found[0] == found[1]:
        raise UserError(
            f"{source.name} and {target.name} must be in two languages, but both look like {found[0]}; name them with "
            f"--set data.source=xx --set data.target=yy"
        )
    return found[0], found[1]


def _corpus_spec(source: Path, target: Path) -> tuple[str, str]:
    """The two files as a recipe names them: their common folder, and a corpus pattern relative to it."""
    paths = source.resolve(), target.resolve()
    root = os.path.commonpath([path.parent for path in paths])
    names = [path.relative_to(root).as_posix() for path in paths]
    for name in names:
        if any(character in name for character in "{},*?["):
            raise UserError(
                f"{name}: file names must not contain {{ }} , * ? [, which recipes use for patterns; rename it"
            )
    return root, f"{{{names[0]},{names[1]}}}"


def _num_parameters(config: ModelConfig) -> int:
    with torch.device("meta"):
        return Transformer(config).num_parameters()


def _duration_line(recipe: Recipe, speed: Speed, tokens: int) -> str:
    train = recipe.train
    if speed.rate is None:
        return f"time: not measured, since {speed.note}"
    which = "target tokens" if recipe.task == "translate" else "tokens"
    measured = f"{speed.rate:,.0f} {which}/s ({speed.note})"
    number = _epochs(train, speed.rate, tokens)
    if train.minutes:
        minutes = f"{train.minutes:g} minute{'' if train.minutes == 1 else 's'}"
        return f"time: {minutes}, about {epochs(number)} at {measured}"
    return f"time: about {duration(number * tokens / speed.rate)} at {measured}, for {epochs(number)}"


def _epochs(train: TrainRecipe, rate: float, tokens: int) -> float:
    """The length of a run in epochs of so many target tokens."""
    if train.epochs:
        return train.epochs
    return (train.minutes * 60 * rate if train.minutes else train.steps * train.batch_tokens) / tokens
