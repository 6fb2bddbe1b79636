"""The two forms of the walk: docs/paper.md and docs/paper.ipynb. The notebook holds the outputs, from which both can be written
again without running anything."""

from __future__ import annotations

import hashlib
import json
import re
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from scripts.paper.excerpts import ROOT, find
from scripts.paper.run import Output, Results
from scripts.paper.source import EXPRESSION, LINK, Cell, Excerpt, Part, Prose

DOCS = ROOT / "docs"
FIGURES = DOCS / "paper"
GENERATED = "<!-- Written by `python -m scripts.paper_walk` from scripts/paper/text: edit it there. -->"


def markdown(parts: Sequence[Part], results: Results) -> str:
    """The text of docs/paper.md."""
    outputs, blocks = iter(results.outputs), [GENERATED]
    for part, text in zip(parts, _texts(parts, results), strict=True):
        if not isinstance(part, Cell):
            blocks.append(text)
            continue
        output = next(outputs)
        if not part.notebook_only:
            blocks += [f"```python\n{text}\n```", *_shown(part, output)]
    return "\n\n".join(blocks) + "\n"


def _shown(cell: Cell, output: Output) -> Iterator[str]:
    """The output of a cell, with a line beside it, so that nobody takes it for code."""
    shown = output.printed.rstrip("\n")
    if cell.figure is None and "text/markdown" not in output.value:
        shown = "\n".join(filter(None, (shown, output.value.get("text/plain"))))
    if shown:
        yield textwrap.indent(f"```text\n{shown}\n```", "> ", lambda line: True)
    if cell.figure is not None:
        yield f"![{cell.description}](paper/{cell.figure}.svg)"
    elif "text/markdown" in output.value:
        yield output.value["text/markdown"]


def notebook(parts: Sequence[Part], results: Results) -> str:
    """The text of docs/paper.ipynb."""
    outputs, prose = iter(results.outputs), ""
    cells: list[dict[str, Any]] = []
    for part, text in zip(parts, _texts(parts, results), strict=True):
        if isinstance(part, Cell):
            if prose:
                cells.append(_cell("markdown", prose, len(cells)))
            cells.append(_cell("code", text, len(cells), next(outputs)))
            prose = ""
        else:
            prose = f"{prose}\n\n{text}" if prose else text
    if prose:
        cells.append(_cell("markdown", prose, len(cells)))
    document = {
        "cells": cells,
        "metadata": {
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
            "regard": {"values": results.values},
        },
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def _texts(parts: Sequence[Part], results: Results) -> Iterator[str]:
    """Each part as text: prose with its values, excerpts as they are now, code."""
    values = iter(results.values)
    for part in parts:
        if isinstance(part, Prose):
            text = EXPRESSION.sub(lambda _: next(values)[1], part.text)
            yield LINK.sub(lambda found: link(Excerpt(**found.groupdict(), last=found["first"])), text)
        elif isinstance(part, Excerpt):
            yield excerpt_block(part)
        else:
            yield part.code


def excerpt_block(excerpt: Excerpt) -> str:
    """A link to the lines, and the lines."""
    found = find(excerpt)
    language = {".py": "python", ".toml": "toml"}.get(Path(found.path).suffix, "text")
    lines, anchor = f"lines {found.begin} to {found.end}", f"L{found.begin}-L{found.end}"
    if found.begin == found.end:
        lines, anchor = f"line {found.begin}", f"L{found.begin}"
    return f"[`{found.path}`, {lines}](../{found.path}#{anchor}):\n\n```{language}\n{found.text}\n```"


def link(excerpt: Excerpt) -> str:
    """A link to where it begins."""
    found = find(excerpt)
    return f"[`{found.path}:{found.begin}`](../{found.path}#L{found.begin})"


def _cell(kind: str, text: str, number: int, output: Output | None = None) -> dict[str, Any]:
    name = hashlib.sha256(f"{number} {text if kind == 'code' else ''}".encode()).hexdigest()[:12]
    cell: dict[str, Any] = {"cell_type": kind, "id": name, "metadata": {}, "source": text.splitlines(keepends=True)}
    if output is not None:
        cell |= {"execution_count": None, "outputs": list(_outputs(output))}
    return cell


def _outputs(output: Output) -> Iterator[dict[str, Any]]:
    if output.printed:
        yield {"name": "stdout", "output_type": "stream", "text": output.printed.splitlines(keepends=True)}
    if output.value:
        data = {kind: text.splitlines(keepends=True) for kind, text in output.value.items()}
        yield {"data": data, "metadata": {}, "output_type": "display_data"}


def stored_results(document: str) -> Results:
    """The outputs and values that a notebook holds."""
    content = json.loads(document)
    results = Results(values=[(expression, value) for expression, value in content["metadata"]["regard"]["values"]])
    for cell in content["cells"]:
        if cell["cell_type"] == "code":
            results.outputs.append(_stored(cell))
    return results


def _stored(cell: dict[str, Any]) -> Output:
    printed, value = "", {}
    for output in cell["outputs"]:
        if output["output_type"] == "stream":
            printed = "".join(output["text"])
        else:
            value = {kind: "".join(lines) for kind, lines in output["data"].items()}
    return Output(printed, value)


def code_cells(document: str) -> list[str]:
    """The source of every code cell of a notebook."""
    return ["".join(cell["source"]) for cell in json.loads(document)["cells"] if cell["cell_type"] == "code"]


def figures(parts: Sequence[Part], results: Results) -> dict[str, str]:
    """The SVG of every figure, by name."""
    cells = [part for part in parts if isinstance(part, Cell)]
    pairs = zip(cells, results.outputs, strict=True)
    return {cell.figure: output.value["image/svg+xml"] for cell, output in pairs if cell.figure}


def linked_figures(text: str) -> list[str]:
    """The names of the figures that docs/paper.md shows."""
    return re.findall(r"!\[[^\]]*\]\(paper/([\w-]+)\.svg\)", text)
