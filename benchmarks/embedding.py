"""Vectors of sentences: speed beside sentence-transformers on the same weights, and how far the vectors are apart.

    python -m benchmarks.embedding FOLDER --pairs stsb-en.test.tsv.xz [--device cuda --repeat 40]

FOLDER is a model of sentence-transformers, such as all-MiniLM-L6-v2; the pairs are lines of a score and two sentences, TSV. The
contenders take turns in one process: sentence-transformers itself where it is installed, else its loop (sorted by length, padded
batches, mean pooling) in transformers; then Regard in fp32 and, on a CPU, from an int8 bundle. Each gets the texts as strings and
returns vectors. `1 - cosine` is the mean distance from the reference's vectors, Spearman the rank correlation of cosines with the
scores, times 100. The benchmark fails if an aim is missed: on a CPU 1.3 times the reference in fp32 within 1e-5, and 3 times in
int8 within 5e-3 and 0.3 of Spearman; on a GPU 5 times.
"""

from __future__ import annotations

import argparse
import lzma
import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from benchmarks.common import machine, report, time_rounds
from regard.bundle import Bundle
from regard.device import pick_device
from regard.export import export
from regard.generate.engines.select import make_encoder
from regard.importing.original import quiet_transformers
from regard.importing.transformers import import_model
from regard.understanding.embedder import Embedder

Array = np.ndarray[Any, np.dtype[Any]]
Embed = Callable[[Sequence[str]], Array]
REFERENCE_BATCH = {"cpu": 32, "cuda": 1_024}  # of sentence-transformers: its default, and a large one
# By contender: the speed beside the reference, the mean 1 - cosine, and the points of Spearman that may be missing.
AIMS = {"regard fp32": (1.3, 1e-5, 0.1), "regard int8": (3.0, 5e-3, 0.3), "regard fp16": (5.0, 1e-4, 0.1)}


def read_pairs(path: Path) -> tuple[list[float], list[str], list[str]]:
    """Scores, and the two sentences of each pair."""
    content = lzma.decompress(path.read_bytes()) if path.suffix == ".xz" else path.read_bytes()
    rows = [line.split("\t")[:3] for line in content.decode().split("\n") if line.strip()]
    return [float(row[0]) for row in rows], [row[1] for row in rows], [row[2] for row in rows]


def ranks(values: Sequence[float] | Array) -> Array:
    """Ranks from 0; equal values share the mean of theirs.

    >>> ranks([0.5, 0.1, 0.5]).tolist()
    [1.5, 0.0, 1.5]
    """
    _, inverse, counts = np.unique(np.asarray(values), return_inverse=True, return_counts=True)
    firsts = np.cumsum(counts) - counts
    found: Array = (firsts + (counts - 1) / 2)[inverse]
    return found


def spearman(one: Sequence[float] | Array, other: Sequence[float] | Array) -> float:
    """Spearman's rank correlation, times 100.

    >>> round(spearman([1, 2, 3], [10, 20, 25]), 6)
    100.0
    """
    return float(100 * np.corrcoef(ranks(one), ranks(other))[0, 1])


def cosines(one: Array, other: Array) -> Array:
    lengths = np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1)
    found: Array = (one * other).sum(1) / np.maximum(lengths, 1e-12)
    return found


def sentence_transformers(folder: Path, device: torch.device, half: bool = False) -> tuple[str, Embed] | None:
    """The package itself, if it is installed."""
    try:
        package = import_module("sentence_transformers")
    except ModuleNotFoundError:
        return None
    model = package.SentenceTransformer(str(folder), device=str(device))
    if half:
        model.half()
    batch = REFERENCE_BATCH.get(device.type, 32)
    name = f"sentence-transformers{' fp16' if half else ''}"
    return name, lambda texts: np.asarray(
        model.encode(list(texts), batch_size=batch, show_progress_bar=False), np.float32
    )


def loop_in_transformers(folder: Path, device: torch.device) -> tuple[str, Embed]:
    """What sentence-transformers does with mean pooling, written out."""
    with quiet_transformers() as transformers:
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        model = transformers.AutoModel.from_pretrained(folder).eval().to(device)
    batch = REFERENCE_BATCH.get(device.type, 32)

    @torch.inference_mode()
    def embed(texts: Sequence[str]) -> Array:
        order = sorted(range(len(texts)), key=lambda number: -len(texts[number]))
        found: Array = np.empty((len(texts), model.config.hidden_size), np.float32)
        for first in range(0, len(order), batch):
            numbers = order[first : first + batch]
            given = tokenizer(
                [texts[number] for number in numbers],
                padding=True,
                truncation=True,
                max_length=256,
                return_tensors="pt",
            ).to(device)
            hidden, mask = model(**given).last_hidden_state, given["attention_mask"][..., None]
            means = (hidden * mask).sum(1) / mask.sum(1)
            found[numbers] = torch.nn.functional.normalize(means, dim=-1).cpu().numpy()
        return found

    return "loop in transformers", embed


def regard(bundle: Bundle, device: torch.device) -> Embed:
    engine = make_encoder(bundle, "auto", device.type)
    return Embedder(bundle, engine).embed


def contenders(folder: Path, scratch: Path, device: torch.device) -> dict[str, Embed]:
    """By name, the reference first."""
    reference = sentence_transformers(folder, device) or loop_in_transformers(folder, device)
    found = dict([reference])
    if device.type == "cuda" and (half := sentence_transformers(folder, device, half=True)):
        found |= dict([half])
    bundle = import_model(folder, scratch / "fp32", compare=False).bundle
    if device.type == "cuda":
        return {**found, "regard fp16": regard(bundle, device)}
    export(bundle, "bundle", scratch / "int8", "int8")
    from regard.bundle import load_bundle

    return {
        **found,
        "regard fp32": regard(bundle, device),
        "regard int8": regard(load_bundle(scratch / "int8"), device),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--pairs", type=Path, required=True)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--repeat", type=int, default=1, help="times that the sentences are embedded in a round")
    parser.add_argument(
        "--timed", type=int, help="sentences of a round (default: all); they are taken from the whole evenly"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    device = pick_device(arguments.device)
    scores, first, second = read_pairs(arguments.pairs)
    texts = first + second
    with TemporaryDirectory() as scratch:
        embeds = contenders(arguments.folder, Path(scratch), device)
        vectors = {name: embed(texts) for name, embed in embeds.items()}
        step = max(1, len(texts) // arguments.timed) if arguments.timed else 1
        many = texts[::step] * arguments.repeat
        seconds = time_rounds({name: partial(embed, many) for name, embed in embeds.items()}, arguments.rounds, device)
    reference = next(iter(embeds))
    rows, missed = [], []
    for name, found in vectors.items():
        own = spearman(cosines(found[: len(first)], found[len(first) :]), scores)
        distances = 1 - cosines(found.astype(np.float64), vectors[reference].astype(np.float64))
        row = {
            "contender": name,
            "sentences/s": round(len(many) / seconds[name]),
            "times": seconds[reference] / seconds[name],
            "mean 1 - cosine": f"{max(0.0, distances.mean()):.1e}",
            "largest difference": f"{np.abs(found - vectors[reference]).max():.1e}",
            "Spearman": own,
        }
        rows.append(row)
        if name in AIMS:
            base = spearman(cosines(vectors[reference][: len(first)], vectors[reference][len(first) :]), scores)
            speed, distance, points = AIMS[name]
            missed += [f"{name}: {row['times']:.2f} times, aim {speed}"] * (seconds[reference] / seconds[name] < speed)
            missed += [f"{name}: 1 - cosine {distances.mean():.1e}, aim {distance}"] * bool(distances.mean() > distance)
            missed += [f"{name}: Spearman {own:.2f}, reference {base:.2f}"] * (base - own > points)
    packages = ("sentence-transformers", "transformers", "ctranslate2", "tokenizers", "numpy")
    facts = {**machine(device, packages), "sentences": len(many), "threads": torch.get_num_threads()}
    report("embedding", rows, facts, arguments.out)
    if missed:
        sys.exit("missed: " + "; ".join(missed))


if __name__ == "__main__":
    main()
