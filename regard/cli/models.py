"""`regard models`: the models that there are."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.cli.common import print_result, verb

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
        "bytes": model.size,
        "parameters": model.bundle.facts.get("parameters"),
        "scores": model.scores,
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
    """BLEU, or the first metric that there is; of several test sets the lowest and the highest."""
    found = [(name, metrics.get("bleu") or next(iter(metrics.values()))) for name, metrics in model.scores.items()]
    if not found:
        return "not measured"
    (low_name, low), (high_name, high) = (
        choose(found, key=lambda one: float(one[1]["score"])) for choose in (min, max)
    )
    if len(found) == 1:
        return f"{high['name']} {high['score']:.1f} ({high_name})"
    return f"{low['name']} {low['score']:.1f} ({low_name}) to {high['score']:.1f} ({high_name}), {len(found)} test sets"
