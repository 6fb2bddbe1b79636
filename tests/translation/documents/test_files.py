"""Documents on the command line and in Python: one file, or a folder that can be stopped and resumed; sources stay as they are."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

import pytest

import regard
from regard.cli import main
from regard.cli import translate as cli_translate
from regard.errors import Interrupted, UserError
from regard.translation.documents.files import (
    STATE,
    Languages,
    find_documents,
    sample_of_folder,
    translate_document,
    translate_folder,
    translate_local,
)
from regard.translation.documents.readers import open_document
from tests.commands import fails
from tests.translation.documents.test_documents import docx, run

GOLDEN = str(Path(__file__).parents[2] / "golden" / "bundle-1")  # reverses letters
PAGE = b"<p>a b <i>c</i></p>\n"
LANGUAGES = Languages("en", "de")


def loud(lines: list[str]) -> list[str]:
    return [line.upper() for line in lines]


def translate(*arguments: str) -> int:
    return main(["translate", "-m", GOLDEN, "--device", "cpu", *arguments])


def folder(path: Path, **files: bytes) -> Path:
    for name, content in files.items():
        file = path / name.replace("__", "/").replace("_", ".")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    return path


def contents(path: Path) -> dict[str, bytes]:
    return {file.relative_to(path).as_posix(): file.read_bytes() for file in path.rglob("*") if file.is_file()}


# --- one file ---


def test_a_document_is_translated_by_its_name_or_with_i(tmp_path: Path, capfdbinary: Any) -> None:
    (tmp_path / "page.html").write_bytes(PAGE)
    for given in ([str(tmp_path / "page.html")], ["-i", str(tmp_path / "page.html")]):
        assert translate(*given) == 0
        assert capfdbinary.readouterr().out.endswith(b"</p>\n")
        assert translate(*given, "-o", str(tmp_path / "out.html"), "--force") == 0
        page = (tmp_path / "out.html").read_bytes()
        assert page.startswith(b"<p>") and page != PAGE and b"<i>c</i> b a" in page


def test_python_translates_a_document_beside_its_source(tmp_path: Path) -> None:
    model = regard.load(GOLDEN, device="cpu")
    (tmp_path / "letter.docx").write_bytes(docx(f"<w:p>{run('a b c')}</w:p>"))
    done: list[int] = []
    written = model.translate_file(tmp_path / "letter.docx", on_progress=done.append)
    assert written == tmp_path / f"letter.{model.bundle.target}.docx" and sum(done) == 1
    with pytest.raises(UserError, match="already exists; choose another name, or pass force=True"):
        model.translate_file(tmp_path / "letter.docx")
    with pytest.raises(UserError, match="must not be the input file"):
        model.translate_file(tmp_path / "letter.docx", tmp_path / "letter.docx", force=True)
    with pytest.raises(UserError, match=r"page\.html: must end in \.docx, as the translation of letter\.docx"):
        model.translate_file(tmp_path / "letter.docx", tmp_path / "page.html")
    (tmp_path / "broken.docx").write_bytes(b"PK")
    with pytest.raises(UserError, match=r"broken\.docx: must be an intact \.docx"):
        model.translate_file(tmp_path / "broken.docx")


def test_what_cannot_be_translated_as_asked_is_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    folder(
        tmp_path, a_html=PAGE, b_html=PAGE, c_docx=b"x", d_bin=b"a\0b", e_doc=b"\xd0\xcf\x11\xe0x", f_csv=b"a,b\n1,2\n"
    )
    Path("d").mkdir()
    Path("data.en").write_bytes(b"%PDF-1.7 not by its name")
    for arguments, message in (
        (["a.html", "b.html"], "a.html: translate takes one document at a time; put several into a folder and use -i FOLDER"),
        (["gone.docx"], "gone.docx: there is no such file"),
        (["d", "-o", "x"], "d: is a folder; translate it with -i d"),
        (["-i", "c.docx"], "c.docx: a .docx cannot be printed; name a file for the translation with -o"),
        (["-i", "a.html", "-o", "b.html"], "-o b.html: already exists; choose another name, or add --force"),
        (["-i", "a.html", "-o", "a.html", "--force"], "-o a.html: must not be the input file"),
        (["-i", "a.html", "-o", "x.docx"], "-o x.docx: must end in .html, as the translation of a.html"),
        (["-i", "a.html", "--json"], "--json is for lines of text, but a.html is a document"),
        (["-i", "a.html", "--phrase", "x"], "--phrase is for lines of text"),
        (["-i", "a.html", "-o", "x.html", "--resume"], "--resume is for folders and plain text"),
        (["-i", "d.bin"], "d.bin: must be plain text or a document of a known kind, but is neither; documents end in one of .txt"),
        (["-i", "data.en"], "data.en: must be plain text or a document of a known kind"),
        (["-i", "e.doc"], "e.doc: must be plain text or a document of a known kind, but is neither; save it as .docx"),
        (["-i", "f.csv"], "f.csv: column must name the column to translate"),
        (["a b", "--column", "2"], "--column is for .csv and .tsv files"),
        (["-i", "d"], "-i d: is a folder; name another for the translations with -o"),
        (["-i", "d", "-o", "x"], "-i d: has no documents; their names end in one of .txt, .md"),
    ):  # fmt: skip
        assert message in fails(capfd, "translate", "-m", GOLDEN, "--device", "cpu", *arguments)


def test_plain_text_is_not_overwritten_without_force(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.txt"
    out.write_text("precious")
    said = fails(capfd, "translate", "-m", GOLDEN, "--device", "cpu", "a b", "-o", str(out))
    assert (
        "already exists; choose another name, or add --force to overwrite it" in said and out.read_text() == "precious"
    )
    assert translate("a b", "-o", str(out), "--force") == 0
    assert out.read_text() == "b a\n"


def test_equal_sentences_are_translated_once() -> None:
    seen: list[str] = []

    def once(lines: list[str]) -> list[str]:
        seen.extend(lines)
        return loud(lines)

    document = open_document(b"<td>a b</td><td>a b</td><td>c</td>", "html", 1000)
    assert translate_document(document, "en", once) == b"<td>A B</td><td>A B</td><td>C</td>"
    assert seen == ["a b", "c"]


# --- folders ---


def work(path: Path) -> tuple[bytes, str]:
    return translate_local(path, LANGUAGES, loud)


def no_report(path: Path, note: str) -> None: ...


def test_a_folder_is_translated_file_by_file(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    source = folder(tmp_path / "in", a_html=PAGE, sub__b_txt=b"a b\n", picture_png=b"\x89PNG")
    before = contents(source)
    assert (
        translate("-i", str(source), "-o", str(source / "de")) == 0
    )  # inside the source, and still not translated again
    assert "left out, since their kind is not known: picture.png" in capfd.readouterr().err
    assert sorted(contents(source / "de")) == ["a.html", "sub/b.txt"]
    assert contents(source / "de")["sub/b.txt"] == b"b a\n"
    assert {name: content for name, content in contents(source).items() if not name.startswith("de/")} == before
    said = fails(capfd, "translate", "-m", GOLDEN, "-i", str(source), "-o", str(source / "de"))
    assert "already exists; choose another folder with -o, or add --force" in said
    assert translate("-i", str(source), "-o", str(source / "de"), "--force") == 0


def test_a_language_is_told_by_the_documents_that_are_translated(tmp_path: Path) -> None:
    """Not by hidden ones, earlier translations, or one that cannot be read; of tables by the column that is asked for."""
    source = folder(tmp_path, a_csv=b"x,y\n1,in a column\n", b_docx=b"PK", c__d_txt=b"in a folder\n", e_png=b"\x89PNG")
    folder(source, out__c__d_txt=b"earlier\n")
    (source / ".git").mkdir()
    for name in (".hidden.txt", ".git/f.txt"):
        (source / name).write_text("hidden\n", encoding="utf-8")
    given = argparse.Namespace(input=source, output=source / "out", text=[], column="y")
    assert [text.strip() for text in cli_translate._sample(given)] == ["in a column", "in a folder"]


def test_a_language_is_told_by_text_without_its_markup(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(
        '<html><title>Le chat</title><body class="the cat"><p>Il <b>dort</b>.</p>\n<img alt="Un chien"></body></html>',
        encoding="utf-8",
    )
    (tmp_path / "b.md").write_text("# Le chat\n\n`the cat` *dort*.\n", encoding="utf-8")
    read = " ".join(sample_of_folder(tmp_path, tmp_path / "out"))
    assert "Il dort." in read and "Un chien" in read and "class" not in read and "#" not in read


def test_a_source_is_never_overwritten(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    source = folder(tmp_path / "en", en__a_txt=b"a\n", a_txt=b"b\n")
    (tmp_path / "link").symlink_to(source)
    for target in (source, tmp_path / "link"):
        with pytest.raises(UserError, match="must not be the input folder"):
            find_documents(source, target, force=True, resume=False)
    with pytest.raises(UserError, match="is one of the files to translate; choose another folder"):
        find_documents(source, tmp_path, force=True, resume=False)  # en/en/a.txt would go to en/a.txt
    (tmp_path / "out").mkdir()
    os.link(source / "a.txt", tmp_path / "out" / "a.txt")
    with pytest.raises(UserError, match="is one of the files to translate"):
        find_documents(source, tmp_path / "out", force=True, resume=False)


def test_a_stopped_folder_resumes_where_it_stopped(tmp_path: Path) -> None:
    source, target = folder(tmp_path / "in", a_txt=b"a\n", b_txt=b"b\n", c_txt=b"c\n"), tmp_path / "out"
    settings = {"beam": 4, "model": ["x"]}
    seen: list[str] = []

    def stops(path: Path) -> tuple[bytes, str]:
        if path.name == "b.txt":
            raise KeyboardInterrupt
        return work(path)

    def counted(path: Path) -> tuple[bytes, str]:
        seen.append(path.name)
        return work(path)

    job = find_documents(source, target, force=False, resume=False)
    with pytest.raises(Interrupted, match="stopped after 1 of 3 files, which are saved"):
        translate_folder(job, settings, False, stops, no_report)
    assert json.loads((target / STATE).read_text())["done"].keys() == {"a.txt"}
    with pytest.raises(UserError, match="is left from an interrupted run; continue with --resume, or remove it"):
        translate_folder(job, settings, False, work, no_report)
    with pytest.raises(UserError, match="--resume: beam is 2, but"):
        translate_folder(job, {**settings, "beam": 2}, True, work, no_report)
    job = find_documents(source, target, force=False, resume=True)
    assert translate_folder(job, settings, True, counted, no_report) == []
    assert seen == ["b.txt", "c.txt"]
    assert contents(target) == {"a.txt": b"A\n", "b.txt": b"B\n", "c.txt": b"C\n"}
    with pytest.raises(UserError, match="there is nothing to resume"):
        translate_folder(find_documents(source, tmp_path / "new", False, True), settings, True, work, no_report)


def test_a_source_that_changed_is_translated_again_on_resuming(tmp_path: Path) -> None:
    source, target = folder(tmp_path / "in", a_txt=b"a\n", b_docx=b"broken"), tmp_path / "out"
    job = find_documents(source, target, force=False, resume=False)
    [failure] = translate_folder(job, {}, False, work, no_report)
    assert failure.startswith(f"{source / 'b.docx'}: must be an intact")
    (source / "a.txt").write_bytes(b"changed\n")
    (source / "b.docx").unlink()
    job = find_documents(source, target, force=False, resume=True)
    assert translate_folder(job, {}, True, work, no_report) == []
    assert contents(target) == {"a.txt": b"CHANGED\n"}


def test_a_file_that_fails_does_not_stop_the_folder(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    source = folder(tmp_path / "in", a_docx=b"broken", b_txt=b"a b\n", t_csv=b"x,y\na,b\n")
    assert translate("-i", str(source), "-o", str(tmp_path / "out"), "--column", "y") == 2
    said = capfd.readouterr().err
    assert "a.docx: must be an intact" in said and "1 of 3 files could not be translated" in said
    assert contents(tmp_path / "out").keys() == {STATE, "b.txt", "t.csv"}
