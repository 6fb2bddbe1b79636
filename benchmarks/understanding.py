"""Labels and tags: a bag of words, a model from scratch and one from an encoder, on several data sets, with scores and minutes.

    python -m benchmarks.understanding --data FOLDER [--init MODEL ...] [--only banking77 snips] [--limit 500] [--json OUT.json]

FOLDER has NAME.train.tsv and NAME.test.tsv (label TAB text; STS-B: score TAB text TAB text) or NAME.train.conll and
NAME.test.conll, also packed, and NAME.valid or NAME.dev where there is one; else a tenth of the training set is validated on.
Every run is one of `regard train`, with its settings for plain files; the test set is scored once.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import torch

from regard.cli.train_inputs import find_task
from regard.data.corpus import read_lines
from regard.device import describe, pick_device
from regard.evaluate import aligned
from regard.training.auto import choose_recipe
from regard.training.run import train
from regard.version import __version__

_PARTS = {"train": ("train",), "valid": ("valid", "dev"), "test": ("test",)}


@dataclass(frozen=True)
class DataSet:
    """The files of a data set."""

    name: str
    train: Path
    valid: Path | None
    test: Path


@dataclass(frozen=True)
class Result:
    """The scores of one model on one data set."""

    data: str
    model: str
    metric: str
    score: float
    others: dict[str, float]
    minutes: float
    epochs: float
    weights: str  # which were taken


def find_data(folder: Path, only: Sequence[str]) -> list[DataSet]:
    """The data sets in a folder and the folders in it."""
    found: dict[str, dict[str, Path]] = {}
    for path in sorted(folder.rglob("*")):
        name, _, rest = path.name.partition(".")
        part = next((part for part, names in _PARTS.items() if rest.split(".")[0] in names), None)
        if part and any(kind in path.suffixes for kind in (".tsv", ".csv", ".jsonl", ".conll", ".conllu")):
            found.setdefault(name, {})[part] = path
    sets = [
        DataSet(name, files["train"], files.get("valid"), files["test"])
        for name, files in found.items()
        if {"train", "test"} <= files.keys() and (not only or name in only)
    ]
    if not sets:
        raise SystemExit(f"{folder}: has no data set of these names; NAME.train.tsv and NAME.test.tsv make one")
    return sets


def limited(data: DataSet, limit: int, folder: Path) -> DataSet:
    """So many records of each file, for a quick trial, spread over the file; of valid and test those whose labels are in train."""
    if not limit:
        return data
    known: set[str] = set()

    def cut(path: Path) -> Path:
        plain = folder / (path.with_suffix("") if path.suffix in (".gz", ".xz", ".zst") else path).name
        is_words = ".conll" in path.suffixes or ".conllu" in path.suffixes
        records = _sentences(path) if is_words else [[line] for line in read_lines(path)]
        labels = [{line.split("\t")[-1 if is_words else 0] for line in record} for record in records]
        if path == data.train:
            chosen = records[:: max(1, len(records) // limit)]
            known.update(*labels[:: max(1, len(records) // limit)])
        else:
            fitting = [record for record, some in zip(records, labels, strict=True) if some <= known]
            chosen = fitting[:: max(1, len(fitting) // limit)]
        end = "\n\n" if is_words else "\n"
        plain.write_text("".join("\n".join(record) + end for record in chosen), encoding="utf-8")
        return plain

    train = cut(data.train)
    return DataSet(data.name, train, None if data.valid is None else cut(data.valid), cut(data.test))


def _sentences(path: Path) -> list[list[str]]:
    """The lines of each sentence."""
    return [
        list(lines) for has_text, lines in groupby(read_lines(path), key=lambda line: bool(line.strip())) if has_text
    ]


def run_one(data: DataSet, init: str, folder: Path, sets: Sequence[str]) -> list[Result]:
    """The results of a run, and of the bag of words that it trains."""
    given = [f"data.test={json.dumps(str(data.test.resolve()))}", f"train.init={json.dumps(init)}", *sets]
    if data.valid is not None:
        given.append(f"data.valid={json.dumps(str(data.valid.resolve()))}")
    started = time.perf_counter()
    task, _ = find_task([str(data.train)])
    choice = choose_recipe(task, [data.train], given)
    out = folder / f"{data.name}-{Path(init).name if init else 'scratch'}"
    shutil.rmtree(out, ignore_errors=True)
    bundle = train(choice.recipe, out, progress=True, started=started)
    minutes = (time.perf_counter() - started) / 60
    baseline: dict[str, Any] = json.loads((out / "baseline.json").read_text())
    name = f"from {Path(init).name}" if init else "from scratch"
    epochs, weights = choice.recipe.train.epochs, bundle.facts["weights"]
    return [
        _result(data.name, baseline["name"], baseline["test"]["metrics"], baseline["seconds"] / 60, 0.0, ""),
        _result(data.name, name, bundle.facts["test"]["metrics"], minutes, epochs, weights),
    ]


def _result(data: str, model: str, metrics: dict[str, Any], minutes: float, epochs: float, weights: str) -> Result:
    scores = {metric["name"]: float(metric["score"]) for metric in metrics.values()}
    first = next(iter(scores))
    others = {name: score for name, score in scores.items() if name != first}
    return Result(data, model, first, scores[first], others, round(minutes, 2), epochs, weights)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, metavar="FOLDER")
    parser.add_argument(
        "--init", action="append", default=[], metavar="MODEL", help="an encoder to start from; repeatable"
    )
    parser.add_argument("--no-scratch", action="store_true", help="leave out the model from scratch")
    parser.add_argument("--only", nargs="*", default=[], metavar="NAME")
    parser.add_argument("--limit", type=int, default=0, metavar="N", help="records of each file, for a trial")
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE")
    parser.add_argument("--out", type=Path, metavar="DIR", help="keep the run folders here")
    parser.add_argument("--json", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    results: list[Result] = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.out or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for data in find_data(arguments.data, arguments.only):
            data = limited(data, arguments.limit, Path(temporary))
            for init in [*([] if arguments.no_scratch else [""]), *arguments.init]:
                simple, own = run_one(data, init, folder, arguments.set)
                results += [
                    one for one in (simple, own) if (one.data, one.model) not in {(r.data, r.model) for r in results}
                ]
    rows = [("data", "model", "metric", "score", "minutes")]
    rows += [(one.data, one.model, one.metric, f"{one.score:.2f}", f"{one.minutes:.1f}") for one in results]
    print("\n".join(aligned(rows)))
    if arguments.json:
        device = describe(pick_device("auto"))
        versions = {"regard": __version__, "torch": torch.__version__, "device": device}
        document = {
            **versions,
            "limit": arguments.limit,
            "settings": arguments.set,
            "results": [asdict(one) for one in results],
        }
        arguments.json.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
