"""Progress on standard error: a bar on a terminal, a line every few seconds elsewhere."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.console import Console

OnProgress = Callable[[int], None]  # called with the number of units newly finished

_IS_HIDDEN = ContextVar("regard.progress.hidden", default=False)
QUIET_SECONDS = 10.0  # without a terminal: pause before the first line and between two
# The time left is shown after this many units or this share of the work, whichever comes first: the speed is noise before.
ENOUGH_UNITS = 10
ENOUGH_SHARE = 0.1


@contextmanager
def progress(description: str, total: int | None, unit: str = "lines", before: int = 0) -> Iterator[OnProgress]:
    """Show the progress of the work in the block, which calls the function that it is given. `before` units were finished by
    an earlier run: they count as done, but not towards the speed.

    with progress("Cleaning", total=len(pairs), unit="pairs") as on_progress:
        for pair in pairs:
            ...
            on_progress(1)
    """
    if _IS_HIDDEN.get():
        yield lambda units: None
        return
    show = _bar if is_terminal(sys.stderr) else _plain_lines
    with show(description, total, unit, before) as advance:
        # Callers report every line, but an update takes a lock, and a screen needs only ten a second.
        pending, due = 0, time.monotonic() + 0.1

        def on_progress(units: int) -> None:
            nonlocal pending, due
            pending += units
            if time.monotonic() >= due:
                advance(pending)
                pending, due = 0, time.monotonic() + 0.1

        try:
            yield on_progress
        finally:
            if pending:
                advance(pending)


@contextmanager
def progress_if(
    shown: bool, description: str, total: int | None, unit: str = "lines", also: OnProgress | None = None
) -> Iterator[OnProgress | None]:
    """`progress` if it is to be shown; `also` is called as well."""
    if not shown:
        yield also
        return
    with progress(description, total, unit) as on_progress:
        if also is None:
            yield on_progress
            return

        def both(units: int) -> None:
            on_progress(units)
            also(units)

        yield both


@contextmanager
def hidden_progress() -> Iterator[None]:
    """No progress is shown in this block, for programs that have standard error for themselves."""
    token = _IS_HIDDEN.set(True)
    try:
        yield
    finally:
        _IS_HIDDEN.reset(token)


def is_terminal(stream: TextIO) -> bool:
    """Whether the stream is a terminal that can redraw lines."""
    return stream.isatty() and os.environ.get("TERM", "").lower() not in ("dumb", "unknown")


@lru_cache(maxsize=1)
def stderr_console() -> Console:
    """The only rich console of standard error: live displays can share a screen only through one console."""
    from rich.console import Console

    return Console(stderr=True)


def clock(seconds: float) -> str:
    """The time as 3:21 or 1:02:03."""
    minutes, second = divmod(max(0, round(seconds)), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"


def counted(number: int, noun: str, plural: str = "") -> str:
    """For example "1 pair", "1,234 pairs"; `plural` where it is not the noun with an s."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def epochs(number: float) -> str:
    """For example "1 epoch", "1.2 epochs", "40 epochs", "0.004 epochs", "2,500 epochs"."""
    shown = f"{number:,.0f}" if number >= 100 else f"{number:.1f}" if number >= 0.1 else f"{number:.1g}"
    shown = shown.removesuffix(".0")
    return "1 epoch" if shown == "1" else f"{shown} epochs"


def duration(seconds: float) -> str:
    """For example "10 seconds", "40 minutes", "2.5 hours", "3.1 days"."""
    minutes = seconds / 60
    if round(seconds) < 60:
        return counted(max(1, round(seconds)), "second")
    if minutes < 90:
        return counted(round(minutes), "minute")
    return f"{minutes / 60:.1f} hours" if minutes < 48 * 60 else f"{minutes / 60 / 24:.1f} days"


def _rate(speed: float, unit: str) -> list[str]:
    """For example 1,234 lines/s or 2.5 lines/s; nothing where it would round to zero."""
    if speed < 0.05:
        return []
    return [f"{speed:,.0f} {unit}/s" if speed >= 9.95 else f"{speed:.1f} {unit}/s"]


def _left(speed: float, count: float, total: float | None, before: int) -> list[str]:
    """For example 3:21 left; nothing while the speed is still unreliable, or when all is done."""
    if total is None or speed <= 0 or count >= total:
        return []
    if count - before < min(ENOUGH_UNITS, ENOUGH_SHARE * (total - before)):
        return []
    return [f"{clock((total - count) / speed)} left"]


@contextmanager
def _bar(description: str, total: int | None, unit: str, before: int) -> Iterator[OnProgress]:
    from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, Task, TextColumn
    from rich.text import Text

    class Figures(ProgressColumn):
        """Count, rate and time left, as far as they are known and fit the screen."""

        def render(self, task: Task) -> Text:
            count = f"{int(task.completed):,}" + (f" / {int(task.total):,}" if task.total is not None else "")
            speed = task.speed or 0.0
            rate = _rate(speed, unit) if console.width >= 70 else []
            parts = [f"{count} {unit}", *rate, *_left(speed, task.completed, task.total, before)]
            return Text(" · ".join(parts), style="dim", no_wrap=True, overflow="ellipsis")

    console = stderr_console()
    columns: list[ProgressColumn] = [TextColumn("{task.description}", markup=False), Figures()]
    width = 24 if console.width >= 90 else 12
    columns.insert(1, SpinnerColumn("line") if total is None else BarColumn(bar_width=width))
    with Progress(*columns, console=console, transient=True, redirect_stdout=sys.stdout.isatty()) as bar:
        task = bar.add_task(description, total=total, completed=before)
        yield lambda units: bar.advance(task, units)


@contextmanager
def _plain_lines(description: str, total: int | None, unit: str, before: int) -> Iterator[OnProgress]:
    start = time.monotonic()
    count, due, spoken = before, start + QUIET_SECONDS, False

    def line(seconds: float, end: str = "") -> str:
        speed = (count - before) / max(seconds, 1e-9)
        of_total = f" of {total:,}" if total is not None else ""
        share = f" ({count / total:.0%})" if total else ""
        rest = [end] if end else _left(speed, count, total, before)
        return ", ".join([f"{description}: {count:,}{of_total} {unit}{share}", *_rate(speed, unit), *rest])

    def advance(units: int) -> None:
        nonlocal count, due, spoken
        count += units
        now = time.monotonic()
        if now >= due:
            spoken, due = True, now + QUIET_SECONDS
            if count != total:  # the final line reports that
                print(line(now - start), file=sys.stderr, flush=True)

    yield advance
    if spoken:
        seconds = time.monotonic() - start
        print(line(seconds, f"done in {clock(seconds)}"), file=sys.stderr, flush=True)
