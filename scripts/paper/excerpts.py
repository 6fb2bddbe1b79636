"""Finds the lines of the project that the walk includes by reference."""

from __future__ import annotations

import ast
import textwrap
from dataclasses import dataclass
from pathlib import Path

from scripts.paper.source import Excerpt

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Found:
    """An excerpt as it is in the file now; lines are counted from 1."""

    path: str
    begin: int
    end: int
    text: str


def find(excerpt: Excerpt, root: Path = ROOT) -> Found:
    """Look the excerpt up; a ValueError says what is not there any more."""
    where = f"{excerpt.path}::{excerpt.name}" if excerpt.name else excerpt.path
    path = root / excerpt.path
    if not path.is_file():
        raise ValueError(f"{where}: there is no such file")
    lines = path.read_text(encoding="utf-8").splitlines()
    begin, end = _span(lines, excerpt.name, where) if excerpt.name else (1, len(lines))
    if excerpt.first is not None and excerpt.last is not None:
        begin = _line_with(lines, excerpt.first, begin, end, where)
        end = _line_with(lines, excerpt.last, begin, end, where)
    return Found(excerpt.path, begin, end, textwrap.dedent("\n".join(lines[begin - 1 : end])))


def _span(lines: list[str], name: str, where: str) -> tuple[int, int]:
    """First and last line of a function, class, method or top-level assignment."""
    body: list[ast.stmt] = ast.parse("\n".join(lines)).body
    node: ast.stmt | None = None
    for part in name.split("."):
        node = next((each for each in body if part in _names(each)), None)
        if node is None:
            raise ValueError(f"{where}: the file has no such name")
        body = node.body if isinstance(node, ast.ClassDef) else []
    assert node is not None and node.end_lineno is not None
    decorators = node.decorator_list if isinstance(node, ast.FunctionDef | ast.ClassDef) else []
    return min([node.lineno, *(each.lineno for each in decorators)]), node.end_lineno


def _names(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return [target.id for target in targets if isinstance(target, ast.Name)]


def _line_with(lines: list[str], text: str, begin: int, end: int, where: str) -> int:
    for number in range(begin, end + 1):
        if text in lines[number - 1]:
            return number
    raise ValueError(f"{where}: no line between {begin} and {end} contains {text!r}")
