"""Whether language detection is as sure as it is right: interface texts of installed programs, whose language their folder names.

python -m benchmarks.detection

It reads /usr/share/locale (GNU gettext's compiled catalogues) and prints, for classes of confidence, how many texts were in the
language that was detected, with Regard's confidence and with the classifier's own. The constants in
regard/translation/detection.py were fitted on half of such texts; this uses all of them.
"""

from __future__ import annotations

import argparse
import gettext
import random
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import torch

from benchmarks.common import machine, report
from regard.translation.detection import detect
from regard.translation.languages import classify, rank_languages

CLASSES = (0, 20, 40, 60, 80, 90, 99, 100.1)


def texts_of(folder: Path, code: str) -> list[str]:
    """Plain texts of a language: translated, mostly letters, without placeholders."""
    found = set()
    for file in sorted((folder / code / "LC_MESSAGES").glob("*.mo")):
        try:
            with file.open("rb") as opened:
                catalogue: dict[object, object] = vars(gettext.GNUTranslations(opened))["_catalog"]
        except (OSError, UnicodeDecodeError, IndexError):  # some catalogues are malformed
            continue
        for key, text in catalogue.items():
            if isinstance(text, str) and text != key and key and not set(text) & set("%<>{}"):
                plain = text.replace("_", "").replace("&", "")
                if sum(map(str.isalpha, plain)) > 0.75 * len(plain):
                    found.add(plain)
    return sorted(found)


def sample(folder: Path, each: int) -> Iterator[tuple[str, str]]:
    draw = random.Random(1)
    for code in sorted(code for code, _ in rank_languages("")):
        texts = texts_of(folder, code)
        if len(texts) >= 2 * each:
            yield from ((code, text) for text in draw.sample(texts, each))


def own(text: str) -> tuple[str, float]:
    code, probability = classify(text)
    return code, 100 * probability


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("/usr/share/locale"))
    parser.add_argument("--each", type=int, default=60, help="texts of each language")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    texts = list(sample(arguments.folder, arguments.each))
    if not texts:
        print(f"{arguments.folder}: has no catalogues of translated texts; nothing to measure")
        return
    ways: dict[str, Callable[[str], tuple[str, float] | None]] = {"regard": detect, "classifier": own}
    rows = []
    for name, way in ways.items():
        found = [(answer, code) for code, text in texts if (answer := way(text))]
        for low, high in pairwise(CLASSES):
            some = [(answer, code) for answer, code in found if low <= answer[1] < high]
            if some:
                rows.append(
                    {
                        "confidence of": name,
                        "from": f"{low}",
                        "texts": len(some),
                        "mean confidence": sum(answer[1] for answer, _ in some) / len(some),
                        "right": 100 * sum(answer[0] == code for answer, code in some) / len(some),
                    }
                )
    facts = machine(torch.device("cpu"), ("py3langid",)) | {"languages": str(len({code for code, _ in texts}))}
    report("detection", rows, facts, arguments.out)


if __name__ == "__main__":
    main()
