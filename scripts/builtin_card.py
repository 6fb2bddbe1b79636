"""Puts scores, sources and limits into the card of a built-in model; scripts/builtin.py calls it.

python -m scripts.builtin_card BUNDLE SCORES     SCORES: a folder with int8-*.json, as `regard evaluate --json` writes them
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from regard.bundle import add_facts, load_bundle

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
MADE = (
    "their target sides translated by a larger model that was trained on the same text, and pairs with noise "
    "(docs/builtin-model.md)"
)
LIMITS = [
    "Small: it knows everyday, parliamentary and software text best. News and talks are harder, and poetry, slang and "
    "special fields are not what it was trained on.",
    "It translates sentence by sentence and does not see the surrounding sentences.",
    "It can be wrong with full confidence, also about names, small numbers and times of day. It repeats what its sources say about "
    "people, and as they say it.",
]


def sources_of(corpora: Sequence[str]) -> list[str]:
    """Where these corpora come from: "europarl/train-00.{en,de}", "distilled/europarl-train-00.{en,de}", "made/people.{en,de}"."""
    folders = {folder for corpus in corpora for folder in _folders_of(corpus)}
    known = [source for folder, source in SOURCES.items() if folder in folders]
    return [*known, *(f"{folder}: unknown origin and licence" for folder in sorted(folders - set(SOURCES))), MADE]


def _folders_of(corpus: str) -> Sequence[str]:
    name = re.sub("^(distilled|noised)/", "", corpus)
    if made := re.match(r"made[/-](\w+)", name):
        return MADE_FROM.get(made[1], (f"made/{made[1]}",))
    known = [folder for folder in SOURCES if re.match(f"{folder}[/-]", name)]
    return [max(known, key=len)] if known else [re.split("[/-]", name)[0]]


def main() -> None:
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    bundle, scores = Path(sys.argv[1]), Path(sys.argv[2])
    found = {
        path.stem.removeprefix("int8-"): json.loads(path.read_text(encoding="utf-8"))
        for path in sorted(scores.glob("int8-*.json"))
    }
    if not found:
        sys.exit(f"{scores}: holds no int8-*.json")
    sources = sources_of(load_bundle(bundle).facts["corpora"])
    add_facts(bundle, {"scores": found, "sources": sources, "limits": LIMITS})


if __name__ == "__main__":
    main()
