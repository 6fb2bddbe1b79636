"""What the user sees during training, on standard error: a live panel on a terminal, plain lines elsewhere.

It shows the records of metrics.jsonl; train records also have "progress" (0 to 1) and "remaining" (seconds).
"""

from __future__ import annotations

import itertools
import logging
import math
import os
import re
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TextIO

from regard.progress import clock, is_terminal, stderr_console
from regard.task_table import FIGURES, sample_kind

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live
    from rich.text import Text

_LOG = logging.getLogger("regard.training")
_BLOCKS = "▁▂▃▄▅▆▇█"
_ASCII_BLOCKS = "_.-=+*%#"
_BEST = "best so far"
_HEADINGS = {"valid": "bold", _BEST: "bold green"}
_SMOOTHING = 0.8  # weight of the past in the smoothed loss


class Display:
    """A display that shows nothing; base of the others."""

    def say(self, text: str) -> None:
        """Print lines that stay, such as notes."""

    def start(self, total_steps: int | None, total_seconds: float | None) -> None:
        """Training starts; either limit may be unknown."""

    def train(self, record: Mapping[str, Any]) -> None:
        """A logging interval has ended."""

    def valid(self, record: Mapping[str, Any]) -> None:
        """A validation has ended."""

    def stopping(self, text: str) -> None:
        """The user has asked to stop. Called from a signal handler."""

    def close(self) -> None:
        """Training has ended or was interrupted; may be called twice."""


class PlainDisplay(Display):
    """Lines without control characters, for files, pipes and schedulers' logs."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def say(self, text: str) -> None:
        # A log file may be ASCII; a character it cannot encode must not end the training.
        encoding = getattr(self._stream, "encoding", None) or "utf-8"
        for line in text.splitlines() or [""]:
            line = printable(line).encode(encoding, "backslashreplace").decode(encoding)
            print(line, file=self._stream, flush=True)

    def train(self, record: Mapping[str, Any]) -> None:
        self.say(train_line(record))

    def valid(self, record: Mapping[str, Any]) -> None:
        self.say(valid_line(record))
        for sample in record.get("samples", [])[:1]:
            for name in sample_kind(sample).names:
                self.say(f"       {name:<12} {_one_line(sample[name])}")

    def stopping(self, text: str) -> None:
        with suppress(OSError):  # no reader left: Ctrl-C also ends a `tee` behind the command
            os.write(
                self._stream.fileno(), f"{text}\n".encode()
            )  # bypass the stream, which may be in the middle of a write


class LiveDisplay(Display):
    """A panel redrawn at the bottom of the terminal, with printed lines scrolling above it."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._unicode = console.encoding.startswith("utf")
        self._live: Live | None = None
        self._limits: tuple[int | None, float | None] = (None, None)
        self._record: Mapping[str, Any] = {}
        self._received = time.monotonic()
        self._losses: list[float] = []
        self._validations: list[Mapping[str, Any]] = []
        self._best: Mapping[str, Any] | None = None
        self._stopping = ""

    def say(self, text: str) -> None:
        from rich.text import Text

        for line in text.splitlines() or [""]:
            self._console.print(Text(printable(line)))

    def start(self, total_steps: int | None, total_seconds: float | None) -> None:
        from rich.live import Live

        self._limits = (total_steps, total_seconds)
        self._received = time.monotonic()
        # Redirect standard output only on a terminal: a file or pipe must get it unchanged.
        self._live = Live(
            get_renderable=self._panel,
            console=self._console,
            refresh_per_second=2,
            redirect_stdout=sys.stdout.isatty(),
        )
        self._live.start(refresh=True)

    def train(self, record: Mapping[str, Any]) -> None:
        loss = record.get("loss")
        if loss is not None and math.isfinite(loss):
            past = self._losses[-1] if self._losses else loss
            self._losses.append(_SMOOTHING * past + (1 - _SMOOTHING) * loss)
        self._record, self._received = record, time.monotonic()

    def valid(self, record: Mapping[str, Any]) -> None:
        self._validations.append(record)
        if record.get("best"):
            self._best = record
        self._console.print(_fitted([("valid", ""), *_valid_pairs(record)], self._console.width))

    def stopping(self, text: str) -> None:
        self._stopping = text  # shown when the panel is redrawn

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _panel(self) -> RenderableType:
        from rich.console import Group
        from rich.panel import Panel
        from rich.text import Text

        parts: list[RenderableType] = [self._bar()]
        if self._stopping:
            parts.append(Text(self._stopping, style="bold"))
        if self._record:
            parts.append(self._figures())
        if self._validations:
            parts.append(self._validation())
            # rich cuts off a panel taller than the screen, which loses its frame and flickers.
            if self._console.height >= 20 and (samples := self._validations[-1].get("samples")):
                parts += ["", self._sample(self._validations[0].get("samples", []), samples)]
        return Panel(Group(*parts), title="Training", title_align="left", border_style="dim", padding=(0, 1))

    def _bar(self) -> RenderableType:
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        if not self._record:
            waited = clock(time.monotonic() - self._received)
            return Text(f"Waiting for the first steps · {waited}", style="dim")
        passed = time.monotonic() - self._received
        share = min(1.0, max(0.0, self._record.get("progress") or 0.0))
        times = f"{clock(self._record.get('elapsed', 0) + passed)} elapsed"
        remaining = self._record.get("remaining")
        if remaining is not None:
            times += f" · {clock(remaining - passed)} left"
        row = Table.grid(expand=True, padding=(0, 1))
        row.add_column(ratio=1)
        row.add_column(no_wrap=True, justify="right")
        row.add_column(no_wrap=True, justify="right")
        row.add_row(ProgressBar(total=1.0, completed=share), f"{share:.0%}", Text(times, style="dim"))
        return row

    def _figures(self) -> RenderableType:
        from rich.console import Group
        from rich.text import Text

        record, total = self._record, self._limits[0]
        step = f"{record['step']:,}" + (f" / {total:,}" if total else "")
        figures = [
            ("step", step),
            ("epoch", f"{record['epoch']:.2f}"),
            ("training loss", _number(record.get("loss"), ".3f")),
        ]
        figures += [("tok/s", f"{record['tokens_per_second']:,.0f}"), ("lr", f"{record['lr']:.1e}")]
        figures += [("grad", _number(record.get("grad_norm"), ".2f"))]
        lines = [_fitted(figures, self._room())]
        if len(self._losses) > 1:
            blocks = _BLOCKS if self._unicode else _ASCII_BLOCKS
            first, last = (f"{loss:.2f}" for loss in (self._losses[0], self._losses[-1]))
            name = f"its running mean {first} "
            curve = sparkline(self._losses, max(10, min(60, self._room() - len(name) - len(last) - 1)), blocks)
            lines.append(Text.assemble((name, "dim"), (curve, "cyan"), f" {last}", no_wrap=True))
        return Group(*lines)

    def _validation(self) -> Text:
        newest, best = self._validations[-1], self._best
        figures = [("valid", ""), *_valid_pairs(newest)]
        if best is not None and best is not newest:
            name, value = _valid_figures(best)[-1]
            figures.append(("", f"(best {name} {value} at step {best['step']:,})"))
        return _fitted(figures, self._room())

    def _sample(self, first: Sequence[Mapping[str, str]], newest: Sequence[Mapping[str, str]]) -> RenderableType:
        """The same sample throughout the run, so that progress can be read in what the model makes of it."""
        from rich.table import Table
        from rich.text import Text

        given, reference, output = sample_kind(newest[0]).names
        rows = [(given, newest[0][given], ""), (reference, newest[0][reference], "")]
        if len(self._validations) > 1 and first:
            rows.append(("first", first[0][output], "dim"))
        rows.append(("now", newest[0][output], "bold"))
        grid = Table.grid(padding=(0, 1))
        for name, sentence, style in rows:
            text = Text(printable(_one_line(sentence)), style=style)
            lines = text.wrap(self._console, self._room() - 10)
            if len(lines) > 2:  # more would overflow a small window
                lines[1].truncate(self._room() - 11)
                lines[1].append("…" if self._unicode else "...")
            grid.add_row(Text(name, style="dim"), Text("\n").join(lines[:2]))
        return grid

    def _room(self) -> int:
        """Columns inside the frame."""
        return self._console.width - 4


class LogDisplay(PlainDisplay):
    """The lines of the plain display as records of `logging`, for programs; logger regard.training, level INFO."""

    def __init__(self) -> None:
        pass

    def say(self, text: str) -> None:
        for line in text.splitlines():
            _LOG.info("%s", printable(line))

    def stopping(self, text: str) -> None:
        """Nothing: a signal handler must not wait for the lock of `logging`."""


def make_display(stream: TextIO | None = None) -> Display:
    """A live panel for a terminal, plain lines for any other stream; the default stream is standard error."""
    target = sys.stderr if stream is None else stream
    if not is_terminal(target):
        return PlainDisplay(target)
    from rich.console import Console

    return LiveDisplay(stderr_console() if stream is None else Console(file=stream))


def train_line(record: Mapping[str, Any]) -> str:
    """For example: step 1,200  epoch 2.3  loss 3.412  12,345 tok/s  lr 6.1e-04  3:21 elapsed, 16:39 left."""
    times = f"{clock(record['elapsed'])} elapsed"
    if record.get("remaining") is not None:
        times += f", {clock(record['remaining'])} left"
    loss = _number(record.get("loss"), ".3f")
    return (
        f"step {record['step']:,}  epoch {record['epoch']:.1f}  loss {loss}  "
        f"{record['tokens_per_second']:,.0f} tok/s  lr {record['lr']:.1e}  {times}"
    )


def valid_line(record: Mapping[str, Any]) -> str:
    """For example: valid  step 1,200  loss 2.913  ppl 18.4  BLEU 21.3 (best)."""
    figures = "  ".join(f"{name} {value}" for name, value in _valid_figures(record))
    weights = f" ({record['weights']})" if "weights" in record else ""
    return f"valid  step {record['step']:,}{weights}  {figures}" + (" (best)" if record.get("best") else "")


def sparkline(values: Sequence[float], width: int, blocks: str = _BLOCKS) -> str:
    """At most `width` bars, each the mean of a run of values, scaled between the extremes."""
    width = min(width, len(values))
    edges = [round(i * len(values) / width) for i in range(width + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in itertools.pairwise(edges)]
    low, high = min(means), max(means)
    scale = (len(blocks) - 1) / (high - low) if high > low else 0.0
    return "".join(blocks[round((mean - low) * scale)] for mean in means)


def printable(text: str) -> str:
    """The text without control characters, which a model may produce and which could disturb the terminal."""
    return re.sub(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]", "�", text.replace("\t", " "))


def _valid_figures(record: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Those that were measured; a validation may measure the loss alone."""
    figures = [("loss", _number(record.get("loss"), ".3f"))]
    if "perplexity" in record:
        figures.append(("ppl", _number(record.get("perplexity"), ",.1f")))
    others = {key: figure for key, figure in FIGURES.items() if key not in ("loss", "perplexity")}
    return figures + [
        (each.short, format(record[key], each.form)) for key, each in others.items() if record.get(key) is not None
    ]


def _one_line(text: str) -> str:
    """A text with its line breaks as in quoted verse, since a document has several lines."""
    return " / ".join(text.splitlines())


def _valid_pairs(record: Mapping[str, Any]) -> list[tuple[str, str]]:
    weights = [("", f"({record['weights']})")] if "weights" in record else []
    figures = [("step", f"{record['step']:,}"), *weights, *_valid_figures(record)]
    return [*figures, (_BEST, "")] if record.get("best") else figures


def _fitted(figures: Sequence[tuple[str, str]], width: int) -> Text:
    """Names and values wrapped to the width, never within a figure."""
    from rich.text import Text

    whole, column = Text(), 0
    for name, value in figures:
        figure = Text.assemble((name, _HEADINGS.get(name, "dim")), " " if name and value else "", value)
        if column and column + 2 + figure.cell_len > width:
            whole.append("\n")
            column = 0
        elif column:
            whole.append("  ")
            column += 2
        whole.append_text(figure)
        column += figure.cell_len
    return whole


def _number(value: float | None, form: str) -> str:
    return "NaN" if value is None or not math.isfinite(value) else format(value, form)
