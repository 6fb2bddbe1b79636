"""The page of what was reproduced: one HTML file without scripts, from the files of results. No torch here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from regard.files import write_atomic
from regard.html_page import escaped, render_page, section, table
from regard.reproduce.records import read_records
from regard.reproduce.results import Variation
from regard.reproduce.table3 import compare_rows, not_run, summary, table_lines

_STYLE = ".table { max-height: none; } td { vertical-align: top; } section > .table + p { margin-top: 10px; }"
RECORDS, PAGE = "results.jsonl", "results.html"


def write_page(out: Path, variations: Sequence[Variation], sweep_folder: Path) -> Path:
    """The page beside the files of results."""
    records = read_records(out / RECORDS)
    rows = {record["row"]: record for record in read_records(sweep_folder / "rows.jsonl")}
    body = ['<header><p class="over">Regard</p><h1>Reproduced results</h1></header>']
    body.append(section("Results", _results(records) if records else ""))
    if any(each.name in rows for each in variations):
        body.append(section("Table 3 of the paper: variations", _variations(variations, rows)))
    write_atomic(out / PAGE, render_page("Reproduced results", [part for part in body if part], _STYLE))
    return out / PAGE


def _results(records: Sequence[Mapping[str, Any]]) -> str:
    heads = ("Result", "Date", "Score", "Published", "Model", "Run")
    return table(heads, [_result(record) for record in records])


def _result(record: Mapping[str, Any]) -> str:
    scores = record.get("scores") or {record["metric"]: record["score"]}
    signatures = record.get("signatures", {})
    shown = "<br>".join(
        f"{value:.{3 if value < 10 else 2}f} "
        f"<small>{escaped(name)}<br><code>{escaped(signatures.get(name, ''))}</code></small>"
        for name, value in scores.items()
    )
    published = record["published"]
    theirs = "" if published["score"] is None else f"{published['score']:g} {published['metric']}"
    notes = [
        *(f"changed: {each}" for each in record["changed"]),
        *(f"another text: {each}" for each in record["other text"]),
    ]
    run = [
        f"{record.get('steps', 0):,} steps",
        f"{record.get('minutes', 0):g} minutes",
        str(record.get("device", "")),
        *notes,
    ]
    model = [f"{record.get('parameters', 0):,} parameters", str(record.get("weights", ""))]
    if record.get("beam"):
        model.append(f"beam {record['beam']}, alpha {record['alpha']:g}")
    cells = (
        f"{escaped(record['title'])}<br><small>{escaped(record['name'])}</small>",
        escaped(record["date"]),
        shown,
        f"{escaped(theirs)}<br><small>{escaped(published['what'])}</small>",
        "<br>".join(map(escaped, model)),
        "<br>".join(map(escaped, run)),
    )
    return f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"


def _variations(variations: Sequence[Variation], records: Mapping[str, Mapping[str, Any]]) -> str:
    lines = compare_rows(variations, records)
    heads, *rows = table_lines(lines)
    body = [f"<tr>{''.join(f'<td>{escaped(cell)}</td>' for cell in row)}</tr>" for row in rows]
    first = next(iter(records.values()))
    note = (
        f"{summary(lines)}. A difference agrees if it has the paper's sign and is larger than the 95% interval of one more run of "
        f"the base row. {first.get('device', '')}, torch {first.get('torch', '')}, {first.get('date', '')}; "
        f"{first['signature']}.{not_run(variations, records)}"
    )
    return f"{table(heads, body)}<p>{escaped(note)}</p>"
