"""Awkward lines through a model that knows nothing: whatever it says, what goes out is sane."""

from __future__ import annotations

from pathlib import Path

import pytest

from regard.api import Model
from regard.bundle import load_bundle
from regard.data.tokenizer import Tokenizer
from regard.recipe import DecodeRecipe
from tests.awkward import awkward_lines, faults, most_repeats
from tests.build import build, tiny_config
from tests.tiny import save_model


def test_repeats_are_counted() -> None:
    assert most_repeats("no") == 1 and most_repeats("") == 0
    assert most_repeats("test test test") == 3
    assert most_repeats("we go, we go, we go, home") == 3
    assert most_repeats("a b c a b c a b d") == 2
    assert faults("one word", "one one one one one") == ["a phrase is repeated again and again"]
    assert faults("see {a} at http://x.de", "siehe {a}") == ["lost: http://x.de"]
    assert faults("a", "b " * 20) != []


@pytest.mark.parametrize("engine", ["torch", "ctranslate2"])
def test_awkward_lines_come_out_sane(engine: str, tmp_path: Path) -> None:
    lines = awkward_lines()
    assert len(lines) == 100
    tokenizer = Tokenizer.train([*lines, "ein paar Wörter auf Deutsch"] * 3, 600, tmp_path / "tokenizer", protects=True)
    model = build(tiny_config(vocab_size=tokenizer.vocab_size))
    save_model(tmp_path / "bundle", model, tokenizer, decode=DecodeRecipe(guard=True))
    translated = Model(load_bundle(tmp_path / "bundle"), device="cpu", engine=engine).translate(lines)
    assert len(translated) == 100
    wrong = {line: (text, found) for line, text in zip(lines, translated, strict=True) if (found := faults(line, text))}
    assert not wrong
