"""Is the text of a result there, and is it the text that its scores are for? No torch here.

Every file that the recipe names must exist. Validation and test sets decide whether a score can be compared, so a result has the
SHA-256 of their unpacked text; another text is no error, but the result says so.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from regard.data.corpus import read_lines
from regard.errors import UserError
from regard.recipe import Recipe, load_recipe
from regard.reproduce.results import Result
from regard.task_table import DEFAULT_TASK

_SHOWN = 4  # missing files in a message


@dataclass(frozen=True)
class DataCheck:
    """What was found in a folder."""

    root: Path
    missing: tuple[str, ...]
    differing: tuple[str, ...]  # files with another text than the scores are for
    checked: tuple[str, ...]  # files with the very text

    @property
    def is_same(self) -> bool:
        return not self.missing and not self.differing

    def line(self) -> str:
        """What to print."""
        if self.differing:
            return f"{self.root}: another text than the scores are for: {', '.join(self.differing)}"
        return f"{self.root}: all files are there" + (
            f"; the scores are for the same text ({len(self.checked)} compared)" if self.checked else ""
        )


def result_recipe(result: Result, data: Path, overrides: Iterable[str] = ()) -> Recipe:
    """The recipe of a result with its text below the folder `data`."""
    return load_recipe(result.recipe, [f"data.root={json.dumps(str(data / result.root))}", *overrides])


def check_data(result: Result, recipe: Recipe) -> DataCheck:
    """Look for every file that the recipe names."""
    root = Path(recipe.data.root)
    missing = [pattern for pattern in named_files(recipe) if not _exists(root, pattern)]
    differing, checked = list[str](), list[str]()
    for pattern, expected in result.sha256.items():
        for path in sorted(root.glob(pattern)):
            (checked if text_hash(path) == expected else differing).append(path.relative_to(root).as_posix())
    return DataCheck(root, tuple(missing), tuple(differing), tuple(checked))


def refuse_missing(result: Result, check: DataCheck) -> None:
    """One line for all files that are not there."""
    if not check.missing:
        return
    shown = ", ".join(check.missing[:_SHOWN])
    more = f" and {len(check.missing) - _SHOWN} more" if len(check.missing) > _SHOWN else ""
    folder = "its folder" if result.root == "." else f"the folder above {result.root}"
    raise UserError(
        f"{result.name}: {check.root} lacks {shown}{more}; get the text from {result.where}, and name {folder} with --data"
    )


def refuse_unmeasurable(result: Result, recipe: Recipe) -> None:
    """A score is of files: to find that they are not named, after hours of training, would be late."""
    has_test_set = recipe.task == DEFAULT_TASK or recipe.settings.has_labels
    if has_test_set and not (isinstance(recipe.data.test, str) and recipe.data.test):
        raise UserError(
            f"{result.name}: data.test must name the files that the score is of, but is {recipe.data.test!r}; leave it out of --set"
        )


def named_files(recipe: Recipe) -> list[str]:
    """The files of all corpora, relative to the root; a name may contain `*`."""
    data = recipe.data
    specs = [
        *(entry.path for entry in data.train),
        *(each for each in (data.valid, data.test) if isinstance(each, str)),
    ]
    return list(dict.fromkeys(name for spec in specs for name in expand_sides(spec)))


def expand_sides(spec: str) -> list[str]:
    """ "corpus.{en,de}.xz" names two files.

    >>> expand_sides("news/dev.{en,de}.xz")
    ['news/dev.en.xz', 'news/dev.de.xz']
    """
    head, brace, rest = spec.partition("{")
    if not brace:
        return [spec]
    sides, _, tail = rest.partition("}")
    return [f"{head}{side}{tail}" for side in sides.split(",")]


def _exists(root: Path, pattern: str) -> bool:
    return any(root.glob(pattern)) if "*" in pattern else (root / pattern).is_file()


def text_hash(path: Path) -> str:
    """SHA-256 of the unpacked lines, so that it does not matter how they were compressed."""
    digest = hashlib.sha256()
    for line in read_lines(path):
        digest.update(f"{line}\n".encode())
    return digest.hexdigest()
