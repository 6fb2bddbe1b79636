from __future__ import annotations

import sys
from pathlib import Path

import pytest

from regard.errors import UserError
from regard.translation.languages import guess_language, other_language

ENGLISH = [
    "Where is the nearest station?",
    "She has been living here for three years.",
    "What would you like to drink?",
]
GERMAN = ["Wo ist der nächste Bahnhof?", "Sie wohnt schon seit drei Jahren hier.", "Was möchten Sie gerne trinken?"]
TWI = [
    "Me din de Kofi na mefi Kumasi.",
    "Ɛte sɛn? Me ho yɛ.",
    "Yɛfrɛ me Ama.",
    "Onyankopɔn dɔ wiase yi paa.",
    "Mepa wo kyɛw, ɛhe na adwuma no wɔ?",
    "Akwaaba, wo ho te sɛn?",
    "Ɔkɔɔ sukuu ɛnnɛ anɔpa.",
    "Abofra no redidi wɔ dan no mu.",
]


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("corpus.en", "en"),
        ("corpus.twi", "twi"),
        ("en.txt", "en"),
        ("train.en-de.en", "en"),
        ("corpus.de.txt.gz", "de"),
        ("europarl-v7.de-en.de.xz", "de"),
        ("news.pt-BR", "pt-BR"),
        ("news.zh_Hans.zst", "zh_Hans"),
        ("train_en.txt", "en"),
        ("de", "de"),
    ],
)
def test_a_file_name_tells_the_language(name: str, code: str) -> None:
    assert guess_language(Path("/some/where.fr") / name, []) == code


@pytest.mark.parametrize("name", ["corpus.txt", "a.tok.bpe", "train.src", "x.tsv.gz", "corpus.en-de", "my-big.txt"])
def test_other_endings_are_no_languages_and_the_text_decides(name: str) -> None:
    assert guess_language(Path(name), GERMAN) == "de"
    assert guess_language(Path(name), ENGLISH) == "en"


@pytest.mark.parametrize("sample", [[], ["", "  "], ["1 2 3", "abc", "x y"], TWI])
def test_doubt_is_answered_with_a_question(sample: list[str]) -> None:
    with pytest.raises(UserError, match=r"corpus\.txt: .*NAME\.xx.*--set data\.source=xx --set data\.target=yy"):
        guess_language(Path("corpus.txt"), sample)


def test_a_missing_package_is_named_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "py3langid", None)
    with pytest.raises(UserError, match="pip install py3langid"):
        guess_language(Path("corpus.txt"), GERMAN)


@pytest.mark.parametrize(
    ("name", "language", "other", "said"),
    [
        ("news.en.xz", "de", "en", "en"),
        ("news.de.xz", "de", "en", None),
        ("news.de_AT", "de", "en", None),
        ("news.fr.txt.gz", "de", "en", "fr"),
        ("corpus.twi", "en", "twi", "twi"),
        ("corpus.twi", "en", "de", None),  # may be anything
        ("corpus.de", "informal", "formal", None),  # labels need not be languages
        ("corpus.formal.gz", "informal", "formal", "formal"),
        ("corpus.informal.gz", "informal", "formal", None),
        ("corpus.txt", "de", "en", None),
    ],
)
def test_a_name_that_says_another_language_is_noticed_where_it_is_sure(
    name: str, language: str, other: str, said: str | None
) -> None:
    assert other_language(Path(name), language, other) == said
