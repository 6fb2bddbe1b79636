"""Reproducing one result: train its recipe, evaluate as the paper does, compare with what was published, write it down."""

from __future__ import annotations

import datetime
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regard.api import load
from regard.bundle import Bundle, load_bundle
from regard.evaluate import Metric, Scores
from regard.files import read_json
from regard.progress import progress
from regard.recipe import Recipe
from regard.reproduce.data_check import DataCheck
from regard.reproduce.paper_bleu import PaperScores, paper_scores
from regard.reproduce.results import Result, Score
from regard.task_table import DEFAULT_TASK
from regard.tasks import TASKS
from regard.training.checkpoint import scheduled_checkpoints
from regard.training.finish import average
from regard.training.folder import RunFolder
from regard.training.metrics import read_metrics
from regard.training.run import train

LOSS = "validation loss"


@dataclass(frozen=True)
class Outcome:
    """What a reproduction found, as it is printed and written down."""

    record: dict[str, Any]
    lines: list[str]


def reproduce(result: Result, recipe: Recipe, check: DataCheck, out: Path, changed: Sequence[str]) -> Outcome:
    """Train in `out`, or go on with the run that is there, then evaluate. `changed` are overrides of the recipe."""
    begun = time.perf_counter()
    bundle = train(recipe, out / "run", resume=True)
    if result.average:
        bundle = averaged(out, result.average)
    scores = translated_scores(recipe, bundle, out) if recipe.task == DEFAULT_TASK else None
    record = make_record(result, recipe, check, bundle, changed)
    record["minutes of this start"] = round((time.perf_counter() - begun) / 60, 2)
    if scores is not None:
        record |= score_fields(scores)
        lines = scores.lines()
    elif recipe.settings.has_labels:
        measured = measured_scores(bundle)
        record |= measured_fields(measured)
        lines = [*measured.lines(), *baseline_lines(out / "run")]
    else:
        record |= {"score": final_loss(out / "run", bundle), "metric": LOSS}
        lines = [f"{LOSS}  {record['score']:.4f}"]
    return Outcome(record, [*lines, *comparison(result, record), *provenance(record)])


def averaged(out: Path, last: int) -> Bundle:
    """The last checkpoints of the run averaged, as in the paper, whatever the validation set says."""
    place, run = out / "averaged", RunFolder(out / "run")
    checkpoints = scheduled_checkpoints(run.checkpoints)
    if place.exists() and checkpoints and checkpoints[-1].name not in str(load_bundle(place).facts["weights"]):
        shutil.rmtree(place)  # of the run before it went on
    if not place.exists():
        average(run.path, last, place, lambda text: None)
    return load_bundle(place)


def translated_scores(recipe: Recipe, bundle: Bundle, out: Path) -> PaperScores:
    """Scores of the test set, translated with the recipe's search; the translations stay in the folder."""
    task = TASKS[recipe.task]
    pairs = list(task.read(task.find_corpus(str(recipe.data.test), recipe)))
    model = load(bundle.folder)
    options = model.search_options(recipe.decode.beam, recipe.decode.alpha, 1)
    with progress("translating the test set", len(pairs)) as done:
        found = [each.text for each in model.stream([source for source, _ in pairs], options, on_progress=done)]
    (out / f"translations.{recipe.data.target}").write_text("".join(f"{line}\n" for line in found), encoding="utf-8")
    return paper_scores(found, [reference for _, reference in pairs], recipe.data.target)


def measured_scores(bundle: Bundle) -> Scores:
    """Scores of the test set that the run measured at its end."""
    test = bundle.facts["test"]
    keys = ("name", "score", "signature", "mean", "confidence")
    return Scores(
        tuple(Metric(**{key: metric.get(key) for key in keys}) for metric in test["metrics"].values()),
        test["sentences"],
    )


def measured_fields(scores: Scores) -> dict[str, Any]:
    """The first score, which decides, and all by name, with signatures."""
    first = scores.metrics[0]
    return {
        "score": first.score,
        "metric": first.name,
        "confidence": first.confidence,
        "scores": {each.name: round(each.score, 2) for each in scores.metrics},
        "signatures": {each.name: each.signature for each in scores.metrics},
    }


def baseline_lines(run: Path) -> list[str]:
    """The score of the simple model that was trained on the same texts."""
    baseline = RunFolder(run).baseline
    if not baseline.exists():
        return []
    found = read_json(baseline)
    metric = next(iter(found["test"]["metrics"].values()))
    return [f"{found['name']}: {metric['score']:.2f} {metric['name']}, trained in {found['seconds']:g} s"]


def final_loss(run: Path, bundle: Bundle) -> float:
    """The validation loss of the weights that became the model."""
    measured = [record for record in read_metrics(RunFolder(run).metrics) if record["kind"] == "valid"]
    chosen = [record for record in measured if record.get("weights") == bundle.facts["weights"]]
    return float(chosen[-1]["loss"] if chosen else min(record["loss"] for record in measured))


def make_record(
    result: Result, recipe: Recipe, check: DataCheck, bundle: Bundle, changed: Sequence[str]
) -> dict[str, Any]:
    """What does not depend on the metric."""
    facts = bundle.facts
    kept = ("parameters", "steps", "weights", "minutes", "device", "torch", "regard", "pairs", "tokens")
    return {
        "name": result.name,
        "title": result.title,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        **{key: facts[key] for key in kept if key in facts},
        "beam": recipe.decode.beam if recipe.task == DEFAULT_TASK else None,
        "alpha": recipe.decode.alpha if recipe.task == DEFAULT_TASK else None,
        "seed": recipe.train.seed,
        "changed": list(changed),
        "other text": list(check.differing),
        "published": {
            "score": result.published.score,
            "metric": result.published.metric,
            "what": result.published.what,
        },
    }


def score_fields(scores: PaperScores) -> dict[str, Any]:
    """The scores by name, with signatures."""
    found = (scores.sacrebleu, scores.tokenised, scores.compounds)
    return measured_fields(Scores(tuple(each for each in found if each is not None), 0))


def comparison(result: Result, record: dict[str, Any]) -> list[str]:
    """A line for what was published and one for what this recipe gave before, each in its own metric."""
    lines = []
    for title, score in (("published", result.published), ("expected", result.expected)):
        if score is None or score.score is None:
            continue
        here = score_in(record, score)
        difference = f"; here {here - score.score:+.2f}" if here is not None else ""
        lines.append(f"{title}: {score.score:g} {score.metric} ({score.what}){difference}")
    return lines


def score_in(record: dict[str, Any], score: Score) -> float | None:
    """The record's score in the metric of another; None: it has none."""
    if score.metric == record["metric"]:
        return float(record["score"])
    found = record.get("scores", {}).get(score.metric)
    return None if found is None else float(found)


def provenance(record: dict[str, Any]) -> list[str]:
    """What makes the score another one than the published: settings and text that differ."""
    lines = []
    if record["changed"]:
        lines.append(f"changed: {', '.join(record['changed'])}")
    if record["other text"]:
        lines.append(f"another text than the scores are for: {', '.join(record['other text'])}")
    return lines
