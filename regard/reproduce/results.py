"""What can be reproduced: a TOML file for each result, with its recipe, its text, what to expect and what was published. No torch
here.

The files are in recipes/reproduce/ of the repository and, with the recipes that they name, in the wheel (regard/recipes/).
"""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from regard.errors import UserError

_PACKAGE = Path(__file__).parents[1]


@dataclass(frozen=True)
class Score:
    """A score that somebody has measured."""

    what: str  # who measured what, and how
    score: float | None = None  # in the result's metric; None: a table of several
    metric: str = "sacreBLEU"


_LONGEST = 100  # characters of a folder's name


@dataclass(frozen=True)
class Variation:
    """A row of a sweep: what differs from the recipe, and the paper's figures for it."""

    name: str
    set: tuple[str, ...] = ()
    perplexity: float | None = None
    bleu: float | None = None
    parameters: float | None = None  # millions

    @property
    def folder(self) -> str:
        """A name for its files."""
        return _file_name(self.name, ".").replace("--", "-").lower()


@dataclass(frozen=True)
class Result:
    """A result and how to get it."""

    name: str
    title: str
    recipe: Path
    root: str  # folder of its text, below the folder of all data
    device: str  # what `minutes` and `expected` are for
    minutes: float
    where: str  # where to get the text
    published: Score
    expected: Score | None = None  # of this recipe; None: it was not run to its end with the text that it asks for
    average: int = 0  # checkpoints to average for the score; 0: the model that the run wrote
    sha256: Mapping[str, str] = field(
        default_factory=dict
    )  # of the unpacked text of files, by path or pattern below `root`
    rows: tuple[Variation, ...] = ()  # of a sweep

    def folder(self, changed: Sequence[str] = ()) -> str:
        """A name for its files. A run with other settings has one of its own, so that it never goes on with another run; settings
        of the search change no run."""
        others = [each for each in changed if not each.startswith("decode.")]
        name = "+".join([self.name, *(_file_name(each, "._=") for each in others)])
        if len(name) <= _LONGEST:
            return name
        return f"{self.name}+{hashlib.sha256(' '.join(others).encode()).hexdigest()[:12]}"

    @property
    def command(self) -> str:
        """The training behind it, as one would type it."""
        return f"regard train {self.recipe}"


def _file_name(text: str, kept: str) -> str:
    """Letters, digits and the characters `kept`; dashes for all others."""
    return "".join(c if c.isalnum() or c in kept else "-" for c in text)


def recipes_folder() -> Path:
    """The recipes: those of the checkout, or those that came with the wheel."""
    checkout = _PACKAGE.parent / "recipes"
    return checkout if (checkout / "reproduce").is_dir() else _PACKAGE / "recipes"


def result_names() -> list[str]:
    return sorted(path.stem for path in (recipes_folder() / "reproduce").glob("*.toml"))


def load_result(name: str) -> Result:
    """The result of this name."""
    names = result_names()
    if name not in names:
        near = difflib.get_close_matches(name, names, 1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(names)}"
        raise UserError(f"{name}: there is no such result; {hint} (regard reproduce --list)")
    path = recipes_folder() / "reproduce" / f"{name}.toml"
    return read_result(path)


def read_result(path: Path) -> Result:
    """Read a file of a result; what it says beside the known fields is refused."""
    try:
        values: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read as TOML ({error})") from None
    for key, kind in (("published", Score), ("expected", Score)):
        if key in values:
            values[key] = _make(kind, values[key], f"{path}, [{key}]")
    values["rows"] = tuple(
        _make(Variation, {**row, "set": tuple(row.get("set", ()))}, f"{path}, row {number}")
        for number, row in enumerate(values.get("rows", ()), 1)
    )
    if "recipe" in values:
        values["recipe"] = (path.parent / str(values["recipe"])).resolve()
    result: Result = _make(Result, {"name": path.stem, **values}, str(path))
    return result


def _make(kind: Any, values: Mapping[str, Any], where: str) -> Any:
    """A dataclass from a table of TOML."""
    fields = {each.name: each for each in dataclasses.fields(kind)}
    if unknown := [key for key in values if key not in fields]:
        raise UserError(f"{where}: there is no field {unknown[0]!r}; there are {', '.join(fields)}")
    needed = [
        name
        for name, each in fields.items()
        if each.default is dataclasses.MISSING and each.default_factory is dataclasses.MISSING
    ]
    if missing := [name for name in needed if name not in values]:
        raise UserError(f"{where}: `{missing[0]}` is missing")
    return kind(**values)
