"""What there is beside English: the corpora of each language, by the folders of docs/builtin-model.md, and its ways to write."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

from scripts.builtin_text import amounts, clock, frames, french, german, names, words
from scripts.builtin_text.common import PARLIAMENT, Pair


@dataclass(frozen=True)
class Language:
    """A language beside English, and the corpora in both."""

    code: str
    tatoeba: str
    dictionary: Sequence[str]
    examples: Sequence[str]  # sentences of the dictionary
    documents: Sequence[str]
    games: Sequence[str]
    others: Sequence[str]
    name_lists: Sequence[str]
    wikipedia: Sequence[str]
    novels: Sequence[str]  # sentences that follow each other
    orders: Sequence[str]
    orders_in: str
    parliament: int  # parts of Europarl
    parliament_folder: str  # of this language's side; the English one is in PARLIAMENT
    clock: clock.Clock
    frames: dict[str, Sequence[Pair]]
    joints: Pair  # "and" and "or" in a list
    amounts: amounts.Amounts
    naming: names.Naming
    draw_date: Callable[[Random], Pair]
    is_usual: Callable[[Pair], bool]  # of a time in this language
    list_words: Callable[[Sequence[Pair]], list[Pair]]  # of the dictionary, for enumerations
    vary: Callable[[str, Random], str] = field(default=lambda text, draw: text)  # a text as people type it

    @property
    def read(self) -> tuple[str, ...]:
        """The corpora that the text is made of, apart from Europarl."""
        single = (self.tatoeba, self.orders_in)
        several = (
            self.dictionary,
            self.examples,
            self.documents,
            self.games,
            self.others,
            self.name_lists,
            self.wikipedia,
        )
        return tuple(dict.fromkeys([*single, *(name for names in several for name in names)]))


GERMAN = Language(
    code="de",
    tatoeba="tatoeba/train",
    dictionary=("dict-de/ding",),
    examples=("dict-de/ding-examples",),
    documents=(
        "docs-de/debian-handbook", "docs-de/debian-web", "docs-de/gimp-help", "docs-de/gnome-help", "docs-de/manpages",
        "docs-de/qgis",
    ),
    games=("games-de/cataclysm", "games-de/openttd", "games-de/pixel-dungeon", "games-de/unciv", "games-de/wesnoth"),
    others=("wiki-de/xquad", "software-de/catalogues", "software-de/debian-packages", "dict-de/osm-presets"),
    name_lists=("names-de/persons-copy", "names-de/places", "names-de/cldr", "names-de/iso-codes", "names-de/cldr-emoji"),
    wikipedia=("wiki-de/xquad",),
    novels=("games-de/wesnoth", "docs-de/gnome-help"),
    orders=("software/libreoffice", "docs-de/gnome-help"),
    orders_in="software/libreoffice",
    parliament=6,
    parliament_folder=PARLIAMENT,
    clock=german.CLOCK,
    frames=frames.GERMAN,
    joints=(" und ", " oder "),
    amounts=german.AMOUNTS,
    naming=german.NAMING,
    draw_date=german.draw_date,
    is_usual=german.is_usual,
    list_words=words.nouns,
)  # fmt: skip

FRENCH = Language(
    code="fr",
    tatoeba="tatoeba-fr/train",
    dictionary=("dict-fr/freedict",),
    examples=(),
    documents=(
        "docs-fr/debian-handbook", "docs-fr/debian-web", "docs-fr/gimp-help", "docs-fr/gnome-help", "docs-fr/manpages",
        "docs-fr/python", "docs-fr/qgis",
    ),
    games=("games-fr/cataclysm", "games-fr/openttd", "games-fr/pixel-dungeon", "games-fr/unciv", "games-fr/wesnoth"),
    others=("dict-fr/osm-presets",),
    name_lists=("names-fr/places", "names-fr/cldr", "names-fr/iso-codes", "names-fr/cldr-emoji"),
    wikipedia=(),
    novels=("games-fr/wesnoth", "docs-fr/gnome-help"),
    orders=("software-fr/catalogues", "docs-fr/gnome-help"),
    orders_in="software-fr/catalogues",
    parliament=2,
    parliament_folder="europarl-fr",
    clock=french.CLOCK,
    frames=frames.FRENCH,
    joints=(" et ", " ou "),
    amounts=french.AMOUNTS,
    naming=french.NAMING,
    draw_date=french.draw_date,
    is_usual=french.is_usual,
    list_words=words.small_words,
    vary=french.with_any_space,
)  # fmt: skip

LANGUAGES = {one.code: one for one in (GERMAN, FRENCH)}


def beside_english(source: str, target: str) -> Language:
    """The language that is not English.

    >>> beside_english("fr", "en").code
    'fr'
    """
    return LANGUAGES[target if source == "en" else source]


def is_direction(source: str, target: str) -> bool:
    """Whether text can be made for a direction: from or into English."""
    return "en" in (source, target) and source != target and {source, target} <= {"en", *LANGUAGES}
