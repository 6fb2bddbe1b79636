"""A training run from a recipe to a bundle: the way of the data on one screen.

recipe -> corpora -> held-out pairs -> tokenizer -> store -> sampler -> loop (model, loss, optimizer) -> average -> bundle -> test
"""

from __future__ import annotations

import copy
import dataclasses
import datetime
import platform
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.bundle import Bundle, load_bundle, save_bundle
from regard.config import ModelConfig
from regard.data.clean import CleanOptions
from regard.data.corpus import Corpus, resolve, resolve_all
from regard.data.sampler import Sampler
from regard.data.split import HeldOut, Pair, hold_out
from regard.data.store import Store, prepare, store_key
from regard.data.tokenizer import Tokenizer
from regard.decode.options import SearchOptions
from regard.decode.text import Translator
from regard.decode.torch_engine import TorchEngine
from regard.device import compute_dtype, describe, pick_device
from regard.errors import Interrupted, UserError
from regard.evaluate import Scores, score
from regard.files import check_manifest, write_atomic
from regard.models.transformer import Transformer
from regard.progress import progress
from regard.recipe import Recipe, TrainRecipe, load_recipe
from regard.training.checkpoint import (
    average_weights,
    list_checkpoints,
    load_checkpoint,
    load_weights,
    newest_intact,
    scheduled_checkpoints,
)
from regard.training.display import Display, make_display
from regard.training.loop import Length, RunState, Trainer
from regard.training.metrics import MetricsLog, RecordWriter, TensorBoardLog, read_metrics
from regard.training.optimizer import make_optimizer
from regard.training.report import write_report
from regard.training.validate import Validator
from regard.version import __version__


@dataclass(frozen=True)
class RunFolder:
    """Where the parts of a run lie."""

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
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def model(self) -> Path:
        return self.path / "model"


def train(recipe: Recipe, out: Path | str, *, resume: bool = False, display: Display | None = None) -> Bundle:
    """Train a model as the recipe says, into the run folder `out`, and return its bundle."""
    started = time.perf_counter()
    display = display or make_display()
    folder = claim_folder(Path(out), recipe, resume)
    if resume and (folder.model / "config.json").is_file():
        display.say(f"{folder.path} is finished; its model is in {folder.model}")
        return load_bundle(folder.model)
    try:
        corpora = find_corpora(recipe)
        held_out, valid, test = evaluation_pairs(recipe, corpora, folder)
        tokenizer = make_tokenizer(recipe, corpora, folder, display)
        store = make_store(recipe, corpora, held_out, tokenizer, folder, display)
        trainer = make_trainer(recipe, tokenizer, store, valid, folder, display, resume, started)
        finished = trainer.run()
        if not finished:
            display.close()
            raise Interrupted(f"stopped at step {trainer.state.step} and saved; go on with: {resume_command(folder)}")
        weights, chosen = final_weights(recipe.train, trainer, folder)
        bundle = write_model(recipe, trainer, weights, chosen, folder, None)
        if test:
            scores = score_test_set(recipe, bundle, test, trainer, display)
            bundle = write_model(recipe, trainer, weights, chosen, folder, scores)
        for log in trainer.logs:
            log.close()
        report = write_report(folder.path, recipe.to_dict(), read_metrics(folder.metrics), report_facts(bundle, store))
        display.close()
        display.say(f'model   {folder.model}\nreport  {report}\ntry it  regard translate -m {folder.path} "..."')
        return bundle
    finally:
        display.close()


def claim_folder(out: Path, recipe: Recipe, resume: bool) -> RunFolder:
    """Make the run folder, or take the one that is there if it may be resumed."""
    folder = RunFolder(out)
    if folder.recipe.is_file():
        if not resume:
            raise UserError(f"{out}: holds a run already; go on with --resume, or choose another folder with --out")
        check_same_run(load_recipe(folder.recipe), recipe, folder.recipe)
    elif out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out}: must be a new or empty folder, or a run with --resume; choose another with --out")
    folder.checkpoints.mkdir(parents=True, exist_ok=True)
    write_atomic(folder.recipe, recipe.to_toml())
    return folder


# What may change between the sittings of a run; anything else would make it another run.
_CHANGEABLE = {
    "train": {
        "steps", "epochs", "minutes", "accumulate", "patience", "average", "validate_every", "validate_sentences", "save_every",
        "log_every", "workers", "tensorboard", "device",
    },
    "data": {"test"},
    "decode": {"beam", "alpha", "max_extra"},
}  # fmt: skip


def check_same_run(old: Recipe, new: Recipe, where: Path) -> None:
    before, after = old.to_dict(), new.to_dict()
    for section, values in before.items():
        for key in values.keys() | after[section].keys():
            if values.get(key) != after[section].get(key) and key not in _CHANGEABLE.get(section, ()):
                raise UserError(
                    f"--resume: {section}.{key} is {after[section].get(key)!r}, but the run was started with "
                    f"{values.get(key)!r} ({where}); use the same recipe, or another folder with --out"
                )


def resume_command(folder: RunFolder) -> str:
    return f"regard train {folder.recipe} --out {folder.path} --resume"


def find_corpora(recipe: Recipe) -> list[Corpus]:
    data = recipe.data
    root = Path(data.root)
    found = [resolve_all(entry.path, root, data.source, data.target, entry.weight) for entry in data.train]
    return list(chain.from_iterable(found))


def evaluation_pairs(
    recipe: Recipe, corpora: list[Corpus], folder: RunFolder
) -> tuple[HeldOut | None, list[Pair], list[Pair]]:
    """Validation and test pairs, from the files that the recipe names or held out from the training text."""
    data = recipe.data
    num_valid = data.valid if isinstance(data.valid, int) else 0
    num_test = data.test if isinstance(data.test, int) else 0
    held_out = None
    if num_valid or num_test:
        pairs = chain.from_iterable(corpus.pairs() for corpus in corpora)
        held_out = hold_out(pairs, num_valid, num_test, recipe.train.seed)
        for name, chosen in (("valid", held_out.valid), ("test", held_out.test)):
            for side, language in enumerate((data.source, data.target)):
                text = "".join(f"{pair[side]}\n" for pair in chosen)
                if text:
                    (folder.path / "heldout").mkdir(exist_ok=True)
                    write_atomic(folder.path / "heldout" / f"{name}.{language}", text)
    valid = held_out.valid if held_out and num_valid else _read_pairs(str(data.valid), recipe)
    test = held_out.test if held_out and num_test else _read_pairs(str(data.test), recipe) if data.test else []
    if not valid:
        raise UserError("data.valid: holds no pairs")
    return held_out, valid, test


def _read_pairs(spec: str, recipe: Recipe) -> list[Pair]:
    corpus = resolve(spec, Path(recipe.data.root), recipe.data.source, recipe.data.target)
    return [(src.strip(), tgt.strip()) for src, tgt in corpus.pairs()]


def make_tokenizer(recipe: Recipe, corpora: list[Corpus], folder: RunFolder, display: Display) -> Tokenizer:
    if (folder.tokenizer / "tokenizer.json").is_file():
        return Tokenizer.load(folder.tokenizer)
    wish = recipe.tokenizer
    with progress("learning the vocabulary", None) as done:
        tokenizer = Tokenizer.train(
            _all_lines(corpora, done),
            wish.vocab_size,
            folder.tokenizer,
            character_coverage=wish.character_coverage,
            split_digits=wish.split_digits,
            seed=recipe.train.seed,
        )
    changed = f" ({wish.vocab_size:,} were asked for)" if tokenizer.vocab_size != wish.vocab_size else ""
    display.say(f"vocabulary of {tokenizer.vocab_size:,} pieces{changed}")
    return tokenizer


def _all_lines(corpora: list[Corpus], done: Any) -> Iterator[str]:
    for corpus in corpora:
        for number, pair in enumerate(corpus.pairs(), 1):
            yield from pair
            if number % 1000 == 0:
                done(1000)


def make_store(
    recipe: Recipe,
    corpora: list[Corpus],
    held_out: HeldOut | None,
    tokenizer: Tokenizer,
    folder: RunFolder,
    display: Display,
) -> Store:
    clean = CleanOptions(recipe.data.max_length, recipe.data.max_ratio, recipe.data.deduplicate)
    if (folder.store / "store.json").is_file():
        store = Store.open(folder.store)
        if store.key == store_key(corpora, tokenizer, clean, held_out):
            return store
    seen = 0

    with progress("tokenizing", None, "pairs") as done:

        def advance(read: int) -> None:
            nonlocal seen
            done(read - seen)
            seen = read

        store, account = prepare(
            folder.store,
            corpora,
            tokenizer,
            clean,
            held_out=held_out,
            workers=recipe.train.workers,
            progress=advance,
        )
    display.say("\n".join(account.lines()))
    return store


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
    autocast = compute_dtype(recipe.train.precision, device)
    torch.manual_seed(recipe.train.seed)
    model = Transformer(recipe.model.config(tokenizer.vocab_size)).to(device)
    shadow = copy.deepcopy(model).requires_grad_(False)
    optimizer = make_optimizer(model, recipe.train)
    sampler = Sampler(store.src_lengths, store.tgt_lengths, recipe.train.batch_tokens, recipe.train.seed, store.corpora)
    length = run_length(recipe.train, sampler)
    state = RunState()
    newest, damaged = newest_intact(folder.checkpoints) if resume else (None, [])
    for word in damaged:
        display.say(f"passed over: {word}")
    if newest is not None:
        saved = load_checkpoint(newest, model, optimizer, shadow if recipe.train.ema else None)
        sampler.load_state(saved["sampler"])
        state = RunState(**saved["run"])
        display.say(f"going on from step {state.step}")
    else:
        state.seconds = state.prepared = time.perf_counter() - started
    resume_step = state.step if newest is not None else None
    logs: list[RecordWriter] = [MetricsLog(folder.metrics, resume_step)]
    if recipe.train.tensorboard:
        logs.append(TensorBoardLog(folder.path / "tensorboard", resume_step))
    validator = Validator(
        valid,
        tokenizer,
        recipe.data.target,
        recipe.data.max_length,
        min(recipe.train.validate_sentences, len(valid)),
    )
    precision = "bf16" if autocast is not None else "fp32"
    display.say(
        f"{recipe.data.source} → {recipe.data.target}: {model.num_parameters():,} parameters, {len(store):,} pairs, "
        f"{sampler.batches_per_epoch:,} updates an epoch; {describe(device)}, {precision}"
    )
    display.start(length.total_steps, length.total_seconds)
    return Trainer(
        recipe.train, model, shadow, optimizer, sampler, store, tokenizer, validator, length, state, folder.checkpoints,
        logs, display, autocast,
    )  # fmt: skip


def run_length(recipe: TrainRecipe, sampler: Sampler) -> Length:
    if recipe.minutes:
        return Length(None, recipe.minutes * 60.0)
    steps = recipe.steps or max(1, round(recipe.epochs * sampler.batches_per_epoch))
    return Length(steps, None)


def final_weights(recipe: TrainRecipe, trainer: Trainer, folder: RunFolder) -> tuple[dict[str, Tensor], str]:
    """The averaged weights, or the best checkpoint's if those do better on the validation set."""
    state, shadow = trainer.state, trainer.shadow
    if recipe.ema:
        chosen = "moving average of the weights"
    else:
        paths = (
            scheduled_checkpoints(folder.checkpoints)[-recipe.average :] or list_checkpoints(folder.checkpoints)[-1:]
        )
        shadow.load_state_dict(average_weights(paths))
        chosen = f"average of the last {len(paths)} checkpoints" if len(paths) > 1 else "last checkpoint"
    record = trainer.validator.measure(shadow, trainer.device, trainer.autocast)
    monitored = record["loss"] if recipe.monitor == "loss" or "bleu" not in record else -record["bleu"]
    is_best = state.best is None or monitored <= state.best
    place = {"step": state.step, "epoch": round(trainer.sampler.progress, 4), "elapsed": round(state.seconds, 2)}
    full = {"kind": "valid", **place, **record, "best": is_best, "weights": chosen}
    for log in trainer.logs:
        log.write(full)
    trainer.display.valid(full)
    if is_best:
        return shadow.state_dict(), chosen
    best = folder.checkpoints / f"step-{state.best_step:06d}"
    return load_weights(best), f"best checkpoint, step {state.best_step}"


def write_model(
    recipe: Recipe,
    trainer: Trainer,
    weights: dict[str, Tensor],
    chosen: str,
    folder: RunFolder,
    scores: Scores | None,
) -> Bundle:
    facts: dict[str, Any] = {
        **software_facts(),
        "device": describe(trainer.device),
        "parameters": trainer.model.num_parameters(),
        "pairs": len(trainer.store),
        "corpora": [corpus.name for corpus in trainer.store.corpora],
        "steps": trainer.state.step,
        "minutes": round(trainer.state.seconds / 60, 2),
        "weights": chosen,
    }
    if scores is not None:
        facts["test"] = scores.to_json()
    return save_model(recipe, trainer.model.config, weights, trainer.tokenizer, facts, folder.model)


def software_facts() -> dict[str, Any]:
    return {
        "regard": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }


def save_model(
    recipe: Recipe,
    config: ModelConfig,
    weights: dict[str, Tensor],
    tokenizer: Tokenizer,
    facts: dict[str, Any],
    out: Path,
) -> Bundle:
    # A bundle goes to other people: where the text lay on this machine is not theirs to know.
    public = dataclasses.replace(recipe, data=dataclasses.replace(recipe.data, root="."))
    return save_bundle(
        out,
        weights,
        config,
        tokenizer,
        public.to_toml(),
        source=recipe.data.source,
        target=recipe.data.target,
        decode=recipe.decode,
        max_length=recipe.data.max_length,
        facts=facts,
    )


def score_test_set(recipe: Recipe, bundle: Bundle, test: list[Pair], trainer: Trainer, display: Display) -> Scores:
    """Translate and score the test set, once, with the bundle that was written."""
    engine = TorchEngine.from_bundle(bundle, recipe.train.device)
    options = SearchOptions(**dataclasses.asdict(recipe.decode))
    translator = Translator(bundle.tokenizer, engine, options, bundle.max_length)
    with progress("translating the test set", len(test)) as done:
        translations = [result.text for result in translator.stream((source for source, _ in test), 4096, done)]
    scores = score(translations, [reference for _, reference in test], target_language=recipe.data.target)
    for log in trainer.logs:
        log.write({"kind": "test", "name": "test", "scores": scores.to_json()})
    display.say("\n".join(["test set", *(f"  {line}" for line in scores.lines())]))
    return scores


def report_facts(bundle: Bundle, store: Store) -> dict[str, str]:
    facts = {key: f"{value:,}" if isinstance(value, int) else str(value) for key, value in bundle.facts.items()}
    facts.pop("test", None)
    facts["corpora"] = ", ".join(bundle.facts["corpora"])
    facts["vocabulary"] = f"{bundle.config.vocab_size:,}"
    facts["data cleaning"] = "\n".join(store.account.lines())
    return facts


def average(run: Path, last: int, out: Path) -> tuple[Bundle, list[str]]:
    """A bundle of the mean of a run's last checkpoints, finished or not, and the names of those."""
    if last < 1:
        raise UserError(f"--last must be at least 1, but is {last}")
    folder = RunFolder(run)
    if not folder.recipe.is_file():
        raise UserError(f"{run}: is not a run folder (recipe.toml is missing)")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out}: exists already; choose another folder with -o")
    paths = scheduled_checkpoints(folder.checkpoints)[-last:] or list_checkpoints(folder.checkpoints)[-1:]
    if not paths:
        raise UserError(f"{run}: has no checkpoint yet")
    for path in paths:
        check_manifest(path)
    recipe = load_recipe(folder.recipe)
    tokenizer = Tokenizer.load(folder.tokenizer)
    config = recipe.model.config(tokenizer.vocab_size)
    weights = average_weights(paths)
    names = [path.name for path in paths]
    facts = {
        **software_facts(),
        "parameters": sum(tensor.numel() for tensor in weights.values()),
        "steps": int(names[-1].removeprefix("step-")),
        "weights": f"average of {', '.join(names)}",
    }
    return save_model(recipe, config, weights, tokenizer, facts, out), names
