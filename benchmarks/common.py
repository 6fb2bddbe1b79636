"""What the benchmarks share: timing, the machine in words, a table and a JSON file."""

from __future__ import annotations

import datetime
import json
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from regard.device import describe


def time_rounds(contenders: Mapping[str, Callable[[], object]], rounds: int, device: torch.device) -> dict[str, float]:
    """Median seconds of each contender; they take turns, so that a slow moment of the machine hits all of them."""
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(rounds + 2):
        for name, run in contenders.items():
            begun = time.perf_counter()
            run()
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            if number >= 2:  # the first two warm up
                seconds[name].append(time.perf_counter() - begun)
    return {name: statistics.median(values) for name, values in seconds.items()}


def machine(device: torch.device) -> dict[str, str]:
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "device": describe(device),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def report(name: str, rows: Sequence[Mapping[str, Any]], facts: Mapping[str, Any], out: Path | None) -> None:
    """Print a table and write the same as JSON, by default into benchmarks/results/."""
    columns = list(rows[0])
    cells = [[_cell(row[column]) for column in columns] for row in rows]
    widths = [max(map(len, [column, *(line[n] for line in cells)])) for n, column in enumerate(columns)]
    print(", ".join(f"{key} {value}" for key, value in facts.items()))
    for line in [columns, *cells]:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
    path = out or Path(__file__).parent / "results" / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"facts": dict(facts), "rows": [dict(row) for row in rows]}, indent=2) + "\n")
    print(f"written to {path}")


def _cell(value: Any) -> str:
    return f"{value:,.2f}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)
