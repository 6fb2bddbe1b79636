"""Runs the cells of the walk in one namespace, top to bottom, as a notebook does."""

from __future__ import annotations

import ast
import contextlib
import io
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scripts.paper.excerpts import ROOT
from scripts.paper.measured import measured, published
from scripts.paper.source import EXPRESSION, Cell, Part, Prose


@dataclass(frozen=True)
class Output:
    """What a cell printed, and the value of its last expression by media type."""

    printed: str = ""
    value: dict[str, str] = field(default_factory=dict)


@dataclass
class Results:
    """The outputs of all cells and the values of all expressions, in order."""

    outputs: list[Output] = field(default_factory=list)
    values: list[tuple[str, str]] = field(default_factory=list)  # expression and value


def run(parts: Sequence[Part]) -> Results:
    """Run every cell, from the project's folder, and evaluate every expression."""
    results = Results()
    namespace: dict[str, Any] = {"__name__": "__main__"}
    before = Path.cwd()
    os.chdir(ROOT)
    try:
        for part in parts:
            if isinstance(part, Cell):
                results.outputs.append(run_cell(part.code, namespace))
            elif isinstance(part, Prose):
                found = EXPRESSION.findall(part.text)
                names = {**namespace, "measured": measured, "published": published}
                results.values += [(expression, str(eval(expression, names))) for expression in found]
    finally:
        os.chdir(before)
    return results


def run_cell(code: str, namespace: dict[str, Any]) -> Output:
    """
    >>> run_cell("print(1)\\n2", {})
    Output(printed='1\\n', value={'text/plain': '2'})
    """
    body = ast.parse(code).body
    last = body.pop() if body and isinstance(body[-1], ast.Expr) else None
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(ast.Module(body, []), "<cell>", "exec"), namespace)
        value = (
            eval(compile(ast.Expression(last.value), "<cell>", "eval"), namespace)
            if isinstance(last, ast.Expr)
            else None
        )
    return Output(printed.getvalue(), {} if value is None else _shown(value))


def _shown(value: Any) -> dict[str, str]:
    """As Jupyter asks a value how to show it."""
    shown = {"text/plain": repr(value)}
    for kind, method in (("image/svg+xml", "_repr_svg_"), ("text/markdown", "_repr_markdown_")):
        if hasattr(value, method):
            shown[kind] = getattr(value, method)()
    return shown
