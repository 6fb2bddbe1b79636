"""Is a change slower? Two checkouts take turns at the speed benchmarks on one machine, in processes of their own.

    python -m benchmarks.turns BEFORE AFTER [--turns 2] [--out turns.json]

Each turn runs train_throughput (base, 25,000 tokens an update) and decode_throughput (base, beam 4, batch 1 and 256) with Regard
alone, as the checkout has them. The table has the best turn of each checkout and what AFTER reaches of BEFORE. On a machine
without a GPU the sizes are small ones.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.common import machine, report
from regard.device import pick_device

TRAIN_GPU = ["--preset", "base", "--contenders", "regard", "--rounds", "8"]
TRAIN_CPU = ["--preset", "tiny", "--contenders", "regard", "--rounds", "2", "--batches", "1"]
DECODE_GPU = ["--beam", "4", "--batch", "1,256", "--contenders", "regard", "--seconds", "6"]
DECODE_CPU = ["--preset", "tiny", "--beam", "4", "--batch", "1,8", "--contenders", "regard", "--seconds", "1"]


def benchmark(checkout: Path, name: str, options: Sequence[str]) -> list[dict[str, Any]]:
    """The rows that one benchmark of a checkout writes."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "rows.json"
        environment = {**os.environ, "PYTHONPATH": str(checkout)}
        command = [sys.executable, "-m", f"benchmarks.{name}", *options, "--out", str(out)]
        result = subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True)
        if result.returncode:
            raise SystemExit(f"{checkout}: {name}: {result.stdout[-2000:]}{result.stderr[-2000:]}")
        rows: list[dict[str, Any]] = json.loads(out.read_text())["rows"]
        return rows


def speeds(checkout: Path, on_gpu: bool) -> dict[str, float]:
    """Tokens a second by what was done."""
    found = {}
    for row in benchmark(checkout, "train_throughput", TRAIN_GPU if on_gpu else TRAIN_CPU):
        found[f"train {row['preset']}"] = row["target tokens/s"]
    for row in benchmark(checkout, "decode_throughput", DECODE_GPU if on_gpu else DECODE_CPU):
        found[f"decode beam {row['beam']} batch {row['batch']}"] = row["output tokens/s"]
    return found


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args(words)
    device = pick_device("auto")
    checkouts = {"before": arguments.before.resolve(), "after": arguments.after.resolve()}
    turns: list[tuple[str, dict[str, float]]] = []
    for _ in range(arguments.turns):
        for name, checkout in checkouts.items():
            turns.append((name, speeds(checkout, device.type == "cuda")))
            print(*turns[-1], flush=True)
    rows = []
    for what in turns[0][1]:
        before, after = (max(speed[what] for who, speed in turns if who == name) for name in checkouts)
        rows.append(
            {"what": what, "before, tokens/s": before, "after, tokens/s": after, "after / before": after / before}
        )
    report("turns", rows, machine(device, ("triton",)), arguments.out)


if __name__ == "__main__":
    main()
