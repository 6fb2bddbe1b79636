"""The models that come with Regard: small, sane on awkward input, and as good as their cards say."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import pytest

import regard
from regard.bundle import BUILTIN, builtin_names, load_bundle
from regard.data.corpus import read_lines
from regard.evaluate import score
from tests.awkward import awkward_lines, faults

TATOEBA = Path(__file__).parents[1] / "data" / "tatoeba"
NAMES = ["en-de", "de-en"]


def test_both_directions_are_there() -> None:
    assert builtin_names() == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_it_is_small_and_says_where_it_comes_from(name: str) -> None:
    assert sum(path.stat().st_size for path in (BUILTIN / name).rglob("*") if path.is_file()) <= 20_000_000
    bundle = load_bundle(BUILTIN / name)
    assert f"{bundle.source}-{bundle.target}" == name and bundle.stored == "int8"
    assert len(bundle.facts["scores"]) >= 6
    card = (BUILTIN / name / "card.md").read_text(encoding="utf-8")
    for word in ("Europarl", "Tatoeba", "CC BY", "newstest2014", "## Limits", "nrefs:1"):
        assert word in card


@pytest.mark.parametrize("name", NAMES)
def test_it_is_as_good_as_its_card_says(name: str) -> None:
    """On a part of its test set, so within what chance does to a part."""
    source, target = name.split("-")
    lines, references = (list(islice(read_lines(TATOEBA / f"test.{code}.xz"), 400)) for code in (source, target))
    translations = regard.load(name, device="cpu").translate(lines)
    assert isinstance(translations, list)
    found = score(translations, references, target_language=target, bootstrap=0).to_json()["metrics"]["chrf"]["score"]
    assert abs(found - load_bundle(BUILTIN / name).facts["scores"]["tatoeba-test"]["metrics"]["chrf"]["score"]) < 3.5


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("en-de", "The weather is nice today.", {"Wetter", "heute"}),
        ("de-en", "Wo ist der nächste Bahnhof?", {"Where", "station"}),
        ("en-de", "Thank you very much, Mr President!", {"Dank", "Präsident"}),
        ("de-en", "Die Datei konnte nicht geöffnet werden.", {"file", "not"}),
    ],
)
def test_it_translates(name: str, text: str, words: set[str]) -> None:
    translation = regard.load(name, device="cpu").translate(text)
    assert isinstance(translation, str) and all(word in translation for word in words), translation


@pytest.mark.parametrize("engine", ["torch", "ctranslate2"])
@pytest.mark.parametrize("name", NAMES)
def test_awkward_lines_come_out_sane(name: str, engine: str) -> None:
    lines = awkward_lines()
    translated = regard.load(name, device="cpu", engine=engine).translate(lines)
    wrong = {line: (text, found) for line, text in zip(lines, translated, strict=True) if (found := faults(line, text))}
    assert not wrong
