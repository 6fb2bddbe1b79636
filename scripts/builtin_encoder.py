"""Makes the built-in encoder: MiniLM learns German (recipes/builtin/encoder.toml), and is stored in int8.

    python -m scripts.builtin_encoder MINILM DATA OUT --pairs stsb-en.test.tsv.xz [--bundle FOLDER]

MINILM is all-MiniLM-L6-v2 as sentence-transformers publishes it; its weights are checked by their SHA-256. DATA holds the text
(docs/builtin-model.md). The pairs are a score and two sentences on each line. OUT/minilm is the imported model, OUT/run the
training run, which goes on where it was interrupted, and OUT/int8 what becomes the bundle. The card has the retrieval accuracy on
Tatoeba's test set and Spearman's correlation on the pairs.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.embedding import cosines, read_pairs, spearman
from regard.api import load
from regard.builtin import BUILTIN, DEFAULTS
from regard.bundle import Bundle, add_facts, load_bundle
from regard.cli import main as run_regard
from regard.data.corpus import read_lines
from regard.errors import UserError
from regard.export import export
from regard.files import check_new_folder, sha256
from regard.importing.transformers import import_model
from regard.tasks.retrieval import RetrievalSet
from regard.understanding.answers import FloatArray
from scripts.builtin_card import texts_of

RECIPE = Path(__file__).resolve().parents[1] / "recipes" / "builtin" / "encoder.toml"
WEIGHTS = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
LANGUAGES = ("en", "de")
MINILM = [
    "all-MiniLM-L6-v2 (https://huggingface.co/sentence-transformers/all-MiniLM-L6-v2), the model that it started from: Apache 2.0; "
    "fine-tuned by its makers on 1.17 billion pairs of sentences (Reddit, S2ORC, WikiAnswers, Stack Exchange, MS MARCO and others)",
    "nreimers/MiniLM-L6-H384-uncased, a distilled BERT, which that started from",
]
LIMITS = [
    "English and German: texts in other languages lie together by their words, hardly by their meaning.",
    "It learnt German from translations of single sentences, most of them everyday ones, and from the words of a dictionary. The "
    "vocabulary is that of MiniLM, so German words fall into many pieces.",
    "MiniLM was trained on texts of up to 128 tokens. The model reads 256 at a time; longer texts are cut into windows and joined.",
    "Case and accents do not count: schon and schön are the same word to it.",
]


def make(minilm: Path, data: Path, out: Path, bundle: Path, pairs: Path) -> None:
    """Write the bundle."""
    if (found := sha256(minilm / "model.safetensors")) != WEIGHTS:
        raise UserError(f"{minilm / 'model.safetensors'}: must have the SHA-256 {WEIGHTS}, but has {found}")
    check_new_folder(bundle)
    similar = read_pairs(pairs)
    sides = (list(read_lines(data / "tatoeba" / f"test.{code}.xz")) for code in LANGUAGES)
    translations = RetrievalSet(list(zip(*sides, strict=True)), LANGUAGES)

    start = start_of(minilm, out)
    model = store(train(start, data, out / "run"), start, out / "int8")
    embed = load(model.folder, engine="auto", device="cpu").embed
    scores = {"STS-B-test": similarity(embed, *similar), "tatoeba-test": retrieval(embed, translations)}
    sources = [*MINILM, *texts_of(model.facts["corpora"])]
    started = f"sentence-transformers/all-MiniLM-L6-v2 (model.safetensors, SHA-256 {WEIGHTS})"
    add_facts(model.folder, {"init": started, "sources": sources, "limits": LIMITS, "scores": scores})
    shutil.move(model.folder, bundle)
    size = sum(file.stat().st_size for file in bundle.rglob("*") if file.is_file())
    print(f"{bundle}: {size / 1e6:.1f} MB")


def start_of(minilm: Path, out: Path) -> Bundle:
    """The imported model, from an earlier call if there was one."""
    folder = out / "minilm"
    if not folder.exists():
        return import_model(minilm, folder).bundle
    if WEIGHTS not in (known := load_bundle(folder)).facts["imported_weights"]:
        raise UserError(f"{folder}: must be imported from {minilm}, but is another model; remove it")
    return known


def train(start: Bundle, data: Path, run: Path) -> Bundle:
    """The trained model."""
    sets = ("--set", f"data.root={data.resolve()}", "--set", f"train.init={start.folder.resolve()}")
    if code := run_regard(["train", str(RECIPE), "--out", str(run), "--resume", *sets]):
        sys.exit(code)
    return load_bundle(run / "model")


def store(model: Bundle, start: Bundle, out: Path) -> Bundle:
    """The model in int8. It was trained without dropout; who trains it further finds that of MiniLM."""
    if out.exists():  # an earlier call did not come to its end
        shutil.rmtree(out)
    dropouts = {name: getattr(start.config, name) for name in ("dropout", "attention_dropout")}
    export(replace(model, config=replace(model.config, **dropouts)), "bundle", out, "int8")
    return load_bundle(out)


def similarity(
    embed: Callable[[list[str]], FloatArray], scores: Sequence[float], first: list[str], second: list[str]
) -> dict[str, Any]:
    """Spearman's correlation, as the cards of models have scores."""
    vectors = embed([*first, *second])
    metric = {
        "name": "Spearman",
        "score": spearman(cosines(vectors[: len(first)], vectors[len(first) :]), scores),
        "signature": "rank correlation of cosines with the ratings, times 100",
    }
    return {"sentences": len(scores), "metrics": {"spearman": metric}}


def retrieval(embed: Callable[[list[str]], FloatArray], translations: RetrievalSet) -> dict[str, Any]:
    """How often a translation is nearest, likewise."""
    found: dict[str, Any] = translations.measured(embed).to_json()
    return {key: found[key] for key in ("sentences", "metrics")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("minilm", type=Path, metavar="MINILM")
    parser.add_argument("data", type=Path, metavar="DATA")
    parser.add_argument("out", type=Path, metavar="OUT")
    parser.add_argument("--pairs", type=Path, required=True)
    parser.add_argument("--bundle", type=Path, default=BUILTIN / DEFAULTS["embed"])
    arguments = parser.parse_args()
    make(arguments.minilm, arguments.data, arguments.out, arguments.bundle, arguments.pairs)


if __name__ == "__main__":
    main()
