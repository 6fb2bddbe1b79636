"""The page of the claims, as Markdown with plots beside it, from the JSON file alone: what was measured, and what it says. Every
sentence with a figure is computed from the rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.paper_claims import layers, scores, translation
from benchmarks.paper_claims.bench import Row
from benchmarks.paper_claims.plots import DRAW

INTRODUCTION = """# The paper's claims, measured

Written by `python -m benchmarks.claims --page` from the figures of `python -m benchmarks.claims`, which also says how each was
measured. What went against the Transformer is here, too.
"""


def cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:,.2f}" if abs(value) >= 0.1 or value == 0 else f"{value:.2g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def table(rows: Sequence[Row]) -> str:
    """Markdown, under the names of the first row's fields."""
    columns = list(rows[0])
    body = [f"| {' | '.join(cell(row.get(column)) for column in columns)} |" for row in rows]
    return "\n".join([f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}", *body])


def wide(rows: Sequence[Row], names: Sequence[str], across: str, figure: str) -> list[Row]:
    """One row for each value of the fields `names`, and a column for each value of `across`."""
    found: dict[tuple[Any, ...], Row] = {}
    for row in rows:
        entry = found.setdefault(tuple(row[name] for name in names), {name: row[name] for name in names})
        entry[f"{row[across]:,}"] = "-" if row[figure] is None else row[figure]
    return list(found.values())


def listed(parts: Sequence[str]) -> str:
    """a, b and c."""
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def facts_line(facts: Row) -> str:
    return ", ".join(
        f"{key} {value if key == 'cuDNN' else cell(value)}" for key, value in facts.items() if value is not None
    )


# --- section 6.1 ---


def seconds_to(curve: Sequence[Sequence[float]], loss: float) -> float | None:
    """When a validation loss was reached, between two validations on a straight line; None: never.

    >>> seconds_to([(10, 4.0), (20, 3.0)], 3.5)
    15.0
    """
    before: Sequence[float] | None = None
    for seconds, value in curve:
        if value <= loss:
            if before is None or before[1] <= value:
                return float(seconds)
            return before[0] + (seconds - before[0]) * (before[1] - loss) / (before[1] - value)
        before = (seconds, value)
    return None


def translation_text(rows: Sequence[Row]) -> str:
    chosen = {row["contender"]: row for row in rows if row.get("chosen")}
    columns = (
        "contender", "rate", "parameters", "number format", "updates", "target tokens/s", "validation loss", "test BLEU", "chosen",
    )  # fmt: skip
    shown = [{column: row.get(column) for column in columns} for row in rows]
    for row in shown:
        row |= {"rate": f"{row['rate']:g}", "chosen": "yes" if row["chosen"] else None}
    by_length = [
        {"contender": name, **{each["words"]: each["BLEU"] for each in row["by length"]}}
        for name, row in chosen.items()
    ]
    ours = chosen.get(translation.TRANSFORMER)
    said = []
    for name in (translation.LSTM, translation.CONVOLUTION):
        if ours is None or name not in chosen:
            continue
        other = chosen[name]
        needed, spent = seconds_to(ours["curve"], other["validation loss"]), other["curve"][-1][0]
        reaches = "never reaches" if needed is None else f"needs {needed:.1f} of {spent:.1f} seconds to reach"
        difference = ours["test BLEU"] - other["test BLEU"]
        ends = [ours["by length"][place]["BLEU"] - other["by length"][place]["BLEU"] for place in (0, -1)]
        said.append(
            f"The Transformer {reaches} the {name}'s final validation loss; its test BLEU differs from the {name}'s by "
            f"{difference:+.2f}, by {ends[0]:+.2f} on the shortest sentences and by {ends[1]:+.2f} on the longest."
        )
    parts = [
        "Models of equal size on the same pairs, in updates of equally many tokens, each for the same minutes and at two learning "
        "rates, of which the validation loss picks one. The plain path is the same Transformer without compilation, fused kernels "
        "and CUDA graph: compare it with the others, which run as torch runs them, to see the architecture alone.",
        " ".join(said),
        table(shown),
        "BLEU of the chosen runs by words of the source sentence:",
        table(by_length),
    ]
    if ours is not None:
        parts.append(f"Signature: `{ours['signature']}`.")
    return "\n\n".join(part for part in parts if part)


# --- table 1 ---


def layers_text(rows: Sequence[Row]) -> str:
    formulas = [
        {"layer": name, "operations": layers.COSTS[name], "must follow one another": layers.FOLLOWING[name]}
        for name in layers.FOLLOWING
    ]
    of_layers = [row for row in rows if row["kind"] == "layer"]
    said = []
    for row in rows:
        if row["kind"] == "crossover" and row["attention"] == layers.FUSED:
            start = row["recurrence is faster from n"]
            where = f"from n = {start:,} on" if start else f"at no length up to {row['longest n']:,}"
            said.append((row["what"], row["texts"], f"d = {row['d']:,}: {where}"))
    lines = []
    for what, texts, title in (
        ("layer", "many", "With many sequences in a batch, an LSTM layer is faster than fused self-attention"),
        ("layer", "one", "With one sequence"),
        ("generation", "many", "To generate one more token"),
    ):
        found = [text for kind, count, text in said if (kind, count) == (what, texts)]
        if found:
            lines.append(f"- {title}: {'; '.join(found)}.")
    formula = [row for row in rows if row["kind"] == "crossover" and row["attention"] == layers.FORMULA]
    if formula:
        text = "; ".join(
            f"d = {row['d']:,}, {row['texts']} sequence{'s' * (row['texts'] == 'many')}: "
            + (f"n = {row['recurrence is faster from n']:,}" if row["recurrence is faster from n"] else "nowhere")
            for row in formula
        )
        lines.append(f"- Against the formula with its n x n weights written out, an LSTM wins from: {text}.")
    return "\n\n".join(
        [
            "Table 1 of the paper counts operations; here is the time of one layer, forward and backward, in milliseconds.",
            table(formulas),
            "\n".join(lines),
            "Many sequences, as many as make up the same number of tokens:",
            table(wide([row for row in of_layers if row["texts"] != 1], ("layer", "d"), "n", "ms")),
            "One sequence:",
            table(wide([row for row in of_layers if row["texts"] == 1], ("layer", "d"), "n", "ms")),
            "One more token after n of them, where attention reads all keys and values and an LSTM its state:",
            table(wide([row for row in rows if row["kind"] == "generation"], ("layer", "d"), "n", "ms")),
        ]
    )


# --- section 3.2.1 ---


def scores_text(rows: Sequence[Row]) -> str:
    functions = [row for row in rows if row["kind"] == "function"]
    both = {(row["attention"], row["d_k"], row["n"]): row for row in functions if row["ms"] is not None}
    ratios = {
        (d_k, n): row["ms"] / both[scores.DOT, d_k, n]["ms"]
        for (name, d_k, n), row in both.items()
        if name == scores.ADDITIVE
    }
    most = max(ratios, key=lambda key: ratios[key])
    parts = [
        f"Additive attention takes {min(ratios.values()):.1f} to {ratios[most]:.1f} times as long as the dot product (most at "
        f"d_k = {most[0]:,}, n = {most[1]:,}). `-`: would not fit the memory set aside.",
        "Milliseconds, forward and backward, over n:",
        table(wide(functions, ("attention", "d_k"), "n", "ms")),
    ]
    if any(row["GiB"] is not None for row in functions):
        parts += ["GiB of memory, over n:", table(wide(functions, ("attention", "d_k"), "n", "GiB"))]
    random = [{k: v for k, v in row.items() if k != "kind"} for row in rows if row["kind"] == "softmax"]
    training = [
        {k: v for k, v in row.items() if k not in ("kind", "losses")} for row in rows if row["kind"] == "training"
    ]
    scaled, unscaled = ([row for row in random if row["scores"] == each][-1] for each in ("scaled", "unscaled"))
    key = "gradient of the softmax"
    parts += [
        f"Random queries and keys of variance 1. At d_k = {scaled['d_k']:,} the variance of the scores is "
        f"{cell(scaled['variance'])} with the scale and {cell(unscaled['variance'])} without, and the median size of the "
        f"softmax's gradient {scaled[key]:.1e} and {unscaled[key]:.1e}.",
        table(random),
        "A small Transformer on associative recall, whose queries and keys start with variance 1:",
        table(training),
    ]
    return "\n\n".join(parts)


# --- section 4 ---


def recall_text(rows: Sequence[Row]) -> str:
    shown = [
        {
            "model": row["model"],
            "rate": f"{row['rate']:g}",
            "parameters": row["parameters"],
            "sees, tokens": row["sees, tokens"] or "all",
            "updates": row["updates"],
            **{f"{int(distance):,}": value for distance, value in row["accuracy, %"].items()},
            "chosen": "yes" if row.get("chosen") else None,
        }
        for row in rows
    ]
    said = []
    for row in (row for row in rows if row.get("chosen")):
        far = [int(distance) for distance, value in row["accuracy, %"].items() if value >= 90]
        said.append(f"{row['model']}: {f'up to {max(far):,} places' if far else 'at no distance'}")
    return "\n\n".join(
        [
            "Facts, noise, then questions about the facts: how far back a model still finds the answer. All have about the same "
            "number of parameters and the same seconds. The plain convolutions cannot see further than their layers reach.",
            f"At least 90% right: {'; '.join(said)}.",
            "Right answers in per cent over the distance:",
            table(shown),
        ]
    )


TITLES = {
    "translation": "Training time and quality (section 6.1)",
    "layers": "The cost of a layer over length (table 1)",
    "scores": "Dot-product, additive, scaled and unscaled attention (section 3.2.1)",
    "recall": "How far back each can look (section 4)",
}
TEXTS: dict[str, Callable[[Sequence[Row]], str]] = {
    "translation": translation_text,
    "layers": layers_text,
    "scores": scores_text,
    "recall": recall_text,
}


def write_page(results: dict[str, Any], path: Path) -> None:
    """The page, and a plot beside it for each section that was measured. Of a section that was cut short only contenders that were
    translated with are shown."""
    parts = [INTRODUCTION.rstrip()]
    for name, title in TITLES.items():
        if name not in results:
            continue
        rows, facts, is_complete = results[name]["rows"], results[name]["facts"], results[name].get("complete", True)
        if not is_complete:
            done = {row["contender"] for row in rows if row.get("chosen")} if name == "translation" else set()
            rows = [row for row in rows if row.get("contender") in done]
        parts.append(f"## {title}")
        if rows:
            plot = path.with_name(f"{path.stem}-{name}.svg")
            DRAW[name](rows, plot)
            parts += [f"![{title}]({plot.name})", TEXTS[name](rows), f"({facts_line(facts)}.)"]
        if not is_complete:
            parts.append("Not all of this section has been measured.")
    path.write_text("\n\n".join(parts) + "\n", encoding="utf-8")
