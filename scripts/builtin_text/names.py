"""Names in sentences: the names of everyday and parliamentary sentences give way to names from lists, and to invented ones."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from regard.data.corpus import read_lines
from scripts.builtin_text import french
from scripts.builtin_text.common import Pair, has_held_out_name, one_of, read_pairs

_PLACE = re.compile(r"[A-ZÀ-Ž][\w'’.-]+(?: [A-ZÀ-Ž][\w'’.-]+){0,2}")
_SAME_PERSON = {"Mary": "Maria", "John": "Johannes"}  # as sentences about them are translated
_TOWNS = ("Boston", "Berlin", "London", "Paris", "Chicago", "Kyoto", "Hamburg", "Osaka", "Sydney")
_NO_GENITIVE = ("s", "x", "z", "ß", "ce")  # German writes those with an apostrophe


@dataclass(frozen=True)
class Names:
    first: Sequence[str]
    last: Sequence[str]
    places: Sequence[Pair]  # called the same in both languages
    exonyms: Sequence[Pair]  # called differently
    people_maker: Inventor
    place_maker: Inventor
    language: str = "de"  # beside English


class Inventor:
    """Invents words that look like those of a list: each letter is drawn after the three before it."""

    def __init__(self, words: Iterable[str]) -> None:
        self.next: dict[str, list[str]] = defaultdict(list)
        for word in words:
            padded = f"^^^{word}$"
            for end in range(3, len(padded)):
                self.next[padded[end - 3 : end]].append(padded[end])

    def invent(self, draw: Random) -> str:
        while True:
            word = "^^^"
            while not word.endswith("$") and len(word) < 20:
                word += one_of(draw, self.next[word[-3:]])
            word = word[3:].rstrip("$")
            if 4 <= len(word) <= 14 and word[1:].islower() and not has_held_out_name(word):
                return word


def read_names(data: Path, other: str = "de") -> Names:
    people = [
        line.split()
        for line in read_lines(data / "names-de/persons-copy.en.xz")  # the same in every language
        if not has_held_out_name(line)
    ]
    first = sorted({words[0] for words in people if len(words) > 1 and words[0].isalpha()})
    last = sorted({words[-1] for words in people if len(words) > 1 and words[-1].isalpha()})
    pairs = sorted({pair for pair in read_pairs(data, f"names-{other}/places", other) if _is_place(pair)})
    same = [pair for pair in pairs if pair[0] == pair[1] and not pair[1].startswith(("Le ", "La ", "Les "))]
    words = sorted({word for pair in same for word in re.findall(r"[^\W\d_]{4,}", pair[0])})
    # In French, regions and countries take other prepositions than towns.
    exonyms = french.TOWNS if other == "fr" else [pair for pair in pairs if pair[0] != pair[1]]
    exonyms = [pair for pair in exonyms if not has_held_out_name(pair[0])]
    return Names(first, last, same, exonyms, Inventor([*first, *last]), Inventor(words), other)


def _is_place(pair: Pair) -> bool:
    is_name = all(
        _PLACE.fullmatch(name) and not name.startswith(("Not ", "Nicht ")) for name in pair
    )  # of a quiz on maps
    return is_name and not has_held_out_name(pair[0])


# --- drawing a name ---


def draw_first(names: Names, draw: Random) -> str:
    return one_of(draw, names.first) if draw.random() < 0.65 else names.people_maker.invent(draw)


def draw_last(names: Names, draw: Random) -> str:
    return one_of(draw, names.last) if draw.random() < 0.6 else names.people_maker.invent(draw)


def draw_person(names: Names, draw: Random) -> Pair:
    chance = draw.random()
    name = draw_first(names, draw) if chance < 0.5 else f"{draw_first(names, draw)} {draw_last(names, draw)}"
    return name, name


def draw_place(names: Names, draw: Random) -> Pair:
    chance = draw.random()
    if chance < 0.4:
        return one_of(draw, names.places)
    if chance < 0.75:
        return one_of(draw, names.exonyms)
    name = names.place_maker.invent(draw)
    return name, name


# --- putting it into a pair ---


def replace_french_name(pair: Pair, old: Pair, new: Pair) -> Pair | None:
    """As `replace_name`: French has no genitive, and "de" and "que" lose their vowel before another.

    >>> replace_french_name(("Tom's dog sees Tom.", "Le chien de Tom voit Tom."), ("Tom", "Tom"), ("Ada", "Ada"))
    ("Ada's dog sees Ada.", "Le chien d'Ada voit Ada.")
    """
    english = re.compile(rf"(?<![\w-]){re.escape(old[0])}(?![\w-])")
    french = re.compile(rf"(?<![\w-])(?:(de|que|lorsque|puisque|jusque) )?{re.escape(old[1])}(?![\w-])")
    if not english.findall(pair[0]) or len(english.findall(pair[0])) != len(french.findall(pair[1])):
        return None
    if _ELIDES.match(old[1]):  # "d'Anne"
        return None

    def put(match: re.Match[str]) -> str:
        before = match[1] and (f"{match[1][:-1]}'" if _ELIDES.match(new[1]) else f"{match[1]} ")
        return (before or "") + new[1]

    return english.sub(lambda match: new[0], pair[0]), french.sub(put, pair[1])


_ELIDES = re.compile("[AEIOUÀÂÄÉÈÊËÎÏÔÖÙÛÜH]")


def replace_name(pair: Pair, old: Pair, new: Pair) -> Pair | None:
    """The pair with another name in place of the old one, also in the genitive; None where the two sides do not agree.

    >>> replace_name(("Tom's dog likes Tom.", "Toms Hund mag Tom."), ("Tom", "Tom"), ("Ada", "Ada"))
    ("Ada's dog likes Ada.", 'Adas Hund mag Ada.')
    """
    english = re.compile(rf"(?<![\w-]){re.escape(old[0])}(['’]s)?(?![\w-])")
    german = re.compile(rf"(?<![\w-]){re.escape(old[1])}(s)?(?![\w-])")
    genitives = [
        [bool(match[1]) for match in pattern.finditer(text)]
        for pattern, text in zip((english, german), pair, strict=True)
    ]
    if not genitives[0] or sorted(genitives[0]) != sorted(genitives[1]):
        return None
    if any(genitives[0]) and new[1].endswith(_NO_GENITIVE):
        return None
    return (
        english.sub(lambda match: new[0] + (match[1] or ""), pair[0]),
        german.sub(lambda match: new[1] + (match[1] or ""), pair[1]),
    )


def everyday_names(pairs: Iterable[Pair], names: Names, draw: Random, copies: int = 2) -> Iterator[Pair]:
    """Everyday sentences with other people and towns."""
    known = {*names.first, "Tom", "Mary", "John"}
    same_person, towns_known, replaced = _of_language(names)
    for pair in pairs:
        words = set(re.findall(r"[A-ZÄÖÜ]\w+", pair[0]))
        people = sorted(word for word in words & known if word in pair[1] or same_person.get(word, word) in pair[1])
        towns = [town for town in towns_known if town in words and towns_known[town] in pair[1]]
        for _ in range(copies if people or towns else 0):
            made: Pair | None = pair
            for person in people:
                other = person if person in pair[1] else same_person.get(person, person)
                made = made and (replaced(made, (person, other), draw_person(names, draw)))
            for town in towns:
                made = made and replaced(made, (town, towns_known[town]), draw_place(names, draw))
            if made and made != pair:
                yield made


def _of_language(names: Names) -> tuple[dict[str, str], dict[str, str], Callable[[Pair, Pair, Pair], Pair | None]]:
    """People and towns of everyday sentences in the other language, and how a name is replaced."""
    if names.language == "fr":
        towns = {
            "London": "Londres",
            "Boston": "Boston",
            "Paris": "Paris",
            "Chicago": "Chicago",
            "Kyoto": "Kyoto",
            "Berlin": "Berlin",
        }
        return {"Mary": "Marie", "John": "Jean"}, towns, replace_french_name
    return _SAME_PERSON, {town: town for town in _TOWNS}, replace_name


_TITLE = re.compile(r"\b(?:Mr|Mrs|Ms|Commissioner|President|Minister) ([A-Z][a-zà-ž]{3,})\b")


def parliament_names(pairs: Iterable[Pair], names: Names, draw: Random, share: float) -> Iterator[Pair]:
    """Parliamentary sentences with other surnames, of a share of those that have one."""
    _, _, replaced = _of_language(names)
    for pair in pairs:
        if len(pair[0]) > 300 or draw.random() >= share:
            continue
        made: Pair | None = pair
        for surname in set(_TITLE.findall(pair[0])):
            new = draw_last(names, draw)
            made = made and replaced(made, (surname, surname), (new, new))
        if made and made != pair:
            yield made
