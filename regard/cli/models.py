"""`regard models`: the models that there are."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.cli.common import print_result, verb
from regard.task_table import FIGURES

if TYPE_CHECKING:
    from regard.catalogue import ListedModel


def add(verbs: Any) -> None:
    parser = verb(
        verbs,
        "models",
        run,
        "list built-in, cached and local models with languages, size and scores",
        "List the models that -m can name, with their languages, size and scores: the built-in ones, those in the cache "
        "(~/.cache/regard/models; $REGARD_CACHE/models), and bundles and finished runs below the given folders.",
    )
    parser.add_argument(
        "folders", nargs="*", type=Path, metavar="DIR", help="where to look for local models (default: this folder)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON, with all scores")


def run(arguments: argparse.Namespace) -> None:
    """Print a table, or with --json everything that the cards say."""
    from regard.catalogue import list_models

    models = list_models(arguments.folders or [Path()])
    print_result(arguments, [_document(model) for model in models], _table(models))


def _document(model: ListedModel) -> dict[str, Any]:
    document: dict[str, Any] = {"place": model.place, "model": model.name, "folder": str(model.folder)}
    if model.bundle is None:
        return document | {"problem": model.problem}
    return document | {
        "task": model.bundle.task,
        "source": model.bundle.source,
        "target": model.bundle.target,
        **({"directions": [list(pair) for pair in model.bundle.directions]} if model.bundle.directions else {}),
        "bytes": model.size,
        "parameters": model.bundle.facts.get("parameters"),
        "scores": model.scores,
        "checks": model.bundle.facts.get("checks", {}),
    }


def _table(models: Sequence[ListedModel]) -> list[str]:
    if not models:
        return ["no models: train one (regard train corpus.en corpus.de), or import one (regard import --help)"]
    rows = [("model", "place", "languages", "size", "scores"), *map(_row, models)]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    return [
        "  ".join([*(cell.ljust(width) for cell, width in zip(row[:4], widths, strict=True)), row[4]]).rstrip()
        for row in rows
    ]


def _row(model: ListedModel) -> tuple[str, str, str, str, str]:
    from regard.catalogue import language_names

    if model.bundle is None:
        return model.name, model.place, "?", "?", f"cannot be read: {model.problem}"
    return model.name, model.place, language_names(model.bundle), _megabytes(model.size), _scores(model)


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB" if size < 1e9 else f"{size / 1e9:.1f} GB"


def _scores(model: ListedModel) -> str:
    """BLEU, or the first metric that there is, for each kind of text; of several test sets of a kind the lowest and the highest.
    A test set is named by its kind and what it is called, "news-newstest2014"."""
    found: dict[str, dict[str, list[float]]] = {}
    for name, metrics in model.scores.items():
        metric = metrics.get("bleu") or next(iter(metrics.values()))
        found.setdefault(metric["name"], {}).setdefault(name.partition("-")[0], []).append(metric["score"])
    shown = [
        f"{metric} {', '.join(_of_kind(kind, kinds[kind], _form(metric)) for kind in kinds)}"
        for metric, kinds in found.items()
    ]
    if checks := model.checks:
        shown.append(f"checks {100 * checks['passed'] / checks['lines']:.0f}%")
    return "; ".join(shown) or "not measured"


def _form(metric: str) -> str:
    """Bits per byte have three digits after the point."""
    return next((figure.form for figure in FIGURES.values() if figure.name == metric), ".1f")


def _of_kind(kind: str, scores: Sequence[float], form: str) -> str:
    low, high = format(min(scores), form), format(max(scores), form)
    return f"{kind} {low}" if low == high else f"{kind} {low} to {high}"
