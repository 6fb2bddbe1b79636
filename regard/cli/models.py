"""`regard models`: the models that there are."""

from __future__ import annotations

import argparse
import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.cli.common import print_result, verb
from regard.task_table import FIGURES

if TYPE_CHECKING:
    from regard.catalogue import ListedModel

_OWN_SETS = {"test": "test set", "valid": "validation set"}  # of a model's own training
_NARROW = 30  # the fewest columns for scores beside the rest of a row
_HARD = "\0"  # stands for a space at which no line is broken


def add(verbs: Any) -> None:
    parser = verb(
        verbs,
        "models",
        run,
        "list built-in, cached and local models with task, size and scores",
        "List the models that -m can name, with their task or languages, size and scores: the built-in ones, those in the cache "
        "(~/.cache/regard/models; $REGARD_CACHE/models), and bundles and finished runs below the given folders. Scores on several "
        "kinds of text are listed by kind, from the lowest to the highest test set; checks are lines with what must be in their "
        "translation, such as names and numbers. `regard info MODEL` has every score with its signature.",
    )
    parser.add_argument(
        "folders", nargs="*", type=Path, metavar="DIR", help="where to look for local models (default: this folder)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON, with all scores")


def run(arguments: argparse.Namespace) -> None:
    """Print a table, or with --json everything that the cards say."""
    from regard.catalogue import list_models

    models = list_models(arguments.folders or [Path()])
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    print_result(arguments, [_document(model) for model in models], _table(models, width))


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


def _table(models: Sequence[ListedModel], width: int | None = None) -> list[str]:
    """A row for each model. On a terminal of this width the scores continue on further lines."""
    if not models:
        return ["no models: train one (regard train corpus.en corpus.de), or import one (regard import --help)"]
    rows = [("model", "place", "task", "size", "scores"), *map(_row, models)]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    indent = sum(widths) + 2 * len(widths)
    lines: list[str] = []
    for row in rows:
        first = "".join(cell.ljust(size + 2) for cell, size in zip(row[:4], widths, strict=True))
        if width is None or len(first) + len(row[4]) <= width:
            lines.append((first + row[4]).rstrip())
        elif width - indent >= _NARROW:
            scores = textwrap.wrap(row[4], width - indent, break_long_words=False)
            lines += [first + scores[0], *(" " * indent + more for more in scores[1:])]
        else:
            lines += [first.rstrip(), *textwrap.wrap(row[4], width, initial_indent="  ", subsequent_indent="  ")]
    return [line.replace(_HARD, " ") for line in lines]


def _row(model: ListedModel) -> tuple[str, str, str, str, str]:
    from regard.catalogue import language_names

    if model.bundle is None:
        return model.name, model.place, "?", "?", f"cannot be read: {model.problem}"
    return model.name, model.place, language_names(model.bundle), _megabytes(model.size), _scores(model)


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB" if size < 1e9 else f"{size / 1e9:.1f} GB"


def _scores(model: ListedModel) -> str:
    """BLEU, or the first metric that there is: of the test set, else of the validation set, or of each kind of text."""
    kinds: dict[str, dict[str, list[float]]] = {}  # by metric
    for name, metrics in model.scores.items():
        metric = metrics.get("bleu") or next(iter(metrics.values()))
        # A test set is named by its kind and its own name, "news-newstest2014".
        kinds.setdefault(metric["name"], {}).setdefault(name.partition("-")[0], []).append(metric["score"])
    shown = [_of_metric(metric, found) for metric, found in kinds.items()]
    if checks := model.checks:
        shown.append(_joined(f"checks {100 * checks['passed'] / checks['lines']:.0f}%"))
    return "; ".join(shown) or "not measured"


def _of_metric(metric: str, kinds: Mapping[str, Sequence[float]]) -> str:
    """Of several test sets of a kind the lowest and the highest score."""
    form = next((figure.form for figure in FIGURES.values() if figure.name == metric), ".1f")
    found = {}
    for kind, scores in kinds.items():
        low, high = format(min(scores), form), format(max(scores), form)
        found[kind] = low if low == high else f"{low} to {high}"
    if len(found) == 1 and (own := next(iter(found))) in _OWN_SETS:
        return f"{_joined(f'{metric} {found[own]}')} {_joined(f'({_OWN_SETS[own]})')}"
    return f"{_joined(metric)}: {', '.join(_joined(f'{kind} {score}') for kind, score in found.items())}"


def _joined(text: str) -> str:
    """A text that stays on one line."""
    return text.replace(" ", _HARD)
