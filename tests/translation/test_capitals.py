"""Text in capitals is translated in sentence case, and comes back in capitals; everything else stays as it was."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import regard
from regard.api import Model
from regard.builtin import BUILTIN
from regard.bundle import load_bundle
from regard.cli import main
from regard.data.tokenizer import Tokenizer
from regard.translation.capitals import to_capitals, to_sentence_case
from regard.translation.protect import find_spans
from regard.translation.translation_options import TranslationOptions
from regard.translation.translator import Translator
from tests.serve.server import running
from tests.translation.test_translator import Echo


@cache
def vocabulary(name: str) -> Tokenizer:
    return load_bundle(BUILTIN / name).tokenizer


@cache
def model(engine: str = "auto") -> Model:
    return regard.load("en-de", device="cpu", engine=engine)


def sentence_case(text: str, name: str) -> str | None:
    source, target = name.split("-")
    return to_sentence_case(text, find_spans(text), vocabulary(name), (source, target))


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("en-de", "DO NOT ENTER. HIGH VOLTAGE.", "Do not enter. High voltage."),
        ("en-de", "WARNING: CONTAINS NUTS", "Warning: contains nuts"),
        ("en-de", "I'M SORRY, I DON'T KNOW.", "I'm sorry, I don't know."),
        ("en-de", "NATO SUMMIT IN MADRID ON MONDAY", "NATO summit in Madrid on Monday"),
        ("en-de", "THE EU AND THE USA AGREE", "The EU and the USA agree"),
        ("en-de", "PLEASE PRINT ON A4 PAPER WITH THE BMW USB CABLE", "Please print on A4 paper with the BMW USB cable"),
        ("en-de", "VISIT https://example.com/a FOR HELP", "Visit https://example.com/a for help"),
        ("en-de", 'STOP! "GO HOME!" (NOW)', 'Stop! "Go home!" (Now)'),
        ("de-en", "BITTE TÜR LEISE SCHLIESSEN", "Bitte Tür leise schließen"),
        ("de-en", "HOCHWASSER! STRASSE GESPERRT!", "Hochwasser! Straße gesperrt!"),
        ("de-en", "DREISSIG AUSSTELLUNGEN AM WASSER", "Dreißig Ausstellungen am Wasser"),
        ("de-en", "DIE EU UND DIE NATO", "Die EU und die NATO"),
    ],
)
def test_the_vocabulary_knows_how_a_word_is_written(name: str, text: str, expected: str) -> None:
    assert sentence_case(text, name) == expected
    assert to_capitals(expected, find_spans(expected)) == text


@pytest.mark.parametrize(
    "text",
    [
        "NATO", "USB", "USB STICK", "EXIT", "HTTP ERROR 404", "IBM PC XT", "CD AND DVD", "A4", "MAX_VALUE", "X Y Z", "", "123 456!",
        "Do Not Enter", "Mind the GAP BETWEEN PLATFORM AND TRAIN", "DO NOT ENTER, please", "Это ДОМ", "这是一个中文句子。",
    ],
)  # fmt: skip
def test_abbreviations_names_and_other_text_stay_as_they_are(text: str) -> None:
    assert sentence_case(text, "en-de") is None


def test_french_capitals_often_lack_their_accents(tmp_path: Path) -> None:
    lines = ["défense d'entrer", "porte réservée au personnel", "fermé le lundi à partir de midi", "la mer a mis"] * 20
    tokenizer = Tokenizer.train(lines, 500, tmp_path / "tokenizer")

    def written(text: str) -> str | None:
        return to_sentence_case(text, (), tokenizer, ("fr", "en"))

    assert written("DEFENSE D'ENTRER") == written("DÉFENSE D'ENTRER") == "Défense d'entrer"
    assert written("PORTE RESERVEE AU PERSONNEL") == "Porte réservée au personnel"
    for code in ("FR", "fr_CA"):
        assert to_sentence_case("DEFENSE D'ENTRER", (), tokenizer, (code, "en")) == "Défense d'entrer"
    assert to_sentence_case("DEFENSE D'ENTRER", (), tokenizer, ("frr", "en")) != "Défense d'entrer"  # North Frisian
    assert written("FERME LE LUNDI A MIDI") == "Fermé le lundi a midi"  # "a" and "à" are both words


def test_languages_with_two_letters_i_are_left_alone() -> None:
    text, tokenizer = "PLEASE CLOSE THE DOOR", vocabulary("en-de")
    assert to_sentence_case(text, [], tokenizer, ("en", "de")) == "Please close the door"
    assert to_sentence_case(text, [], tokenizer, ("en", "tr")) is None
    assert to_sentence_case(text, [], tokenizer, ("tr", "en")) is None


AWKWARD = ("STRASSE", "HOUSE", "İI", "NASS", "file://X", "file", "ẞ", "ŉ", "<b>", "%s", "https://x.org/Ab.", "MASSE")


@settings(max_examples=300, deadline=None)
@given(st.lists(st.one_of(st.text(max_size=8), st.sampled_from(AWKWARD))), st.booleans())
def test_what_comes_back_is_what_was_there(words: list[str], in_capitals: bool) -> None:
    """The echo translates every sentence into itself."""
    line = " ".join(" ".join(word.upper() if in_capitals else word for word in words).split())
    options = TranslationOptions(guard=True, languages=("de", "xx"))
    [result] = Translator(vocabulary("de-en"), Echo(), options, 10_000).translate([line])
    assert result.text == line.encode("utf-8", "replace").decode()


def test_a_warning_is_translated_like_a_sentence() -> None:
    warning = model().translate("DO NOT FEED THE BEARS AT www.example.org!")
    sentence = model().translate("Do not feed the bears at www.example.org!")
    assert warning == sentence.upper().replace("WWW.EXAMPLE.ORG", "www.example.org")
    assert "BÄREN" in warning
    warning, sentence = map(model("torch").translate, ("THE STREET IS CLOSED.", "The street is closed."))
    assert warning == sentence.upper()
    assert "STRASSE" in warning
    *_, followed = model("torch").follow("THE STREET IS CLOSED.")
    assert followed == warning


def test_its_words_and_links_are_those_of_the_line() -> None:
    [warning, sentence] = model().nbest(["THE STREET IS CLOSED.", "The street is closed."], 2, alignment=True)
    assert warning.source_words == ("THE", "STREET", "IS", "CLOSED", ".")
    for one, other in zip(warning.translations, sentence.translations, strict=True):
        assert [word.text for word in one.words] == [word.text.upper() for word in other.words]
        assert one.alignment == other.alignment != ()


def test_what_was_asked_for_is_not_put_into_capitals() -> None:
    """The line is then read as it stands: prefix, phrases and terms were chosen for that."""
    line = "PLEASE CLOSE THE DOOR OF THE HOUSE"
    assert model().translate(line, prefix="Bitte ").startswith("Bitte ")
    assert "Türe" in model().translate(line, phrases=["Türe"])
    assert "Gebäude" in model().translate(line, glossary={"house": "Gebäude"})
    assert "HOUSE" in model().translate(line, keep=["HOUSE"])
    for term in ({"Door": "Tor"}, {"House": "Bau"}):  # only the line in sentence case has them
        [result] = model().nbest([line], 1, glossary=term)
        assert not result.unmet
    plain = model().translate(line)
    assert model().translate(line, glossary={"cat": "Kater"}) == plain == plain.upper()


def test_a_line_that_the_guard_refuses_stays_as_it_is() -> None:
    line = "БЛАРГ ФЛУП ЗОРГЛЕ ЖУРНАЛ"  # the vocabulary lacks these letters
    assert model().translate(line) == line


def test_documents_and_the_server_do_the_same(tmp_path: Path) -> None:
    expected = model().translate("DO NOT FEED THE BEARS!")
    assert expected == model().translate("Do not feed the bears!").upper()
    (tmp_path / "sign.html").write_text("<p>DO NOT FEED THE <b>BEARS</b>!</p>")
    assert main(["translate", "-m", "en-de", "-i", str(tmp_path / "sign.html"), "-o", str(tmp_path / "out.html")]) == 0
    written = (tmp_path / "out.html").read_text()
    assert "<b>BÄREN</b>" in written
    assert written.replace("<b>", "").replace("</b>", "").strip() == f"<p>{expected}</p>"
    with running(model=BUILTIN / "en-de") as server:
        answer = server.post("/translate", json={"q": "DO NOT FEED THE BEARS!", "source": "en", "target": "de"})
        assert answer.json()["translatedText"] == expected
