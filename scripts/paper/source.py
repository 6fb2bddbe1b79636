"""The source of the walk: Markdown files in scripts/paper/text, cut into prose, excerpts of the code and cells that run.

<!-- code: regard/nn/block.py::Layer.run -->
    a function, a class or a method
<!-- code: recipes/wmt-base.toml from "[train]" to "warmup" -->
    lines of it, or of a file
```python cell
    runs; its output follows it
```python cell figure=masks: Three maps of weights.
    its last expression is a Picture: docs/paper/masks.svg, and how it is described to those who do not see it
```python cell notebook
    runs, but is shown in the notebook alone
{{ expression }}
    in prose: its value after the cells before it
@@regard/config.py::ModelConfig from "norm_eps"@@
    in prose: a link to a name, or to a line of it
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

TEXT = Path(__file__).parent / "text"
EXPRESSION = re.compile(r"\{\{ (.+?) \}\}")
LINK = re.compile(r'@@(?P<path>[^\s:@]+)(?:::(?P<name>[^\s@]+))?(?: from "(?P<first>.+?)")?@@')
_CODE = re.compile(
    r'<!-- code: (?P<path>[^\s:]+)(?:::(?P<name>\S+))?(?: from "(?P<first>.+?)" to "(?P<last>.+?)")? -->'
)
_CELL = re.compile(r"```python cell(?P<notebook> notebook)?(?: figure=(?P<figure>[\w-]+): (?P<description>[^\]]+))?")


@dataclass(frozen=True)
class Prose:
    """Markdown, perhaps with expressions."""

    text: str


@dataclass(frozen=True)
class Excerpt:
    """Lines of a file of the project, included by reference."""

    path: str
    name: str | None  # a function, class or method
    first: str | None = None  # what the first line contains
    last: str | None = None


@dataclass(frozen=True)
class Cell:
    """Python that runs."""

    code: str
    figure: str | None = None  # the name of the figure that it makes
    description: str = ""  # of the figure
    notebook_only: bool = False


Part = Prose | Excerpt | Cell


def read_parts(folder: Path = TEXT) -> list[Part]:
    """The parts of all files, in the order of their names."""
    return [part for path in sorted(folder.glob("*.md")) for part in parse(path.read_text(encoding="utf-8"), path.name)]


def parse(text: str, name: str = "text") -> list[Part]:
    """
    >>> parse("One.\\n\\n```python cell\\n1 + 1\\n```\\nTwo.")
    [Prose(text='One.'), Cell(code='1 + 1', figure=None, description='', notebook_only=False), Prose(text='Two.')]
    """
    parts: list[Part] = []
    prose: list[str] = []
    lines = iter(text.splitlines())
    for line in lines:
        special = _special(line, lines, name)
        if special is None:
            prose.append(line)
            continue
        parts += _prose(prose)
        parts.append(special)
        prose = []
    return parts + _prose(prose)


def _special(line: str, lines: Iterator[str], name: str) -> Part | None:
    if line.startswith("<!-- code:"):
        found = _CODE.fullmatch(line)
        if found is None:
            raise ValueError(f"{name}: not a reference to code: {line}")
        return Excerpt(**found.groupdict())
    if line.startswith("```python cell"):
        found = _CELL.fullmatch(line)
        if found is None:
            raise ValueError(f"{name}: not a cell: {line}")
        code: list[str] = []
        for inside in lines:
            if inside == "```":
                return Cell("\n".join(code), found["figure"], found["description"] or "", found["notebook"] is not None)
            code.append(inside)
        raise ValueError(f"{name}: a cell does not end: {line}")
    return None


def _prose(lines: list[str]) -> list[Part]:
    text = "\n".join(lines).strip()
    return [Prose(text)] if text else []


def expressions(parts: list[Part]) -> list[str]:
    """All expressions, in order."""
    return [found for part in parts if isinstance(part, Prose) for found in EXPRESSION.findall(part.text)]
