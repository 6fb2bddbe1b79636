"""Round trips of real documents: each is translated, must open again in LibreOffice or Pandoc, and may differ in its text only.

    python -m benchmarks.documents --samples DIR       DIR: any documents, such as the .docx files of python-docx's source archive
    python -m benchmarks.documents --marked            bold words and links of 100 sentences each way: are they the right words?

The documents come from Pandoc (from `benchmarks/data/sample.md`), LibreOffice (converted from those), openpyxl, and the folder of
samples. What must be the same, as programs that are not ours read it:

    .docx .odt .epub .html .md .tex .ipynb   Pandoc's tree without its words: blocks, emphasis, links with targets, images, code
    .xlsx .ods                               the cells that hold no text, by openpyxl, through LibreOffice for .ods
    .pptx .odp                               the number of pages as PDF; and all elements of the XML apart from runs and spans
    .po .xliff .tmx .json .yaml .vtt         as `benchmarks/outside_formats.py` says
    .pdf                                     its words, before they are translated, as poppler reads them

.docx and .odt must also open in LibreOffice. Debian's packages: libreoffice-writer-nogui, -calc-nogui and -impress-nogui, pandoc,
translate-toolkit, python3-webvtt, poppler-utils.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import tempfile
import zipfile
from collections import Counter
from pathlib import Path
from typing import Any

import regard
from benchmarks import outside_formats
from benchmarks.common import machine, print_table, report
from regard.device import pick_device
from regard.translation.documents.archives import ARCHIVES
from regard.translation.documents.files import Languages, translate_local

DATA = Path(__file__).parent / "data"
PANDOC = ("docx", "odt", "epub", "html", "md", "tex", "ipynb")
# Sentences, with a pattern of right translations of the phrase.
MARKED = {"en-de": "marked.tsv", "de-en": "marked-de-en.tsv"}
OUTSIDE = ("po", "xliff", "tmx", "json", "yaml", "vtt")
# Elements that a translation may add, merge or leave empty.
RUNS = {"r", "t", "rPr", "span", "s", "bookmarkStart", "bookmarkEnd"}
WORDS = {"Str", "Space", "SoftBreak", "Quoted"}


def run(*command: str | Path) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([str(one) for one in command], capture_output=True, timeout=900, check=False)


def convert(path: Path, kind: str, out: Path) -> Path | None:
    """The file as LibreOffice converts it; None if it cannot."""
    home = f"-env:UserInstallation=file://{out / 'libreoffice'}"
    run("soffice", home, "--headless", "--convert-to", kind, "--outdir", out, path)
    made = out / f"{path.stem}.{kind.partition(':')[0]}"
    return made if made.is_file() else None


# --- documents ---


def make_documents(out: Path) -> list[tuple[str, Path]]:
    """Documents by Pandoc, LibreOffice and openpyxl, each with its maker."""
    made = []
    for kind in ("docx", "odt", "epub", "pptx", "html", "tex", "ipynb"):
        path = out / f"pandoc.{kind}"
        run("pandoc", DATA / "sample.md", "-s", "--resource-path", DATA, "-o", path)
        made.append(("Pandoc", path))
    made.append(("Pandoc", Path(shutil.copy(DATA / "sample.md", out / "pandoc.md"))))
    workbook = out / "openpyxl.xlsx"
    _write_workbook(workbook)
    made.append(("openpyxl", workbook))
    folder = out / "libreoffice"
    folder.mkdir()
    for source, kind in (("pandoc.odt", "docx"), ("pandoc.docx", "odt"), ("pandoc.pptx", "odp"), ("openpyxl.xlsx", "ods"),
                         ("pandoc.odt", "html"), ("pandoc.docx", "epub")):  # fmt: skip
        if converted := convert(out / source, kind, folder):
            made.append(("LibreOffice", converted))
    again = out / "again"
    again.mkdir()
    for source, kind in (("openpyxl.ods", "xlsx"), ("pandoc.odp", "pptx")):
        if converted := convert(folder / source, kind, again):
            made.append(("LibreOffice", converted))
    if not outside_formats.is_installed():
        print(
            "translate-toolkit, python3-webvtt or poppler-utils is missing: no .po, .xliff, .tmx, .json, .yaml, .vtt and .pdf"
        )
        return made
    if printed := convert(out / "pandoc.docx", "pdf", again):
        made.append(("LibreOffice", printed))
    return made + outside_formats.make(out)


def _write_workbook(path: Path) -> None:
    from openpyxl import Workbook

    book = Workbook()
    sheet = book.active
    sheet.title = "Prices"
    for row in (["fruit", "price", "note"], ["apple", 1.5, "A red fruit from the garden."], ["pear", 2.25, "It is green."],
                ["sum", "=SUM(B2:B3)", None], [True, 12, "The last row is here."]):  # fmt: skip
        sheet.append(row)
    book.create_sheet("More").append(["Another sheet with a text."])
    book.save(path)


# --- what must be the same ---


def skeleton(path: Path, out: Path) -> Any:
    """What a document has besides its words; None if it does not open."""
    kind = path.suffix[1:]
    if kind in OUTSIDE:
        return outside_formats.skeleton(path)
    if kind in PANDOC:
        read = run("pandoc", "-t", "json", path)
        if kind in ("docx", "odt") and not convert(path, "pdf", Path(tempfile.mkdtemp(dir=out))):
            return None
        return _tree(json.loads(read.stdout)["blocks"]) if read.returncode == 0 else None
    if kind == "ods":
        converted = convert(path, "xlsx", Path(tempfile.mkdtemp(dir=out)))
        return _cells(converted) if converted else None
    if kind == "xlsx":
        return _cells(path) if convert(path, "ods", Path(tempfile.mkdtemp(dir=out))) else None
    printed = convert(path, "pdf", Path(tempfile.mkdtemp(dir=out)))
    pages = re.findall(rb"/Type\s*/Page\b", printed.read_bytes()) if printed else None
    return (len(pages), _elements(path)) if pages else None


def _tree(node: Any) -> Counter[str]:
    """Pandoc's tree as a count of its nodes, with the targets of links and images, and code and formulas as they are. Neighbours
    with the same emphasis count once."""
    found: Counter[str] = Counter()
    if isinstance(node, list):
        for one in node:
            found += _tree(one)
    elif isinstance(node, dict):
        kind: str | None = node.get("t")
        content: Any = node.get("c")
        if kind in ("Link", "Image"):
            found[f"{kind} {content[2][0]}"] += 1
        elif kind in ("Code", "CodeBlock", "Math"):
            found[f"{kind} {content[1]}"] += 1
        elif kind not in WORDS and kind is not None:
            found[kind] += 1
        if kind not in ("Code", "CodeBlock", "Math", "Str"):
            found += _tree(content)
    return found


def _cells(path: Path) -> list[tuple[str, str, Any]]:
    from openpyxl import load_workbook

    book = load_workbook(path)
    return [
        (sheet.title, cell.coordinate, "text" if cell.data_type == "s" else cell.value)
        for sheet in book
        for row in sheet.iter_rows()
        for cell in row
    ]


def _elements(path: Path) -> Counter[str]:
    found: Counter[str] = Counter()
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            if name.endswith(".xml"):
                content = re.sub(rb"<(\w+:rPr)\b[^<>]*(?<!/)>.*?</\1>", b"", archive.read(name), flags=re.DOTALL)
                names = re.findall(rb"<(?:\w+:)?(\w+)", content)
                found.update(f"{name} {one.decode()}" for one in names if one.decode() not in RUNS)
    return found


def only_text_changed(before: Path, after: Path) -> bool:
    """Of an archive: the same members, and every one without text the same, byte for byte."""
    readers = ARCHIVES[before.suffix[1:]].members
    with zipfile.ZipFile(before) as old, zipfile.ZipFile(after) as new:
        if old.namelist() != new.namelist():
            return False
        return all(
            old.read(name) == new.read(name)
            for name in old.namelist()
            if not any(reader.matches(name, old.read(name)) for reader in readers)
        )


def round_trips(model: regard.Model, samples: Path | None, out: Path) -> list[dict[str, Any]]:
    documents = make_documents(out)
    if samples is not None:
        documents += [("samples", path) for path in sorted(samples.rglob("*.docx"))]
    rows: dict[tuple[str, str], Counter[str]] = {}
    for number, (maker, path) in enumerate(documents):
        row = rows.setdefault((path.suffix, maker), Counter())
        row["documents"] += 1
        if path.suffix == ".pdf":
            row.update(_read_pdf(path))
            continue
        target = out / f"translated-{number}{path.suffix}"
        try:
            model.translate_file(path, target)
        except regard.UserError as error:
            print(f"{path.name}: {error}")
            continue
        row["translated"] += 1
        before, after = skeleton(path, out), skeleton(target, out)
        row["opens"] += after is not None
        row["same structure"] += before == after
        if path.suffix in (".po", ".xliff") and (left := outside_formats.untranslated(target)):
            print(f"{maker} {path.name}: {left} units have no translation")
        if zipfile.is_zipfile(path):
            row["only text changed"] += only_text_changed(path, target)
        if before != after:
            print(f"{maker} {path.name}: {_difference(before, after)}")
    table = []
    for (kind, maker), row in sorted(rows.items()):
        counts = {name: row[name] for name in ("documents", "opens", "same structure")}
        # Other files have no members to compare.
        unchanged = row["only text changed"] if kind[1:] in ARCHIVES else "-"
        table.append({"kind": kind, "made by": maker, **counts, "only text changed": unchanged})
    return table


def _read_pdf(path: Path) -> dict[str, int]:
    """Whether the text of a PDF becomes one whose words are those that poppler reads, in any order."""
    texts: list[str] = []

    def copy(sentences: list[str]) -> list[str]:
        texts.extend(sentences)
        return sentences

    translate_local(path, Languages("en", "de"), copy, None, None)
    own, wanted = (
        "".join(sorted(re.sub(r"\W", "", "".join(words)))) for words in (texts, outside_formats.words_of_pdf(path))
    )
    if own != wanted:
        print(f"{path.name}: {len(own)} letters are not the {len(wanted)} that poppler reads")
    return {"opens": 1, "same structure": int(own == wanted)}


def _difference(before: Any, after: Any) -> str:
    if isinstance(before, Counter) and isinstance(after, Counter):
        return f"lost {dict(before - after)}, gained {dict(after - before)}"
    return f"{str(before)[:200]} became {str(after)[:200]}"


# --- marked words ---


def marked_words(name: str, cases_file: str, out: Path) -> dict[str, Any]:
    """Sentences with one marked phrase, in bold in a Word file and as a link in HTML: how often the marked words of the translation
    are the right ones."""
    model = regard.load(name, device="cpu")
    cases = [line.split("\t") for line in (DATA / cases_file).read_text(encoding="utf-8").splitlines()]
    found: dict[str, Any] = {"model": name, "sentences": len(cases)}
    for kind, shape, mark in (("docx", r"**\1**", "Strong"), ("html", r"[\1](https://example.org)", "Link")):
        source, target = out / f"{name}.{kind}", out / f"{name}-translated.{kind}"
        text = "\n\n".join(re.sub(r"\*\*(.*?)\*\*", shape, sentence) for sentence, _ in cases)
        command = ["pandoc", "-f", "markdown-smart", "-s", "--metadata", "title=x", "-o", source]
        subprocess.run(command, input=text.encode(), check=True)
        model.translate_file(source, target)
        blocks = json.loads(run("pandoc", "-t", "json", target).stdout)["blocks"][-len(cases) :]
        right = 0
        for (sentence, wanted), block in zip(cases, blocks, strict=True):
            marked = " ".join(_marked(block, mark)).strip(" .,")
            is_right = re.fullmatch(wanted, marked, re.IGNORECASE) is not None
            right += is_right
            if not is_right:
                print(f"{kind}: {sentence} -> {_words(block)} [{marked}]")
        found["bold in .docx" if mark == "Strong" else "links in .html"] = right
    return found


def _marked(node: Any, mark: str) -> list[str]:
    """The text of all nodes of a kind."""
    if isinstance(node, list):
        return [text for one in node for text in _marked(one, mark)]
    if isinstance(node, dict):
        return [_words(node)] if node.get("t") == mark else _marked(node.get("c"), mark)
    return []


def _words(node: Any) -> str:
    if isinstance(node, list):
        return "".join(map(_words, node))
    if isinstance(node, dict):
        if node.get("t") == "Str":
            return str(node["c"])
        return " " if node.get("t") in ("Space", "SoftBreak") else _words(node.get("c", []))
    return ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--model", help="the model (default: the built-in en-de)")
    parser.add_argument("--samples", type=Path, metavar="DIR", help="a folder with more documents")
    parser.add_argument("--marked", action="store_true", help="only the marked words")
    parser.add_argument("-o", "--out", type=Path, metavar="FILE", help="JSON file for the results")
    arguments = parser.parse_args()
    for program in ("soffice", "pandoc"):
        if shutil.which(program) is None:
            print(f"{program} is not installed; nothing is measured")
            return
    model = regard.load(arguments.model, device="cpu")
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        rows = [] if arguments.marked else round_trips(model, arguments.samples, out)
        marked = [marked_words(name, cases, out) for name, cases in MARKED.items()]
    facts = machine(pick_device("cpu"), ("lxml", "openpyxl", "pypdf", "sentencex"))
    if rows:
        report("documents", rows, facts, arguments.out)
    print_table(marked)


if __name__ == "__main__":
    main()
