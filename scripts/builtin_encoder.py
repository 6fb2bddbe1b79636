"""Makes the built-in encoder: MiniLM as an int8 bundle, with its source and licence in the card.

    python -m scripts.builtin_encoder FOLDER [--pairs stsb-en.test.tsv.xz] [--out regard/builtin/minilm]

FOLDER is all-MiniLM-L6-v2 as sentence-transformers publishes it; its weights are checked by their SHA-256. With pairs (a score and
two sentences on each line), Spearman's correlation goes into the card.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.embedding import cosines, read_pairs, spearman
from regard.api import load
from regard.builtin import BUILTIN, DEFAULTS
from regard.bundle import add_facts
from regard.errors import UserError
from regard.export import export
from regard.files import check_new_folder, sha256
from regard.importing.transformers import import_model

WEIGHTS = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
FACTS: dict[str, Any] = {
    "imported": "sentence-transformers/all-MiniLM-L6-v2, a BERT model of Hugging Face's transformers",
    "licence": "Apache 2.0",
    "sources": [
        "all-MiniLM-L6-v2 (https://huggingface.co/sentence-transformers/all-MiniLM-L6-v2): Apache 2.0; fine-tuned by its makers "
        "on 1.17 billion pairs of sentences (Reddit, S2ORC, WikiAnswers, Stack Exchange, MS MARCO and others)",
        "it started from nreimers/MiniLM-L6-H384-uncased, a distilled BERT",
    ],
    "limits": [
        "English: texts in other languages lie together by their words, hardly by their meaning.",
        "It was trained on texts of up to 128 tokens and reads 256 at a time; longer texts are cut into windows and joined.",
        "Case and accents do not count.",
    ],
}


def make(folder: Path, out: Path, pairs: Path | None) -> None:
    """Write the bundle."""
    if (found := sha256(folder / "model.safetensors")) != WEIGHTS:
        raise UserError(f"{folder / 'model.safetensors'}: must have the SHA-256 {WEIGHTS}, but has {found}")
    check_new_folder(out)
    with TemporaryDirectory() as scratch:
        bundle = import_model(folder, Path(scratch) / "minilm").bundle
        export(bundle, "bundle", out, "int8")
    facts = dict(FACTS)
    if pairs is not None:
        facts["scores"] = {"STS-B-test": _score(out, pairs)}
    add_facts(out, facts)
    size = sum(file.stat().st_size for file in out.rglob("*") if file.is_file())
    print(f"{out}: {size / 1e6:.1f} MB")


def _score(model: Path, pairs: Path) -> dict[str, Any]:
    """Spearman's correlation, as the cards of models have scores."""
    scores, first, second = read_pairs(pairs)
    vectors = load(model, engine="auto", device="cpu").embed([*first, *second])
    value = spearman(cosines(vectors[: len(first)], vectors[len(first) :]), scores)
    metric = {
        "name": "Spearman",
        "score": value,
        "signature": "cosine of vectors, ties share their mean rank, times 100",
    }
    return {"sentences": len(scores), "metrics": {"spearman": metric}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--pairs", type=Path)
    parser.add_argument("--out", type=Path, default=BUILTIN / DEFAULTS["embed"])
    arguments = parser.parse_args()
    make(arguments.folder, arguments.out, arguments.pairs)


if __name__ == "__main__":
    main()
