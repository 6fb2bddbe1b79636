"""The stages that make a built-in model: their list, how they are resumed, and files cut into parts."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from regard.recipe import load_recipe
from scripts import builtin
from scripts.builtin_text.__main__ import PARTS

ROOT = Path(builtin.__file__).parents[1]


def making(folder: Path, reverse: str = "") -> builtin.Making:
    return builtin.Making("en", "de", folder / "data", folder / "out", 1, reverse, (), ())


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
        builtin, "STAGES", {name: lambda _, name=name: stage(name) for name in ("text", "back", "teacher")}
    )
    builtin.run_stages(making(tmp_path), "text")
    assert made == ["text"]
    builtin.run_stages(making(tmp_path), "teacher")
    assert made == ["text", "teacher"]  # nothing to translate back with
    builtin.run_stages(making(tmp_path, reverse="de-en"), "teacher")
    assert made == ["text", "teacher", "back"]
    listed = json.loads((tmp_path / "out" / "stages.json").read_text())
    assert list(listed["text"]["written"]) == ["OUT/text"]
    assert len(listed["text"]["written"]["OUT/text"]) == 64


@pytest.mark.parametrize("name", ["teacher", "student"])
def test_recipes_name_only_what_is_made_and_what_may_be_learnt_from(name: str) -> None:
    recipe = load_recipe(ROOT / "recipes" / "builtin" / f"{name}.toml")
    folders = {entry.path.split("/")[0] for entry in recipe.data.train}
    assert not folders & {"news", "talks", "multi30k"}
    made = {entry.path.split("/")[1].split(".")[0] for entry in recipe.data.train if entry.path.startswith("made/")}
    assert made <= set(PARTS)


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
