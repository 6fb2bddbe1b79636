"""The walk through the paper: docs/paper.md and docs/paper.ipynb show the code as it is, and every cell of the notebook runs."""

from __future__ import annotations

import doctest
import json
import re
from pathlib import Path
from typing import Any

import pytest

import scripts.paper.run
import scripts.paper.source
from scripts.paper.excerpts import ROOT, find
from scripts.paper.measured import measured, published
from scripts.paper.pages import DOCS, FIGURES, code_cells, excerpt_block, figures, linked_figures, stored_results
from scripts.paper.run import Output, run_cell
from scripts.paper.source import Cell, Excerpt, parse, read_parts
from scripts.paper_walk import NOTEBOOK, PAGE, text_only

MAX_BYTES = 1_500_000  # of all figures
_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?")


@pytest.fixture(scope="module")
def page() -> str:
    return PAGE.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def notebook() -> str:
    return NOTEBOOK.read_text(encoding="utf-8")


# --- Text and code ---


def test_both_files_show_the_code_as_it_is_now(page: str, notebook: str) -> None:
    remedy = "run: python -m scripts.paper_walk --text (without --text if a cell has changed)"
    assert text_only() == (page, notebook), remedy


def test_code_that_moves_or_changes_is_noticed(tmp_path: Path) -> None:
    excerpt = next(part for part in read_parts() if isinstance(part, Excerpt))
    path = tmp_path / excerpt.path
    path.parent.mkdir(parents=True)
    text = (ROOT / excerpt.path).read_text(encoding="utf-8")
    found = find(excerpt)
    path.write_text(f"# moved\n{text}", encoding="utf-8")
    assert find(excerpt, tmp_path).begin == found.begin + 1
    assert find(excerpt, tmp_path).text == found.text
    path.write_text(
        text.replace("self.feed_forward = FeedForward(config)", "self.feed_forward = None"), encoding="utf-8"
    )
    assert find(excerpt, tmp_path).text != found.text


@pytest.mark.parametrize(
    ("excerpt", "fault"),
    [
        (Excerpt("regard/gone.py", "name"), "no such file"),
        (Excerpt("regard/nn/block.py", "Layer.gone"), "no such name"),
        (Excerpt("regard/nn/block.py", "Layer.run", "def run", "not there"), "no line between"),
    ],
)
def test_code_that_is_gone_is_named(excerpt: Excerpt, fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        find(excerpt)


def test_an_excerpt_is_what_its_link_says() -> None:
    block = excerpt_block(Excerpt("regard/training/optimizer.py", "paper_rate", "return", "return"))
    link = re.match(
        r"\[`regard/training/optimizer.py`, line (\d+)\]\(\.\./regard/training/optimizer.py#L(\d+)\)", block
    )
    assert link is not None and link[1] == link[2]
    line = (ROOT / "regard/training/optimizer.py").read_text(encoding="utf-8").splitlines()[int(link[1]) - 1]
    assert line.strip() in block


@pytest.mark.parametrize("text", ["<!-- code: -->", '```python cell figure="x"\n```', "```python cell\n1"])
def test_a_mistake_in_the_source_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="text: "):
        parse(text)


def test_examples_in_docstrings() -> None:
    for module in (scripts.paper.source, scripts.paper.run):
        result = doctest.testmod(module)
        assert (result.failed, result.attempted > 0) == (0, True)


def test_numbers_measured_elsewhere_are_read_where_they_stand() -> None:
    assert published("wmt14-en-de") == 27.3
    assert float(measured("regard train recipes/wmt-base.toml", "BLEU").split()[0]) > 20
    with pytest.raises(ValueError, match="no row"):
        measured("regard train recipes/gone.toml", "BLEU")


def test_every_equation_section_and_table_of_hyper_parameters_is_there(page: str) -> None:
    for heading in (
        "3.1",
        "3.2.1",
        "3.2.2",
        "3.2.3",
        "3.3",
        "3.4",
        "3.5",
        "4",
        "5.1",
        "5.2",
        "5.3",
        "5.4",
        "6.1",
        "6.2",
        "6.3",
        "7",
    ):
        assert re.search(rf"^##+ {re.escape(heading)} ", page, re.MULTILINE), heading
    assert page.count("$$") % 2 == 0 and page.count("$$") >= 26


# --- Figures ---


def test_every_figure_is_made_by_a_cell(page: str, notebook: str) -> None:
    parts = read_parts()
    made = [part.figure for part in parts if isinstance(part, Cell) and part.figure]
    assert linked_figures(page) == made
    assert {path.name for path in FIGURES.iterdir()} == {f"{name}.svg" for name in made}
    for name, svg in figures(parts, stored_results(notebook)).items():
        assert (FIGURES / f"{name}.svg").read_text(encoding="utf-8") == svg, (
            f"{name}: {PAGE.name} shows another picture"
        )
    assert sum(path.stat().st_size for path in FIGURES.iterdir()) < MAX_BYTES
    assert all(part.description for part in parts if isinstance(part, Cell) and part.figure)


def test_a_figure_drawn_twice_is_the_same() -> None:
    from scripts.paper import plots

    panels = [
        plots.Grid([[0.0, 1.0]], ["a"], ["b", "c"]),
        plots.Lines({"x": ([1, 2], [3, 4])}, "x", "y"),
        plots.Bars({"a": 1.0}, "x"),
    ]
    assert plots.draw(panels).svg == plots.draw(panels).svg


# --- The notebook ---


def test_the_notebook_has_a_format_that_jupyter_reads(notebook: str) -> None:
    document: dict[str, Any] = json.loads(notebook)
    assert (document["nbformat"], document["nbformat_minor"]) == (4, 5)
    names = [cell["id"] for cell in document["cells"]]
    assert len(names) == len(set(names))
    for cell in document["cells"]:
        assert set(cell) == {"cell_type", "id", "metadata", "source"} | (
            {"execution_count", "outputs"} if cell["cell_type"] == "code" else set()
        )


@pytest.mark.slow
def test_the_notebook_runs_from_top_to_bottom_and_says_what_is_printed(
    notebook: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(DOCS)  # where Jupyter starts it; its first cell finds the project
    namespace: dict[str, Any] = {"__name__": "__main__"}
    expected = stored_results(notebook)
    for number, (code, stored) in enumerate(zip(code_cells(notebook), expected.outputs, strict=True), 1):
        output = run_cell(code, namespace)
        assert differences(shown(output), shown(stored)) == [], f"cell {number}; run: python -m scripts.paper_walk"
        assert ("image/svg+xml" in output.value) == ("image/svg+xml" in stored.value)
    names = {**namespace, "measured": measured, "published": published}
    for expression, value in expected.values:
        assert differences(str(eval(expression, names)), value) == [], expression


def shown(output: Output) -> str:
    return output.printed + output.value.get("text/markdown", output.value.get("text/plain", ""))


def differences(new: str, old: str) -> list[str]:
    """What differs but for the last digits of numbers, which depend on machine and version of torch."""
    if _NUMBER.sub("#", new) != _NUMBER.sub("#", old):
        return [f"{new!r} instead of {old!r}"]
    pairs = [
        (float(a.replace(",", "")), float(b.replace(",", "")))
        for a, b in zip(_NUMBER.findall(new), _NUMBER.findall(old), strict=True)
    ]
    return [f"{a} instead of {b}" for a, b in pairs if abs(a - b) > max(0.05, 0.05 * abs(b))]


def test_differences_are_noticed() -> None:
    assert differences("3.14, 1,000 words", "3.15, 1,001 words") == []
    assert differences("3.14", "3.40") == ["3.14 instead of 3.4"]
    assert differences("100 words", "100 tokens") == ["'100 words' instead of '100 tokens'"]


def test_the_demo_ends_with_the_walk() -> None:
    last = (ROOT / "scripts" / "demo.sh").read_text(encoding="utf-8").rstrip().splitlines()[-1]
    assert "docs/paper.md" in last and "docs/paper.ipynb" in last
