"""The text that is made for the built-in models: what it says, and what it never holds."""

from __future__ import annotations

import lzma
import re
from functools import partial
from random import Random

import pytest

from scripts.builtin_card import MADE_FROM, MADE_FROM_FRENCH, SOURCES, sources_of
from scripts.builtin_text import amounts, clock, common, frames, french, german, names, words
from scripts.builtin_text.__main__ import PARTS, TextMaker, is_clean, parts_of


@pytest.fixture
def lists() -> names.Names:
    first, last = ["Ada", "Berta", "Carla", "Dora"], ["Huber", "Kramer", "Lindner", "Wagner"]
    places = [("Lima", "Lima"), ("Oslo", "Oslo")]
    maker = names.Inventor([*first, *last, "Marlene", "Ludmilla", "Bernadette"])
    return names.Names(first, last, places, [("Munich", "München")], maker, maker, german.NAMING)


@pytest.mark.parametrize(
    ("moment", "expected"),
    [
        ((7, 30), ("half past seven", "halb acht")),
        ((12, 30), ("half past twelve", "halb eins")),
        ((8, 45), ("a quarter to nine", "Viertel vor neun")),
        ((12, 45), ("a quarter to one", "Viertel vor eins")),
        ((3, 15), ("quarter past three", "Viertel nach drei")),
        ((4, 20), ("twenty past four", "zwanzig nach vier")),
        ((5, 50), ("ten to six", "zehn vor sechs")),
        ((1, 0), ("one o'clock", "ein Uhr")),
    ],
)
def test_spoken_times(moment: tuple[int, int], expected: tuple[str, str]) -> None:
    assert expected in german.spoken_times(*moment)


def test_written_times() -> None:
    assert ("2 p.m.", "14 Uhr") in german.written_times(14, 0)
    assert ("12:05 a.m.", "0:05 Uhr") in german.written_times(0, 5)
    assert ("12 p.m.", "12 Uhr") in german.written_times(12, 0)


def test_a_real_sentence_gets_other_times() -> None:
    pairs = [
        ("He left at 2:30.", "Er ging um halb drei."),
        ("He left at 2:30.", "Er ging um vier Uhr."),
        ("No.", "Nein."),
    ]
    made = list(clock.other_times(pairs, Random(1), 20, german.CLOCK))
    assert len(made) > 10
    assert all(english.startswith("He left at ") and other.startswith("Er ging um ") for english, other in made)
    assert len(set(made)) > 5


@pytest.mark.parametrize("number", [2, 17, 20, 21, 45, 100, 101, 150, 1250, 12_600, 600_000])
def test_spelled_numbers_have_no_gaps(number: int) -> None:
    assert re.fullmatch("[a-z -]+", amounts.spelled(number))
    assert re.fullmatch("[a-zäöüß]+", german.spelled(number))


def test_sums_are_written_as_each_language_writes_them() -> None:
    for seed in range(500):
        pair = amounts.draw_money(Random(seed), german.AMOUNTS)
        numbers = [re.findall(r"[\d.,]*\d", text) for text in pair]
        assert [number.translate(str.maketrans(",.", ".,")) for number in numbers[0]] == numbers[1]


def test_names_are_the_same_on_both_sides(lists: names.Names) -> None:
    pairs = [("Tom's sister knows Mary.", "Toms Schwester kennt Maria."), ("I live in Boston.", "Ich wohne in Boston.")]
    made = list(names.everyday_names(pairs * 20, lists, Random(1)))
    assert len(made) > 40
    for english, other in made:
        assert not re.search("Tom|Mary|Boston", english)
        if "sister" in english:
            assert f"{english.partition(chr(39))[0]}s " in other
        else:
            place = english.removeprefix("I live in ").rstrip(".")
            assert other == f"Ich wohne in {'München' if place == 'Munich' else place}."


def test_a_name_that_one_side_has_more_often_stays() -> None:
    assert german.replace_name(("Tom saw Tom.", "Tom sah ihn."), ("Tom", "Tom"), ("Ada", "Ada")) is None
    assert german.replace_name(("Tom's dog", "Toms Hund"), ("Tom", "Tom"), ("Hans", "Hans")) is None


def test_one_word_in_capitals_on_both_sides() -> None:
    lexicon = words.lexicon_of([("house", "Haus"), ("big", "groß")])
    assert list(words.stressed([("The house stands.", "Das Haus steht.")], lexicon, Random(1))) == [
        ("The HOUSE stands.", "Das HAUS steht.")
    ]
    assert not list(words.stressed([("A tree.", "Ein Baum.")], lexicon, Random(1)))


def test_lists_have_as_many_items_on_both_sides() -> None:
    nouns = words.nouns([("anvil", "Amboss"), ("apron", "Schürze"), ("to run", "laufen"), ("Bonn", "Bonn")])
    assert nouns == [("anvil", "Amboss"), ("apron", "Schürze")]
    for english, other in words.lists(nouns, Random(1), 100, frames.GERMAN["heads"], (" und ", " oder ")):
        assert len(re.split(", | and | or ", english)) == len(re.split(", | und | oder ", other))


def test_nothing_of_the_checks_is_written(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    held_out = next(iter(sorted(common.held_out_sentences())))
    count = common.write_pairs(tmp_path / "some", [("One.", "Eins."), (held_out.upper(), "x"), ("One.", "Eins.")], "de")
    assert count == 1
    assert list(common.read_pairs(tmp_path, "some", "de")) == [("One.", "Eins.")]
    assert "quorn" in common.held_out_names() or len(common.held_out_names()) > 50
    some = [pair for kind in ("times", "dates", "measures", "money") for pair in frames.GERMAN[kind]]
    draw_time = partial(clock.draw_time, clock=german.CLOCK)
    made = clock.framed(some, draw_time, 3_000, Random(2), german.DAYS)
    assert not any(common.is_held_out(*pair) for pair in made)


def test_code_is_not_clean() -> None:
    assert is_clean(("Open the file.", "Öffnen Sie die Datei."))
    assert not is_clean(("int main() { }", "int main() { }"))
    assert not is_clean(("This was never translated at all.", "This was never translated at all."))


@pytest.mark.parametrize(
    ("moment", "expected"),
    [
        ((7, 30), ("half past seven", "sept heures et demie")),
        ((12, 30), ("half past twelve", "midi et demi")),
        ((8, 45), ("a quarter to nine", "neuf heures moins le quart")),
        ((12, 45), ("a quarter to one", "une heure moins le quart")),
        ((11, 45), ("a quarter to twelve", "midi moins le quart")),
        ((4, 20), ("twenty past four", "quatre heures vingt")),
        ((5, 50), ("ten to six", "six heures moins dix")),
        ((1, 0), ("one o'clock", "une heure")),
    ],
)
def test_spoken_times_in_french(moment: tuple[int, int], expected: tuple[str, str]) -> None:
    assert expected in french.spoken_times(*moment)


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (21, "vingt et un"), (71, "soixante et onze"), (77, "soixante-dix-sept"), (80, "quatre-vingts"), (81, "quatre-vingt-un"),
        (91, "quatre-vingt-onze"), (99, "quatre-vingt-dix-neuf"), (200, "deux cents"), (280, "deux cent quatre-vingts"),
        (1000, "mille"), (1980, "mille neuf cent quatre-vingts"), (80_000, "quatre-vingt mille"), (200_000, "deux cent mille"),
        (300_200, "trois cent mille deux cents"),
    ],
)  # fmt: skip
def test_french_numbers_in_words(number: int, expected: str) -> None:
    assert french.spelled(number) == expected


def test_french_sums_have_a_comma_and_narrow_spaces() -> None:
    for seed in range(500):
        english, other = amounts.draw_money(Random(seed), french.AMOUNTS)
        numbers = [re.findall(r"\d[\d.,\u202f]*\d|\d", text) for text in (english, other)]
        assert [french.in_digits(number) for number in numbers[0]] == numbers[1]
        assert not re.search(r"\d[. ]\d", other)


def test_real_sentences_get_other_times_in_french() -> None:
    pairs = [
        ("He left at 2:30.", "Il est parti à deux heures et demie."),
        ("He slept for two hours.", "Il a dormi deux heures."),
        ("He left at ten.", "Il est parti à dix heures du soir."),
    ]
    made = list(clock.other_times(pairs, Random(1), 20, french.CLOCK))
    assert len(made) > 10 and all(other.startswith("Il est parti à ") for _, other in made)
    some = [pair for kind in ("times", "dates", "measures", "money") for pair in frames.FRENCH[kind]]
    dated = clock.framed(some, french.draw_date, 3_000, Random(2), french.DAYS)
    assert not any(common.is_held_out(*pair) for pair in dated)


def test_french_names_have_no_genitive() -> None:
    replaced = french.replace_name
    assert replaced(("Tom's dog", "le chien de Tom"), ("Tom", "Tom"), ("Ada", "Ada")) == ("Ada's dog", "le chien d'Ada")
    assert replaced(("I know that Tom left.", "Je sais que Tom est parti."), ("Tom", "Tom"), ("Ida", "Ida")) == (
        "I know that Ida left.",
        "Je sais qu'Ida est parti.",
    )
    assert replaced(("Anne's dog", "le chien d'Anne"), ("Anne", "Anne"), ("Tom", "Tom")) is None
    assert replaced(("Tom saw Tom.", "Tom l'a vu."), ("Tom", "Tom"), ("Ada", "Ada")) is None


def test_the_french_side_of_europarl_has_gaps(tmp_path) -> None:
    for name, text in {"europarl/train-00.en": "One.\nTwo.\n", "europarl-fr/train-00.fr": "Un.\n\n"}.items():
        path = tmp_path / f"{name}.xz"
        path.parent.mkdir(parents=True)
        path.write_bytes(lzma.compress(text.encode()))
    assert list(common.read_parliament(tmp_path, 0, "fr", "europarl-fr")) == [("One.", "Un.")]


def test_every_part_has_its_maker_and_its_sources() -> None:
    for part in parts_of("en", "fr"):
        assert callable(getattr(TextMaker, part))
        assert set(MADE_FROM_FRENCH[part.split("_")[0] if part.startswith("parl") else part]) <= set(SOURCES)
    found = sources_of(["en-fr/made/parliament_0.{en,fr}.xz", "fr-en/distilled/made-games-00.{fr,en}"])
    assert {SOURCES[name] for name in ("europarl", "europarl-fr", "games-fr", "dict-fr")} == set(found[:-1])
    for part in PARTS:
        assert callable(getattr(TextMaker, part))
        assert set(MADE_FROM[part]) <= set(SOURCES)
    [first, *_] = sources_of(["made/people.{en,de}.xz"])
    assert "Parliament" in first
    assert any("OpenStreetMap" in source for source in sources_of(["distilled/dict-de-ding-examples.{en,de}"]))
    assert any("unknown" in source for source in sources_of(["made/strange.{en,de}"]))
