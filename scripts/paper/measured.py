"""Numbers of the walk that are not measured in it: they are read where the project has them, and stand nowhere twice."""

from __future__ import annotations

from collections.abc import Iterator

from regard.reproduce.results import load_result
from scripts.paper.excerpts import ROOT


def published(name: str) -> float:
    """The paper's score of a result that `regard reproduce` knows."""
    score = load_result(name).published.score
    assert score is not None
    return score


def measured(row: str, column: str) -> str:
    """The cell of docs/results.md in the row that begins with `row` and the column with this heading."""
    headings: list[str] = []
    for line in (ROOT / "docs" / "results.md").read_text(encoding="utf-8").splitlines():
        cells = list(_cells(line))
        if not cells:
            headings = []
        elif not headings:
            headings = cells
        elif cells[0].replace("`", "").startswith(row) and column in headings:
            return cells[headings.index(column)]
    raise ValueError(f"docs/results.md has no row {row!r} with a column {column!r}")


def _cells(line: str) -> Iterator[str]:
    if line.startswith("|"):
        yield from (cell.strip() for cell in line.strip().strip("|").split("|"))
