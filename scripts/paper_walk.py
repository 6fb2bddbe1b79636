"""Writes the walk through the paper, docs/paper.md with its figures and docs/paper.ipynb, from scripts/paper/text:

python -m scripts.paper_walk            # run every cell, draw every figure, write everything: about a minute
python -m scripts.paper_walk --text     # only the text and the lines of code; outputs and figures stay as they are
"""

from __future__ import annotations

import argparse

from scripts.paper.pages import DOCS, FIGURES, code_cells, figures, markdown, notebook, stored_results
from scripts.paper.run import run
from scripts.paper.source import Cell, expressions, read_parts

PAGE, NOTEBOOK = DOCS / "paper.md", DOCS / "paper.ipynb"


def text_only() -> tuple[str, str]:
    """Both files with the outputs that the notebook holds; refused if the cells are not those that made them."""
    parts = read_parts()
    stored = NOTEBOOK.read_text(encoding="utf-8")
    results = stored_results(stored)
    cells = [part.code for part in parts if isinstance(part, Cell)]
    if cells != code_cells(stored) or expressions(parts) != [expression for expression, _ in results.values]:
        raise SystemExit(f"{NOTEBOOK.name} was made by other cells; run: python -m scripts.paper_walk")
    return markdown(parts, results), notebook(parts, results)


def run_all() -> tuple[str, str]:
    """Both files with new outputs; writes the figures."""
    parts = read_parts()
    results = run(parts)
    FIGURES.mkdir(exist_ok=True)
    drawn = figures(parts, results)
    for path in FIGURES.glob("*.svg"):
        if path.stem not in drawn:
            path.unlink()
    for name, svg in drawn.items():
        (FIGURES / f"{name}.svg").write_text(svg, encoding="utf-8")
    return markdown(parts, results), notebook(parts, results)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", action="store_true", help="keep outputs and figures")
    page, book = text_only() if parser.parse_args().text else run_all()
    PAGE.write_text(page, encoding="utf-8")
    NOTEBOOK.write_text(book, encoding="utf-8")
    print(f"{PAGE.relative_to(DOCS.parent)}, {NOTEBOOK.relative_to(DOCS.parent)}: written")


if __name__ == "__main__":
    main()
