"""The guard: what a model cannot know is not translated, and nonsense that can be seen is not shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from regard.data.tokenizer import Tokenizer
from regard.translation.guard import is_foreign, runs_away


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    lines = ["the house is old", "das Haus ist alt", "schöne Häuser", "the Greek letter α"] * 9
    return Tokenizer.train(lines, 330, tmp_path_factory.mktemp("tokenizer"))


@pytest.mark.parametrize("text", ["the house", "42", "", "?!", "α the house", "Häuser 中"])
def test_what_is_mostly_in_a_known_script_is_translated(text: str, tokenizer: Tokenizer) -> None:
    assert not is_foreign(text, tokenizer)


@pytest.mark.parametrize("text", ["这是一个中文句子。", "Это дом", "αβγ", "3 は日本語", "a 中文 b 句子"])
def test_what_is_mostly_in_another_script_is_not(text: str, tokenizer: Tokenizer) -> None:
    assert is_foreign(text, tokenizer)


def test_characters_must_come_from_somewhere(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("das Haus")
    assert not runs_away("the house", "das Haus", ids, ids, tokenizer)
    assert not runs_away("the 中 house", "das 中 Haus", ids, ids, tokenizer)
    assert runs_away("the house", "das 中 Haus", ids, ids, tokenizer)
    assert runs_away("the house", "das \ufffdHaus", ids, ids, tokenizer)
    assert runs_away("the house", "das Haus ist alt " * 4, ids, ids, tokenizer)


@pytest.mark.parametrize(
    ("source", "translation", "is_wrong"),
    [
        ("test test test", "Test test test test", True),
        ("ha ha ha ha ha", "ha ha ha ha ha", False),
        ("ha ha ha ha ha", "ha ha ha ha ha ha", True),
        ("very, very, very old", "sehr, sehr, sehr alt", False),
        ("an old house", "ein altes, altes, altes, altes, altes Haus", True),
        ("an old house", "ein Haus ist alt ein Haus ist alt ein Haus", False),
        ("to the old house and to the old house and to the old house", "ein Haus und " * 4, True),
        ("10,000,000,000,000", "10.000.000.000.000", False),
    ],
)
def test_a_phrase_is_repeated_as_often_as_in_the_source(
    source: str, translation: str, is_wrong: bool, tokenizer: Tokenizer
) -> None:
    assert runs_away(source, translation, [], [], tokenizer, source + translation) == is_wrong


def test_a_vocabulary_of_single_characters_knows_them_all(tmp_path: Path) -> None:
    single = Tokenizer.train(["a b c d e f g h"] * 20, 300, tmp_path)
    assert set("abcdefgh") <= single.letters


def test_what_was_asked_for_does_not_come_from_nowhere(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("das Haus")
    assert not runs_away("the house", "das 中 Haus", ids, ids, tokenizer, "the house 中")
    # Thirteen characters of Chinese are as many words.
    english = "a spokesman for the ministry of foreign affairs of the people's republic"
    assert not runs_away("中华人民共和国外交部发言人", english, ids, ids, tokenizer, english)
