"""Figures of the walk, drawn by matplotlib as SVG on white; the same input gives the same bytes."""

from __future__ import annotations

import contextlib
import io
import shlex
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import torch
from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from regard.cli import main
from regard.explain.figure import COLOURS
from scripts.paper.show import Picture, on_white

STYLE: dict[Any, Any] = {
    "svg.hashsalt": "regard", "font.size": 9.5, "axes.titlesize": 10, "axes.spines.top": False, "axes.spines.right": False,
    "axes.grid": True, "grid.color": "#e3e6ea", "axes.axisbelow": True, "legend.frameon": False, "legend.fontsize": 8.5,
    "axes.prop_cycle": cycler(color=COLOURS),
}  # fmt: skip
INK, PAPER = "#1f2328", "#ffffff"


@dataclass(frozen=True)
class Grid:
    """A matrix with a name for each row and column; darker is more, grey is NaN."""

    values: Any  # (rows, columns)
    rows: Sequence[str] = ()
    columns: Sequence[str] = ()
    title: str = ""
    most: float | None = 1.0  # the darkest value; None: the largest; of a diverging map both ends
    diverging: bool = False  # red below zero, blue above
    bar: bool = False  # a scale beside it
    x: str = ""
    y: str = ""


@dataclass(frozen=True)
class Lines:
    """Lines in one coordinate system: x and y values by name."""

    lines: Mapping[str, tuple[Any, Any]]
    x: str
    y: str
    title: str = ""
    ticks: Sequence[float] = ()  # of a logarithmic x axis
    log: bool = False  # whether y is logarithmic
    marks: str = "-"  # of matplotlib
    nested: bool = False  # later lines are thinner, so that those below are seen
    zero: bool = False  # whether y begins at 0


@dataclass(frozen=True)
class Bars:
    """A bar for each name."""

    values: Mapping[str, float]
    x: str
    title: str = ""
    form: str = "{:.2f}"  # of the number at its end


def draw(panels: Sequence[Grid | Lines | Bars], size: tuple[float, float] = (9.0, 3.2)) -> Picture:
    """Panels side by side."""

    def fill(figure: Figure) -> None:
        for axes, panel in zip(_side_by_side(figure, panels), panels, strict=True):
            if isinstance(panel, Grid):
                _draw_grid(figure, axes, panel)
            elif isinstance(panel, Lines):
                _draw_lines(axes, panel)
            else:
                _draw_bars(axes, panel)

    return _picture(fill, size)


def explain(command: str) -> Picture:
    """The figure that `regard explain ...` writes: the same command with -o FILE.svg."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "figure.svg"
        words = shlex.split(command)
        assert words[:2] == ["regard", "explain"]
        code = _quietly([*words[1:], "-o", str(path)])
        assert code == 0
        return Picture(on_white(path.read_text(encoding="utf-8")))


def _quietly(arguments: list[str]) -> int:
    """Run a command of Regard without what it prints."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        return main(arguments)


def _picture(fill: Callable[[Figure], None], size: tuple[float, float]) -> Picture:
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=size, facecolor=PAPER, layout="constrained")
        FigureCanvasSVG(figure)
        fill(figure)
        file = io.StringIO()
        figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    svg = file.getvalue()
    return Picture(svg[svg.index("<svg") :])


def _side_by_side(figure: Figure, panels: Sequence[Any]) -> list[Axes]:
    found = figure.subplots(1, len(panels), squeeze=False)
    return list(found[0])


def _draw_lines(axes: Axes, panel: Lines) -> None:
    widths = np.linspace(6, 1.2, len(panel.lines)) if panel.nested else [1.6] * len(panel.lines)
    for (name, (x, y)), width in zip(panel.lines.items(), widths, strict=True):
        axes.plot(_array(x), _array(y), panel.marks, label=name, linewidth=width, markersize=4)
    if panel.log:
        axes.set_yscale("log")
    if panel.ticks:
        axes.set_xscale("log")
        axes.set_xticks(panel.ticks, [f"{tick:g}" for tick in panel.ticks])
        axes.minorticks_off()
    elif all(isinstance(each, int) for x, _ in panel.lines.values() for each in x):
        axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True, steps=[1, 2, 2.5, 5, 10]))
    axes.set(xlabel=panel.x, ylabel=panel.y, title=panel.title)
    if panel.zero:
        axes.set_ylim(bottom=0.0)
    if len(panel.lines) > 1:
        axes.legend()


def _draw_bars(axes: Axes, panel: Bars) -> None:
    names = list(panel.values)[::-1]
    drawn = axes.barh(names, [panel.values[name] for name in names], color=COLOURS[0], height=0.7)
    axes.bar_label(drawn, [panel.form.format(panel.values[name]) for name in names], padding=3, fontsize=8.5)
    axes.margins(x=0.14)
    axes.grid(False, axis="y")
    axes.set(xlabel=panel.x, title=panel.title)


def _draw_grid(figure: Figure, axes: Axes, panel: Grid) -> None:
    values = _array(panel.values)
    most = float(np.nanmax(abs(values))) if panel.most is None else panel.most
    shown = axes.imshow(
        values, cmap=mpl.colormaps["RdBu" if panel.diverging else "Blues"].with_extremes(bad="#d5d9df"),
        vmin=-most if panel.diverging else 0.0, vmax=most, aspect="auto", interpolation="nearest",
    )  # fmt: skip
    axes.grid(False)
    for spine in axes.spines.values():
        spine.set_visible(False)
    if panel.rows:
        axes.set_yticks(range(len(panel.rows)), panel.rows)
    if panel.columns:
        axes.set_xticks(range(len(panel.columns)), panel.columns, rotation=90)
    axes.tick_params(length=0 if panel.rows else 3)
    axes.set(title=panel.title, xlabel=panel.x, ylabel=panel.y)
    if panel.bar:
        figure.colorbar(shown, ax=axes, shrink=0.9)


def _array(values: Any) -> np.ndarray[Any, Any]:
    return values.detach().numpy() if isinstance(values, torch.Tensor) else np.asarray(values)
