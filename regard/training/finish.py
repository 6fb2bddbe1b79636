"""The end of a run: the final weights, the bundle, the scores on the test set."""

from __future__ import annotations

import dataclasses
import datetime
import platform
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.adapter import write_adapter
from regard.bundle import Bundle, save_bundle
from regard.config import ModelConfig
from regard.data.corpus import Texts
from regard.data.store import Store
from regard.data.tokenizer import Tokenizer
from regard.device import describe
from regard.errors import UserError
from regard.evaluate import Scores
from regard.files import check_new_folder
from regard.progress import counted
from regard.recipe import CorpusEntry, Recipe, TrainRecipe, load_recipe
from regard.task_table import FIGURES
from regard.tasks import TASKS
from regard.training.checkpoint import (
    average_weights,
    check_files,
    checkpoint_weights,
    list_checkpoints,
    load_start,
    scheduled_checkpoints,
)
from regard.training.fine_tuning import init_name, load_init_bundle
from regard.training.folder import RunFolder
from regard.training.loop import Trainer
from regard.training.metrics import best_validation, read_metrics
from regard.training.muon import layer_matrices
from regard.training.prepare import PreparedData, find_evaluation_corpora
from regard.training.same_data import check_tokenizer, saved_fingerprint
from regard.version import __version__

LAST = "last checkpoint"
UNCHANGED = "the model in train.init, unchanged"
FITTED = "the encoder in train.init with a fitted head"  # as it is before the first step with train.fit_head
_ROUNDING = 1e-3  # share of a change that fp32 may lose


def checkpoints_to_average(folder: RunFolder, last: int, say: Callable[[str], None]) -> list[Path]:
    """The last scheduled checkpoints or, without any, the newest of any kind. Damaged ones are skipped, with a note to `say`."""
    damaged: dict[Path, str] = {}

    def is_intact(path: Path) -> bool:
        try:
            check_files(path)
        except UserError as error:
            damaged[path] = str(error)
        return path not in damaged

    found = [path for path in scheduled_checkpoints(folder.checkpoints)[-last:] if is_intact(path)]
    others = (
        path for path in reversed(list_checkpoints(folder.checkpoints)) if path not in damaged and is_intact(path)
    )
    found = found or list(islice(others, 1))
    if not found and damaged:
        raise UserError(f"{next(iter(damaged.values()))}; no intact checkpoint is left")
    if not found:
        raise UserError(f"{folder.path}: must have a checkpoint, but has none yet; let it train until it has saved one")
    for reason in damaged.values():
        say(f"skipped: {reason}")
    return found


def num_final_validations(recipe: TrainRecipe) -> int:
    """Validations after the last step: of its weights, and of the checkpoint average."""
    return 0 if recipe.shard else 2 if recipe.average > 1 and not recipe.ema else 1


def final_weights(recipe: TrainRecipe, trainer: Trainer, folder: RunFolder) -> tuple[dict[str, Tensor], str]:
    """The weights that are best on the validation set, with their name: averaged, of the last step, of the best checkpoint or, in
    fine-tuning, those that the run started with."""
    state, shadow = trainer.state, trainer.shadow
    if trainer.ranks.shards:
        return sharded_weights(recipe, trainer, folder)
    before, best_step = state.best, state.best_step
    candidates = []
    if recipe.ema:
        candidates.append(_validate_candidate(trainer, shadow.state_dict(), "moving average of the weights"))
    else:
        shadow.load_state_dict(trainer.model.state_dict())
        candidates.append(_validate_candidate(trainer, trainer.model.state_dict(), LAST))
    if (
        not recipe.ema
        and recipe.average > 1
        and len(paths := checkpoints_to_average(folder, recipe.average, trainer.note)) > 1
    ):
        shadow.load_state_dict(average_weights(paths))
        candidates.append(
            _validate_candidate(trainer, shadow.state_dict(), f"average of the last {len(paths)} checkpoints")
        )
    chosen = min(reversed(candidates), key=lambda one: one.measured)  # a tie goes to the average
    if before is None or _is_as_good(trainer, chosen.measured, chosen.loss, before, best_step):
        return chosen.weights, chosen.name
    if best_step == 0:
        return start_weights(trainer, folder) or (chosen.weights, chosen.name)
    best = folder.checkpoints / f"step-{best_step:06d}"
    if not _is_intact(best, trainer):
        return chosen.weights, chosen.name
    return checkpoint_weights(best), f"best checkpoint, step {best_step}"


class Candidate(NamedTuple):
    """Weights that may become the model."""

    measured: float  # the monitored value on the validation set, lower is better
    loss: float
    weights: dict[str, Tensor]
    name: str


def _validate_candidate(trainer: Trainer, weights: dict[str, Tensor], name: str) -> Candidate:
    """Validate weights that are loaded in `trainer.shadow`."""
    state = trainer.state
    assert trainer.validator is not None
    record = trainer.validator.measure(trainer.shadow, trainer.device, trainer.autocast)
    measured, loss = trainer.monitored(record), float(record["loss"])
    is_best = state.best is None or _is_as_good(trainer, measured, loss, state.best, state.best_step)
    if is_best:
        state.best, state.best_step = measured, state.step
    trainer.write({"kind": "valid", **trainer.position(), **record, "best": is_best, "weights": name})
    return Candidate(measured, loss, weights, name)


def _is_as_good(trainer: Trainer, measured: float, loss: float, best: float, best_step: int) -> bool:
    """Whether the end of a run is as good as its best step. The init model must be beaten: with the same BLEU, by the loss."""
    start_loss = trainer.state.start_loss
    if measured != best or trainer.state.start is None or best_step:
        return measured <= best
    return start_loss is not None and loss < start_loss


def start_weights(trainer: Trainer, folder: RunFolder) -> tuple[dict[str, Tensor], str] | None:
    """The weights that a fine-tuning run started with, and a note that no step was better; None if they are damaged."""
    try:
        weights = load_start(folder.start)
    except UserError as error:
        trainer.note(f"no step beat the model before the first step; its weights cannot be written: {error}")
        return None
    if trainer.recipe.fit_head:
        trainer.note(f"{_no_step_beat(trainer)}, so that is the model; for the encoder to learn, {_GENTLER}")
        return weights, FITTED
    trainer.note(f"{_no_step_beat(trainer)}, so that model is written, unchanged; {_GENTLER}")
    return weights, UNCHANGED


def warn_if_worse(trainer: Trainer) -> None:
    """A run that an earlier version started did not keep the model in train.init, and can end with a worse one."""
    state = trainer.state
    if state.start is not None and state.best is not None and state.best > state.start:
        trainer.note(f"{_no_step_beat(trainer)}, so the model of this run is worse than that one; {_GENTLER}")


_GENTLER = "try a lower train.lr, fewer steps or more text"


def _no_step_beat(trainer: Trainer) -> str:
    value = trainer.state.start or 0.0
    score = FIGURES[trainer.recipe.monitor].shown(abs(value))
    start = FITTED if trainer.recipe.fit_head else "the model in train.init"
    return f"no step beat {start} on the validation set ({score})"


def _is_intact(best: Path, trainer: Trainer) -> bool:
    try:
        check_files(best)
        return True
    except UserError as error:
        trainer.note(f"skipped, though it was the best: {error}")
        return False


def sharded_weights(recipe: TrainRecipe, trainer: Trainer, folder: RunFolder) -> tuple[dict[str, Tensor], str]:
    """The final weights of a sharded model, read from its checkpoints by one process. They are not compared with the best
    step; in fine-tuning, the start is taken if no validation was better."""
    state = trainer.state
    if state.start is not None and state.stale and not state.best_step and (start := start_weights(trainer, folder)):
        return start
    if recipe.ema:
        [last] = checkpoints_to_average(folder, 1, trainer.note)
        return checkpoint_weights(last), "moving average of the weights"
    paths = checkpoints_to_average(folder, recipe.average, trainer.note)
    return average_weights(paths), f"average of the last {len(paths)} checkpoints" if len(paths) > 1 else LAST


def write_model(
    recipe: Recipe,
    trainer: Trainer,
    weights: dict[str, Tensor],
    chosen: str,
    folder: RunFolder,
    scores: Scores | None,
    measured: Mapping[str, Any],
    baseline: Mapping[str, Any] | None = None,
) -> Bundle:
    """Write the bundle of a run, with the facts that its card shows. `measured` are fields that the task has measured, `baseline`
    the scores of its simple model."""
    facts: dict[str, Any] = {
        **software_facts(),
        "device": describe(trainer.device) + (f", {size} processes" if (size := trainer.ranks.size) > 1 else ""),
        "parameters": trainer.model.num_parameters(),
        f"{TASKS[recipe.task].NOUN}s": len(trainer.store),
        "tokens": len(trainer.store[TASKS[recipe.task].COLUMNS[-1]].ids),  # those that are predicted
        "corpora": [_public(corpus.name) for corpus in trainer.store.corpora],
        "steps": trainer.state.step,
        "minutes": round(trainer.state.seconds / 60, 2),
        "weights": chosen,
    }
    if valid := best_validation([record for record in read_metrics(folder.metrics) if record["kind"] == "valid"]):
        facts["valid"] = {"metrics": _figures(valid)}
    if recipe.train.init:
        facts["init"] = init_name(recipe.train.init)
    if scores is not None:
        facts["test"] = scores.to_json()
    if baseline:
        facts["baseline"] = _short_baseline(baseline)
    return save_model(recipe, trainer.model.config, weights, trainer.tokenizer, facts, folder.model, measured)


def _figures(valid: Mapping[str, Any]) -> dict[str, Any]:
    """What a validation measured, in the order in which a list of models names the first."""
    order = sorted(FIGURES, key=lambda key: key not in ("bits_per_byte", "bleu"))
    return {key: {"name": FIGURES[key].name, "score": valid[key]} for key in order if valid.get(key) is not None}


def write_lora(recipe: Recipe, trainer: Trainer, weights: Mapping[str, Tensor], chosen: str, folder: RunFolder) -> None:
    """Write what LoRA changed as an adapter beside the model."""
    shutil.rmtree(folder.adapter, ignore_errors=True)  # of a shorter run
    if chosen in (UNCHANGED, FITTED):
        return
    if recipe.tokenizer.extend:
        trainer.note("no adapter is written: its base would lack the pieces that tokenizer.extend added")
        return
    names: dict[Tensor, str] = {parameter: name for name, parameter in trainer.model.named_parameters()}
    stacked = {names[parameter]: len(rows) for parameter, rows in layer_matrices(trainer.model).items()}
    lost = write_adapter(folder.adapter, load_init_bundle(recipe), weights, recipe.train.lora, stacked)
    size = sum(path.stat().st_size for path in folder.adapter.iterdir()) / 1e6
    apart = "" if lost < _ROUNDING else f", without {100 * lost:.2g}% of the largest change: {chosen} has a higher rank"
    trainer.note(f"adapter {folder.adapter} ({size:.1f} MB{apart})")


def _short_baseline(baseline: Mapping[str, Any]) -> dict[str, Any]:
    """The first score of the simple model, for the card."""
    name = "test" if baseline["test"] else "validation"
    first = next(iter((baseline["test"] or baseline["valid"])["metrics"].values()))
    return {"model": baseline["name"], "name": first["name"], "score": first["score"], "set": name}


def software_facts() -> dict[str, Any]:
    """Versions and date, for a bundle's facts."""
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
    measured: Mapping[str, Any],
) -> Bundle:
    """Save a bundle whose languages, search settings and limits come from the recipe."""
    return save_bundle(
        out,
        weights,
        config,
        tokenizer,
        public_recipe(recipe).to_toml(),
        source=recipe.data.source,
        target=recipe.data.target,
        directions=recipe.data.directions if recipe.has_tags else (),
        max_length=recipe.data.max_length,
        facts=facts,
        task=recipe.task,
        takes_pairs=recipe.takes_pairs,
        **{"decode": recipe.decode, **measured},
    )


def public_recipe(recipe: Recipe) -> Recipe:
    """The recipe for a bundle, which goes to other people: without the folders of this machine."""
    data = recipe.data
    train = tuple(_public_entry(entry) for entry in data.train)
    valid, test = map(_public_spec, (data.valid, data.test))
    return dataclasses.replace(
        recipe,
        data=dataclasses.replace(data, root=".", train=train, valid=valid, test=test),
        tokenizer=dataclasses.replace(recipe.tokenizer, folder=Path(recipe.tokenizer.folder).name),
        train=dataclasses.replace(recipe.train, init=init_name(recipe.train.init)),
    )


def _public_entry(entry: CorpusEntry) -> CorpusEntry:
    return dataclasses.replace(entry, path=_public(entry.path))


def _public_spec(spec: str | float | tuple[CorpusEntry, ...]) -> Any:
    if isinstance(spec, tuple):
        return tuple(map(_public_entry, spec))
    return _public(spec) if isinstance(spec, str) else spec


def _public(spec: str) -> str:
    """A corpus without the folders of an absolute path; "/home/me/{a.en,b.de}" becomes "{a.en,b.de}"."""
    head, brace, sides = spec.partition("{")
    if re.match(r"~|/|[A-Za-z]:/", head):
        head = head.rpartition("/")[2]
    return head + brace + re.sub(r"(?<![^{,])(?:~[^/{},]*|[A-Za-z]:)?/(?:[^{},]*/)?", "", sides)


def score_test_set(recipe: Recipe, bundle: Bundle, test: Sequence[Texts], trainer: Trainer) -> Scores:
    """Score the written bundle on the test set."""
    scores = TASKS[recipe.task].score_test_set(recipe, bundle, test)
    for log in trainer.logs:
        log.write({"kind": "test", "name": "test", "scores": scores.to_json()})
    trainer.display.say("\n".join(["test set", *(f"  {line}" for line in scores.lines())]))
    return scores


def examine(recipe: Recipe, bundle: Bundle, data: PreparedData, trainer: Trainer) -> None:
    """Log what the report shows of the test set, or else of the validation set, beside the scores; and the baseline."""
    found = TASKS[recipe.task].examine(recipe, bundle, data.test or data.valid or [])
    for log in trainer.logs if found is not None else ():
        log.write({"kind": "examined", "set": "test" if data.test else "validation", **(found or {})})
    for log in trainer.logs if data.baseline else ():
        log.write({"kind": "baseline", **data.baseline})


def report_facts(recipe: Recipe, bundle: Bundle, store: Store) -> dict[str, str]:
    """The bundle's facts as text, for the report."""
    facts = {key: f"{value:,}" if isinstance(value, int) else str(value) for key, value in bundle.facts.items()}
    for shown_elsewhere in ("test", "valid", "baseline"):
        facts.pop(shown_elsewhere, None)
    facts["corpora"] = ", ".join(bundle.facts["corpora"])
    facts["vocabulary"] = f"{bundle.config.vocab_size:,}"
    facts["data cleaning"] = "\n".join(store.account.lines(TASKS[recipe.task].NOUN))
    return facts


def average(run: Path, last: int, out: Path, say: Callable[[str], None]) -> tuple[Bundle, list[str]]:
    """Average the last checkpoints of a run, finished or not, into a bundle; returns it and the names of the checkpoints."""
    if last < 1:
        raise UserError(f"--last must be at least 1, but is {last}")
    folder, out = RunFolder(run), out.resolve()
    if not folder.recipe.is_file():
        raise UserError(f"{run}: must be a run folder, but has no recipe.toml")
    check_new_folder(out)
    paths = checkpoints_to_average(folder, last, say)
    recipe = load_recipe(folder.recipe)
    if len(paths) < last:
        keeps_no_more = len(scheduled_checkpoints(folder.checkpoints)) >= recipe.train.average
        kept = (
            f"the run keeps no more (train.average = {recipe.train.average})"
            if keeps_no_more
            else "the run has no more yet"
        )
        say(f"{run}: averages {counted(len(paths), 'checkpoint')}, not {last}: {kept}")
    tokenizer = Tokenizer.load(folder.tokenizer)
    check_tokenizer(saved_fingerprint(paths[-1], folder), tokenizer, folder)
    config = recipe.model.config(tokenizer.vocab_size)
    try:
        weights = average_weights(paths)
    except FileNotFoundError:
        raise UserError(f"{run}: the training run has just removed a checkpoint; try again") from None
    names = [path.name for path in paths]
    facts = {
        **software_facts(),
        "parameters": sum(tensor.numel() for tensor in weights.values()),
        "steps": int(names[-1].removeprefix("step-")),
        "weights": f"average of {', '.join(names)}",
    }
    records = _validation_records(recipe, folder, say)
    measured = TASKS[recipe.task].measure_weights(recipe, weights, tokenizer, records, torch.device("cpu"))
    return save_model(recipe, config, weights, tokenizer, facts, out, measured), names


def _validation_records(recipe: Recipe, folder: RunFolder, say: Callable[[str], None]) -> list[Texts]:
    """The validation records of a run, or none, with a note to `say`, if their files cannot be read any more."""
    task, spec = TASKS[recipe.task], recipe.data.valid
    if isinstance(spec, int | float):
        names = recipe.held_out_names("valid")
        spec = tuple(CorpusEntry(task.HELD_OUT.format(name=name), 1.0, *pair) for pair, name in names.items())
        recipe = dataclasses.replace(recipe, data=dataclasses.replace(recipe.data, root=str(folder.held_out)))
    try:
        return [texts for corpus in find_evaluation_corpora(spec, recipe) for texts in task.read(corpus)]
    except UserError as error:
        say(f"nothing is measured on the validation set: {error}")
        return []
