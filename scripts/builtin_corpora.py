"""Which corpora the stages of scripts/builtin.py read, by the language beside English, and the recipe of a model for both
directions."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regard.toml import dump_toml
from scripts.builtin_text.languages import FRENCH, beside_english

RECIPES = Path(__file__).resolve().parents[1] / "recipes" / "builtin"
MONOLINGUAL = "mono/common-voice"
BACK_WEIGHT = 0.5  # of monolingual text that the teacher translated in the other direction, with the sides exchanged


@dataclass(frozen=True)
class Corpora:
    """The corpora of a language beside English, by the folders of docs/builtin-model.md."""

    # What the student learns from in the teacher's words, the most useful first, in case there is no time for all of it. A small
    # model learns little from still more of one kind of text: four parts of Europarl are enough for it, and the noise of one.
    distilled: Sequence[str]
    no_noise: Sequence[str]
    test_sets: Sequence[str]
    # What the stages read of DATA, for the list of hashes.
    text_reads: Sequence[str]
    teacher_reads: Sequence[str]
    ending: str = ""  # of the recipes' names


CORPORA = {
    "de": Corpora(
        distilled=(
            "tatoeba/train", MONOLINGUAL, "dict-de/ding-examples", "europarl/train-00", "made/games", "made/documents",
            "software/libreoffice", "software/debian-packages", "software/godot", "bible/train", "software/catalogues",
            "europarl/train-01", "europarl/train-02", "europarl/train-03",
        ),
        no_noise=("europarl/train-01", "europarl/train-02", "europarl/train-03"),
        test_sets=(
            "news/newstest2013", "news/newstest2014", "talks/tst2013", "talks/tst2014", "tatoeba/test", "europarl/test",
            "multi30k/test_2016_flickr",
        ),
        text_reads=(
            "tatoeba/train", "dict-de/*", "docs-de/*", "games-de/*", "wiki-de/*", "software-de/*", "software/libreoffice",
            "names-de/*", "europarl/train-0*", MONOLINGUAL,
        ),
        teacher_reads=(
            "europarl/train-0*", "tatoeba/train", "software/*", "bible/train", "dict-de/ding-examples", "news/newstest2013",
        ),
    ),
    "fr": Corpora(
        distilled=(
            "tatoeba-fr/train", MONOLINGUAL, "made/parliament_0", "made/games", "made/documents", "software-fr/debian-packages",
            "bible-fr/bsb", "software-fr/catalogues", "made/parliament_1",
        ),
        no_noise=("made/parliament_1",),
        test_sets=(
            "news-fr/newstest2013", "news-fr/newstest2014", "tatoeba-fr/test", "europarl-fr/test",
            "multi30k-fr/test_2016_flickr",
        ),
        text_reads=(
            *FRENCH.read, "names-de/persons-copy", "europarl/train-00", "europarl/train-01", "europarl-fr/train-0*",
            MONOLINGUAL,
        ),
        teacher_reads=("tatoeba-fr/train", "software-fr/*", "bible-fr/bsb", "news-fr/newstest2013"),
        ending="-fr",
    ),
}  # fmt: skip


def corpora_of(source: str, target: str) -> Corpora:
    return CORPORA[beside_english(source, target).code]


def recipe_of(name: str, source: str, target: str) -> Path:
    """The recipe of the "teacher" or "student" of a direction."""
    return RECIPES / f"{name}{corpora_of(source, target).ending}.toml"


def joint_recipe(recipe: Path, directions: Sequence[tuple[str, str]], turns: bool) -> str:
    """The recipe of one model for these directions: each corpus once for each, from a folder of its own (en-fr/...). `turns`: each
    direction also learns from what the other one made of monolingual text, with the sides exchanged."""
    values: dict[str, Any] = tomllib.loads(recipe.read_text(encoding="utf-8"))
    data = values["data"]

    def of(path: str, folder: tuple[str, str], pair: tuple[str, str], weight: float) -> dict[str, Any]:
        entry = {"path": f"{'-'.join(folder)}/{path}", "source": pair[0], "target": pair[1]}
        return entry if weight == 1.0 else {**entry, "weight": weight}

    train = []
    for pair in directions:
        for one in data["train"]:
            path, weight = (one, 1.0) if isinstance(one, str) else (one["path"], one.get("weight", 1.0))
            train.append(of(path, pair, pair, weight))
        for other in directions if turns else ():
            if other == pair[::-1]:
                path = f"distilled/{MONOLINGUAL.replace('/', '-')}-*.{{source,target}}"
                train.append(of(path, other, pair, BACK_WEIGHT))
    valid = [of(data["valid"], pair, pair, 1.0) for pair in directions]
    source, target = directions[0]
    values["data"] = {**data, "source": source, "target": target, "train": train, "valid": valid}
    return dump_toml(values)
