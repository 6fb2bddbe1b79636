"""Write docs/variations.md from the rows of a sweep: `python -m scripts.variations_page runs/reproduce/variations/rows.jsonl`."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from regard.reproduce.records import read_records
from regard.reproduce.results import Variation, load_result
from regard.reproduce.table3 import compare_rows, not_run, summary, table_lines

DOCUMENT = Path(__file__).parents[1] / "docs" / "variations.md"


def render(variations: Sequence[Variation], records: Mapping[str, Mapping[str, Any]]) -> str:
    """The table beside the paper's, what agrees, and where the figures come from."""
    lines = compare_rows(variations, records)
    heads, *rows = table_lines(lines)
    table = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}", *(f"| {' | '.join(row)} |" for row in rows)]
    first = next(iter(records.values()))
    differing = [line["row"] for line in lines if "differs" in (line["bleu, verdict"], line["perplexity, verdict"])]
    seeds = sorted(record["seed"] for name, record in records.items() if name.startswith("base"))
    minutes = sum(record["seconds"] for record in records.values()) / 60
    return "\n".join(
        [
            "# Table 3 of the paper, at a quarter of its size",
            "",
            "`regard reproduce variations` (recipes/variations.toml: half the paper's widths, "
            f"{first['steps']:,} updates, {first['pairs']:,} pairs) on newstest2013, beam 4, alpha 0.6; written by "
            "`python -m scripts.variations_page`. A difference to the base row agrees if it has the paper's sign and is larger "
            "than the 95% interval of one more run of the base row, which is the figure behind ±; within noise, it shows nothing.",
            "",
            *table,
            "",
            f"{summary(lines)}."
            + (f" Against the paper: {'; '.join(differing)}." if differing else "")
            + not_run(variations, records),
            "",
            f"({first['date']}, {first['device']}, torch {first['torch']}; seeds {', '.join(map(str, seeds))} of the base row, 1 "
            f"of the others; {minutes:.0f} minutes, added up over rows that may have run at the same time. Perplexity is that of a "
            f"token of this vocabulary. BLEU `{first['signature']}`.)",
            "",
        ]
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", type=Path, help="rows.jsonl of a sweep")
    parser.add_argument("--out", type=Path, default=DOCUMENT)
    parsed = parser.parse_args(arguments)
    records = {record["row"]: record for record in read_records(parsed.rows)}
    if not records:
        parser.error(f"{parsed.rows} has no rows")
    parsed.out.write_text(render(load_result("variations").rows, records), encoding="utf-8")


if __name__ == "__main__":
    main()
