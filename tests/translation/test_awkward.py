"""Awkward lines through a model that knows nothing: whatever it says, what goes out is sane."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from regard.api import Model
from regard.bundle import load_bundle
from regard.data.tokenizer import Tokenizer
from regard.generate.options import Hypothesis, OnFinished, SearchOptions
from regard.recipe import DecodeRecipe
from regard.translation.translation_options import TranslationOptions
from regard.translation.translator import Translator
from tests.awkward import awkward_lines, faults, lost_numbers, most_repeats
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


def test_lost_numbers_are_found() -> None:
    assert lost_numbers("At 12:30, room 1207.", "Um 12:30 Uhr, Raum 1207.") == []
    assert lost_numbers("12:30", "13:30 Uhr") == ["1230"]
    assert lost_numbers("At 5 p.m., 1,207 people.", "Um 17 Uhr 1.207 Leute.") == []
    assert lost_numbers("At 5 p.m., 1,207 people.", "Um 17 Uhr 1.270 Leute.") == ["1207"]


class Scrambler:
    """Says something for everything: words in another order, spans lost or doubled, and sometimes no end of one word."""

    takes_phrases = True

    batch = 64

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.spans = set(tokenizer.span_ids)
        self.draw = random.Random(1)

    def translate(
        self, ids: Sequence[Sequence[int]], options: SearchOptions, on_finished: OnFinished | None = None
    ) -> list[list[Hypothesis]]:
        return [[Hypothesis(tuple(self.scrambled(list(sentence))), -1.0, -1.0)] for sentence in ids]

    def scrambled(self, ids: list[int]) -> list[int]:
        ids = [i for i in ids for _ in range(self.draw.choice([0, 1, 1, 2]) if i in self.spans else 1)]
        self.draw.shuffle(ids)
        return ids * 9 if self.draw.random() < 0.2 else ids

    def score(self, src: Sequence[Sequence[int]], tgt: Sequence[Sequence[int]]) -> list[list[float]]:
        raise NotImplementedError


def test_whatever_an_engine_says_comes_out_sane(tmp_path: Path) -> None:
    lines = awkward_lines()
    known = [line for line in lines if line.isascii()]
    tokenizer = Tokenizer.train(known * 3, 600, tmp_path / "tokenizer", protects=True)

    def results(guard: bool) -> list[str]:
        translator = Translator(tokenizer, Scrambler(tokenizer), TranslationOptions(guard=guard), 60)
        return [result.text for result in translator.translate(lines)]

    # What is in the tokenizer's own characters, the guard mostly lets pass.
    passed = {line for line, text in zip(lines, results(guard=True), strict=True) if line != text}
    assert len(passed.intersection(known)) > 0.6 * len(known)
    assert not {line: text for line, text in zip(lines, results(guard=True), strict=True) if faults(line, text)}
    assert any(faults(line, text) for line, text in zip(lines, results(guard=False), strict=True))


@pytest.mark.parametrize("engine", ["torch", "ctranslate2"])
def test_awkward_lines_come_out_sane(engine: str, tmp_path: Path) -> None:
    lines = awkward_lines()
    assert len(lines) == 100
    known = [line for line in lines if line.isascii()]
    tokenizer = Tokenizer.train([*known, "ein paar Wörter auf Deutsch"] * 3, 600, tmp_path / "tokenizer", protects=True)
    model = build(tiny_config(vocab_size=tokenizer.vocab_size))
    save_model(tmp_path / "bundle", model, tokenizer, decode=DecodeRecipe(guard=True))
    translated = Model(load_bundle(tmp_path / "bundle"), device="cpu", engine=engine).translate(lines)
    assert len(translated) == 100
    wrong = {line: (text, found) for line, text in zip(lines, translated, strict=True) if (found := faults(line, text))}
    assert not wrong
