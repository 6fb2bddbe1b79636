"""Line charts as SVG without scripts or libraries: axes, ticks, a legend, and a label under the pointer."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from regard.html_page import escaped

Point = tuple[float, float]

_WIDTH, _HEIGHT = 440, 236
_LEFT, _RIGHT, _TOP, _BOTTOM = 48, 12, 10, 34
_CURVE_POINTS = 100
_HOVER_COLUMNS = 64


@dataclass(frozen=True)
class Series:
    """A curve: its name, points and style (one, two or faint)."""

    name: str
    points: list[Point]
    style: str
    dots: bool = False


@dataclass(frozen=True)
class Scale:
    """Maps values to SVG coordinates."""

    x_max: float
    y_min: float
    y_max: float

    def x(self, value: float) -> float:
        return _LEFT + value / self.x_max * (_WIDTH - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        share = (value - self.y_min) / (self.y_max - self.y_min)
        return _HEIGHT - _BOTTOM - share * (_HEIGHT - _TOP - _BOTTOM)


def chart(
    title: str,
    series: Sequence[Series],
    form: Callable[[float], str],
    *,
    from_zero: bool = False,
    ring: float | None = None,
) -> str:
    """A figure of curves over steps, as HTML with SVG; hovering shows the values at a step. `ring` marks the points of a step."""
    series = [curve for curve in series if curve.points]
    if not series:
        return ""
    shown = [Series(curve.name, averaged(curve.points), curve.style, curve.dots) for curve in series]
    values = [y for curve in shown for _, y in curve.points]
    zero = [0.0] if from_zero else []  # correlations may lie below it
    y_ticks = ticks(min(values + zero), max(values + zero))
    x_max = max(x for curve in shown for x, _ in curve.points) or 1.0
    scale = Scale(x_max, y_ticks[0], y_ticks[-1])
    legend = "".join(
        f'<span><i class="{curve.style}"></i>{escaped(curve.name)} <b>{escaped(form(curve.points[-1][1]))}</b></span>'
        for curve in series
    )
    if len(series) == 1:  # the title names it
        legend = f"<span>last <b>{escaped(form(series[0].points[-1][1]))}</b></span>"
    parts = [_axes(scale, y_ticks, [tick for tick in ticks(0.0, x_max) if tick <= x_max])]
    parts += [_curve(curve, scale, ring) for curve in reversed(shown)]  # the first one on top
    parts.append(_hover(shown, scale, form))
    picture = f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escaped(title)}">{"".join(parts)}</svg>'
    return f'<figure class="card"><h3>{escaped(title)}</h3><p class="legend">{legend}</p>{picture}</figure>'


def ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Round numbers, 1, 2 or 5 times a power of ten apart, that cover `low` to `high`."""
    if high <= low:
        low, high = low - (abs(low) * 0.1 or 0.5), high + (abs(high) * 0.1 or 0.5)
    raw = (high - low) / about
    power = 10.0 ** math.floor(math.log10(raw))
    step = power * min((1, 2, 5, 10), key=lambda factor: abs(factor * power - raw))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [index * step for index in range(first, last + 1)]


def averaged(points: Sequence[Point], most: int = _CURVE_POINTS) -> list[Point]:
    """At most `most` points, each the mean of a run of points, to keep the page of a long run small."""
    if len(points) <= most:
        return list(points)
    edges = [round(i * len(points) / most) for i in range(most + 1)]
    stretches = [points[a:b] for a, b in pairwise(edges)]
    means = [(statistics.fmean(x for x, _ in part), statistics.fmean(y for _, y in part)) for part in stretches]
    return [*means[:-1], (points[-1][0], means[-1][1])]


def _axes(scale: Scale, y_ticks: Sequence[float], x_ticks: Sequence[float]) -> str:
    parts = []
    for tick in y_ticks:
        y = scale.y(tick)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="y" x="{_LEFT - 7}" y="{y + 4:.1f}">{compact(tick)}</text>')
    base = _HEIGHT - _BOTTOM
    for tick in x_ticks:
        x = scale.x(tick)
        parts.append(f'<line class="axis" x1="{x:.1f}" x2="{x:.1f}" y1="{base}" y2="{base + 4}"/>')
        parts.append(f'<text class="x" x="{x:.1f}" y="{base + 17}">{compact(tick)}</text>')
    parts.append(f'<line class="axis" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{base}" y2="{base}"/>')
    parts.append(f'<text class="x" x="{(_LEFT + _WIDTH - _RIGHT) / 2}" y="{_HEIGHT - 3}">step</text>')
    return "".join(parts)


def _curve(curve: Series, scale: Scale, ring: float | None) -> str:
    places = [(x, scale.x(x), scale.y(y)) for x, y in curve.points]
    path = " ".join(f"{x:.1f},{y:.1f}" for _, x, y in places)
    parts = [f'<polyline class="{curve.style}" points="{path}"/>']
    if (curve.dots and len(places) <= 40) or len(places) == 1:
        parts += [f'<circle class="{curve.style}" cx="{x:.1f}" cy="{y:.1f}" r="2.6"/>' for _, x, y in places]
    if curve.dots:
        chosen = [(x, y) for step, x, y in places if step == ring]
        parts += [f'<circle class="ring {curve.style}" cx="{x:.1f}" cy="{y:.1f}" r="5.5"/>' for x, y in chosen]
    return "".join(parts)


def _hover(series: Sequence[Series], scale: Scale, form: Callable[[float], str]) -> str:
    """Vertical strips that show a line, the points and their values while hovered, without a script."""
    columns: dict[int, dict[str, Point]] = {}
    width = _WIDTH - _LEFT - _RIGHT
    for curve in series:
        for x, y in curve.points:
            column = min(_HOVER_COLUMNS - 1, int((scale.x(x) - _LEFT) / width * _HOVER_COLUMNS))
            columns.setdefault(column, {})[curve.name] = (x, y)
    styles = {curve.name: curve.style for curve in series}
    order = sorted(columns)
    places = [scale.x(max(x for x, _ in columns[column].values())) for column in order]
    edges = [_LEFT, *((a + b) / 2 for a, b in pairwise(places)), _WIDTH - _RIGHT]
    groups = []
    for index, column in enumerate(order):
        found, place = columns[column], places[index]
        strip = f'<rect class="strip" x="{edges[index]:.1f}" width="{max(0.0, edges[index + 1] - edges[index]):.1f}" '
        strip += f'y="{_TOP}" height="{_HEIGHT - _TOP - _BOTTOM}"/>'
        rule = f'<line x1="{place:.1f}" x2="{place:.1f}" y1="{_TOP}" y2="{_HEIGHT - _BOTTOM}"/>'
        dots = "".join(
            f'<circle class="{styles[name]}" cx="{scale.x(x):.1f}" cy="{scale.y(y):.1f}" r="3.5"/>'
            for name, (x, y) in found.items()
        )
        lines = [f"step {max(x for x, _ in found.values()):,.0f}", *(f"{n} {form(y)}" for n, (_, y) in found.items())]
        groups.append(f'<g class="hover">{strip}<g>{rule}{dots}{_label(lines, place)}</g></g>')
    return "".join(groups)


def _label(lines: Sequence[str], place: float) -> str:
    width = 6.2 * max(map(len, lines)) + 14
    x = place + 8 if place + 8 + width < _WIDTH else place - 8 - width
    box = f'<rect class="box" x="{x:.1f}" y="{_TOP}" width="{width:.1f}" height="{len(lines) * 15 + 8}" rx="4"/>'
    texts = (f'<text x="{x + 7:.1f}" y="{_TOP + 15 + 15 * i}">{escaped(line)}</text>' for i, line in enumerate(lines))
    return box + "".join(texts)


# ------------------------------------------------------------------------------------------------- small parts


def compact(value: float) -> str:
    """A number on an axis: 0, 0.25, 12k, 1.5M, 3e-4."""
    if value == 0:
        return "0"
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= limit:
            return f"{value / limit:.4g}{unit}"
    if abs(value) < 0.01:
        mantissa, exponent = f"{value:.1e}".split("e")
        return f"{float(mantissa):g}e{int(exponent)}"
    return f"{value:.4g}"
