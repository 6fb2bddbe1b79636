from __future__ import annotations

from pathlib import Path

import pytest

from regard.data.tokenizer import Tokenizer

PAIRS = [
    (f"{subject_en} {verb_en} {object_en}.", f"{subject_de} {verb_de} {object_de}.")
    for subject_en, subject_de in [("The dog", "Der Hund"), ("A child", "Ein Kind"), ("My sister", "Meine Schwester")]
    for verb_en, verb_de in [("sees", "sieht"), ("likes", "mag"), ("wants", "will"), ("finds", "findet")]
    for object_en, object_de in [("the house", "das Haus"), ("a café", "ein Café"), ("12 trees", "12 Bäume")]
]


@pytest.fixture(scope="session")
def pairs() -> list[tuple[str, str]]:
    """36 short sentences, no two alike on either side."""
    return PAIRS


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    lines = [line for pair in PAIRS for line in pair]
    return Tokenizer.train(lines, 450, tmp_path_factory.mktemp("tokenizer") / "tokenizer")


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """The pairs as two files."""
    source, target = tmp_path / "train.en", tmp_path / "train.de"
    source.write_text("".join(src + "\n" for src, _ in PAIRS), encoding="utf-8")
    target.write_text("".join(tgt + "\n" for _, tgt in PAIRS), encoding="utf-8")
    return source, target
