"""What the measurements of all claims are given, and how they time a layer."""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from benchmarks.common import synchronize

Row = dict[str, Any]
AHEAD = 2  # updates that the host may be ahead of the device
GIB = 2**30


@dataclass(frozen=True)
class Bench:
    """The device, its number format, and whether sizes are those of a test."""

    device: torch.device
    dtype: torch.dtype | None  # of matrix products; None: fp32
    seed: int = 1
    smoke: bool = False

    @property
    def number_format(self) -> torch.dtype:
        return self.dtype or torch.float32


@dataclass
class Rows:
    """The rows of a section, written as they are measured. Those of an earlier start that was cut short are not measured again."""

    earlier: Sequence[Row] = ()
    write: Callable[[list[Row]], None] = lambda rows: None
    rows: list[Row] = field(default_factory=list)

    def measured(self, key: Row, measure: Callable[..., Row], *arguments: Any) -> Row:
        """The row of an earlier start with the values of `key`, or else `key` with the values that `measure` returns."""
        found = next((row for row in self.earlier if row.items() >= key.items()), None)
        row = {**key, **measure(*arguments)} if found is None else found
        self.rows.append(row)
        if found is None:
            self.write(self.rows)
        return row


class Lead:
    """Keeps the host close to the device without waiting for every update, so that a clock tells what was computed."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._pending: deque[torch.cuda.Event] = deque()

    def limit(self) -> None:
        if self.device.type != "cuda":
            return
        event = torch.cuda.Event(blocking=True)
        event.record(torch.cuda.current_stream(self.device))
        self._pending.append(event)
        if len(self._pending) > AHEAD:
            self._pending.popleft().synchronize()


def time_calls(run: Callable[[], object], device: torch.device, seconds: float, rounds: int = 5) -> float:
    """Seconds of one call: the median of `rounds` stretches of calls that fill `seconds` together."""
    run()
    synchronize(device)
    begun = time.perf_counter()
    run()
    synchronize(device)
    once = max(time.perf_counter() - begun, 1e-7)
    calls = max(1, min(200, round(seconds / rounds / once)))
    stretches = []
    for _ in range(rounds if once < seconds else 1):
        begun = time.perf_counter()
        for _ in range(calls):
            run()
        synchronize(device)
        stretches.append((time.perf_counter() - begun) / calls)
    return statistics.median(stretches)


def peak_gib(run: Callable[[], object], device: torch.device) -> float | None:
    """The memory that one call needs beyond what is held before it; None where the device does not say."""
    if device.type != "cuda":
        return None
    synchronize(device)
    held = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    run()
    synchronize(device)
    return (torch.cuda.max_memory_allocated(device) - held) / GIB


def rounded(row: Mapping[str, Any], digits: int = 4) -> Row:
    """The row with numbers of so many significant digits, as JSON needs no more."""
    return {
        key: float(f"{value:.{digits}g}") if isinstance(value, float) and abs(value) < 1e5 else value
        for key, value in row.items()
    }
