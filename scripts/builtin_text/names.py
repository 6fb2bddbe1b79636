"""Names in sentences: the names of everyday and parliamentary sentences give way to names from lists, and to invented ones."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from scripts.builtin_text.common import Pair, has_held_out_name, one_of, read_pairs

LISTS = ("names-de/places",)  # the other lists have languages, too
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


def read_names(data: Path) -> Names:
    people = [name.split() for name, _ in read_pairs(data, "names-de/persons-copy") if not has_held_out_name(name)]
    first = sorted({words[0] for words in people if len(words) > 1 and words[0].isalpha()})
    last = sorted({words[-1] for words in people if len(words) > 1 and words[-1].isalpha()})
    pairs = sorted({pair for corpus in LISTS for pair in read_pairs(data, corpus) if _is_place(pair)})
    same = [pair for pair in pairs if pair[0] == pair[1]]
    words = sorted({word for pair in same for word in re.findall(r"[^\W\d_]{4,}", pair[0])})
    return Names(first, last, same, [p for p in pairs if p[0] != p[1]], Inventor([*first, *last]), Inventor(words))


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
    for pair in pairs:
        words = set(re.findall(r"[A-ZÄÖÜ]\w+", pair[0]))
        people = sorted(word for word in words & known if word in pair[1] or _SAME_PERSON.get(word, word) in pair[1])
        towns = [town for town in _TOWNS if town in words and town in pair[1]]
        for _ in range(copies if people or towns else 0):
            made: Pair | None = pair
            for person in people:
                german = person if person in pair[1] else _SAME_PERSON.get(person, person)
                made = made and (replace_name(made, (person, german), draw_person(names, draw)))
            for town in towns:
                made = made and replace_name(made, (town, town), draw_place(names, draw))
            if made and made != pair:
                yield made


_TITLE = re.compile(r"\b(?:Mr|Mrs|Ms|Commissioner|President|Minister) ([A-Z][a-zà-ž]{3,})\b")


def parliament_names(pairs: Iterable[Pair], names: Names, draw: Random, share: float) -> Iterator[Pair]:
    """Parliamentary sentences with other surnames, of a share of those that have one."""
    for pair in pairs:
        if len(pair[0]) > 300 or draw.random() >= share:
            continue
        made: Pair | None = pair
        for surname in set(_TITLE.findall(pair[0])):
            new = draw_last(names, draw)
            made = made and replace_name(made, (surname, surname), (new, new))
        if made and made != pair:
            yield made
