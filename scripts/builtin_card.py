"""Puts scores, sources and limits into the card of a built-in model; scripts/builtin.sh calls it.

python scripts/builtin_card.py BUNDLE SCORES     SCORES: a folder with int8-*.json, as `regard evaluate --json` writes them
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
}
MADE = (
    "their target sides translated by a larger model that was trained on the same text, and pairs with noise "
    "(docs/builtin-model.md)"
)
LIMITS = [
    "Small: it knows everyday, parliamentary and software text best. News and talks are harder, and poetry, slang and "
    "special fields are not what it was trained on.",
    "It translates sentence by sentence and knows nothing of the sentences around.",
    "It can be wrong with full confidence, also about names, small numbers and times of day. It repeats what its sources say about "
    "people, and as they say it.",
]


def sources_of(corpora: Sequence[str]) -> list[str]:
    """Where these corpora come from: "europarl/train-00.{en,de}", "distilled/europarl-train-00.{en,de}"."""
    folders = {re.split("[/-]", re.sub("^(distilled|noised)/", "", corpus))[0] for corpus in corpora}
    known = [source for folder, source in SOURCES.items() if folder in folders]
    return [*known, *(f"{folder}: unknown origin and licence" for folder in sorted(folders - set(SOURCES))), MADE]


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
