"""Checks that a sentence gets the same translation in any batch: one text, in batches of several sizes and shuffled.

    python -m benchmarks.batch_invariance -m MODEL                            1,000 lines of Tatoeba, torch on a CPU
    python -m benchmarks.batch_invariance -m MODEL --source news.en --engine torch,ctranslate2

Each engine translates the lines with the first batch size, in order; every other batch size and order must give the same
bytes. "shuffled" shuffles the lines before they are cut into batches of the last size. Scores are compared too, to the last
bit. A difference with torch on a CPU is a failure (exit code 1), because Regard promises none there. CTranslate2's are only
reported.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from benchmarks.common import machine, report
from regard.api import Model, load
from regard.data.corpus import read_lines
from regard.device import pick_device

SOURCE = Path(__file__).parents[1] / "data" / "tatoeba" / "test.en.xz"

Found = list[tuple[str, float]]  # the translation of each line and its score


def translate(model: Model, lines: Sequence[str], size: int, beam: int | None) -> Found:
    """Batches of exactly these lines in this order, one call each, so that no engine can rearrange them."""
    options = model.search_options(beam, None, None)
    found: Found = []
    for begin in range(0, len(lines), size):
        block = lines[begin : begin + size]
        found += [(result.text, result.translations[0].score) for result in model.stream(block, options, size)]
    return found


def setups(sizes: Sequence[int], seed: int) -> Iterator[tuple[str, int, int | None]]:
    """The name of each setup, its batch size, and a seed if the lines are shuffled."""
    for size in sizes:
        yield f"batch {size}", size, None
    yield f"batch {sizes[-1]}, shuffled", sizes[-1], seed


def compare(model: Model, engine: str, lines: Sequence[str], arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """A row for each setup."""
    rows: list[dict[str, Any]] = []
    expected: Found = []
    for name, size, seed in setups(arguments.batch, arguments.seed):
        order = list(range(len(lines)))
        if seed is not None:
            random.Random(seed).shuffle(order)
        begun = time.perf_counter()
        mixed = translate(model, [lines[number] for number in order], size, arguments.beam)
        seconds = time.perf_counter() - begun
        found: Found = [("", 0.0)] * len(lines)
        for number, one in zip(order, mixed, strict=True):
            found[number] = one
        expected = expected or found
        pairs = list(zip(found, expected, strict=True))
        rows.append(
            {
                "engine": engine,
                "way": name,
                "lines": len(lines),
                "other translations": sum(one[0].encode() != other[0].encode() for one, other in pairs),
                "other scores": sum(one[1] != other[1] for one, other in pairs),
                "seconds": seconds,
            }
        )
        print(f"{engine}, {name}: {rows[-1]['other translations']} differ", flush=True)
    return rows


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--model", required=True, help="a bundle, run folder or built-in model")
    parser.add_argument("--source", type=Path, default=SOURCE, help=f"the text (default: {SOURCE.name})")
    parser.add_argument("--lines", type=int, default=1_000, help="use the first N non-empty lines")
    parser.add_argument("--engine", default="torch", help="one or more, comma-separated (default: torch)")
    parser.add_argument(
        "--batch", default="1,7,64", help="batch sizes, comma-separated; the others must equal the first"
    )
    parser.add_argument("--beam", type=int, help="default: the model's")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seed", type=int, default=1, help="seed of the shuffled order")
    parser.add_argument("--out", type=Path, help="the JSON file (default: benchmarks/results/batch_invariance.json)")
    parsed = parser.parse_args(arguments)
    parsed.batch = [int(size) for size in parsed.batch.split(",")]
    return parsed


def main() -> None:
    arguments = parse()
    lines = list(islice(filter(None, map(str.strip, read_lines(arguments.source))), arguments.lines))
    rows: list[dict[str, Any]] = []
    for engine in arguments.engine.split(","):
        model = load(arguments.model, device=arguments.device, engine=engine, batch=max(arguments.batch))
        rows += compare(model, engine, lines, arguments)
    facts = {
        **machine(pick_device(arguments.device), ("ctranslate2",)),
        "model": str(arguments.model),
        "source": str(arguments.source),
        "beam": arguments.beam or model.options.search.beam,
    }
    report("batch_invariance", rows, facts, arguments.out)
    if not lines:
        sys.exit(f"{arguments.source}: holds no line")
    promised = [row for row in rows if row["engine"] == "torch" and str(arguments.device) == "cpu"]
    if any(row["other translations"] or row["other scores"] for row in promised):
        sys.exit("FAILED: torch on a CPU gave different translations or scores")


if __name__ == "__main__":
    main()
