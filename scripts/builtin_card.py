"""Puts scores, checks, sources and limits into the card of a built-in model; scripts/builtin.py calls it.

    python -m scripts.builtin_card BUNDLE SCORES --teacher RUN --init MODEL

SCORES is a folder with int8-*.json, as `regard evaluate --json` writes them, and checks-int8.json, as `python -m benchmarks.checks
--json` does. What the teacher, and the model that the student started from, were trained on belongs to the sources.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from regard.bundle import add_facts, find_bundle, load_bundle
from regard.files import read_json

SOURCES = {  # by the folders of docs/builtin-model.md
    "europarl": "European Parliament 1999 to 2012 (Europarl, statmt.org/europarl): no known restriction",
    "tatoeba": "Tatoeba (tatoeba.org): CC BY 2.0 FR",
    "software": "interface texts, help and package descriptions of free software (catalogues, LibreOffice, Debian packages, "
    "Godot): free software licences, MPL-2.0, free, CC BY 3.0",
    "bible": "World English Bible and Luther 1912: public domain",
    "dict-de": "the dictionary Ding of the TU Chemnitz (words and example sentences): GPL-2+; names of map features of "
    "OpenStreetMap (id-tagging-schema): ISC",
    "docs-de": "manuals and pages of free software: Debian handbook (GPL-2+ or CC BY-SA 3.0), Debian's web pages (MIT or "
    "GPL-2+; older ones not settled), GIMP help (GFDL 1.2), GNOME help (CC BY 3.0), manual pages (GPL-3 and other free "
    "licences), QGIS (GFDL)",
    "games-de": "texts of free games: Cataclysm DDA (CC BY-SA 3.0), Freeciv (GPL-2+), OpenTTD (GPL-2), Shattered Pixel Dungeon "
    "(GPL-3), Unciv (MPL-2.0), Battle for Wesnoth (GPL-2+)",
    "wiki-de": "XQuAD, paragraphs of Wikipedia (google-deepmind/xquad): CC BY-SA 4.0",
    "software-de": "more interface texts and package descriptions of free software: free software licences",
    "names-de": "lists of names: Unicode CLDR (Unicode-3.0), world-countries (ODbL), iso-codes (LGPL-2.1+), libgweather and "
    "KGeography (GPL-2+, LGPL-2+), Faker (MIT)",
    "europarl-fr": "European Parliament 1999 to 2012, the French side (Europarl, statmt.org/europarl): no known restriction",
    "tatoeba-fr": "Tatoeba, English and French (tatoeba.org, by way of manythings.org): CC BY 2.0 FR",
    "software-fr": "interface texts and package descriptions of free software, English and French: free software licences",
    "bible-fr": "Berean Standard Bible, and French New Testaments (Synodale 1921, Stapfer 1889, Oltramare 1874): public domain",
    "dict-fr": "the dictionaries FreeDict English-French and French-English: GPL-2+; names of map features of OpenStreetMap "
    "(id-tagging-schema): ISC",
    "docs-fr": "manuals and pages of free software: Debian handbook (GPL-2+ or CC BY-SA 3.0), Debian's web pages (MIT or GPL-2+; "
    "older ones not settled), GIMP help (GFDL 1.2), GNOME help (CC BY 3.0), manual pages (GPL-3 and other free licences), Python "
    "(translation CC0, original PSF licence), QGIS (GFDL)",
    "games-fr": "texts of free games in English and French: Cataclysm DDA (CC BY-SA 3.0), Freeciv (GPL-2+), OpenTTD (GPL-2), "
    "Shattered Pixel Dungeon (GPL-3), Unciv (MPL-2.0), Battle for Wesnoth (GPL-2+)",
    "names-fr": "lists of names in French: Unicode CLDR (Unicode-3.0), world-countries (ODbL), iso-codes (LGPL-2.1+), libgweather "
    "and KGeography (GPL-2+, LGPL-2+)",
    "mono": "Common Voice sentences, translated by other models: CC0",
}
# What the parts of scripts/builtin_text are made from.
MADE_FROM = {
    "dictionary": ("dict-de",),
    "documents": ("docs-de",),
    "games": ("games-de", "wiki-de", "software-de", "dict-de"),
    "people": ("tatoeba", "dict-de", "europarl", "names-de"),
    "lists_of_names": ("names-de",),
    "numbers": ("tatoeba", "dict-de", "europarl"),
    "lists": ("dict-de", "tatoeba", "names-de"),
    "capitals": ("tatoeba", "dict-de", "software", "docs-de", "europarl"),
    "typed": ("tatoeba", "dict-de", "europarl", "wiki-de", "games-de"),
    "quoted": ("tatoeba", "dict-de"),
    "joined": ("dict-de", "games-de", "docs-de", "tatoeba"),
    "back": ("mono",),
}
MADE_FROM_FRENCH = {
    "dictionary": ("dict-fr",),
    "documents": ("docs-fr",),
    "games": ("games-fr", "dict-fr"),
    "people": ("tatoeba-fr", "europarl", "europarl-fr", "names-de", "names-fr"),
    "lists_of_names": ("names-fr",),
    "numbers": ("tatoeba-fr", "europarl", "europarl-fr"),
    "lists": ("dict-fr", "tatoeba-fr", "names-de"),
    "capitals": ("tatoeba-fr", "dict-fr", "software-fr", "docs-fr", "europarl", "europarl-fr"),
    "typed": ("tatoeba-fr", "europarl", "europarl-fr", "games-fr"),
    "quoted": ("tatoeba-fr",),
    "joined": ("games-fr", "docs-fr", "tatoeba-fr"),
    "parliament": ("europarl", "europarl-fr"),
}
MADE = (
    "their target sides translated by a larger model that was trained on the same text, and pairs with noise "
    "(docs/builtin-model.md)"
)
LIMITS = [
    "Small: it knows everyday, parliamentary and software text best. News and talks are harder, and poetry, slang and "
    "special fields are not what it was trained on.",
    "It translates sentence by sentence and does not see the surrounding sentences.",
    "It can be wrong with full confidence, also about names and numbers. Idioms, typing errors and rare words are weak, as the "
    "checks show. It repeats what its sources say about people, and as they say it.",
]


def sources_of(corpora: Sequence[str]) -> list[str]:
    """Where these corpora come from: "europarl/train-00.{en,de}", "distilled/europarl-train-00.{en,de}", "made/people.{en,de}"; of
    a model for both directions "en-fr/made/people.{en,fr}".
    """
    return [*texts_of(corpora), MADE]


def texts_of(corpora: Sequence[str]) -> list[str]:
    """The text that these corpora come from."""
    folders = {folder for corpus in corpora for folder in _folders_of(corpus)}
    known = [source for folder, source in SOURCES.items() if folder in folders]
    return [*known, *(f"{folder}: unknown origin and licence" for folder in sorted(folders - set(SOURCES)))]


def _folders_of(corpus: str) -> Sequence[str]:
    name = re.sub("^(?:[a-z]{2}-[a-z]{2}/)?(?:(?:distilled|noised)/)?", "", corpus)
    if made := re.match(r"made[/-]([a-z_]+)", name):
        part = made[1].rstrip("_")
        table = MADE_FROM_FRENCH if re.search(r"[{,]fr[},]", corpus) else MADE_FROM
        return table.get(part, (f"made/{part}",))
    known = [folder for folder in SOURCES if re.match(f"{folder}[/-]", name)]
    return [max(known, key=len)] if known else [re.split("[/-]", name)[0]]


def join_pieces(corpora: Sequence[str]) -> list[str]:
    """The pieces that the teacher translated one by one as one corpus.

    >>> join_pieces(["noised/bible-train-00.{en,de}", "noised/bible-train-01.{en,de}", "europarl/train-01.{en,de}.xz"])
    ['noised/bible-train-*.{en,de}', 'europarl/train-01.{en,de}.xz']
    """
    piece = re.compile(r"^((?:[a-z]{2}-[a-z]{2}/)?(?:distilled|noised)/.*-)\d+(\.[^/]*)$")
    return list(dict.fromkeys(piece.sub(r"\1*\2", name) for name in corpora))


def read_facts(model: str | Path) -> dict[str, Any]:
    return dict(read_json(find_bundle(model) / "config.json")["facts"])


def read_scores(folder: Path) -> dict[str, Any]:
    """The facts `scores` and, where there are any, `checks`."""
    scores = {path.stem.removeprefix("int8-"): read_json(path) for path in sorted(folder.glob("int8-*.json"))}
    if not scores:
        sys.exit(f"{folder}: holds no int8-*.json")
    checks: dict[str, dict[str, int]] = {}
    for path in sorted(folder.glob("checks-int8*.json")):  # one for each direction
        for row in read_json(path)["table"]:
            kind = checks.setdefault(row["kind"], {"passed": 0, "lines": 0})
            for name in kind:
                kind[name] += row[name]
    checks = {kind: checks[kind] for kind in sorted(checks, key=lambda kind: kind == "all")}
    return {"scores": scores, "checks": checks} if checks else {"scores": scores}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path, metavar="BUNDLE")
    parser.add_argument("scores", type=Path, metavar="SCORES")
    parser.add_argument("--teacher", default="", metavar="MODEL", help="whose translations it learnt from")
    parser.add_argument("--init", default="", metavar="MODEL", help="what it started from")
    arguments = parser.parse_args()
    corpora = join_pieces(load_bundle(arguments.bundle).facts["corpora"])
    facts = {**read_scores(arguments.scores), "corpora": corpora, "limits": LIMITS}
    learnt_from = [read_facts(model) for model in (arguments.teacher, arguments.init) if model]
    facts["sources"] = sources_of([*corpora, *(name for other in learnt_from for name in other["corpora"])])
    if arguments.init:
        facts["init"] = f"{find_bundle(arguments.init).name} of {read_facts(arguments.init)['date']}"
    add_facts(arguments.bundle, facts)


if __name__ == "__main__":
    main()
