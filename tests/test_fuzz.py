"""Every file of a bundle, a glossary and the values of options, damaged in a fixed number of ways: one line and exit code 2, or a
result. Exit code 70 is a bug. The files of a run folder are in `training/test_fuzz.py`."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from regard.api import load
from regard.bundle import _from_settings, load_bundle
from regard.cli import main
from regard.errors import UserError
from regard.files import MANIFEST, write_manifest
from regard.generate.engines.torch_engine import load_model
from regard.generate.options import NOTHING_FOUND
from tests.mutations import mutations

GOLDEN = Path(__file__).parent / "golden"
CASES = 24  # of each file
VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2**31, 2**63, 10**40, 0.5, -0.5, 1e308, 1e-308, float("nan"), float("inf"), "", "x", "x" * 10_000,
    "\x1b[2J\n", "\ud800", [], [1], [[]] * 100, {}, {"a": 1}, {"metrics": 1},
)  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The golden bundle in int8."""
    return Path(shutil.copytree(GOLDEN / "bundle-2", tmp_path / "bundle"))


def check(capfd: pytest.CaptureFixture[str], *arguments: str) -> int:
    """Run a command that must end well or be refused in one printable line; its exit code."""
    capfd.readouterr()
    code = main([*arguments])
    said = capfd.readouterr().err
    lines = [line for line in said.splitlines() if not line.endswith("ctranslate2 cannot do it")]
    assert code == 0 or (code == 1 and NOTHING_FOUND in said) or code == 2, said
    assert all(line.isprintable() and len(line) < 2000 for line in lines), said
    assert code == 0 or (len(lines) == 1 and lines[0].startswith("regard: ")), said
    return code


def translates(capfd: pytest.CaptureFixture[str], folder: Path) -> int:
    """Both engines read it, or both refuse it."""
    codes = [
        check(capfd, "translate", "a b c", "▁ü", "-m", str(folder), "--engine", engine)
        for engine in ("ctranslate2", "torch")
    ]
    assert (codes[0] == 2) == (codes[1] == 2), codes
    return codes[0]


def spoilt_settings(settings: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The settings with one value exchanged or missing: each value of each section, the sections themselves, and the facts that a
    card shows."""
    places: list[tuple[str, ...]] = [(name,) for name in (*settings, "alignment")]
    places += [(name, key) for name in ("model", "decode", "facts") for key in settings[name]]
    shown = ("corpora", "test", "scores", "checks", "sources", "limits", "regard", "parameters")
    places += [("facts", name) for name in shown]
    for place in dict.fromkeys(places):
        for value in (*VALUES, KeyError):
            copy = json.loads(json.dumps(settings))
            part = copy
            for name in place[:-1]:
                part = part[name]
            if value is KeyError:
                part.pop(place[-1], None)
            else:
                part[place[-1]] = value
            yield copy


def test_settings_of_any_kind_are_refused_or_read(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = folder / "config.json"
    settings = json.loads(path.read_text(encoding="utf-8"))
    refused, read = 0, []
    for spoilt in spoilt_settings(settings):
        try:
            _from_settings(folder, spoilt)
        except UserError:
            refused += 1
        else:
            read.append(spoilt)
    assert refused > 500 and len(read) > 50
    for spoilt in read[:: len(read) // CASES]:
        path.write_text(json.dumps(spoilt), encoding="utf-8")
        write_manifest(folder)
        if check(capfd, "info", str(folder)) == 0:
            translates(capfd, folder)


def test_settings_of_a_language_model_of_any_kind_are_refused_or_read(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = Path(shutil.copytree(GOLDEN / "bundle-3", tmp_path / "bundle"))
    path = folder / "config.json"
    settings = json.loads(path.read_text(encoding="utf-8"))
    settings["model"] |= {"decoder": {}, "head": {}, "front": {}, "rotary_scaling": {}, "share_layers": False}
    refused, read = 0, []
    for spoilt in spoilt_settings(settings):
        try:
            _from_settings(folder, spoilt)
        except UserError:
            refused += 1
        else:
            read.append(spoilt)
    assert refused > 500 and len(read) > 50
    loaded = 0
    for spoilt in read[:: len(read) // CASES]:
        path.write_text(json.dumps(spoilt), encoding="utf-8")
        write_manifest(folder)
        if check(capfd, "info", str(folder)) == 0:
            with suppress(UserError):
                load_model(load_bundle(folder))
                loaded += 1
    assert loaded > 5


@pytest.mark.parametrize("name", ["config.json", MANIFEST, "tokenizer/tokenizer.json", "card.md", "recipe.toml"])
@pytest.mark.parametrize("has_right_hashes", [False, True])
def test_a_damaged_text_file_is_refused_or_read(
    folder: Path, capfd: pytest.CaptureFixture[str], name: str, has_right_hashes: bool
) -> None:
    path = folder / name
    intact = path.read_bytes()
    for damaged in mutations(intact, CASES, name):
        path.write_bytes(damaged)
        if has_right_hashes and name != MANIFEST:
            write_manifest(folder)
        code = check(capfd, "info", str(folder))
        assert has_right_hashes or name == MANIFEST or code == 2 or damaged == intact
        if code == 0 and has_right_hashes and name in ("config.json", "tokenizer/tokenizer.json"):
            translates(capfd, folder)


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer/joint.model"])
def test_a_damaged_binary_file_with_the_right_hash_is_refused_or_read(
    folder: Path, capfd: pytest.CaptureFixture[str], name: str
) -> None:
    path = folder / name
    content = path.read_bytes()
    # The header of the weights is what is parsed; of the tokenizer, everything.
    parsed = 8 + struct.unpack("<Q", content[:8])[0] if name == "model.safetensors" else len(content)
    spoilt = [damaged + content[parsed:] for damaged in mutations(content[:parsed], CASES, name)]
    for damaged in (*spoilt, *mutations(content, CASES // 3, f"all of {name}")):
        path.write_bytes(damaged)
        write_manifest(folder)
        translates(capfd, folder)


def test_a_damaged_glossary_is_refused_or_used(tmp_path: Path) -> None:
    path = tmp_path / "glossary.tsv"
    model = load(GOLDEN / "bundle-1", device="cpu", engine="torch")
    used = 0
    for damaged in mutations(b"# terms\na\tq\nb c\tp\nd\te\nd\tf\n", CASES, "glossary"):
        path.write_bytes(damaged)
        with suppress(UserError):
            model.translate("a b c d", glossary=path)
            used += 1
    assert used > CASES // 4


NUMBERS = (
    "0",
    "1",
    "-1",
    "1e9",
    "1000000000",
    "9" * 30,
    "9" * 5000,
    "nan",
    "inf",
    "1e308",
    "1e-308",
    "",
    "x",
    "\x1b[2J",
    "٣",
)
SEARCH = (
    "--beam", "--alpha", "--coverage", "--no-repeat", "--max-repeat", "--groups", "--diversity", "--temperature", "--top-k",
    "--top-p", "--seed", "--nbest", "--batch",
)  # fmt: skip


@pytest.mark.parametrize("option", SEARCH)
def test_any_value_of_a_search_option_is_refused_or_used(option: str, capfd: pytest.CaptureFixture[str]) -> None:
    more = {"--diversity": ["--groups", "2"], "--temperature": ["--sample"], "--top-k": ["--sample"]}
    more |= {"--top-p": ["--sample"], "--seed": ["--sample"], "--groups": ["--beam", "12"]}
    for number, value in enumerate(NUMBERS):
        engine = ("auto", "torch")[number % 2]
        command = ["translate", "a b c", "-m", str(GOLDEN / "bundle-1"), "--engine", engine, *more.get(option, [])]
        check(capfd, *command, f"{option}={value}")


@pytest.mark.parametrize("option", ["--top", "--force", "--layer", "--head", "--beam", "--alpha"])
def test_any_value_of_an_option_of_explain_is_refused_or_used(
    option: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for value in NUMBERS:
        given = f"{value}=b" if option == "--force" else value
        where = ["-o", str(tmp_path / "figure.svg")] if option in ("--layer", "--head") else ["--json"]
        check(capfd, "explain", "a b c", "-m", str(GOLDEN / "bundle-1"), *where, f"{option}={given}")
