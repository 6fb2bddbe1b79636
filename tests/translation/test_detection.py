"""The language of a text: how sure it is, and input that is not in the model's language."""

from __future__ import annotations

import random
import sys

import pytest

from regard.translation.detection import LanguageNotice, detect, find_other_language, sample_of
from tests.translation.test_languages import ENGLISH, GERMAN, TWI

FRENCH = ["Où est la gare la plus proche ?", "Elle habite ici depuis trois ans.", "Que voulez-vous boire ce soir ?"]

PORTUGUESE = ["O gato dorme todos os dias na mesa da cozinha.", "Onde fica a estação mais próxima, por favor?"]

NORWEGIAN = ["Katten sover på kjøkkenbordet hver eneste dag.", "Hvor ligger den nærmeste jernbanestasjonen?"]


@pytest.mark.parametrize(("lines", "code"), [(ENGLISH, "en"), (GERMAN, "de"), (FRENCH, "fr")])
def test_plain_sentences_are_recognised_but_never_certain(lines: list[str], code: str) -> None:
    for text in (*lines, "\n".join(lines)):
        found = detect(text)
        assert found is not None
        assert found.language == code
        assert 80 < found.confidence < 100


@pytest.mark.parametrize(
    ("text", "most"),
    [("Hello", 30), ("Danke", 30), ("Hotel Berlin", 30), ("\n".join(TWI), 80), ("Die man was in hand", 95)],
)
def test_doubt_shows_in_the_confidence(text: str, most: float) -> None:
    """Before its probabilities were calibrated, the classifier was certain of the last two."""
    found = detect(text)
    assert found is not None
    assert found.confidence < most


def test_a_mixture_of_languages_is_not_certain() -> None:
    found = detect(" ".join(ENGLISH + GERMAN + FRENCH))
    assert found is not None
    assert found.confidence < 70


def test_text_without_letters_has_no_language() -> None:
    assert detect("12 + 3 = 15!") is None
    assert find_other_language("12 + 3 = 15! " * 20, "en", "de") is None


@pytest.mark.parametrize(
    ("lines", "source", "target", "found"),
    [
        (GERMAN, "en", "de", "de"),
        (ENGLISH, "en", "de", None),
        (FRENCH, "en", "de", "fr"),
        (GERMAN, "de-AT", "en", None),
        (ENGLISH, "en_GB", "de", None),
        (TWI, "twi", "en", None),
        (ENGLISH, "twi", "en", "en"),  # the other direction of a model whose language is not known
        (GERMAN, "twi", "en", None),
        (GERMAN, "src", "tgt", None),  # labels need not be languages
        (["Danke!"], "en", "de", None),  # too short to tell
        (NORWEGIAN, "nb", "en", None),  # the classifier says "no"
        (NORWEGIAN, "twi", "nb", "no"),
    ],
)
def test_another_language_is_found_where_it_is_sure(
    lines: list[str], source: str, target: str, found: str | None
) -> None:
    other = find_other_language("\n".join(lines), source, target)
    assert (other and other.language) == found


def test_names_and_noise_are_no_other_language() -> None:
    random.seed(5)
    for _ in range(50):
        noise = " ".join("".join(random.choices("abcdefghijklmnoprstuw", k=random.randint(2, 8))) for _ in range(40))
        assert find_other_language(noise, "en", "de") is None


def test_a_notice_comes_once_and_names_the_remedy() -> None:
    notice = LanguageNotice("en", "de", lambda: [("en", "de"), ("de", "fr"), ("de", "en")])
    assert notice.look(ENGLISH) == ""
    said = notice.look(GERMAN)
    assert said.startswith("the input looks like German (99% sure), but the model translates from English; ")
    assert said.endswith("use --from de --to fr")
    assert notice.look(FRENCH) == ""
    assert "`regard models`" in LanguageNotice("en", "de", list).look(FRENCH)


def test_a_notice_names_models_of_a_code_for_the_same_language() -> None:
    said = LanguageNotice("en", "de", lambda: [("da", "de"), ("nb", "de")]).look(NORWEGIAN)
    assert said.startswith("the input looks like Norwegian") and said.endswith("use --from nb --to de")
    said = LanguageNotice("en", "de", lambda: [("da", "de"), ("nb", "en")]).look(NORWEGIAN)
    assert said.endswith("use --from nb --to en")  # Danish into German is of no use
    said = LanguageNotice("en", "de", lambda: [("nb", "en"), ("nb", "de")]).look(NORWEGIAN)
    assert said.endswith("use --from nb --to de")
    said = LanguageNotice("en", "de", lambda: [("da", "de"), ("no", "de")]).look(NORWEGIAN)
    assert said.endswith("for Norwegian to German use --from no --to de")
    # Both are the language that was found, so the target decides between them; Galician, which is not, comes after them.
    said = LanguageNotice("en", "de", lambda: [("pt-BR", "en"), ("pt-PT", "de")]).look(PORTUGUESE)
    assert said.endswith("use --from pt-PT --to de")
    said = LanguageNotice("en", "de", lambda: [("gl", "de"), ("pt-BR", "en"), ("pt-PT", "fr")]).look(PORTUGUESE)
    assert said.endswith("use --from pt-BR --to en")


def test_without_the_package_nothing_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "py3langid", None)
    assert find_other_language("\n".join(GERMAN), "en", "de") is None


def test_a_sample_ends_where_detection_stops_looking() -> None:
    taken = iter(["word " * 500] * 50)
    assert len(sample_of(taken)) == 5_000
    assert len(list(taken)) == 48


@pytest.mark.parametrize(("lines", "source", "target"), [(ENGLISH, "en", "de"), (GERMAN, "de", "en")])
def test_frequent_words_spare_the_classifier(
    monkeypatch: pytest.MonkeyPatch, lines: list[str], source: str, target: str
) -> None:
    """It takes longer to load than a sentence takes to translate."""

    def refuse(text: str) -> list[tuple[str, float]]:
        raise AssertionError("the classifier was loaded")

    monkeypatch.setattr("regard.translation.detection.rank_languages", refuse)
    assert find_other_language("\n".join(lines), source, target) is None


def test_a_few_frequent_words_do_not_hide_another_language() -> None:
    dutch = "Waar is het station van deze stad, en wat is de beste weg naar het centrum?"
    assert (found := find_other_language(dutch, "en", "de")) is not None and found.language == "nl"
    assert (found := find_other_language(" ".join(GERMAN), "en", "de")) is not None and found.language == "de"
