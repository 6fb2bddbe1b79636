"""How far a piece of work is: a bar on a terminal, a sparse line elsewhere, on standard error in either case."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.console import Console

QUIET_SECONDS = 10.0  # without a terminal: silence before the first line and between two


@contextmanager
def progress(
    description: str, total: int | None, unit: str = "lines", before: int = 0
) -> Iterator[Callable[[int], None]]:
    """Show the progress of the work inside; the function that it gives is called with the number of units newly done.
    `before` of them were done in an earlier sitting: they count, but say nothing about the speed.

    with progress("Cleaning", total=len(pairs), unit="pairs") as done:
        for pair in pairs:
            ...
            done(1)
    """
    show = _bar if is_terminal(sys.stderr) else _plain_lines
    with show(description, total, unit, before) as advance:
        # Callers report every line; the screen needs ten updates a second, and each costs a lock.
        pending, due = 0, time.monotonic() + 0.1

        def done(units: int) -> None:
            nonlocal pending, due
            pending += units
            if time.monotonic() >= due:
                advance(pending)
                pending, due = 0, time.monotonic() + 0.1

        try:
            yield done
        finally:
            if pending:
                advance(pending)


def is_terminal(stream: TextIO) -> bool:
    """Whether the stream is a screen on which lines can be drawn over."""
    return stream.isatty() and os.environ.get("TERM", "").lower() not in ("dumb", "unknown")


@lru_cache(maxsize=1)
def stderr_console() -> Console:
    """The one rich console of standard error: two live areas share the screen only when they share the console."""
    from rich.console import Console

    return Console(stderr=True)


def clock(seconds: float) -> str:
    """The time as 3:21 or 1:02:03."""
    minutes, second = divmod(max(0, round(seconds)), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"


@contextmanager
def _bar(description: str, total: int | None, unit: str, before: int) -> Iterator[Callable[[int], None]]:
    from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, Task, TextColumn
    from rich.text import Text

    class Figures(ProgressColumn):
        """Count, rate and time left, as far as they are known and fit."""

        def render(self, task: Task) -> Text:
            count = f"{int(task.completed):,}" + (f" / {int(task.total):,}" if task.total is not None else "")
            parts = [f"{count} {unit}"]
            if console.width >= 70 and task.speed:
                parts.append(f"{task.speed:,.0f} {unit}/s" if task.speed >= 10 else f"{task.speed:.1f} {unit}/s")
            if task.time_remaining is not None and not task.finished:
                parts.append(f"{clock(task.time_remaining)} left")
            return Text(" · ".join(parts), style="dim", no_wrap=True, overflow="ellipsis")

    console = stderr_console()
    columns: list[ProgressColumn] = [TextColumn("{task.description}", markup=False), Figures()]
    width = 24 if console.width >= 90 else 12
    columns.insert(1, SpinnerColumn("line") if total is None else BarColumn(bar_width=width))
    with Progress(*columns, console=console, transient=True, redirect_stdout=sys.stdout.isatty()) as bar:
        task = bar.add_task(description, total=total, completed=before)
        yield lambda units: bar.advance(task, units)


@contextmanager
def _plain_lines(description: str, total: int | None, unit: str, before: int) -> Iterator[Callable[[int], None]]:
    start = time.monotonic()
    count, due, spoken = before, start + QUIET_SECONDS, False

    def line(seconds: float) -> str:
        rate = (count - before) / max(seconds, 1e-9)
        of_total = f" of {total:,}" if total is not None else ""
        share = f" ({count / total:.0%})" if total else ""
        left = f", {clock((total - count) / rate)} left" if total and rate and count < total else ""
        return f"{description}: {count:,}{of_total} {unit}{share}, {rate:,.0f} {unit}/s{left}"

    def advance(units: int) -> None:
        nonlocal count, due, spoken
        count += units
        now = time.monotonic()
        if now >= due:
            spoken, due = True, now + QUIET_SECONDS
            print(line(now - start), file=sys.stderr, flush=True)

    yield advance
    if spoken:
        seconds = time.monotonic() - start
        print(f"{line(seconds)}, done in {clock(seconds)}", file=sys.stderr, flush=True)
