"""Makes training text for one direction of the built-in models, by rules and from lists.

    python -m scripts.builtin_text en de DATA OUT

DATA is described in docs/builtin-model.md. Writes OUT/NAME.en.xz and OUT/NAME.de.xz for each name of PARTS; a part that is there
already is left alone. Half a million pairs of Europarl are read for names and times, the rest is small.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from random import Random

from regard.data.corpus import read_lines
from regard.translation.noise import Kind, make_kinds, noise
from scripts.builtin_text import amounts, clock, names, words
from scripts.builtin_text.common import Pair, has_held_out_name, is_held_out, read_pairs, write_pairs

DOCUMENTS = (
    "docs-de/debian-handbook", "docs-de/debian-web", "docs-de/gimp-help", "docs-de/gnome-help", "docs-de/manpages", "docs-de/qgis",
)  # fmt: skip
GAMES = ("games-de/cataclysm", "games-de/openttd", "games-de/pixel-dungeon", "games-de/unciv", "games-de/wesnoth")
OTHERS = ("wiki-de/xquad", "software-de/catalogues", "software-de/debian-packages", "dict-de/osm-presets")
SEED = 8


@dataclass(frozen=True)
class TextMaker:
    """The parts of the text, each a function of the data alone."""

    source: str
    target: str
    data: Path

    def draw(self, part: str) -> Random:
        return Random(f"{SEED} {part}")

    def read(self, *corpora: str) -> Iterator[Pair]:
        return chain.from_iterable(read_pairs(self.data, corpus) for corpus in corpora)

    @cached_property
    def tatoeba(self) -> list[Pair]:
        return list(self.read("tatoeba/train"))

    @cached_property
    def examples(self) -> list[Pair]:
        return [pair for pair in self.read("dict-de/ding-examples") if " / " not in pair[0] + pair[1]]

    @cached_property
    def names(self) -> names.Names:
        return names.read_names(self.data)

    @cached_property
    def entries(self) -> list[Pair]:
        """The dictionary, each headword of the source language with its two likeliest translations."""
        side = int(self.source == "de")
        texts = chain(self.tatoeba, self.examples, self.read("wiki-de/xquad", "europarl/train-00"))
        tidied = map(words.tidy, self.read("dict-de/ding"))
        found = [pair for pair in tidied if pair and all(len(text) < 80 for text in pair)]
        return words.best_senses(found, side, texts, 2)

    @cached_property
    def nouns(self) -> list[Pair]:
        """Nouns of the dictionary that real text has: others would only teach rare words at the cost of common ones."""
        texts = chain(self.tatoeba, self.examples, self.read("wiki-de/xquad", *GAMES, "europarl/train-00"))
        english, german = Counter[str](), Counter[str]()
        for pair in texts:
            english.update(words.word_counts([pair[0].lower()]))
            german.update(words.word_counts([pair[1]]))
        for side, counts in enumerate((english, german)):
            path = self.data / f"mono/common-voice.{('en', 'de')[side]}.xz"
            if path.exists():
                counts.update(words.word_counts(line if side else line.lower() for line in read_lines(path)))
        found = words.nouns(self.entries)
        return [pair for pair in found if german[pair[1]] or (" " not in pair[0] and english[pair[0]])]

    # --- the parts ---

    def dictionary(self) -> Iterable[Pair]:
        return self.entries

    def documents(self) -> Iterable[Pair]:
        return filter(is_clean, self.read(*DOCUMENTS))

    def games(self) -> Iterable[Pair]:
        return filter(is_clean, self.read(*GAMES, *OTHERS))

    def people(self) -> Iterable[Pair]:
        draw = self.draw("people")
        yield from names.everyday_names(chain(self.tatoeba, self.examples), self.names, draw)
        yield from names.parliament_names(self.read("europarl/train-00", "europarl/train-01"), self.names, draw, 0.5)

    def lists_of_names(self) -> Iterable[Pair]:
        lists = self.read(
            "names-de/persons-copy", "names-de/places", "names-de/cldr", "names-de/iso-codes", "names-de/cldr-emoji"
        )
        return (pair for pair in lists if not has_held_out_name(pair[0]))

    def numbers(self) -> Iterable[Pair]:
        return (pair for pair in self.all_numbers() if self.target != "de" or clock.is_usual_german(pair))

    def all_numbers(self) -> Iterator[Pair]:
        draw = self.draw("numbers")
        yield from clock.other_times(chain(self.tatoeba, self.examples), draw, 12)
        yield from clock.other_times(self.read("europarl/train-00"), draw, 1)
        yield from clock.framed(clock.TIME_FRAMES, clock.draw_time, 24_000, draw)
        yield from clock.framed(clock.DATE_FRAMES, clock.draw_date, 6_000, draw)
        yield from clock.framed(amounts.MEASURE_FRAMES, amounts.draw_measure, 8_000, draw)
        yield from clock.framed(amounts.MONEY_FRAMES, amounts.draw_money, 10_000, draw)

    def lists(self) -> Iterable[Pair]:
        """Enumerations, and what is between quotation marks."""
        draw, nouns = self.draw("lists"), self.nouns
        yield from words.lists(nouns, draw, 60_000)
        yield from words.quoted_words(nouns, draw, 20_000)
        said = (pair for pair in self.tatoeba if draw.random() < 0.15)
        yield from words.spoken(said, self.names.first, draw)

    def capitals(self) -> Iterable[Pair]:
        """Whole lines in capitals, and single words of a line."""
        draw, upper = self.draw("capitals"), make_kinds(["upper"], self.source, self.target)
        some = (pair for pair in self.tatoeba if draw.random() < 0.4)
        yield from self.noised(chain(some, self.examples), upper)
        yield from self.noised((pair for pair in self.entries if draw.random() < 0.25), upper)
        orders = (pair for pair in self.read("software/libreoffice", "docs-de/gnome-help") if is_order(pair[0]))
        yield from self.noised(filter(is_clean, orders), upper)
        yield from self.noised(islice(self.read("europarl/train-05"), 20_000), upper)
        lexicon = words.lexicon_of(self.entries)
        yield from words.stressed((pair for pair in self.tatoeba if draw.random() < 0.2), lexicon, draw)

    def typed(self) -> Iterable[Pair]:
        """What people type: no capitals, no punctuation, typing errors."""
        kinds = make_kinds(["lower", "title", "unpunctuated", "bare", "typos", "spacing"], self.source, self.target)
        draw = self.draw("typed")
        yield from self.noised(chain(self.tatoeba, self.examples), kinds)
        yield from self.noised(self.tatoeba, make_kinds(["typos", "bare"], self.source, self.target), 1)
        yield from self.noised((pair for pair in self.read("europarl/train-04") if draw.random() < 0.2), kinds)
        yield from self.noised(filter(is_clean, self.read("wiki-de/xquad", "games-de/wesnoth")), kinds)

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
            *filter(is_clean, self.read("games-de/wesnoth", "docs-de/gnome-help")),
            *self.tatoeba[::4],
        ]
        starts = (number for number in range(len(pairs) - 4) if draw.random() < 0.4)
        for number in starts:
            if made := self.turned_noise(pairs[number : number + 4], number, join):
                yield made

    # --- noise, which has a direction ---

    def noised(self, pairs: Iterable[Pair], kinds: dict[str, Kind], seed: int = 0) -> Iterator[Pair]:
        for number, pair in enumerate(pairs):
            if not is_held_out(*pair) and (made := self.turned_noise([pair], number, kinds, seed)):
                yield made

    def turned_noise(self, pairs: list[Pair], number: int, kinds: dict[str, Kind], seed: int = 0) -> Pair | None:
        """Noise for pairs (English, German), in the source language of this direction."""
        turn = self.source == "de"
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
    english, german = pair
    if not 1 < len(english) < 500 or not 1 < len(german) < 600 or any(_CODE.search(text) for text in pair):
        return False
    letters = sum(character.isalpha() or character.isspace() for character in english)
    return letters > 0.8 * len(english) and (english != german or len(english.split()) < 4)


PARTS = (
    "dictionary", "documents", "games", "people", "lists_of_names", "numbers", "lists", "capitals", "typed", "quoted", "joined",
)  # fmt: skip


def main() -> None:
    if len(sys.argv) != 5 or {sys.argv[1], sys.argv[2]} != {"en", "de"}:
        sys.exit(__doc__)
    out = Path(sys.argv[4])
    maker = TextMaker(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
    for part in PARTS:
        if all((out / f"{part}.{language}.xz").exists() for language in ("en", "de")):
            continue
        make: Callable[[], Iterable[Pair]] = getattr(maker, part)
        print(f"{part}: {write_pairs(out / part, make()):,} pairs", flush=True)


if __name__ == "__main__":
    main()
