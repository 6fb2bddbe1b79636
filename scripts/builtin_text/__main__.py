"""Makes training text for one direction of the built-in models, by rules and from lists.

    python -m scripts.builtin_text en de DATA OUT

DATA is described in docs/builtin-model.md. Writes OUT/NAME.en.xz and OUT/NAME.de.xz (or .fr.xz) for each name of PARTS; a part that
is there already is left alone. Half a million pairs of Europarl are read for names and times, the rest is small.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain, islice
from pathlib import Path
from random import Random

from regard.data.corpus import read_lines
from regard.translation.noise import Kind, make_kinds, noise
from scripts.builtin_text import amounts, clock, names, words
from scripts.builtin_text.common import (
    PARLIAMENT,
    Pair,
    has_held_out_name,
    is_held_out,
    read_pairs,
    read_parliament,
    write_pairs,
)
from scripts.builtin_text.languages import Language, beside_english, is_direction

SEED = 8


@dataclass(frozen=True)
class TextMaker:
    """The parts of the text, each a function of the data alone."""

    source: str
    target: str
    data: Path

    def draw(self, part: str) -> Random:
        return Random(f"{SEED} {part}")

    @property
    def other(self) -> Language:
        """The language beside English."""
        return beside_english(self.source, self.target)

    @property
    def is_from_english(self) -> bool:
        return self.source == "en"

    def read(self, *corpora: str) -> Iterator[Pair]:
        return chain.from_iterable(read_pairs(self.data, corpus, self.other.code) for corpus in corpora)

    def parliament(self, *parts: int) -> Iterator[Pair]:
        """Parts of Europarl; of a language with fewer, those that there are."""
        known = dict.fromkeys(part % self.other.parliament for part in parts)
        return chain.from_iterable(
            read_parliament(self.data, part, self.other.code, self.other.parliament_folder) for part in known
        )

    @cached_property
    def tatoeba(self) -> list[Pair]:
        return list(self.read(self.other.tatoeba))

    @cached_property
    def examples(self) -> list[Pair]:
        return [pair for pair in self.read(*self.other.examples) if " / " not in pair[0] + pair[1]]

    @cached_property
    def names(self) -> names.Names:
        return names.read_names(self.data, self.other.code, self.other.naming)

    @cached_property
    def entries(self) -> list[Pair]:
        """The dictionary, each headword of the source language with its two likeliest translations."""
        side = int(not self.is_from_english)
        texts = chain(self.tatoeba, self.examples, self.read(*self.other.wikipedia), self.parliament(0))
        tidied = map(words.tidy, self.read(*self.other.dictionary))
        found = [pair for pair in tidied if pair and all(len(text) < 80 for text in pair)]
        return words.best_senses(found, side, texts, 2)

    @cached_property
    def nouns(self) -> list[Pair]:
        """Nouns of the dictionary that real text has: others would only teach rare words at the cost of common ones."""
        real = self.read(*self.other.wikipedia, *self.other.games)
        texts = chain(self.tatoeba, self.examples, real, self.parliament(0))
        english, other = Counter[str](), Counter[str]()
        for pair in texts:
            english.update(words.word_counts([pair[0].lower()]))
            other.update(words.word_counts([pair[1]]))
        for side, counts in enumerate((english, other)):
            path = self.data / f"mono/common-voice.{('en', self.other.code)[side]}.xz"
            if path.exists():
                counts.update(words.word_counts(line if side else line.lower() for line in read_lines(path)))
        found = self.other.list_words(self.entries)
        return [pair for pair in found if other[pair[1]] or (" " not in pair[0] and english[pair[0]])]

    # --- the parts ---

    def dictionary(self) -> Iterable[Pair]:
        return self.entries

    def documents(self) -> Iterable[Pair]:
        return filter(is_clean, self.read(*self.other.documents))

    def games(self) -> Iterable[Pair]:
        return filter(is_clean, self.read(*self.other.games, *self.other.others))

    def people(self) -> Iterable[Pair]:
        draw = self.draw("people")
        yield from names.everyday_names(chain(self.tatoeba, self.examples), self.names, draw)
        yield from names.parliament_names(self.parliament(0, 1), self.names, draw, 0.5)

    def lists_of_names(self) -> Iterable[Pair]:
        lists = self.read(*self.other.name_lists)
        return (pair for pair in lists if not has_held_out_name(pair[0]))

    def numbers(self) -> Iterable[Pair]:
        if self.is_from_english:
            return filter(self.other.is_usual, self.all_numbers())
        draw = self.draw("typed numbers")
        return ((english, self.other.vary(other, draw)) for english, other in self.all_numbers())

    def all_numbers(self) -> Iterator[Pair]:
        draw = self.draw("numbers")
        other, frames = self.other, self.other.frames
        yield from clock.other_times(chain(self.tatoeba, self.examples), draw, 12, other.clock)
        yield from clock.other_times(self.parliament(0), draw, 1, other.clock)
        time = partial(clock.draw_time, clock=other.clock)
        yield from clock.framed(frames["times"], time, 24_000, draw, other.clock.days)
        yield from clock.framed(frames["dates"], other.draw_date, 6_000, draw, other.clock.days)
        measure, money = (partial(drawn, amounts=other.amounts) for drawn in (amounts.draw_measure, amounts.draw_money))
        yield from clock.framed(frames["measures"], measure, 8_000, draw, other.clock.days)
        yield from clock.framed(frames["money"], money, 10_000, draw, other.clock.days)

    def lists(self) -> Iterable[Pair]:
        """Enumerations, and what is between quotation marks."""
        draw, nouns, frames = self.draw("lists"), self.nouns, self.other.frames
        yield from words.lists(nouns, draw, 60_000, frames["heads"], self.other.joints)
        yield from words.quoted_words(nouns, draw, 20_000, frames["quoted"])
        said = (pair for pair in self.tatoeba if draw.random() < 0.15)
        yield from words.spoken(said, self.names.first, draw, frames["spoken"])

    def capitals(self) -> Iterable[Pair]:
        """Whole lines in capitals, and single words of a line."""
        draw, upper = self.draw("capitals"), make_kinds(["upper"], self.source, self.target)
        some = (pair for pair in self.tatoeba if draw.random() < 0.4)
        yield from self.noised(chain(some, self.examples), upper)
        yield from self.noised((pair for pair in self.entries if draw.random() < 0.25), upper)
        orders = (pair for pair in self.read(*self.other.orders) if is_order(pair[0]))
        yield from self.noised(filter(is_clean, orders), upper)
        yield from self.noised(islice(self.parliament(5), 20_000), upper)
        lexicon = words.lexicon_of(self.entries)
        yield from words.stressed((pair for pair in self.tatoeba if draw.random() < 0.2), lexicon, draw)

    def typed(self) -> Iterable[Pair]:
        """What people type: no capitals, no punctuation, typing errors."""
        kinds = make_kinds(["lower", "title", "unpunctuated", "bare", "typos", "spacing"], self.source, self.target)
        draw = self.draw("typed")
        yield from self.noised(chain(self.tatoeba, self.examples), kinds)
        yield from self.noised(self.tatoeba, make_kinds(["typos", "bare"], self.source, self.target), 1)
        yield from self.noised((pair for pair in self.parliament(4) if draw.random() < 0.2), kinds)
        real = self.read(*self.other.wikipedia, self.other.novels[0])
        yield from self.noised(filter(is_clean, real), kinds)

    def quoted(self) -> Iterable[Pair]:
        draw = self.draw("quoted")
        some = (pair for pair in chain(self.tatoeba, self.examples) if draw.random() < 0.1)
        return self.noised(some, make_kinds(["quoted"], self.source, self.target))

    def joined(self) -> Iterable[Pair]:
        """Several sentences in a line, neighbours where the text has any."""
        join = make_kinds(["join"], self.source, self.target)
        draw = self.draw("joined")
        pairs = [
            *self.examples,
            *filter(is_clean, self.read(*self.other.novels)),
            *self.tatoeba[::4],
        ]
        starts = (number for number in range(len(pairs) - 4) if draw.random() < 0.4)
        for number in starts:
            if made := self.turned_noise(pairs[number : number + 4], number, join):
                yield made

    def parliament_0(self) -> Iterable[Pair]:
        return self.parliament(0)

    def parliament_1(self) -> Iterable[Pair]:
        return self.parliament(1)

    # --- noise, which has a direction ---

    def noised(self, pairs: Iterable[Pair], kinds: dict[str, Kind], seed: int = 0) -> Iterator[Pair]:
        for number, pair in enumerate(pairs):
            if not is_held_out(*pair) and (made := self.turned_noise([pair], number, kinds, seed)):
                yield made

    def turned_noise(self, pairs: list[Pair], number: int, kinds: dict[str, Kind], seed: int = 0) -> Pair | None:
        """Noise for pairs (English, the other language), in the source language of this direction."""
        turn = not self.is_from_english
        made = noise([(b, a) if turn else (a, b) for a, b in pairs], number, SEED + seed, kinds)
        return None if made is None else (made[1][1], made[1][0]) if turn else made[1]


_ORDER = re.compile(
    r"(?:Do not|Don't|No|Never|Please|Warning|Caution|Keep|Use|Press|Turn|Click|Enter|Remove|Close|Open|Stop)\b"
)
_CODE = re.compile(r"[\\{}<>|]|::|==|\(\)|--\w|\b\w+_\w+|(?:/\w+){2,}|\$\w|^\W*$|&\w+;")


def is_order(text: str) -> bool:
    return len(text) < 90 and bool(_ORDER.match(text))


def is_clean(pair: Pair) -> bool:
    """Whether both sides are sentences or words rather than code, and one translates the other.

    >>> is_clean(("Open the file.", "Öffnen Sie die Datei.")), is_clean(("/usr/lib/x.so", "/usr/lib/x.so"))
    (True, False)
    """
    english, other = pair
    if not 1 < len(english) < 500 or not 1 < len(other) < 600 or any(_CODE.search(text) for text in pair):
        return False
    letters = sum(character.isalpha() or character.isspace() for character in english)
    return letters > 0.8 * len(english) and (english != other or len(english.split()) < 4)


PARTS = (
    "dictionary", "documents", "games", "people", "lists_of_names", "numbers", "lists", "capitals", "typed", "quoted", "joined",
)  # fmt: skip
ONE_SIDED = ("parliament_0", "parliament_1")  # of languages whose side of Europarl is apart from the English one


def parts_of(source: str, target: str) -> tuple[str, ...]:
    """The parts of the text for a direction."""
    is_apart = beside_english(source, target).parliament_folder != PARLIAMENT
    return (*PARTS, *ONE_SIDED) if is_apart else PARTS


def main() -> None:
    if len(sys.argv) != 5 or not is_direction(sys.argv[1], sys.argv[2]):
        sys.exit(__doc__)
    out = Path(sys.argv[4])
    maker = TextMaker(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
    for part in parts_of(sys.argv[1], sys.argv[2]):
        if all((out / f"{part}.{language}.xz").exists() for language in sys.argv[1:3]):
            continue
        make: Callable[[], Iterable[Pair]] = getattr(maker, part)
        print(f"{part}: {write_pairs(out / part, make(), maker.other.code):,} pairs", flush=True)


if __name__ == "__main__":
    main()
