"""Names in sentences: the names of everyday and parliamentary sentences give way to names from lists, and to invented ones."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from regard.data.corpus import read_lines
from scripts.builtin_text.common import Pair, has_held_out_name, one_of, read_pairs

_PLACE = re.compile(r"[A-ZÀ-Ž][\w'’.-]+(?: [A-ZÀ-Ž][\w'’.-]+){0,2}")


@dataclass(frozen=True)
class Naming:
    """How names stand in sentences of a language, beside English."""

    replace: Callable[
        [Pair, Pair, Pair], Pair | None
    ]  # in a pair, one name by another; None where the sides do not agree
    same_person: dict[str, str]  # people of everyday sentences, as they are translated
    towns: dict[str, str]  # likewise
    exonyms: Sequence[Pair] = ()  # places that are called differently; none: those of the lists


@dataclass(frozen=True)
class Names:
    first: Sequence[str]
    last: Sequence[str]
    places: Sequence[Pair]  # called the same in both languages
    exonyms: Sequence[Pair]  # called differently
    people_maker: Inventor
    place_maker: Inventor
    naming: Naming


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


def read_names(data: Path, other: str, naming: Naming) -> Names:
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
    listed = naming.exonyms or [pair for pair in pairs if pair[0] != pair[1]]
    exonyms = [pair for pair in listed if not has_held_out_name(pair[0])]
    return Names(first, last, same, exonyms, Inventor([*first, *last]), Inventor(words), naming)


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


def everyday_names(pairs: Iterable[Pair], names: Names, draw: Random, copies: int = 2) -> Iterator[Pair]:
    """Everyday sentences with other people and towns."""
    known = {*names.first, "Tom", "Mary", "John"}
    same_person, towns_known, replaced = names.naming.same_person, names.naming.towns, names.naming.replace
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


_TITLE = re.compile(r"\b(?:Mr|Mrs|Ms|Commissioner|President|Minister) ([A-Z][a-zà-ž]{3,})\b")


def parliament_names(pairs: Iterable[Pair], names: Names, draw: Random, share: float) -> Iterator[Pair]:
    """Parliamentary sentences with other surnames, of a share of those that have one."""
    for pair in pairs:
        if len(pair[0]) > 300 or draw.random() >= share:
            continue
        made: Pair | None = pair
        for surname in set(_TITLE.findall(pair[0])):
            new = draw_last(names, draw)
            made = made and names.naming.replace(made, (surname, surname), (new, new))
        if made and made != pair:
            yield made
