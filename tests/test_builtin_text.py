"""The text that is made for the built-in models: what it says, and what it never holds."""

from __future__ import annotations

import re
from itertools import islice
from random import Random

import pytest

from scripts.builtin_card import MADE_FROM, SOURCES, sources_of
from scripts.builtin_text import amounts, clock, common, names, words
from scripts.builtin_text.__main__ import PARTS, TextMaker, is_clean


@pytest.fixture
def lists() -> names.Names:
    first, last = ["Ada", "Berta", "Carla", "Dora"], ["Huber", "Kramer", "Lindner", "Wagner"]
    places = [("Lima", "Lima"), ("Oslo", "Oslo")]
    maker = names.Inventor([*first, *last, "Marlene", "Ludmilla", "Bernadette"])
    return names.Names(first, last, places, [("Munich", "München")], maker, maker)


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
    assert expected in clock.spoken_times(*moment)


def test_written_times() -> None:
    assert ("2 p.m.", "14 Uhr") in clock.written_times(14, 0)
    assert ("12:05 a.m.", "0:05 Uhr") in clock.written_times(0, 5)
    assert ("12 p.m.", "12 Uhr") in clock.written_times(12, 0)


def test_a_real_sentence_gets_other_times() -> None:
    pairs = [
        ("He left at 2:30.", "Er ging um halb drei."),
        ("He left at 2:30.", "Er ging um vier Uhr."),
        ("No.", "Nein."),
    ]
    made = list(clock.other_times(pairs, Random(1), 20))
    assert len(made) > 10
    assert all(english.startswith("He left at ") and german.startswith("Er ging um ") for english, german in made)
    assert len(set(made)) > 5


@pytest.mark.parametrize("number", [2, 17, 20, 21, 45, 100, 101, 150, 1250, 12_600, 600_000])
def test_spelled_numbers_have_no_gaps(number: int) -> None:
    english, german = amounts.spelled(number)
    assert re.fullmatch("[a-z -]+", english)
    assert re.fullmatch("[a-zäöüß]+", german)


def test_sums_are_written_as_each_language_writes_them() -> None:
    for seed in range(500):
        english, german = amounts.draw_money(Random(seed))
        numbers = [re.findall(r"[\d.,]*\d", text) for text in (english, german)]
        assert [number.translate(str.maketrans(",.", ".,")) for number in numbers[0]] == numbers[1]


def test_names_are_the_same_on_both_sides(lists: names.Names) -> None:
    pairs = [("Tom's sister knows Mary.", "Toms Schwester kennt Maria."), ("I live in Boston.", "Ich wohne in Boston.")]
    made = list(names.everyday_names(pairs * 20, lists, Random(1)))
    assert len(made) > 40
    for english, german in made:
        assert not re.search("Tom|Mary|Boston", english)
        if "sister" in english:
            assert f"{english.partition(chr(39))[0]}s " in german
        else:
            place = english.removeprefix("I live in ").rstrip(".")
            assert german == f"Ich wohne in {'München' if place == 'Munich' else place}."


def test_a_name_that_one_side_has_more_often_stays() -> None:
    assert names.replace_name(("Tom saw Tom.", "Tom sah ihn."), ("Tom", "Tom"), ("Ada", "Ada")) is None
    assert names.replace_name(("Tom's dog", "Toms Hund"), ("Tom", "Tom"), ("Hans", "Hans")) is None


def test_one_word_in_capitals_on_both_sides() -> None:
    lexicon = words.lexicon_of([("house", "Haus"), ("big", "groß")])
    assert list(words.stressed([("The house stands.", "Das Haus steht.")], lexicon, Random(1))) == [
        ("The HOUSE stands.", "Das HAUS steht.")
    ]
    assert not list(words.stressed([("A tree.", "Ein Baum.")], lexicon, Random(1)))


def test_lists_have_as_many_items_on_both_sides() -> None:
    nouns = words.nouns([("anvil", "Amboss"), ("apron", "Schürze"), ("to run", "laufen"), ("Bonn", "Bonn")])
    assert nouns == [("anvil", "Amboss"), ("apron", "Schürze")]
    for english, german in words.lists(nouns, Random(1), 100):
        assert len(re.split(", | and | or ", english)) == len(re.split(", | und | oder ", german))


def test_nothing_of_the_checks_is_written(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    held_out = next(iter(sorted(common.held_out_sentences())))
    count = common.write_pairs(tmp_path / "some", [("One.", "Eins."), (held_out.upper(), "x"), ("One.", "Eins.")])
    assert count == 1
    assert list(common.read_pairs(tmp_path, "some")) == [("One.", "Eins.")]
    assert "quorn" in common.held_out_names() or len(common.held_out_names()) > 50
    frames = [*clock.TIME_FRAMES, *clock.DATE_FRAMES, *amounts.MEASURE_FRAMES, *amounts.MONEY_FRAMES]
    made = islice(clock.framed(frames, clock.draw_time, 3_000, Random(2)), 3_000)
    assert not any(common.is_held_out(*pair) for pair in made)


def test_code_is_not_clean() -> None:
    assert is_clean(("Open the file.", "Öffnen Sie die Datei."))
    assert not is_clean(("int main() { }", "int main() { }"))
    assert not is_clean(("This was never translated at all.", "This was never translated at all."))


def test_every_part_has_its_maker_and_its_sources() -> None:
    for part in PARTS:
        assert callable(getattr(TextMaker, part))
        assert set(MADE_FROM[part]) <= set(SOURCES)
    [first, *_] = sources_of(["made/people.{en,de}.xz"])
    assert "Parliament" in first
    assert any("OpenStreetMap" in source for source in sources_of(["distilled/dict-de-ding-examples.{en,de}"]))
    assert any("unknown" in source for source in sources_of(["made/strange.{en,de}"]))
