"""The plots of the claims page, from the JSON rows alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.loss_curves import import_pyplot
from benchmarks.paper_claims.bench import Row

# Colours that people with poor colour vision can tell apart (Okabe and Ito).
COLOURS = {
    "Transformer": "#d55e00",
    "self-attention": "#d55e00",
    "dot product": "#d55e00",
    "scaled": "#d55e00",
    "LSTM": "#0072b2",
    "additive": "#0072b2",
    "unscaled": "#0072b2",
    "convolution": "#009e73",
}
DASHED = ("plain path", "formula", "dilated", "dot product, fused")


def style(name: str) -> dict[str, Any]:
    colour = next(COLOURS[key] for key in sorted(COLOURS, key=len, reverse=True) if name.startswith(key))
    is_dashed = any(word in name for word in DASHED)
    return {"color": colour, "label": name, "linewidth": 1.4, "marker": "o", "markersize": 3} | (
        {"linestyle": (0, (4, 1.5))} if is_dashed else {}
    )


def panels(count: int, width: float = 4.2) -> tuple[Any, Any, list[Any]]:
    plt = import_pyplot()
    figure, axes = plt.subplots(1, count, figsize=(width * count, 3.6), layout="constrained", squeeze=False)
    for panel in axes[0]:
        panel.grid(color="#e6e6e6", linewidth=0.6)
        panel.set_axisbelow(True)
        panel.spines[["top", "right"]].set_visible(False)
    return plt, figure, list(axes[0])


def finish(plt: Any, figure: Any, drawn: Sequence[Any], path: Path) -> None:
    """One legend for all panels, below them."""
    named = {label: handle for panel in drawn for handle, label in zip(*panel.get_legend_handles_labels(), strict=True)}
    figure.legend(named.values(), named.keys(), frameon=False, loc="outside lower center", ncols=min(4, len(named)))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, facecolor="white", metadata={"Date": None})
    plt.close(figure)


def lines(panel: Any, rows: Iterable[Row], name: str, x: str, y: str) -> None:
    """A line for each value of the field `name`; what was not measured is left out."""
    by_name: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        if row[y] is not None:
            by_name.setdefault(row[name], []).append((row[x], row[y]))
    for each, points in by_name.items():
        panel.plot(*zip(*points, strict=True), **style(each))


def draw_translation(rows: Sequence[Row], path: Path) -> None:
    """Validation loss over time, and BLEU over the length of the sentence."""
    plt, figure, (left, right) = panels(2, 4.8)
    for row in (row for row in rows if row.get("chosen")):
        left.plot(*zip(*row["curve"], strict=True), **style(row["contender"]))
        buckets = row["by length"]
        right.plot([each["words"] for each in buckets], [each["BLEU"] for each in buckets], **style(row["contender"]))
    left.set(xlabel="seconds of training", ylabel="validation loss per token")
    right.set(xlabel="words of the source sentence", ylabel="test BLEU, greedy")
    finish(plt, figure, (left, right), path)


def draw_layers(rows: Sequence[Row], path: Path) -> None:
    """One width, that of the paper's base model if it was measured: many sequences, one, and one more token."""
    widths = sorted({row["d"] for row in rows if row["kind"] == "layer"})
    width = 512 if 512 in widths else widths[-1]
    plt, figure, drawn = panels(3)
    chosen = [row for row in rows if row.get("d") == width]
    of_layers = [row for row in chosen if row["kind"] == "layer"]
    lines(drawn[0], [row for row in of_layers if row["texts"] != 1], "layer", "n", "ms")
    lines(drawn[1], [row for row in of_layers if row["texts"] == 1], "layer", "n", "ms")
    lines(drawn[2], [row for row in chosen if row["kind"] == "generation"], "layer", "n", "ms")
    titles = ("a batch of many sequences", "one sequence", "one more token in generation")
    for panel, title in zip(drawn, titles, strict=True):
        panel.set(xscale="log", yscale="log", xlabel="length n", ylabel="ms", title=f"{title}, d = {width}")
    finish(plt, figure, drawn, path)


def draw_scores(rows: Sequence[Row], path: Path) -> None:
    """Time and memory of the two functions at one d_k, and the loss with and without the scale at the largest."""
    functions = [row for row in rows if row["kind"] == "function"]
    widths = sorted({row["d_k"] for row in functions})
    d_k = 64 if 64 in widths else widths[-1]
    plt, figure, drawn = panels(3)
    for panel, field in zip(drawn, ("ms", "GiB"), strict=False):
        lines(panel, [row for row in functions if row["d_k"] == d_k], "attention", "n", field)
        panel.set(xscale="log", xlabel="length n", ylabel=field, title=f"forward and backward, d_k = {d_k}")
        if panel.lines:
            panel.set_yscale("log")
    training = [row for row in rows if row["kind"] == "training"]
    largest = max(row["d_k"] for row in training)
    for row in training:
        if row["d_k"] == largest:
            drawn[2].plot(range(1, len(row["losses"]) + 1), row["losses"], **(style(row["scores"]) | {"marker": ""}))
    drawn[2].set(xlabel="update", ylabel="loss", title=f"associative recall, d_k = {largest}")
    finish(plt, figure, drawn, path)


def draw_recall(rows: Sequence[Row], path: Path) -> None:
    plt, figure, (panel,) = panels(1, 6.4)
    for row in (row for row in rows if row.get("chosen")):
        points = row["accuracy, %"]
        panel.plot([int(distance) for distance in points], list(points.values()), **style(row["model"]))
    panel.axhline(rows[0]["chance, %"], color="#999999", linewidth=0.8, linestyle=":", label="chance")
    panel.set(xscale="log", xlabel="places between a fact and the question", ylabel="right answers, %", ylim=(0, 103))
    finish(plt, figure, (panel,), path)


DRAW = {"translation": draw_translation, "layers": draw_layers, "scores": draw_scores, "recall": draw_recall}
