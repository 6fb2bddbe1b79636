"""What a run says about its text before it trains on it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from regard.data.corpus import Corpus
from regard.errors import UserError
from regard.recipe import load_recipe, recipe_from_dict
from regard.tasks.translate import doubts
from regard.training.prepare import find_corpora
from tests.commands import fails
from tests.tiny import write_recipe
from tests.training.runs import quiet

ENGLISH = ["The house stands at the end of the street.", "We should talk about what happened yesterday.", "I like tea."]
GERMAN = ["Das Haus steht am Ende der Straße.", "Wir sollten über das sprechen, was gestern war.", "Ich mag Tee."]


def notes(tmp_path: Path, source: list[str], target: list[str], labels: tuple[str, str] = ("en", "de")) -> list[str]:
    paths = tmp_path / "train.en", tmp_path / "train.de"
    for path, lines in zip(paths, (source, target), strict=True):
        path.write_text("".join(f"{line}\n" for line in lines * 5), encoding="utf-8")
    data = {"source": labels[0], "target": labels[1], "train": "x.tsv", "valid": 1}
    recipe = recipe_from_dict({"data": data, "train": {"steps": 1}})
    return doubts(recipe, [Corpus("train.{en,de}", *paths)])


def test_swapped_languages_are_said(tmp_path: Path) -> None:
    assert notes(tmp_path, GERMAN, ENGLISH) == [
        "train.{en,de}: the source side looks like German, not English and the target side looks like English, not German; "
        "if the two are swapped, stop and exchange them"
    ]
    [one] = notes(tmp_path, GERMAN, GERMAN)
    assert "source side looks like German, not English; if" in one


def test_languages_as_they_should_be_are_not_spoken_of(tmp_path: Path) -> None:
    assert notes(tmp_path, ENGLISH, GERMAN) == []
    assert notes(tmp_path, ENGLISH, GERMAN, ("en-GB", "de_AT")) == []
    assert notes(tmp_path, GERMAN, ENGLISH, ("src", "tgt")) == []
    assert notes(tmp_path, ["a b", "1 2 3"], ["c d", "4"]) == []


def test_a_third_column_is_said_in_one_line(tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path, steps=1)
    sides = [(tmp_path / f"train.{side}").read_text().splitlines() for side in ("src", "tgt")]
    rows = [f"{src}\t{tgt}" for src, tgt in zip(*sides, strict=True)]
    rows[6], rows[9] = rows[6] + "\tCC BY 2.0", rows[9] + "\t\t"
    (tmp_path / "train.tsv").write_text("".join(f"{row}\n" for row in rows))
    said = quiet(recipe, tmp_path / "run", "data.train=train.tsv")
    [line] = [line for line in said.splitlines() if "columns are" in line]
    assert line == (
        f"{tmp_path}/train.tsv: only the first two columns are used, source and target; more are on 2 of 400 lines, "
        "first on line 7"
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("data.valid=no.{src,tgt}", r"^data\.valid: .*no\.src: there is no such file"),
        ("data.test=no*.{src,tgt}", r"^data\.test: 'no\*\.\{src,tgt\}': must match at least one file"),
        ("data.train=no.tsv", r"^data\.train: .*no\.tsv: there is no such file"),
        ('data.train=["train.{src,tgt}", "no.tsv"]', r"^data\.train, corpus 2: .*no\.tsv: there is no such file"),
        ("data.train=train.{tgt,src}", r"^data\.train: .*the source side must come first"),
    ],
)
def test_a_corpus_error_names_its_field(tmp_path: Path, change: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        find_corpora(load_recipe(write_recipe(tmp_path), [change]))


@pytest.mark.parametrize("arguments", [["train.src", "train.tgt"], ["recipe.toml"]])
def test_a_pipe_as_corpus_is_refused_with_what_to_do(
    tmp_path: Path, arguments: list[str], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A named one without a writer, which would never open, and one as the shell makes it of <(...)."""
    write_recipe(tmp_path)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.src").unlink()
    os.mkfifo(tmp_path / "train.src")
    shown = fails(capfd, "train", *arguments)
    assert "train.src: must be a regular file, since a corpus is read more than once, but is a pipe" in shown
    assert "write its content to a file first" in shown
    assert not (tmp_path / "runs").exists()


def test_a_pipe_of_the_shell_is_named_as_it_was_given(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "x.de").write_text("a\n")
    ends = os.pipe()
    try:
        shown = fails(capfd, "train", f"/dev/fd/{ends[0]}", str(tmp_path / "x.de"))
    finally:
        for end in ends:
            os.close(end)
    assert f"/dev/fd/{ends[0]}: must be a regular file" in shown and "pipe:[" not in shown
