"""The part of a report about labels: their scores, confusions, mistakes, calibration, and a simple model beside the trained one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from regard.html_page import escaped, section, table

Record = Mapping[str, Any]

_LEVEL = 6  # labels of a confusion matrix whose names fit beside each other
_DARKEST = 60  # percent of colour behind a number that can still be read
_SIZE, _EDGE = 260, 40  # of the calibration plot, in pixels


def label_sections(records: Sequence[Record], test: Sequence[Record], valid: Sequence[Record]) -> str:
    """What `examined` and `baseline` records say; empty for a run without labels."""
    examined = next((record for record in reversed(records) if record["kind"] == "examined"), None)
    baseline = next((record for record in reversed(records) if record["kind"] == "baseline"), None)
    parts = [_beside(baseline, test, valid) if baseline else ""]
    if examined is not None:
        name = str(examined.get("set", "test"))
        parts += [
            _each(examined, name),
            _matrix(examined, name),
            _confusions(examined, name),
            _mistakes(examined, name),
            _calibration(examined, name),
        ]
    return "".join(parts)


def _beside(baseline: Record, test: Sequence[Record], valid: Sequence[Record]) -> str:
    """The scores of both models, and which one wins."""
    simple = baseline["test"] if test and baseline.get("test") else baseline["valid"]
    metrics = test[-1]["scores"]["metrics"] if test else {}
    rows, wins = list[str](), ""
    for key, metric in simple["metrics"].items():
        own = metrics.get(key, {}).get("score")
        if own is None:
            continue
        if not rows and metric["score"] > own:
            wins = f'<p class="warning">The {escaped(baseline["name"])} wins.</p>'
        rows.append(
            f'<tr><td>{escaped(metric["name"])}</td><td class="number"><strong>{own:.2f}</strong></td>'
            f'<td class="number">{metric["score"]:.2f}</td></tr>'
        )
    if not rows:
        return ""
    heads = ("Metric", "#This model", f"#{baseline['name'][:1].upper()}{baseline['name'][1:]}")
    return section("Beside a simple model", wins + table(heads, rows))


def _each(examined: Record, name: str) -> str:
    """Precision, recall and F1 of each label, the lowest F1 first."""
    rows = [
        f'<tr><td class="label">{_label(one["label"])}</td><td class="number">{one["count"]:,}</td>'
        + "".join(f'<td class="number">{one[key]:.1f}</td>' for key in ("precision", "recall", "f1"))
        + "</tr>"
        for one in sorted(examined.get("by_label", ()), key=lambda one: float(one["f1"]))
    ]
    if not rows:
        return ""
    said = (
        "<p>Precision: the share of the answers with this label that are right. Recall: the share of its occurrences that are "
        "found. The lowest F1 comes first.</p>"
    )
    heads = ("Label", "#Count", "#Precision", "#Recall", "#F1")
    return section(f"Each label ({name} set)", said + table(heads, rows))


def _matrix(examined: Record, name: str) -> str:
    """All labels, the right ones in rows, for as many as can be read."""
    labels, matrix = examined.get("labels"), examined.get("matrix")
    if not labels or not matrix:
        return ""
    rows = []
    for label, counts in zip(labels, matrix, strict=True):
        total = max(1, sum(counts))
        cells = "".join(
            f'<td class="cell" style="--share:{_DARKEST * count / total:.0f}%">{count or "·"}</td>' for count in counts
        )
        rows.append(f"<tr><td>{escaped(label)}</td>{cells}</tr>")
    heads = ("label ↓ answer →", *labels)
    kind = "matrix upright" if len(labels) > _LEVEL else "matrix"
    said = "<p>How often each label got each answer. The stronger the colour, the larger the part of its row.</p>"
    return section(f"Confusion matrix ({name} set)", f'{said}<div class="{kind}">{table(heads, rows)}</div>')


def _confusions(examined: Record, name: str) -> str:
    rows = [
        f"<tr><td>{_label(one['label'])}</td><td>{_label(one['answer'])}</td>"
        f'<td class="number">{one["count"]:,} of {one["of"]:,}</td></tr>'
        for one in examined.get("confusions", ())
    ]
    heads = ("Label", "Taken for", "#Times")
    return section(f"Most confused labels ({name} set)", table(heads, rows)) if rows else ""


def _mistakes(examined: Record, name: str) -> str:
    """Those that the model was surest of."""
    rows = [
        f'<tr><td class="text">{escaped(one["text"])}</td><td class="label">{_label(one["label"])}</td>'
        f'<td class="label">{_label(one["answer"])}</td>'
        f'<td class="number">{format(one["probability"], ".3f") if "probability" in one else ""}</td></tr>'
        for one in examined.get("mistakes", ())
    ]
    if not rows:
        return ""
    count = examined.get("num_mistakes")
    said = f"<p>{len(rows)} of {count:,}, the surest first.</p>" if count else ""
    return section(f"Worst mistakes ({name} set)", said + table(("Text", "Label", "Answer", "#Probability"), rows))


def _label(name: str) -> str:
    """A label, which may wrap after each underscore."""
    return escaped(name).replace("_", "_<wbr>")


def _calibration(examined: Record, name: str) -> str:
    """The share of right answers by the probability that the model gives them; a perfectly calibrated one lies on the diagonal."""
    found = examined.get("calibration")
    if not found:
        return ""
    dots, most = [], max(one["count"] for one in found["bins"])
    for one in found["bins"]:
        x, y = _EDGE + _SIZE * one["confidence"], _SIZE * (1 - one["accuracy"]) + 10
        size = 3 + 7 * (one["count"] / most) ** 0.5
        title = f"{one['count']:,} answers: {100 * one['confidence']:.0f}% sure, {100 * one['accuracy']:.0f}% right"
        dots.append(f'<circle class="one" cx="{x:.1f}" cy="{y:.1f}" r="{size:.1f}"><title>{title}</title></circle>')
    ticks = "".join(
        f'<text class="x" x="{_EDGE + _SIZE * n / 4}" y="{_SIZE + 28}">{25 * n}%</text>'
        f'<text class="y" x="{_EDGE - 6}" y="{_SIZE * (1 - n / 4) + 14}">{25 * n}%</text>'
        for n in range(5)
    )
    plot = (
        f'<svg viewBox="0 0 {_SIZE + _EDGE + 20} {_SIZE + 54}" style="max-width:{_SIZE + _EDGE + 20}px" role="img">'
        f'<path class="axis" fill="none" d="M{_EDGE} 10V{_SIZE + 10}H{_EDGE + _SIZE}"/>'
        f'<path class="diagonal" d="M{_EDGE} {_SIZE + 10}L{_EDGE + _SIZE} 10"/>{ticks}{"".join(dots)}'
        f'<text class="x" x="{_EDGE + _SIZE / 2}" y="{_SIZE + 48}">probability of the answer; up: share that is right</text></svg>'
    )
    said = f"<p>Expected calibration error {100 * found['error']:.1f}%: the mean distance from the dashed diagonal.</p>"
    return section(f"Calibration ({name} set)", f'{said}<div class="card">{plot}</div>')


STYLE = """
.matrix table { width: auto; } .matrix .cell, .matrix th + th { text-align: center; min-width: 64px; }
.matrix tbody td:first-child { padding-right: 24px; } .matrix .table { max-height: none; }
.upright th + th { writing-mode: vertical-rl; transform: rotate(180deg); max-height: 14em; text-align: left; }
.upright .cell, .upright th + th { min-width: 0; padding-inline: 4px; }
td.cell { background: color-mix(in srgb, var(--one) var(--share), transparent); }
td.text { width: 50%; min-width: 110px; } path.diagonal { fill: none; stroke: var(--soft); stroke-dasharray: 4 4; }
"""
