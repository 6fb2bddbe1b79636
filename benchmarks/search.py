"""Search over an index: the time of a query after loading, and that the answers are exact.

    python -m benchmarks.search MODEL [--documents 10000]

The documents are made of the words of the repository's own documentation, drawn at random, three paragraphs each; they are embedded
once (that takes the longest). Then queries run one at a time: the model embeds the query, and numpy compares it with every passage.
The benchmark fails if the median of a query is 100 ms or more, or if an answer is not what a plain sort of all cosines gives.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch

import regard as library
from benchmarks.common import machine, report
from regard.progress import progress
from regard.understanding.indexing import update_index

MOST_MS = 100.0
_WORDS, _PARAGRAPHS = (20, 60), 3
_QUERY_WORDS = (3, 12)


def write_documents(folder: Path, count: int, words: list[str], draw: random.Random) -> None:
    for number in range(count):
        paragraphs = (" ".join(draw.choices(words, k=draw.randint(*_WORDS))) for _ in range(_PARAGRAPHS))
        (folder / f"{number:06}.txt").write_text("\n\n".join(paragraphs) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--documents", type=int, default=10_000)
    parser.add_argument("--queries", type=int, default=200)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    draw = random.Random(1)
    words = [
        word for path in sorted(Path("docs").glob("*.md")) for word in path.read_text("utf-8").split() if word.isalpha()
    ]
    with TemporaryDirectory() as scratch:
        folder = Path(scratch) / "docs"
        folder.mkdir()
        write_documents(folder, arguments.documents, words, draw)
        model = library.load(arguments.model, task="embed")
        begun = time.perf_counter()
        with progress("embedding", arguments.documents, "documents") as done:
            update_index(folder, Path(scratch) / "index", model.embedder, on_progress=done)
        made = time.perf_counter() - begun
        begun = time.perf_counter()
        update_index(folder, Path(scratch) / "index", model.embedder)
        again = time.perf_counter() - begun
        begun = time.perf_counter()
        index = library.load_index(Path(scratch) / "index", arguments.model)
        loaded = time.perf_counter() - begun
        queries = [" ".join(draw.choices(words, k=draw.randint(*_QUERY_WORDS))) for _ in range(arguments.queries)]
        index.search(queries[0])
        times = []
        for query in queries:
            begun = time.perf_counter()
            hits = index.search(query, 10)
            times.append(1000 * (time.perf_counter() - begun))
            scores = np.sort(np.asarray(index.vectors) @ model.embed(query))[::-1][:10]
            if not np.allclose([hit.score for hit in hits], scores, atol=1e-5):
                sys.exit(
                    f"a search does not find the nearest passages: {[hit.score for hit in hits]} and {scores.tolist()}"
                )
        row = {
            "documents": len(index.documents),
            "passages": len(index),
            "made s": made,
            "updated s, nothing changed": again,
            "loaded s": loaded,
            "query ms, median": statistics.median(times),
            "query ms, 99%": sorted(times)[int(0.99 * len(times))],
        }
    facts = {**machine(torch.device("cpu"), ("ctranslate2", "numpy")), "model": arguments.model}
    report("search", [row], facts, arguments.out)
    if row["query ms, median"] >= MOST_MS:
        sys.exit(f"missed: a query takes {row['query ms, median']:.1f} ms, aim {MOST_MS:g}")


if __name__ == "__main__":
    main()
