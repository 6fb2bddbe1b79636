"""Follows a run folder during training, for the page; its files are read again only when they change. The numbers come from
metrics.jsonl; `training/report.py` picks the best validation and thins the curves."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from regard.errors import UserError
from regard.recipe import Recipe, load_recipe
from regard.task_table import DEFAULT_TASK, FIGURES, TASK_SETTINGS
from regard.training.chart import averaged
from regard.training.metrics import best_validation, read_metrics
from regard.training.report import loss_title, measured_scores, points, sample_histories

_CURVES = {  # name on the page -> kind of record and its field
    "training": ("train", "nll"),
    "objective": ("train", "loss"),
    "validation": ("valid", "loss"),
    "bits_per_byte": ("valid", "bits_per_byte"),
    "lr": ("train", "lr"),
    "tokens_per_second": ("train", "tokens_per_second"),
}
_FACTS = (
    "step",
    "epoch",
    "elapsed",
    "loss",
    "nll",
    "perplexity",
    "bits_per_byte",
    "lr",
    "tokens_per_second",
)
_POINTS = 300  # most points of a curve
_CHANGES = 40  # the latest versions of a sample's translation


class Watch:
    """One run folder; the run may be running, finished, or have written nothing yet."""

    def __init__(self, run: Path) -> None:
        if not (run / "recipe.toml").is_file():
            raise UserError(
                f"--run {run}: is not a run folder (recipe.toml is missing); pass the --out of regard train"
            )
        self.run = run
        self._lock = threading.Lock()
        self._version = ""
        self._view: dict[str, Any] = {}

    def version(self) -> str:
        """A string that changes whenever one of the files does."""
        marks = []
        for name in ("metrics.jsonl", "recipe.toml", "report.html"):
            try:
                stat = (self.run / name).stat()
                marks.append(f"{stat.st_size:x}.{stat.st_mtime_ns:x}")
            except OSError:
                marks.append("0")
        return "-".join(marks)

    def view(self) -> tuple[str, dict[str, Any]]:
        """The version and the view for the page; `now` and `updated` are seconds by this machine's clock."""
        with self._lock:
            version = self.version()
            if version != self._version:
                self._view, self._version = self._read(), version
            return version, {**self._view, "now": time.time()}

    def _read(self) -> dict[str, Any]:
        metrics = self.run / "metrics.jsonl"
        view: dict[str, Any] = {"name": self.run.resolve().name, "problem": None, "records": 0}
        records: list[dict[str, Any]] = []
        try:
            recipe: Recipe | None = load_recipe(self.run / "recipe.toml")
            records = read_metrics(metrics) if metrics.exists() else []
            view |= describe(records)
        except (UserError, OSError, AttributeError, KeyError, TypeError, ValueError) as error:
            if isinstance(error, OSError):  # it existed a moment ago
                message = f"{metrics.name}: cannot be read ({error.strerror})"
            else:
                message = str(error) if isinstance(error, UserError) else f"{metrics.name}: malformed record"
            message = message.replace(f"{self.run}{os.sep}", "")  # the path is none of the viewer's business
            view |= describe([]) | {"problem": message}
            recipe = None
        is_finished = (self.run / "report.html").is_file()
        settings = TASK_SETTINGS[recipe.task if recipe else DEFAULT_TASK]
        return view | {
            "source": recipe.data.source or None if recipe else None,  # only pairs of texts have languages
            "target": recipe.data.target or None if recipe else None,
            "arrow": "↔" if settings.has_own_head else "→",  # vectors have no direction
            "loss_title": loss_title(settings),
            "done": (done := 1.0 if is_finished else share_done(recipe, records) if recipe else None),
            "remaining": seconds_left(done, records),
            "finished": is_finished,
            "updated": _written(metrics),
        }


def _written(path: Path) -> float | None:
    try:
        return path.stat().st_mtime
    except OSError:
        return None


def describe(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The curves, latest numbers, best validation, test scores, samples and notes in the records of a run."""
    by_kind = {
        kind: [record for record in records if record.get("kind") == kind]
        for kind in ("train", "valid", "test", "note")
    }
    train, valid = by_kind["train"], by_kind["valid"]
    best = best_validation(valid)
    latest = max((*train[-1:], *valid[-1:]), key=lambda record: int(record["step"]), default=None)
    return {
        "records": len(records),
        "curves": {
            name: [[x, y] for x, y in averaged(points(by_kind[kind], field), _POINTS)]
            for name, (kind, field) in _CURVES.items()
        },
        "scores": [
            {
                "name": FIGURES[key].name,
                "digits": int(FIGURES[key].form[1]),
                "points": [[x, y] for x, y in averaged(points(valid, key), _POINTS)],
                "best": best.get(key) if best else None,
            }
            for key in measured_scores(valid)
        ],
        "latest": _facts(latest),
        "latest_train": _facts(train[-1] if train else None),
        "best": _facts(best),
        "tests": [{"name": str(record["name"]), "metrics": _metrics(record)} for record in by_kind["test"]],
        "samples": [
            {
                "source": source,
                "reference": reference,
                "changes": [{"step": step, "translation": text} for step, text in changes[-_CHANGES:]],
            }
            for (source, reference), changes in sample_histories(valid).items()
        ],
        "notes": [str(record["text"]) for record in by_kind["note"]],
    }


def share_done(recipe: Recipe, records: Sequence[Mapping[str, Any]]) -> float | None:
    """The finished share of the run, between 0 and 1, in the unit of the recipe: steps, epochs or minutes. None if unlimited."""
    wanted = recipe.train.steps or recipe.train.epochs or recipe.train.minutes * 60
    name = "step" if recipe.train.steps else "epoch" if recipe.train.epochs else "elapsed"
    reached = [float(record[name]) for record in records if record.get(name) is not None]
    return min(1.0, max(reached, default=0.0) / wanted) if wanted else None


def seconds_left(done: float | None, records: Sequence[Mapping[str, Any]]) -> float | None:
    """About how long the rest takes, by what was done so far; None if there is none, or nothing to go by."""
    spent = max((float(record["elapsed"]) for record in records if record.get("elapsed") is not None), default=0.0)
    return spent * (1.0 - done) / done if done and done < 1.0 else None


def _facts(record: Mapping[str, Any] | None) -> dict[str, float] | None:
    if record is None:
        return None
    return {name: record[name] for name in _FACTS if isinstance(record.get(name), int | float)}


def _metrics(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    fields = ("name", "score", "confidence", "signature")
    return [{name: metric.get(name) for name in fields} for metric in record["scores"]["metrics"].values()]
