"""Saves an explanation as a page, a figure or data, depending on the file's suffix."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from regard.errors import UserError
from regard.explain.explanation import AnyExplanation
from regard.explain.figure import check_matplotlib, draw_attention, to_png, to_svg
from regard.explain.page import render_page
from regard.files import check_new_file, write_atomic

FIGURES = (".svg", ".png")
_KNOWN = (".html", ".htm", *FIGURES, ".json")


def check_path(path: Path, options: Mapping[str, Any]) -> None:
    """Refuse what cannot be written before anything is computed. `options` are those of a figure, by the user's names."""
    suffix = path.suffix.lower()
    if suffix not in _KNOWN:
        raise UserError(f"{path}: must end in .html, .svg, .png or .json")
    if options and suffix not in FIGURES:
        raise UserError(
            f"{path}: {' and '.join(options)}: for figures only (.svg or .png); leave out, or write a figure"
        )
    check_new_file(path)
    if suffix == ".png":
        check_matplotlib()


def save(explanation: AnyExplanation, path: Path, **options: Any) -> None:
    """Write the explanation to a new file; `options` are those of `draw_attention`, for figures only."""
    check_path(path, options)
    suffix = path.suffix.lower()
    if suffix == ".svg":
        write_atomic(path, to_svg(draw_attention(explanation, **options)))
    elif suffix == ".png":
        write_atomic(path, to_png(draw_attention(explanation, **options)))
    elif suffix == ".json":
        write_atomic(path, json.dumps(explanation.to_json(), separators=(",", ":")) + "\n")
    else:
        write_atomic(path, render_page(explanation))
