"""What the checksums of the token store cost: checking a store when it is opened, and again during an epoch.

python -m benchmarks.store_checksums [--store RUN/store] [--pairs 1700000]

Without --store, a store of random ids is made in a temporary folder, by default of the size of Europarl.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from benchmarks.common import machine, report
from regard.data.checksums import Recheck, check_pieces
from regard.data.store import Store, add_checksums
from regard.parallel.processes import cores

ROUNDS = 5
TOKENS = 28.0  # of a sentence, on average


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--store", type=Path, help="the store of a run (default: random ids)")
    parser.add_argument("--pairs", type=int, default=1_700_000)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = arguments.store or make_store(Path(folder) / "store", arguments.pairs)
        measure(path, arguments.out)


def make_store(folder: Path, pairs: int) -> Path:
    """A store of random ids, with checksums."""
    folder.mkdir()
    draw = np.random.default_rng(1)
    tokens = {}
    for side in ("source", "target"):
        offsets = np.concatenate([[0], draw.poisson(TOKENS, pairs).cumsum()]).astype("<i8")
        offsets.tofile(folder / f"{side}.offsets")
        draw.integers(325, 32_000, int(offsets[-1]), dtype="<u2").tofile(folder / f"{side}.ids")
        tokens[side] = int(offsets[-1])
    info = {"format": 1, "pairs": pairs, "dtype": "<u2", "tokens": tokens, "corpora": [["random", 1.0, 0, pairs]]}
    (folder / "store.json").write_text(json.dumps(info))
    add_checksums(folder, 32_000)
    return folder


def measure(folder: Path, out: Path | None) -> None:
    store = Store.open(folder)
    size = sum(path.stat().st_size for path in folder.iterdir()) / 1e9
    work: dict[str, Callable[[], object]] = {
        "opening": lambda: Store.open(folder),
        "of that, checking": lambda: check_pieces(store.pieces),
        "checking again, per epoch": lambda: Recheck(store.pieces).advance(1.0),
    }
    rows = []
    for name, run in work.items():
        wall, cpu = timed(run)
        rows.append({"work": name, "seconds": wall, "CPU seconds": cpu, "CPU seconds per GB": cpu / size})
    facts = {"pairs": len(store), "GB": round(size, 3), "pieces": len(store.pieces), "cores": cores()}
    report("store_checksums", rows, {**machine(torch.device("cpu")), **facts}, out)


def timed(run: Callable[[], object]) -> tuple[float, float]:
    """The least wall-clock and CPU seconds of several rounds."""
    rounds = []
    for _ in range(ROUNDS):
        wall, cpu = time.perf_counter(), time.process_time()
        run()
        rounds.append((time.perf_counter() - wall, time.process_time() - cpu))
    return min(wall for wall, _ in rounds), min(cpu for _, cpu in rounds)


if __name__ == "__main__":
    main()
