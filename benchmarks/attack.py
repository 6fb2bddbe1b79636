"""The attacks that Regard must survive, on this machine and over loopback alone; docs/security.md says what is promised.

    python -m benchmarks.attack                     # everything, some minutes; a table, JSON, and docs/results.md
    python -m benchmarks.attack --only server files # some parts: runs, files, server, connections

A case has survived if it ended in the right result or in one clear line (over HTTP: in a status that the API has). It is *silent*
if something wrong came back without a word, a *traceback* if the program or a request failed inside, and a *hang* if it took more
time or memory than it may. The command fails unless all cases survive. It needs Linux.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from benchmarks.attacks.on_connections import Siege, slow_connections
from benchmarks.attacks.on_files import fuzz_files, spoil_bundles, type_nonsense
from benchmarks.attacks.on_runs import attack_runs
from benchmarks.attacks.on_server import attack_server
from benchmarks.attacks.outcome import Tally, preload
from benchmarks.common import machine, print_facts, print_table, write_json

RESULTS = Path(__file__).parents[1] / "docs" / "results.md"
TITLE = "## Under attack"
PARTS = ("runs", "files", "server", "connections")


def attacks(part: str, scratch: Path, scale: float) -> Iterator[Tally]:
    """The tallies of one part; `scale` multiplies the number of random cases."""
    if part == "runs":
        yield from attack_runs(scratch, kills=10, flips=round(40 * scale))
    elif part == "files":
        yield from spoil_bundles(scratch, round(100 * scale))
        yield from fuzz_files(scratch, round(200 * scale))
        yield from type_nonsense(scratch)
    elif part == "server":
        yield from attack_server(scratch, round(316 * scale))
    else:
        yield from slow_connections(Siege(), [1_024, 20_000])


def section(rows: list[dict[str, Any]], notes: list[str], facts: dict[str, Any]) -> str:
    """The section of docs/results.md."""
    described = ", ".join(f"{name} {value}" for name, value in facts.items())
    lines = [
        TITLE,
        "",
        f"`python -m benchmarks.attack` ({described}). [What is promised, and what the words mean](security.md).",
        "",
        f"| {' | '.join(rows[0])} |",
        f"|{'---|' * len(rows[0])}",
        *(
            f"| {' | '.join(f'{value:,}' if isinstance(value, int) else value for value in row.values())} |"
            for row in rows
        ),
        "",
    ]
    if notes:
        said = "; ".join(notes)
        lines += [*textwrap.wrap(f"{said[0].upper()}{said[1:]}.", 124, break_on_hyphens=False), ""]
    return "\n".join(lines)


def write_section(text: str, path: Path = RESULTS) -> None:
    """Replace the section, or add it at the end."""
    page = path.read_text(encoding="utf-8")
    found = re.search(rf"^{re.escape(TITLE)}\n.*?(?=^## |\Z)", page, re.MULTILINE | re.DOTALL)
    if found is None:
        page = page.rstrip("\n") + "\n\n" + text
    else:
        page = page[: found.start()] + text + ("\n" if found.end() < len(page) else "") + page[found.end() :]
    path.write_text(page, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--scale", type=float, default=1.0, help="multiplies the number of random cases (default: 1)")
    parser.add_argument("--no-docs", action="store_true", help="do not write docs/results.md")
    parser.add_argument("--out", type=Path, help="where the JSON goes")
    arguments = parser.parse_args()
    if not sys.platform.startswith("linux"):
        raise SystemExit("the attacks need Linux")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    preload()
    tallies: list[Tally] = []
    start = time.monotonic()
    for part in arguments.only:
        with tempfile.TemporaryDirectory(prefix="regard-attack-") as folder:
            for tally in attacks(part, Path(folder), arguments.scale):
                tallies.append(tally)
                print(f"{time.monotonic() - start:5.0f} s  {tally.row}", flush=True)
    rows = [tally.row for tally in tallies]
    rows.append({"attack": "all", **{name: sum(row[name] for row in rows) for name in list(rows[0])[1:]}})  # type: ignore[misc]
    notes = [tally.note for tally in tallies if tally.note]
    facts: dict[str, Any] = machine(torch.device("cpu"), ["ctranslate2", "uvicorn"])
    facts |= {"minutes": f"{(time.monotonic() - start) / 60:.1f}"}
    print_facts(facts)
    print_table(rows)
    print("\n".join(notes))
    print(f"written to {write_json('attack', rows, facts, arguments.out)}")
    if set(arguments.only) == set(PARTS) and not arguments.no_docs:
        write_section(section(rows, notes, facts))
    if any(tally.failures for tally in tallies):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
