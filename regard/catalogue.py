"""The models that there are: built-in, cached and local ones, and which of them translates between two languages."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from regard.builtin import builtin_models
from regard.bundle import CONFIG, Bundle, cached_models, read_bundle
from regard.errors import UserError
from regard.files import MANIFEST
from regard.translation.directions import fitting_directions
from regard.translation.languages import language_name

Place = Literal["built-in", "cached", "local"]
_DEPTH = 3  # folders below the one that is searched: runs/NAME/model
_MOST_FOLDERS = 2_000  # that are looked into


@dataclass(frozen=True)
class ListedModel:
    """A model that `-m` can name."""

    place: Place
    name: str  # what -m takes
    folder: Path
    bundle: Bundle | None  # None if it cannot be read
    problem: str = ""  # why not

    @property
    def size(self) -> int:
        """The bytes of all its files."""
        return sum(file.stat().st_size for file in self.folder.rglob("*") if file.is_file())

    @property
    def scores(self) -> dict[str, dict[str, Any]]:
        """Test set -> metric -> what the card says of it. The test set of the model's training is called "test"; where there is
        none, the validation set stands for it, as "valid"."""
        if self.bundle is None:
            return {}
        facts = self.bundle.facts
        sets = {"test": facts.get("test", {}), **facts.get("scores", {})}
        found = {name: _metrics(one) for name, one in sets.items()}
        scores = {name: metrics for name, metrics in found.items() if metrics}
        valid = _metrics(facts.get("valid", {}))
        return scores or ({"valid": valid} if valid else {})

    @property
    def checks(self) -> dict[str, int]:
        """How many lines of all kinds of checks `passed`, of how many `lines`; empty where none were made."""
        return dict(self.bundle.facts.get("checks", {}).get("all", {})) if self.bundle is not None else {}


def _metrics(result: Any) -> dict[str, Any]:
    """The metrics of one test set. A card may be a stranger's: what is no score is left out."""
    metrics = result.get("metrics") if isinstance(result, dict) else None
    if not isinstance(metrics, dict):
        return {}
    return {
        key: metric
        for key, metric in metrics.items()
        if isinstance(metric, dict) and isinstance(metric.get("score"), int | float) and "name" in metric
    }


def list_models(folders: Sequence[Path] = (Path(),)) -> list[ListedModel]:
    """Built-in and cached models, and the bundles and finished runs in and below some folders."""
    return [*_models("built-in"), *_models("cached"), *_local_models(folders)]


def named_pairs() -> list[tuple[str, str]]:
    """The languages of the built-in and cached models."""
    models = (*_models("built-in"), *_models("cached"))
    bundles = (one.bundle for one in models if one.bundle is not None)
    return [pair for bundle in bundles if bundle.task == "translate" for pair in bundle.pairs]


def find_model(source: str | None, target: str | None) -> ListedModel:
    """The model from one language to another: a built-in one, else a cached one, else one below the working folder. A language
    that is None may be any."""
    read: list[ListedModel] = []
    for models in (_models("built-in"), _models("cached"), _local_models([Path()])):
        read += (usable := [one for one in models if one.bundle is not None and one.bundle.task == "translate"])
        fitting = [one for one in usable if fits(one, source, target)]
        if len(fitting) == 1:
            return fitting[0]
        if fitting:
            named = ", ".join(f"-m {one.name} ({_pair(one)})" for one in fitting)
            raise UserError(f"{_wanted(source, target)} fits several models; choose one: {named}")
    known = ", ".join(dict.fromkeys(map(_pair, read))) or "none"
    raise UserError(
        f"{_wanted(source, target)}: there is no such model among the built-in, cached and local ones ({known}); train or import "
        f"one (docs/new-language.md), or name its folder with -m"
    )


def fits(model: ListedModel, source: str | None, target: str | None) -> bool:
    """Whether a model translates between these languages; None is any."""
    assert model.bundle is not None
    return bool(fitting_directions(model.bundle.pairs, source, target))


def _wanted(source: str | None, target: str | None) -> str:
    given = {"--from": source, "--to": target}
    return " ".join(f"{option} {code}" for option, code in given.items() if code is not None)


def _pair(model: ListedModel) -> str:
    assert model.bundle is not None
    return model.bundle.languages


def language_names(bundle: Bundle) -> str:
    """The languages of a model in English, or its task where it is not translation."""
    if bundle.task != "translate":
        return bundle.task
    return ", ".join(f"{language_name(source)} → {language_name(target)}" for source, target in bundle.pairs)


def _models(place: Literal["built-in", "cached"]) -> list[ListedModel]:
    folders = builtin_models() if place == "built-in" else cached_models()
    return [_listed(place, name, folder) for name, folder in folders.items()]


def _local_models(folders: Sequence[Path]) -> list[ListedModel]:
    named = {folder.resolve() for folder in (*builtin_models().values(), *cached_models().values())}
    found: dict[Path, ListedModel] = {}
    for top in folders:
        if not top.is_dir():
            raise UserError(f"{top}: there is no such folder")
        for folder in _bundles_below(top):
            if (real := folder.resolve()) not in named:
                found.setdefault(real, _listed("local", _local_name(folder), folder))
    return list(found.values())


def _local_name(folder: Path) -> str:
    """A run folder stands for the model in it."""
    is_of_run = folder.name == "model" and (folder.parent / "metrics.jsonl").is_file()
    name = str(folder.parent if is_of_run else folder)
    return name if name != "." else "./"


def _bundles_below(top: Path) -> Iterator[Path]:
    """The bundles in a folder and below it, in order. Hidden folders and those inside a bundle are left out."""
    looked, level = 0, [top]
    for _ in range(_DEPTH + 1):
        below: list[Path] = []
        for folder in level:
            looked += 1
            if looked > _MOST_FOLDERS:
                return
            if _is_bundle(folder):
                yield folder
            else:
                below += _folders_in(folder)
        level = below


def _is_bundle(folder: Path) -> bool:
    """Other formats, too, have a config.json; only Regard's has a manifest beside it."""
    return (folder / CONFIG).is_file() and (folder / MANIFEST).is_file()


def _folders_in(folder: Path) -> list[Path]:
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in entries if entry.is_dir() and not entry.name.startswith(".")]
    except OSError:  # not ours to read
        return []
    return [folder / name for name in sorted(names)]


def _listed(place: Place, name: str, folder: Path) -> ListedModel:
    try:
        return ListedModel(place, name, folder, read_bundle(folder))
    except (UserError, OSError) as error:
        return ListedModel(place, name, folder, None, str(error))
