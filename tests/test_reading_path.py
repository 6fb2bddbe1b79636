"""The documents that guide a reader: what docs/architecture.md names exists, its line counts are current, links lead somewhere."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts.reading_path import DOCUMENT, ROOT, core_files, num_lines, with_current_counts
from tests.test_map import LINE

PACKAGE = ROOT / "regard"
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
_DESCRIPTION = 20  # the column at which the map's descriptions begin


@pytest.fixture(scope="module")
def text() -> str:
    return DOCUMENT.read_text(encoding="utf-8")


# --- The reading path ---


def test_line_counts_are_current(text: str) -> None:
    assert with_current_counts(text) == text, "update the line counts with: python -m scripts.reading_path"


def test_a_wrong_line_count_is_noticed(text: str) -> None:
    first = core_files(text)[0]
    row = re.search(rf"^.*{first.relative_to(ROOT)}.*$", text, re.MULTILINE)
    assert row is not None
    wrong = text.replace(row[0], row[0].replace(f"| {num_lines(first)} |", "| 1 |"))
    assert wrong != text
    assert with_current_counts(wrong) == with_current_counts(text)


def test_the_core_can_be_read_in_an_afternoon(text: str) -> None:
    files = core_files(text)
    assert 12 <= len(files) == len(set(files)) <= 16
    assert sum(map(num_lines, files)) <= 2_600


def test_only_the_core_is_called_readable_in_an_afternoon() -> None:
    sentences = [
        sentence
        for document in DOCUMENTS
        for sentence in re.split(r"(?<=\.)\s|\n\n|\n- ", document.read_text(encoding="utf-8"))
        if "afternoon" in sentence
    ]
    assert len(sentences) == 2  # in the README and at the top of docs/architecture.md
    assert all("core" in sentence for sentence in sentences)


# --- The map ---


def map_entries(text: str) -> Iterator[tuple[Path, str]]:
    """Each entry of the map with its description: `      serve/    HTTP ...`, and what is indented below it."""
    block = text[text.index("    regard/\n") :].split("\n\n")[0].splitlines()[1:]
    folders: dict[int, Path] = {4: PACKAGE}
    for line in block:
        name, description = line[:_DESCRIPTION].rstrip(), line[_DESCRIPTION:]
        if name:
            indent = len(name) - len(name.lstrip())
            path = folders[indent - 2] / name.strip()
            folders[indent] = path
        yield path, description


def missing_from_the_map(text: str) -> list[str]:
    """The files and folders that the map names but that do not exist."""
    missing = []
    for path, description in map_entries(text):
        folder = path if path.suffix == "" else path.parent
        named = [folder / name for name in re.findall(r"[\w/]+\.(?:py|js|css|html)\b", description)]
        missing += [str(each.relative_to(ROOT)) for each in (path, *named) if not each.exists()]
    return missing


def test_every_file_on_the_map_exists(text: str) -> None:
    assert missing_from_the_map(text) == []


@pytest.mark.parametrize("name", ["core.py", "torch_engine.py", "augment.py", "explain/"])
def test_a_file_on_the_map_that_is_gone_is_noticed(text: str, name: str) -> None:
    assert missing_from_the_map(text.replace(name, f"gone_{name}")) != []


def test_the_map_has_the_rooms_in_the_order_of_the_import_test(text: str) -> None:
    paths = [path for path, _ in map_entries(text) if path.parent == PACKAGE]
    rooms = list(dict.fromkeys(path.name.removesuffix(".py") for path in paths))
    assert set(rooms) == LINE.keys() - {"__main__"}
    lines = [LINE[room] for room in rooms]
    assert lines == sorted(lines)


# --- Names in the text ---


def defined_names(path: Path) -> set[str]:
    """`function`, `Class` and `Class.method` of a module."""
    names = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            methods = [each for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
            names |= {f"{node.name}.{method.name}" for method in methods}
    return names


def undefined_stops(text: str) -> list[str]:
    """The stops, such as `training/run.py:train`, whose file or function does not exist."""
    return [
        f"{path}:{name}"
        for path, name in re.findall(r"`([\w/]+\.py):([\w.]+)`", text)
        if not (PACKAGE / path).is_file() or name not in defined_names(PACKAGE / path)
    ]


def test_every_stop_is_a_function_of_its_file(text: str) -> None:
    assert len(re.findall(r"`[\w/]+\.py:[\w.]+`", text)) >= 20
    assert undefined_stops(text) == []


def test_a_stop_that_is_gone_is_noticed() -> None:
    assert undefined_stops("`training/run.py:trian`, `training/gone.py:train`, `training/run.py:train`") == [
        "training/run.py:trian",
        "training/gone.py:train",
    ]


def test_every_file_named_in_the_text_exists(text: str) -> None:
    names = re.findall(r"`([\w./]*\w+\.(?:py|js|css|toml))`", text)
    assert len(names) >= 20
    assert [name for name in names if not ((ROOT / name).exists() or (PACKAGE / name).exists())] == []


# --- Links ---


def anchors(document: Path) -> set[str]:
    """The anchors that GitHub gives to the headings of a document."""
    headings = re.findall(r"^#+ (.*)$", document.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def is_line_of(path: Path, anchor: str) -> bool:
    """Whether the anchor names lines of a file that is no document: L7, or L7-L9."""
    found = re.fullmatch(r"L(\d+)(?:-L(\d+))?", anchor)
    if found is None or path.suffix == ".md":
        return False
    return 1 <= int(found[1]) <= int(found[2] or found[1]) <= num_lines(path)


def dead_links(document: Path) -> list[str]:
    dead = []
    for link in re.findall(r"\]\(([^)\s]+)\)", document.read_text(encoding="utf-8")):
        if link.startswith(("http://", "https://")):
            continue
        name, _, anchor = link.partition("#")
        target = (document.parent / name).resolve() if name else document
        if not target.exists() or (anchor and anchor not in anchors(target) and not is_line_of(target, anchor)):
            dead.append(link)
    return dead


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_link_leads_to_a_file_and_a_heading(document: Path) -> None:
    assert dead_links(document) == []


def test_a_dead_link_is_noticed(tmp_path: Path) -> None:
    document = tmp_path / "page.md"
    document.write_text(
        "# A page's head\n[a](#a-pages-head) [b](#none) [c](none.md) [d](https://x.org)", encoding="utf-8"
    )
    assert dead_links(document) == ["#none", "none.md"]
    (tmp_path / "code.py").write_text("1\n2\n3\n", encoding="utf-8")
    document.write_text("[a](code.py#L3) [b](code.py#L2-L3) [c](code.py#L4) [d](code.py#L3-L2)", encoding="utf-8")
    assert dead_links(document) == ["code.py#L4", "code.py#L3-L2"]
