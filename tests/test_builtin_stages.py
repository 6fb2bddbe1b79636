"""The stages that make a built-in model: their list, how they are resumed, and files cut into parts."""

from __future__ import annotations

import json
import lzma
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from regard.bundle import add_facts
from regard.recipe import load_recipe
from scripts import builtin
from scripts.builtin_corpora import joint_recipe, recipe_of
from scripts.builtin_text.__main__ import parts_of

ROOT = Path(builtin.__file__).parents[1]


def making(folder: Path, **settings: Any) -> builtin.Making:
    return builtin.Making("en", "de", folder / "data", folder / "out", **settings)


def test_a_finished_stage_is_listed_with_hashes_and_not_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "out").mkdir()
    made: list[str] = []

    def stage(name: str) -> builtin.Record:
        made.append(name)
        (tmp_path / "out" / name).write_text(name)
        return [], [tmp_path / "out" / name]

    monkeypatch.setattr(
        builtin, "STAGES", {name: lambda _, name=name: stage(name) for name in ("text", "teacher", "student")}
    )
    builtin.run_stages(making(tmp_path), "text")
    assert made == ["text"]
    builtin.run_stages(making(tmp_path), "teacher")
    assert made == ["text", "teacher"]
    listed = json.loads((tmp_path / "out" / "stages.json").read_text())
    assert list(listed["text"]["written"]) == ["OUT/text"]
    assert len(listed["text"]["written"]["OUT/text"]) == 64


@pytest.mark.parametrize("other", ["de", "fr"])
@pytest.mark.parametrize("name", ["teacher", "student"])
def test_recipes_name_only_what_is_made_and_what_may_be_learnt_from(name: str, other: str) -> None:
    recipe = load_recipe(recipe_of(name, "en", other))
    folders = {entry.path.split("/")[0] for entry in recipe.data.train}
    assert not folders & {"news", "talks", "multi30k", "news-fr", "multi30k-fr"}
    made = {entry.path.split("/")[1].split(".")[0] for entry in recipe.data.train if entry.path.startswith("made/")}
    assert made <= {*parts_of("en", other), "back-common-voice", "parliament_*"}
    assert other == "de" or all(entry.path.split("/")[0].endswith(("-fr", "ed", "made")) for entry in recipe.data.train)


def test_a_recipe_of_both_directions_has_each_corpus_once_for_each(tmp_path: Path) -> None:
    one = load_recipe(recipe_of("student", "en", "fr"))
    pairs = [("en", "fr"), ("fr", "en")]
    (tmp_path / "both.toml").write_text(
        joint_recipe(recipe_of("student", "en", "fr"), pairs, turns=True), encoding="utf-8"
    )
    both = load_recipe(tmp_path / "both.toml")
    assert both.data.directions == tuple(pairs) and both.has_tags
    assert (both.model, both.tokenizer, both.train) == (one.model, one.tokenizer, one.train)
    assert len(both.data.train) == 2 * len(one.data.train) + 2
    for entry in both.data.train:
        assert entry.path.startswith(f"{entry.source}-{entry.target}/") or "mono-common-voice" in entry.path
    turned = [entry for entry in both.data.train if entry.path.startswith(f"{entry.target}-{entry.source}/")]
    assert [(entry.source, entry.weight) for entry in turned] == [("en", 0.5), ("fr", 0.5)]
    assert [entry.source for entry in both.data.valid] == ["en", "fr"]


def test_both_directions_have_text_of_their_own(tmp_path: Path) -> None:
    made = builtin.Making("en", "fr", tmp_path / "data", tmp_path / "out", both=True)
    assert [half.text for half in made.halves] == [tmp_path / "out" / "text" / name for name in ("en-fr", "fr-en")]
    assert made.pair == "en+fr" and made.halves[1].both_sides("made/x") == f"{tmp_path}/out/text/fr-en/made/x.{{fr,en}}"


def text_of(folder: Path, lines: int) -> builtin.Making:
    """What the teacher has to translate: one corpus with pieces of two lines."""
    (folder / "data").mkdir()
    (folder / "out" / "text" / "tatoeba").mkdir(parents=True)
    text = "".join(f"Line {number}.\n" for number in range(lines))
    (folder / "out" / "text" / "tatoeba" / "train.en.xz").write_bytes(lzma.compress(text.encode()))
    return making(folder, jobs=2)


# Stands for scripts.builtin_distill: translates into capitals, and fails where a line says so.
TRANSLATOR = """
import sys
from pathlib import Path
for line in sys.stdin:
    text, made, noised = line.rstrip("\\n").split("\\t")
    lines = Path(text).read_text()
    if "FAIL" in lines:
        sys.exit(3)
    for name in filter(None, (made, noised)):
        for language in ("en", "de"):
            Path(name.replace("{en,de}", language)).write_text(lines.upper())
    print("done", flush=True)
"""


@pytest.fixture
def translator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "translator.py").write_text(TRANSLATOR)
    begin = builtin.started
    monkeypatch.setattr(builtin, "PIECE", 2)
    monkeypatch.setattr(builtin, "started", lambda *_, **options: begin(tmp_path / "translator.py", **options))


@pytest.mark.usefixtures("translator")
def test_a_corpus_is_translated_in_pieces_and_only_what_is_missing(tmp_path: Path) -> None:
    made = text_of(tmp_path, 5)
    pieces = list(made.pieces("tatoeba/train"))
    assert [piece.name for piece in pieces] == ["tatoeba-train-00", "tatoeba-train-01", "tatoeba-train-02"]
    assert pieces[2].text.read_text() == "Line 4.\n"
    builtin.distill_pieces(made, pieces)
    written = [path for piece in pieces for path in piece.made]
    assert len(written) == 12
    assert all(path.exists() for path in written)  # of three pieces, two languages, with and without noise
    for path in written[:4]:
        path.write_text("kept")
    written[-1].unlink()
    builtin.distill_pieces(made, pieces)
    assert written[0].read_text() == "kept"
    assert written[-1].read_text() == "LINE 4.\n"


@pytest.mark.usefixtures("translator")
def test_after_its_time_no_further_piece_is_begun(tmp_path: Path) -> None:
    made = text_of(tmp_path, 5)
    made.distill_minutes = 1e-9
    pieces = list(made.pieces("tatoeba/train"))
    builtin.distill_pieces(made, pieces)
    assert not any(path.exists() for piece in pieces for path in piece.made)


@pytest.mark.usefixtures("translator")
def test_a_process_that_fails_is_an_error(tmp_path: Path) -> None:
    made = text_of(tmp_path, 5)
    pieces = list(made.pieces("tatoeba/train"))
    pieces[1].text.write_text("FAIL\n")
    with pytest.raises(subprocess.CalledProcessError, match="status 3"):
        builtin.distill_pieces(made, pieces)


def test_a_stage_that_fails_ends_the_program_and_what_it_started(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    program = f"""
import sys, time
from pathlib import Path
from concurrent.futures import ThreadPoolExecutor
from scripts import builtin

def stage(making):
    ThreadPoolExecutor(1).submit(builtin.run, "-c", "import time; time.sleep(600)")
    while not builtin._running:
        time.sleep(0.01)
    print("started", next(iter(builtin._running)).pid)
    builtin.run("-c", "raise SystemExit(7)")

builtin.STAGES = {{"text": stage}}
sys.argv = ["builtin", "en", "de", {str(tmp_path / "data")!r}, {str(tmp_path / "out")!r}, "--until", "text"]
builtin.main()
"""
    ended = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert "FAILED" in ended.stdout
    assert "status 7" in ended.stderr
    process = int(ended.stdout.split("started ")[1].split()[0])
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)


# Read by every Python that starts, before the working folder comes to the path: takes away an installed regard.
NOT_INSTALLED = """
import os, sys
sys.path[:] = [entry for entry in sys.path if not os.path.isfile(os.path.join(entry, "regard", "__init__.py"))]
sys.meta_path[:] = [finder for finder in sys.meta_path if "editable" not in getattr(finder, "__module__", "")]
"""


def test_the_card_is_made_in_a_checkout_where_regard_is_not_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = making(tmp_path, init=str(tmp_path / "older"))
    for name, corpora in {
        "out/en-de": ["distilled/tatoeba-train-00.{en,de}", "distilled/tatoeba-train-01.{en,de}"],
        "out/teacher/model": ["europarl/train-00.{en,de}.xz"],
        "older": ["made/dictionary.{en,de}.xz"],
    }.items():
        shutil.copytree(ROOT / "tests" / "golden" / "bundle-2", tmp_path / name)
        add_facts(tmp_path / name, {"corpora": corpora})
    (made.out / "scores").mkdir()
    metrics = {"bleu": {"name": "BLEU", "score": 12.34, "confidence": 0.5, "signature": "nrefs:1"}}
    (made.out / "scores" / "int8-news.json").write_text(json.dumps({"sentences": 7, "metrics": metrics}))
    checks = {"table": [{"kind": "names", "lines": 8, "passed": 7, "%": 87.5}]}
    (made.out / "scores" / "checks-int8.json").write_text(json.dumps(checks))
    (tmp_path / "sitecustomize.py").write_text(NOT_INSTALLED)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    made.make_card()
    card = (made.out / "en-de" / "card.md").read_text(encoding="utf-8")
    assert "| news | 7 | 12.34 ± 0.50 |" in card
    assert "| names | 7 of 8 | 87.5 |" in card
    assert "| training corpora | distilled/tatoeba-train-*.{en,de} |" in card
    assert "| started from | older of 2026-11-15 |" in card
    for source in (
        "Tatoeba",
        "Europarl",
        "the dictionary Ding of the TU Chemnitz (words and example sentences): GPL-2+",
    ):
        assert source in card  # of its own text, its teacher's, and that of the model that it started from


def test_parts_join_to_the_same_folder_and_a_damaged_part_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model" / "tokenizer").mkdir(parents=True)
    (tmp_path / "model" / "weights").write_bytes(bytes(range(256)) * 70_000)  # more than one part
    (tmp_path / "model" / "tokenizer" / "x.json").write_text("{}")
    script = str(ROOT / "scripts" / "parts.sh")
    subprocess.run([script, "split", tmp_path / "model", tmp_path / "parts"], check=True)
    assert {path.name for path in (tmp_path / "parts").iterdir()} == {"000", "001", "SHA256SUMS"}
    subprocess.run([script, "join", tmp_path / "parts", tmp_path / "joined"], check=True)
    assert (tmp_path / "joined" / "weights").read_bytes() == (tmp_path / "model" / "weights").read_bytes()
    assert (tmp_path / "joined" / "tokenizer" / "x.json").read_text() == "{}"
    (tmp_path / "parts" / "001").write_bytes(b"x")
    refused = subprocess.run([script, "join", tmp_path / "parts", tmp_path / "again"], capture_output=True, check=False)
    assert refused.returncode != 0
    assert not (tmp_path / "again").exists()
