"""An index of a folder: made, updated, interrupted, damaged, and searched; search against a plain sort."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import regard
from regard import files
from regard.api import Model
from regard.builtin import DEFAULTS
from regard.bundle import Bundle
from regard.cli import main
from regard.errors import Interrupted, UserError
from regard.files import write_manifest
from regard.understanding import indexing
from regard.understanding.html_text import html_paragraphs
from regard.understanding.index import Index
from regard.understanding.indexing import update_index
from regard.understanding.passages import Paragraph, make_passages, read_paragraphs
from tests import encoders

TEXT = (
    "Cats purr at night.\nThey sleep by day.\n\nDogs bark at cats.\n\n\nBirds sing in the morning, and who would not?\n"
)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return encoders.vector_model(tmp_path_factory.mktemp("index"), max_length=None)[1]


@pytest.fixture(scope="module")
def model(bundle: Bundle) -> Model:
    return regard.load(bundle.folder, engine="torch")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Documents of several kinds, one of them below another folder, and a file of no kind."""
    made = tmp_path / "docs"
    (made / "below").mkdir(parents=True)
    (made / "a.txt").write_text(TEXT)
    (made / "b.md").write_text("# Title\n\nUse `--host` and [a link](http://x/y) here.\n")
    (made / "below" / "c.html").write_text("<h1>One</h1>\n<p>Two <code>three</code>.</p><script>no</script>")
    (made / "rows.csv").write_text("name,what\nTom,a cat\n")
    (made / ".hidden.txt").write_text("hidden")
    (made / "photo.jpg").write_bytes(b"\xff\xd8")
    return made


def rows(index: Index) -> dict[str, list[tuple[str, str]]]:
    """Every passage, by document, as a search finds them."""
    found: dict[str, list[tuple[str, str]]] = {one.path: [] for one in index.documents}
    for hit in index.nearest(np.ones(index.vectors.shape[1], np.float32), 10_000):
        found[hit.path].append((hit.place, hit.text))
    return {path: sorted(some) for path, some in found.items()}


def embedded(monkeypatch: pytest.MonkeyPatch, model: Model) -> list[str]:
    """The texts that are embedded from now on."""
    seen: list[str] = []
    real = model.embedder.embed

    def embed(texts: Sequence[str], *more: Any) -> Any:
        seen.extend(texts)
        return real(texts, *more)

    monkeypatch.setattr(model.embedder, "embed", embed)
    return seen


def test_an_index_has_every_passage_with_its_place(folder: Path, model: Model, tmp_path: Path) -> None:
    index, changes = update_index(folder, tmp_path / "index", model.embedder, 12)
    assert (changes.added, changes.failed, [Path(one).name for one in changes.skipped]) == (4, [], ["photo.jpg"])
    found = rows(index)
    assert found["below/c.html"] == [("line 1", "One\nTwo three.")]
    assert found["rows.csv"] == [("row 1", "name | what\nTom | a cat")]
    assert {place for place, _ in found["b.md"]} == {"line 1", "line 3"}  # the heading's, and its own
    assert " ".join(text for _, text in found["b.md"]).split() == "Title Use `--host` and a link here.".split()
    assert {place for place, _ in found["a.txt"]} == {"line 1", "line 4", "line 7"}
    assert " ".join(text for _, text in found["a.txt"]).split() == TEXT.split()
    np.testing.assert_allclose(np.linalg.norm(index.vectors, axis=1), 1, atol=1e-6)
    assert not (tmp_path / "index.partial").exists()


def test_search_finds_what_a_plain_sort_finds(folder: Path, model: Model, bundle: Bundle, tmp_path: Path) -> None:
    index, _ = update_index(folder, tmp_path / "index", model.embedder, 12)
    query = "Dogs bark at cats."
    vectors = {text: model.embed(text) for some in rows(index).values() for _, text in some}
    wanted = sorted(vectors, key=lambda text: -float(vectors[text] @ model.embed(query)))
    opened = regard.load_index(tmp_path / "index", engine="torch")
    for k in (1, 3, 100):
        hits = opened.search(query, k)
        assert [hit.text for hit in hits] == wanted[:k]
    assert hits[0].text == query and hits[0].score == pytest.approx(1, abs=1e-5) and hits[0].path == "a.txt"
    with pytest.raises(UserError, match="a query must have text"):
        opened.search("  ")
    with pytest.raises(UserError, match="k must be"):
        opened.search("a", 0)


def test_an_update_embeds_only_what_changed(
    folder: Path, model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "index"
    before = rows(update_index(folder, out, model.embedder)[0])
    stamp = (out / "index.json").stat().st_mtime_ns
    seen = embedded(monkeypatch, model)
    _, changes = update_index(folder, out, model.embedder)
    assert (changes.unchanged, changes.any, seen) == (4, False, [])
    assert (out / "index.json").stat().st_mtime_ns == stamp  # nothing was written
    (folder / "a.txt").write_text("Fish swim.")
    (folder / "rows.csv").unlink()
    (folder / "new.txt").write_text("Snakes hiss.")
    (folder / "b.md").touch()  # another time, the same content
    index, changes = update_index(folder, out, model.embedder)
    assert (changes.added, changes.changed, changes.removed, changes.unchanged) == (1, 1, 1, 2)
    assert sorted(seen) == ["Fish swim.", "Snakes hiss."]
    after = rows(index)
    assert after == {
        "a.txt": [("line 1", "Fish swim.")],
        "new.txt": [("line 1", "Snakes hiss.")],
        **{path: before[path] for path in ("b.md", "below/c.html")},
    }
    assert index.search("Snakes hiss.", 1)[0].path == "new.txt"
    for one in list(folder.rglob("*.*")):
        one.unlink() if one.is_file() else None
    index, changes = update_index(folder, out, model.embedder)
    assert (changes.removed, len(index), index.search("a")) == (4, 0, [])


def test_an_interrupted_run_continues(
    folder: Path, model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(indexing, "_TOGETHER", 1)  # save after each document
    out = tmp_path / "index"
    real, calls = model.embedder.embed, 0

    def embed(texts: Sequence[str], *more: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise KeyboardInterrupt
        return real(texts, *more)

    monkeypatch.setattr(model.embedder, "embed", embed)
    with pytest.raises(Interrupted, match="stopped with 2 documents embedded"):
        update_index(folder, out, model.embedder)
    assert not out.exists()
    with (tmp_path / "index.partial" / "documents.jsonl").open("ab") as file:
        file.write(b'{"document": {"pa')  # the power fails while a line is written
    with (tmp_path / "index.partial" / "vectors.bin").open("ab") as file:
        file.write(b"abc")
    index, changes = update_index(folder, out, model.embedder)
    assert (changes.added, calls) == (4, 5)  # two more documents
    monkeypatch.undo()
    whole, _ = update_index(folder, tmp_path / "whole", model.embedder)
    assert rows(index) == rows(whole)
    np.testing.assert_allclose(np.array(index.vectors), np.array(whole.vectors), atol=1e-6)


def test_indexes_inside_the_folder_are_no_documents(
    folder: Path, model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, below = folder / "mine", folder / "below.index"
    update_index(folder / "below", below, model.embedder)  # an index of a part of the folder
    real = model.embedder.embed

    def embed(texts: Sequence[str], *more: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(model.embedder, "embed", embed)
    with pytest.raises(Interrupted):
        update_index(folder, out, model.embedder)
    assert (folder / "mine.partial" / "settings.json").is_file()
    monkeypatch.setattr(model.embedder, "embed", real)
    elsewhere, changes = update_index(folder, tmp_path / "other", model.embedder)
    assert {one.path for one in elsewhere.documents} == {"a.txt", "b.md", "below/c.html", "rows.csv"}
    assert changes.skipped == [str(folder / "photo.jpg")]
    inside, _ = update_index(folder, out, model.embedder)
    assert rows(inside) == rows(elsewhere)
    again, changes = update_index(folder, out, model.embedder)
    assert not changes.any and len(again) == len(inside)
    with pytest.raises(UserError, match="must be a folder of documents, but is an index; search it"):
        update_index(out, tmp_path / "third", model.embedder)


def test_a_name_that_is_no_utf8_is_indexed_and_found(
    model: Model, bundle: Bundle, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "docs"
    folder.mkdir()
    try:
        (folder / os.fsdecode(b"n\xe4me.txt")).write_text("Snakes hiss.")
    except OSError:
        pytest.skip("this file system takes only UTF-8")
    named = ("--engine", "torch")
    assert main(["embed", str(folder), "-m", str(bundle.folder), *named]) == 0
    assert main(["search", str(tmp_path / "docs.index"), "snakes", *named]) == 0
    assert r"n\udce4me.txt, line 1" in capsys.readouterr().out
    assert not update_index(folder, tmp_path / "docs.index", model.embedder)[1].any


def test_a_document_that_vanishes_is_named(
    folder: Path, model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = files.sha256

    def sha256(path: Path) -> str:
        if path.name == "b.md":
            path.unlink()
        return real(path)

    monkeypatch.setattr(indexing, "sha256", sha256)
    index, changes = update_index(folder, tmp_path / "index", model.embedder)
    assert changes.failed == [f"{folder / 'b.md'}: cannot be read (No such file or directory)"]
    assert sorted(rows(index)) == ["a.txt", "below/c.html", "rows.csv"]


def test_a_document_that_changes_back_during_interruptions_keeps_its_text(
    folder: Path, model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(indexing, "_TOGETHER", 1)
    real = model.embedder.embed

    def embed(texts: Sequence[str], *more: Any) -> Any:
        if any("Title" in text for text in texts):  # b.md, which comes after a.txt
            raise KeyboardInterrupt
        return real(texts, *more)

    monkeypatch.setattr(model.embedder, "embed", embed)
    for content in (TEXT, "Fish swim."):
        (folder / "a.txt").write_text(content)
        with pytest.raises(Interrupted):
            update_index(folder, tmp_path / "index", model.embedder, 12)
    (folder / "a.txt").write_text(TEXT)
    monkeypatch.setattr(model.embedder, "embed", real)
    index, _ = update_index(folder, tmp_path / "index", model.embedder, 12)
    assert rows(index) == rows(update_index(folder, tmp_path / "whole", model.embedder, 12)[0])


def test_another_model_a_damaged_index_and_an_empty_folder_are_one_line(
    folder: Path, model: Model, bundle: Bundle, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, named = tmp_path / "index", ("-m", str(bundle.folder), "--engine", "torch")
    assert main(["embed", str(folder), "--index", str(out), *named]) == 0
    assert capsys.readouterr().out == f"{out}: 4 documents, 5 passages (4 added; 1 file of other kinds left out)\n"
    other = encoders.vector_model(tmp_path / "other", max_length=30)[1]
    (tmp_path / "empty").mkdir()
    shutil.copytree(out, tmp_path / "spoilt")
    with (tmp_path / "spoilt" / "vectors.npy").open("r+b") as file:
        file.seek(200)
        file.write(b"\x7f\x7f\x7f\x7f")
    shutil.copytree(folder, tmp_path / "elsewhere")
    cases = [
        (["search", str(out), "a", "-m", str(other.folder)], "was made with the model"),
        (["embed", str(folder), "--index", str(out), "-m", str(other.folder)], "was made with the model"),
        (["search", str(tmp_path / "spoilt"), "a"], "vectors.npy: differs from what manifest.json says"),
        (["search", str(tmp_path / "none"), "a"], "there is no such folder; make an index: regard embed FOLDER"),
        (["search", str(folder), "a"], f"must be an index, but has no index.json; make one: regard embed {folder}"),
        (["search", str(out), "a", "-k", "0"], "-k must be at least 1, but is 0"),
        (["search", str(out), " "], "a query must have text"),
        (["embed", str(tmp_path / "empty"), *named], "has no documents; their names end in one of .txt"),
        (["embed", str(tmp_path / "elsewhere"), "--index", str(out), *named], "is the index of"),
        (["embed", str(folder), "--index", str(out), "--passage-tokens", "9", *named], "must be the same, but is 9"),
        (
            ["embed", str(folder), "--index", str(tmp_path / "x"), "--passage-tokens", "99", *named],
            "--passage-tokens must be",
        ),
    ]
    capsys.readouterr()
    for command, message in cases:
        assert main(command) == 2, command
        said = capsys.readouterr().err
        assert said.count("\n") == 1 and message in said, said


def test_parts_that_do_not_fit_together_are_refused(folder: Path, model: Model, tmp_path: Path) -> None:
    out = tmp_path / "index"
    index, _ = update_index(folder, out, model.embedder)
    vectors, places = np.array(index.vectors), np.load(out / "places.npy")
    settings = json.loads((out / "index.json").read_text())
    for name, content in [
        ("vectors.npy", vectors[1:]),
        ("vectors.npy", vectors.astype(np.float64)),
        ("places.npy", places[1:]),
        ("places.npy", places - 1),
        ("places.npy", places[::-1].copy()),
        ("index.json", {**settings, "documents": [{"path": "a"}]}),
        ("index.json", {key: value for key, value in settings.items() if key != "folder"}),
    ]:
        spoilt = tmp_path / "spoilt"
        shutil.copytree(out, spoilt)
        if isinstance(content, dict):
            (spoilt / name).write_text(json.dumps(content))
        else:
            np.save(spoilt / name, content)
        write_manifest(spoilt, format=1)
        with pytest.raises(UserError, match="must be an index that regard embed wrote, but is damaged"):
            Index(spoilt)
        shutil.rmtree(spoilt)
    (out / "index.json").write_text(json.dumps({**settings, "format": 2}))
    write_manifest(out, format=2)
    with pytest.raises(UserError, match="the format of an index must be 1"):
        Index(out)


def test_the_command_prints_what_it_finds(
    folder: Path, bundle: Bundle, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["embed", str(folder), "-m", str(bundle.folder), "--passage-tokens", "12"]) == 0
    out = tmp_path / "docs.index"  # beside the folder
    capsys.readouterr()
    assert main(["search", str(out), "Dogs bark at cats.", "-k", "1", "--json"]) == 0
    [hit] = json.loads(capsys.readouterr().out)
    assert (hit["path"], hit["place"], hit["text"]) == ("a.txt", "line 4", "Dogs bark at cats.")
    assert main(["search", str(out), "Dogs bark at cats.", "-k", "2"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[:2] == ["1.000  a.txt, line 4", "    Dogs bark at cats."]


def test_a_document_that_cannot_be_read_is_named_and_the_rest_is_indexed(
    folder: Path, bundle: Bundle, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "broken.txt").write_bytes(b"\xff\xfe\x00")
    assert main(["embed", str(folder), "-m", str(bundle.folder)]) == 1
    said = capsys.readouterr()
    assert "4 documents" in said.out and "broken.txt: must be text in UTF-8" in said.err
    assert len(regard.load_index(tmp_path / "docs.index").documents) == 4


def test_the_index_of_a_model_that_was_moved_says_so(folder: Path, bundle: Bundle, tmp_path: Path) -> None:
    moved = tmp_path / "moved"
    shutil.copytree(bundle.folder, tmp_path / "there")
    update_index(folder, tmp_path / "index", regard.load(tmp_path / "there", engine="torch").embedder)
    (tmp_path / "there").rename(moved)
    with pytest.raises(UserError, match="needs the model that made it; name it with -m"):
        regard.load_index(tmp_path / "index")
    assert regard.load_index(tmp_path / "index", moved, engine="torch").search("cats", 1)


def test_the_built_in_encoder_needs_no_name(
    folder: Path, bundle: Bundle, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in a folder that has another model of the same name."""
    name = DEFAULTS["embed"]
    shutil.copytree(bundle.folder, tmp_path / "builtin" / name)
    monkeypatch.setattr("regard.builtin.BUILTIN", tmp_path / "builtin")
    encoders.vector_model(tmp_path / "other", max_length=30)[1].folder.rename(tmp_path / name)
    monkeypatch.chdir(tmp_path)
    assert main(["models"]) == 0
    assert [name, "built-in", "embed"] in [line.split()[:3] for line in capsys.readouterr().out.splitlines()]
    assert main(["embed", "docs"]) == 0
    assert main(["search", "docs.index", "Dogs bark at cats.", "-k", "1"]) == 0
    assert capsys.readouterr().out.startswith("docs.index: 4 documents, 5 passages")
    assert Index(tmp_path / "docs.index").model == name
    assert regard.load(task="embed").bundle.folder == tmp_path / "builtin" / name


def test_two_processes_do_not_make_the_same_index(folder: Path, model: Model, tmp_path: Path) -> None:
    with (
        indexing._Partial(tmp_path / "index", {}),
        pytest.raises(UserError, match="another process is making this index"),
    ):
        update_index(folder, tmp_path / "index", model.embedder)


# Passages


def words(texts: Sequence[str]) -> list[int]:
    return [len(text.split()) for text in texts]


def test_passages_join_short_paragraphs_and_cut_long_ones() -> None:
    given = [Paragraph("line 1", "Head"), Paragraph("line 3", "one two three"), Paragraph("line 5", "four five")]
    assert [(one.place, one.text) for one in make_passages(given, 4, words)] == [
        ("line 1", "Head\none two three"),
        ("line 5", "four five"),
    ]
    long = replace(given[0], text="One two. Three four five! Six? Seven eight nine ten eleven twelve.")
    assert [one.text for one in make_passages([long, given[2]], 5, words)] == [
        "One two. Three four five!",
        "Six? Seven eight nine ten",
        "eleven twelve.",
        "four five",
    ]


def test_a_heading_goes_with_the_text_below_it() -> None:
    given = [
        Paragraph("line 1", "one two three"),
        Paragraph("line 3", "Limits", is_heading=True),
        Paragraph("line 5", "Of memory", is_heading=True),
        Paragraph("line 7", "four five"),
        Paragraph("line 9", "Sizes", is_heading=True),
        Paragraph("line 11", "One two three. Four five six."),
        Paragraph("line 13", "End", is_heading=True),
    ]
    assert [(one.place, one.text) for one in make_passages(given, 5, words)] == [
        ("line 1", "one two three"),
        ("line 3", "Limits\nOf memory\nfour five"),
        ("line 9", "Sizes\nOne two three."),
        ("line 11", "Four five six."),
        ("line 13", "End"),
    ]


def test_a_passage_of_headings_has_the_place_of_its_first_one() -> None:
    contents = [Paragraph(f"line {2 * n + 1}", f"Part {n}", is_heading=True) for n in range(200)]
    found = make_passages(contents, 5, words)
    assert [(one.place, one.text) for one in found] == [
        (f"line {2 * n + 1}", f"Part {n}\nPart {n + 1}") for n in range(0, 200, 2)
    ]


LONG_HEADINGS = {
    "no room for a word": ("One two three four five", ["line 1: One two three four five", "line 3: a b.", "line 3: c d e f. g."]),
    "room for two words": ("One two three", ["line 1: One two three\na b.", "line 3: c d e f. g."]),
    "room for a part of a sentence": ("One two three four", ["line 1: One two three four\na", "line 3: b. c d e f.", "line 3: g."]),
    "longer than a passage": (
        "One two three four five six", ["line 1: One two three four five", "line 1: six", "line 3: a b.", "line 3: c d e f. g."],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LONG_HEADINGS)
def test_the_parts_of_a_long_paragraph_have_its_own_place(name: str) -> None:
    heading, wanted = LONG_HEADINGS[name]
    given = [Paragraph("line 1", heading, is_heading=True), Paragraph("line 3", "a b. c d e f. g.")]
    assert [f"{one.place}: {one.text}" for one in make_passages(given, 5, words)] == wanted


def test_markdown_and_web_pages_have_headings(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("## Limits\n\nText with # in it.\n\nSizes\r\n=====\r\n\n# No\nheading\n\n#tag\n")
    (tmp_path / "a.html").write_text("<h2>Limits <b>of</b> all</h2>Text.<h3></h3><p>Sizes.</p>")
    found = [(one.text, one.is_heading) for name in ("a.md", "a.html") for one in read_paragraphs(tmp_path / name)]
    assert found == [
        ("Limits", True),
        ("Text with # in it.", False),
        ("Sizes =====", True),
        ("No heading", False),
        ("#tag", False),
        ("Limits of all", True),
        ("Text.", False),
        ("Sizes.", False),
    ]


PAGES = {
    "image": ("<h1><img src=a.png> Hours</h1>Text.", ["Hours"]),
    "icon": ("<h2><a href=#a><svg><path d=M0/><text>no</text></svg></a>Title</h2>Text.", ["Title"]),
    "block": ("<h2><div>Title</div></h2>Text.", ["Title"]),
    "button": ("<h3>Show <button>more</button> of it</h3>Text.", ["Show", "more", "of it"]),
    "two lines": ("<h2>a<br>b</h2>Text.", ["a", "b"]),
    "closed by another": ("<h2>a</h3>Text.", ["a"]),
    "never closed": ("<h2>a<p>Text.<p>Text.", ["a"]),
    "not closed before the next": ("<h2>a<p>Text.<h2>b<br>c</h2>Text.</h2>Text.", ["a", "b", "c"]),
}


@pytest.mark.parametrize("name", PAGES)
def test_a_heading_of_a_web_page_ends_where_it_is_closed(name: str) -> None:
    page, headings = PAGES[name]
    found = html_paragraphs(page)
    assert [text for _, text, is_heading in found if is_heading] == headings
    assert {text for _, text, is_heading in found if not is_heading} == {"Text."}


def test_documents_keep_their_order_and_places(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xef\xbb\xbf\n\n  One\r\ntwo\r\n\r\n \nThree\n--\n\n--\n")
    assert [(one.place, one.text) for one in read_paragraphs(path)] == [("line 3", "One two"), ("line 7", "Three --")]
