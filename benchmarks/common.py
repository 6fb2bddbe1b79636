"""What the benchmarks share: timing, a description of the machine, its matmul rate, tables and JSON files."""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from regard.device import describe


def synchronize(device: torch.device) -> None:
    """Wait until the device has finished its queue."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def time_rounds(contenders: Mapping[str, Callable[[], object]], rounds: int, device: torch.device) -> dict[str, float]:
    """Median seconds of each contender; they take turns, so a slow moment of the machine affects all of them."""
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(rounds + 2):
        for name, run in contenders.items():
            begun = time.perf_counter()
            run()
            synchronize(device)
            if number >= 2:  # the first two warm up
                seconds[name].append(time.perf_counter() - begun)
    return {name: statistics.median(values) for name, values in seconds.items()}


def matmul_rate(device: torch.device, dtype: torch.dtype | None, rounds: int = 10) -> float:
    """FLOP/s of a large product of random square matrices, plain or with the second transposed, whichever is faster."""
    size, repeats = (8192, 10) if device.type == "cuda" else (1024, 1)
    left, right = (torch.randn(size, size, device=device).to(dtype or torch.float32) for _ in range(2))

    def products(factor: torch.Tensor) -> None:
        for _ in range(repeats):
            torch.mm(left, factor)

    seconds = time_rounds({"plain": lambda: products(right), "transposed": lambda: products(right.t())}, rounds, device)
    return 2 * size**3 * repeats / min(seconds.values())


def machine(device: torch.device, packages: Sequence[str] = ()) -> dict[str, str]:
    """The date, the device and the versions that the figures depend on; `packages` adds more of them."""
    facts = {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "device": describe(device),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }
    for package in packages:
        try:
            facts[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            facts[package] = "missing"
    return facts


def report(name: str, rows: Sequence[Mapping[str, Any]], facts: Mapping[str, Any], out: Path | None) -> None:
    """Print a table and write it as JSON, by default to benchmarks/results/."""
    print_facts(facts)
    print_table(rows)
    print(f"written to {write_json(name, rows, facts, out)}")


def print_facts(facts: Mapping[str, Any]) -> None:
    print(", ".join(f"{key} {_cell(value)}" for key, value in facts.items()), flush=True)


def print_table(rows: Sequence[Mapping[str, Any]]) -> None:
    """The rows under the names of the first row's fields."""
    columns = list(rows[0])
    cells = [[_cell(row[column]) for column in columns] for row in rows]
    widths = [max(map(len, [column, *(line[n] for line in cells)])) for n, column in enumerate(columns)]
    for line in [columns, *cells]:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip(), flush=True)


def print_markdown(rows: Sequence[Mapping[str, Any]]) -> None:
    """The rows as a Markdown table."""
    columns = list(rows[0])
    print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    for row in rows:
        print(f"| {' | '.join(_cell(row[column]) for column in columns)} |", flush=True)


def write_json(name: str, rows: Sequence[Mapping[str, Any]], facts: Mapping[str, Any], out: Path | None) -> Path:
    path = out or Path(__file__).parent / "results" / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"facts": dict(facts), "rows": [dict(row) for row in rows]}, indent=2) + "\n")
    return path


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:,.2f}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)
