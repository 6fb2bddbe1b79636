"""What a cell of the walk can show besides text: a picture or a table. Jupyter shows them by itself."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

_OPENING = re.compile(r"<svg[^>]*>")


@dataclass(frozen=True)
class Picture:
    """A figure as SVG."""

    svg: str

    def __repr__(self) -> str:
        return "<Picture>"

    def _repr_svg_(self) -> str:
        return self.svg


@dataclass(frozen=True)
class Table:
    """A table as Markdown."""

    headings: Sequence[str]
    rows: Sequence[Sequence[Any]]

    def __repr__(self) -> str:
        return "\n".join("  ".join(map(str, row)) for row in (self.headings, *self.rows))

    def _repr_markdown_(self) -> str:
        kinds = [
            ":--" if any(isinstance(row[n], str) for row in self.rows) else "--:" for n in range(len(self.headings))
        ]
        lines = [self.headings, kinds, *self.rows]
        return "\n".join(f"| {' | '.join(_cell(value) for value in line)} |" for line in lines)


def _cell(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


def on_white(svg: str) -> str:
    """The drawing on a white ground, so that dark lines are seen on a dark page, too."""
    opening = _OPENING.search(svg)
    assert opening is not None
    return svg.replace(opening[0], opening[0] + '\n<rect width="100%" height="100%" fill="#ffffff"/>', 1)
