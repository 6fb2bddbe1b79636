"""The report of a run as one self-contained HTML page: curves, validations, samples over time, settings.

It is made from the records of metrics.jsonl, so it can be written at any time during a run or after it.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

from regard.files import write_atomic
from regard.html_page import escaped, mark_matches, render_page, row, section, table
from regard.progress import clock
from regard.task_table import DEFAULT_TASK, FIGURES, TASK_SETTINGS, TaskSettings, sample_kind
from regard.training.chart import Point, Series, chart
from regard.training.label_report import STYLE, label_sections
from regard.training.metrics import best_validation

Record = Mapping[str, Any]

SCORES = (
    "bleu",
    "chrf",
    "accuracy",
    "f1",
    "macro_f1",
    "spearman",
    "pearson",
    "retrieval",
)  # in one chart; a run has one or two
_SHOWN_VERSIONS = 6  # of a sample
_OF_NEW_VOCABULARY = {"vocab_size", "unit", "split_digits", "folder"}  # the fields of [tokenizer] that make or name one
# The first of these that a test set was scored by has a tile.
_FIRST = ("bleu", "f1", "accuracy", "spearman", "retrieval", "bits_per_byte", "loss")


def write_report(run: Path, recipe: Mapping[str, Any], records: Sequence[Record], facts: Mapping[str, str]) -> Path:
    """Write `report.html` into the run folder; a multi-line fact gets its own section."""
    path = run / "report.html"
    write_atomic(path, render_report(run.resolve().name, recipe, records, facts))
    return path


def render_report(name: str, recipe: Mapping[str, Any], records: Sequence[Record], facts: Mapping[str, str]) -> str:
    """The page as HTML; all values are escaped."""
    train = [record for record in records if record["kind"] == "train"]
    valid = [record for record in records if record["kind"] == "valid"]
    test = [record for record in records if record["kind"] == "test"]
    notes = [record for record in records if record["kind"] == "note"]
    data, settings = recipe.get("data", {}), TASK_SETTINGS[recipe.get("task", DEFAULT_TASK)]
    arrow = "↔" if settings.has_own_head else "→"  # vectors have no direction
    has_sides = settings.has_sides and "source" in data and "target" in data
    title = f"{data['source']} {arrow} {data['target']}" if has_sides else name
    labels = recipe.get("model", {}).get("head", {}).get("labels", ())
    about = name if has_sides else f"{recipe.get('task')}{f', {len(labels):,} labels' if len(labels) > 1 else ''}"
    written = datetime.now().strftime("%Y-%m-%d %H:%M")
    body = [
        f'<header><p class="over">Training report</p><h1>{escaped(title)}</h1><p>{escaped(about)} · {written}</p></header>',
        _tiles(train, valid, test),
        _curves(train, valid, loss_title(settings)),
        _tests(test, settings.scored),
        label_sections(records, test, valid),
        _samples(valid),
        _validations(valid),
        _long_facts(facts),
        section("About", _pairs({key: value for key, value in facts.items() if "\n" not in value})),
        _settings(recipe),
        section("Notes", "".join(f"<p>{escaped(note['text'])}</p>" for note in notes)),
    ]
    return render_page(f"{title} · {name}", [part for part in body if part], _CHART_STYLE + STYLE)


# ---------------------------------------------------------------------------------------------------- sections


def _tiles(train: Sequence[Record], valid: Sequence[Record], test: Sequence[Record]) -> str:
    tiles: list[tuple[str, str, str]] = []
    for record in test[:2]:
        metrics = record["scores"]["metrics"]
        for key in (key for key in _FIRST if FIGURES[key].name.lower() in metrics):
            metric, figure = metrics[FIGURES[key].name.lower()], FIGURES[key]
            interval = f"± {metric['confidence']:.1f}, " if metric.get("confidence") is not None else ""
            tiles.append((f"Test {figure.name}", format(metric["score"], figure.form), f"{interval}{record['name']}"))
            break
    best = best_validation(valid)
    if best:
        at = f"best, at step {best['step']:,}"
        measured = [key for key in ("bits_per_byte", *SCORES) if best.get(key) is not None]
        tiles += [(f"Validation {FIGURES[key].name}", format(best[key], FIGURES[key].form), at) for key in measured]
        if best.get("loss") is not None:
            perplexity = best.get("perplexity")
            under = f"perplexity {perplexity:,.1f}" if perplexity is not None else at
            tiles.append(("Validation loss", f"{best['loss']:.3f}", under))
    if timed := [record for record in (*train, *valid) if record.get("elapsed") is not None]:
        last = max(timed, key=lambda record: float(record["elapsed"]))
        epochs = f"{last['epoch']:.1f} epochs" if last.get("epoch") is not None else ""
        tiles.append(("Time", _duration(last["elapsed"]), f"{last['step']:,} steps, {epochs}".strip(", ")))
    if speeds := [value for _, value in points(train, "tokens_per_second")]:
        tiles.append(("Tokens per second", f"{statistics.median(speeds):,.0f}", "median"))
    if not tiles:
        return '<p class="card">No measurements yet.</p>'
    cards = (f"<div><p>{escaped(a)}</p><strong>{escaped(b)}</strong><p>{escaped(c)}</p></div>" for a, b, c in tiles)
    return f'<div class="tiles">{"".join(cards)}</div>'


def loss_title(settings: TaskSettings) -> str:
    """The heading of the curves of the loss."""
    return "Loss" if settings.has_own_head else "Loss per token"


def _curves(train: Sequence[Record], valid: Sequence[Record], loss: str) -> str:
    best = best_validation(valid)
    ring = best["step"] if best else None
    keys = measured_scores(valid)
    objective = points(train, "loss")  # with label smoothing, R-Drop or an anchor; without them it is the other
    speeds = Series("tokens per second", points(train, "tokens_per_second"), "one")
    charts = [
        chart(
            loss,
            [
                Series("training", points(train, "nll"), "one"),
                Series("validation", points(valid, "loss"), "two", dots=True),
                *([Series("objective", objective, "faint")] if objective != points(train, "nll") else []),
            ],
            lambda value: f"{value:.3f}",
            ring=ring,
        ),
        chart(
            f"Validation {FIGURES[keys[0]].name}" if len(keys) == 1 else "Validation scores",
            [
                Series(FIGURES[key].name, points(valid, key), color, dots=True)
                for key, color in zip(keys, cycle(("one", "two")), strict=False)
            ],
            lambda value: f"{value:.1f}",
            from_zero=True,
            ring=ring,
        ),
        chart(
            "Bits per byte",
            [Series("validation", points(valid, "bits_per_byte"), "two", dots=True)],
            lambda value: f"{value:.3f}",
            ring=ring,
        ),
        chart(
            "Learning rate",
            [Series("learning rate", points(train, "lr"), "one")],
            lambda value: f"{value:.2e}" if value else "0",
            from_zero=True,
        ),
        chart("Tokens per second", [speeds], lambda value: f"{value:,.0f}", from_zero=True),
    ]
    lost = [record["step"] for record in train if record.get("loss") is None or not math.isfinite(record["loss"])]
    warning = f'<p class="warning">The loss is not finite from step {lost[0]:,} on.</p>' if lost else ""
    drawn = "".join(charts)
    return section("Curves", f'{warning}<div class="charts">{drawn}</div>' if drawn else warning)


def measured_scores(valid: Sequence[Record]) -> list[str]:
    """The keys of the scores that these validations have."""
    return [key for key in SCORES if any(record.get(key) is not None for record in valid)]


def _tests(test: Sequence[Record], scored: str) -> str:
    rows = []
    for record in test:
        for metric in record["scores"]["metrics"].values():
            confidence = f"± {metric['confidence']:.2f}" if metric.get("confidence") is not None else ""
            # The signature may wrap after each bar, and must copy without spaces.
            signature = escaped(metric["signature"]).replace("|", "|<wbr>")
            rows.append(
                f'<tr class="joined"><td>{escaped(record["name"])}</td><td>{escaped(metric["name"])}</td>'
                f'<td class="number"><strong>{metric["score"]:.2f}</strong></td><td class="number">{confidence}</td>'
                f'<td class="number">{record["scores"]["sentences"]:,}</td></tr>'
                f'<tr><td colspan="5"><code>{signature}</code></td></tr>'
            )
        rows += [f'<tr><td colspan="5">{escaped(note)}</td></tr>' for note in record["scores"].get("notes", ())]
    heads = ("Set", "Metric", "#Score", "#95%", f"#{scored}")
    return section("Test scores", table(heads, rows)) if rows else ""


def _validations(valid: Sequence[Record]) -> str:
    best = best_validation(valid)
    measured = [
        (
            f"#{figure.name[0].upper()}{figure.name[1:]}" if figure.name.islower() else f"#{figure.name}",
            key,
            figure.form,
        )
        for key, figure in FIGURES.items()
        if any(record.get(key) is not None for record in valid)
    ]
    columns: list[tuple[str, Callable[[Record], str | None]]] = [
        ("#Step", lambda r: f"{'★ ' if r is best else ''}{r['step']:,}"),
        ("#Epoch", lambda r: _number(r.get("epoch"), ".2f")),
        *((head, partial(_figure, key=key, form=form)) for head, key, form in measured),
        ("#Time", lambda r: clock(r["elapsed"]) if r.get("elapsed") is not None else None),
    ]
    rows = []
    for record in valid:
        cells = "".join(f'<td class="number">{cell(record) or "-"}</td>' for _, cell in columns)
        rows.append(f"<tr{' class=best' if record is best else ''}>{cells}</tr>")
    return section("Validations", table([head for head, _ in columns], rows)) if rows else ""


def sample_histories(valid: Sequence[Record]) -> dict[tuple[str, str], list[tuple[int, str]]]:
    """For each sample, by what was given and its reference: what the model made of it, each with the step at which it first
    appeared."""
    histories: dict[tuple[str, str], list[tuple[int, str]]] = {}
    for record in valid:
        for sample in record.get("samples") or ():
            given, reference, output = (sample[name] for name in sample_kind(sample).names)
            history = histories.setdefault((given, reference), [])
            if not history or history[-1][1] != output:
                history.append((record["step"], output))
    return histories


def _samples(valid: Sequence[Record]) -> str:
    """A card for each sample, with a row for each change of what the model made of it."""
    first = next((sample for record in valid for sample in record.get("samples") or ()), None)
    if first is None:
        return ""
    kind, cards = sample_kind(first), []
    mark: Callable[[str, str], str] = mark_matches if kind.is_compared else lambda text, _: escaped(text)
    for (given, reference), changes in sample_histories(valid).items():
        history = [(f"step {step:,}", text) for step, text in changes]
        rows = [row(kind.names[0], escaped(given)), row(kind.names[1], escaped(reference), "reference")]
        rows += [row(when, mark(text, reference)) for when, text in _thinned(history, _SHOWN_VERSIONS)]
        more = ""
        if len(history) > _SHOWN_VERSIONS:
            every = "".join(row(when, mark(text, reference)) for when, text in history)
            more = f"<details><summary>All {len(history)} {kind.names[2]}s</summary><dl>{every}</dl></details>"
        cards.append(f'<div class="card sample"><dl>{"".join(rows)}</dl>{more}</div>')
    matches = " <mark>Marked</mark> words match the reference." if kind.is_compared else ""
    return section(kind.heading, f"<p>A row for each change.{matches}</p>" + "".join(cards))


def _long_facts(facts: Mapping[str, str]) -> str:
    sections = []
    for key, value in facts.items():
        lines = value.strip().splitlines()
        if "\n" not in value:
            continue
        if all(": " in line for line in lines):
            content = _pairs(dict(line.strip().split(": ", 1) for line in lines))
        else:
            content = f'<pre class="card">{escaped(value.strip())}</pre>'
        sections.append(section(key[:1].upper() + key[1:], content))
    return "".join(sections)


def _settings(recipe: Mapping[str, Any]) -> str:
    recipe = _effective(recipe)
    loose = {key: value for key, value in recipe.items() if not isinstance(value, Mapping)}
    groups = {"recipe": loose, **{key: value for key, value in recipe.items() if isinstance(value, Mapping)}}
    cards = [f"<div><h3>[{escaped(key)}]</h3>{_pairs(values)}</div>" for key, values in groups.items() if values]
    return section("Settings", f'<div class="settings">{"".join(cards)}</div>' if cards else "")


def _effective(recipe: Mapping[str, Any]) -> Mapping[str, Any]:
    """Without the settings that others overrule: the lengths that are not set and, of a run that starts from a model, the preset
    and what would make a vocabulary."""
    train = recipe.get("train", {})
    overruled = {"train": {key for key in ("steps", "epochs", "minutes") if not train.get(key)}}
    if train.get("init"):
        extends = recipe.get("tokenizer", {}).get("extend")  # with pieces for characters, by their coverage
        of_pieces = _OF_NEW_VOCABULARY | (set() if extends else {"character_coverage"})
        overruled |= {"model": {"preset"}, "tokenizer": of_pieces}
    return {
        name: {key: value for key, value in part.items() if key not in overruled.get(name, ())}
        if isinstance(part, Mapping)
        else part
        for name, part in recipe.items()
    }


def _pairs(values: Mapping[str, Any]) -> str:
    rows = "".join(
        f"<div><dt>{escaped(key)}</dt><dd>{escaped(_value(value))}</dd></div>" for key, value in values.items()
    )
    return f'<dl class="pairs card">{rows}</dl>' if rows else ""


def points(records: Iterable[Record], key: str) -> list[Point]:
    """(step, value) of a key, without missing and non-finite values."""
    found = ((record["step"], record.get(key)) for record in records)
    return [(float(step), float(value)) for step, value in found if value is not None and math.isfinite(value)]


def _thinned(items: Sequence[tuple[str, str]], most: int) -> list[tuple[str, str]]:
    """At most `most` items: the first, the last and evenly spaced ones between."""
    if len(items) <= most:
        return list(items)
    return [items[round(i * (len(items) - 1) / (most - 1))] for i in range(most)]


def _value(value: Any) -> str:
    """A setting as in TOML, but without quotes around strings."""
    if isinstance(value, bool):
        return str(value).lower()
    if value is None:
        return "-"
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{key} = {_value(item)}" for key, item in value.items()) + " }"
    if isinstance(value, list | tuple):
        return ", ".join(_value(item) for item in value) or "none"
    return f"{value:,}" if isinstance(value, int) and abs(value) >= 10_000 else str(value)


def _figure(record: Record, key: str, form: str) -> str | None:
    return _number(record.get(key), form)


def _number(value: float | None, form: str) -> str | None:
    return None if value is None or not math.isfinite(value) else format(value, form)


def _duration(seconds: float) -> str:
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minute:02} min"
    if minute >= 10:
        return f"{minute} min"
    return f"{minute} min {second:02} s" if minute else f"{second} s"


_CHART_STYLE = """
.sample dd { white-space: pre-line; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(420px, 100%), 1fr)); gap: 12px; }
.legend { display: flex; flex-wrap: wrap; gap: 0 16px; min-height: 22px; font-size: 13px; color: var(--soft); }
.legend i { display: inline-block; width: 14px; height: 3px; border-radius: 2px; margin-right: 6px;
  vertical-align: 4px; }
.legend b { font-weight: 600; color: var(--ink); font-variant-numeric: tabular-nums; }
i.one { background: var(--one); } i.two { background: var(--two); } i.faint { background: var(--faint); }
svg { display: block; width: 100%; height: auto; margin-top: 8px; font-size: 12px; }
svg text { fill: var(--soft); } text.x { text-anchor: middle; } text.y { text-anchor: end; }
.grid { stroke: var(--line); } .axis { stroke: var(--soft); }
polyline { fill: none; stroke-width: 2; stroke-linejoin: round; stroke-linecap: round; }
polyline.one { stroke: var(--one); } polyline.two { stroke: var(--two); } polyline.faint { stroke: var(--faint); }
circle.one { fill: var(--one); } circle.two { fill: var(--two); } circle.faint { fill: var(--faint); }
circle.ring { fill: none; stroke-width: 1.6; } .ring.one { stroke: var(--one); } .ring.two { stroke: var(--two); }
.strip { fill: transparent; } .hover > g { display: none; pointer-events: none; } .hover:hover > g { display: inline; }
.hover line { stroke: var(--soft); stroke-dasharray: 3 3; } .hover text { fill: var(--ink); }
.box { fill: var(--card); stroke: var(--line); opacity: .95; }
"""
