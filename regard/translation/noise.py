"""Noise: makes pairs of a parallel corpus look as people really type, so that a model learns to cope with it.

Every kind is a pure function of a pair and a random generator; it returns None if it would change nothing. URLs, placeholders and
tags stay unchanged. Only `random()` of the generators is used, whose numbers Python promises to keep from version to version.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import takewhile
from random import Random
from typing import Any, TypeVar

from regard.data.clean import is_empty
from regard.data.corpus import Pair, shorten
from regard.translation.languages import first_subtag
from regard.translation.protect import find_spans
from regard.translation.terms import Span, overlap_with

Kind = Callable[[Sequence[Pair], Random], Pair | None]  # of a pair and the pairs after it

KINDS = ("lower", "upper", "title", "unpunctuated", "bare", "typos", "quoted", "join", "copy", "spacing")
JOINED = 4  # most pairs in one line
_TOO_LONG = 10_000  # characters of a side; training drops such pairs, and finding spans takes quadratic time

T = TypeVar("T")


def make_kinds(names: Sequence[str], source: str, target: str) -> dict[str, Kind]:
    """The kinds with these names, in the order of KINDS, for a corpus in these languages."""
    alone: dict[str, Callable[[Pair, Random], Pair | None]] = {
        "lower": partial(lower, language=source),
        "upper": partial(upper, languages=(source, target)),
        "title": partial(title, language=source),
        "unpunctuated": unpunctuated,
        "bare": partial(bare, language=source),
        "typos": typos,
        "quoted": partial(quoted, languages=(source, target)),
        "copy": copy,
        "spacing": spacing,
    }
    every: dict[str, Kind] = {name: partial(_first, function) for name, function in alone.items()} | {"join": join}
    return {name: every[name] for name in KINDS if name in names}


def _first(function: Callable[[Pair, Random], Pair | None], pairs: Sequence[Pair], draw: Random) -> Pair | None:
    return function(pairs[0], draw)


def noise(pairs: Sequence[Pair], number: int, seed: int, kinds: Mapping[str, Kind]) -> tuple[str, Pair] | None:
    """The name of the kind drawn for the first of `pairs`, number `number` of the corpus, and the noised pair. A kind that would
    change nothing gives way to another; None if no kind changes the pair, or it is empty or too long to train on."""
    if is_empty(*pairs[0]) or max(map(len, pairs[0])) > _TOO_LONG:
        return None
    draw = Random(f"{seed} {number}")
    for name in _shuffled(list(kinds), draw):
        made = kinds[name](pairs, draw)
        if made is not None:
            return name, made
    return None


# --- drawing ---


def _below(draw: Random, count: int) -> int:
    return int(draw.random() * count)


def _shuffled(items: Sequence[T], draw: Random) -> list[T]:
    left = list(items)
    return [left.pop(_below(draw, len(left))) for _ in items]


def _some(places: Sequence[T], count: int, draw: Random) -> list[T]:
    return _shuffled(places, draw)[:count]


# --- what stays unchanged ---


_NAME = re.compile(
    r"""
      (?<!\w) [@#] \w+                                    # @somebody, #something
    | (?<!\w) \w* _ \w*                                   # a_name
    | (?<![\w.-]) (?: [\w-]+ \. )+ [a-z]{2,24} \b (?: / \S* )?  # example.com/page, notes.txt
    | \\ [a-z]                                            # \n
    """,
    re.VERBOSE,
)


def fixed_spans(text: str) -> list[Span]:
    """The places of URLs, placeholders, tags and file names, from left to right; some may overlap."""
    return sorted([*find_spans(text), *(match.span() for match in _NAME.finditer(text))])


def _outside(text: str, change: Callable[[str], str]) -> str:
    """The text, changed outside its fixed spans."""
    parts, done = [], 0
    for begin, end in fixed_spans(text):
        if done < begin:
            parts.append(change(text[done:begin]))
        parts.append(text[max(done, begin) : end])
        done = max(done, end)
    return "".join([*parts, change(text[done:])])


# --- capitals ---


_TURKIC = {"tr", "az"}  # i/İ and ı/I are different letters


def _is_turkic(language: str) -> bool:
    return first_subtag(language) in _TURKIC


def _lower_case(text: str, language: str) -> str:
    return (text.replace("I", "ı").replace("İ", "i") if _is_turkic(language) else text).lower()


def _upper_case(text: str, language: str) -> str:
    return (text.replace("i", "İ") if _is_turkic(language) else text).upper()


def lower(pair: Pair, draw: Random, language: str = "") -> Pair | None:
    """The source in lower case; the target stays.

    >>> lower(("Ask Ann: Ann@Example.org", "Frag Ann: Ann@Example.org"), Random(1))
    ('ask ann: Ann@Example.org', 'Frag Ann: Ann@Example.org')
    """
    src = _outside(pair[0], lambda text: _lower_case(text, language))
    return None if src == pair[0] else (src, pair[1])


def upper(pair: Pair, draw: Random, languages: tuple[str, str] = ("", "")) -> Pair | None:
    """Both sides in capitals; ß becomes SS, as people type it. None if the source does not change, such as "USA" or text without
    case.

    >>> upper(("Open {Name}, please", "Bitte {Name} schließen"), Random(1))
    ('OPEN {Name}, PLEASE', 'BITTE {Name} SCHLIESSEN')
    """
    src, tgt = (_outside(text, partial(_upper_case, language=code)) for text, code in zip(pair, languages, strict=True))
    return None if src == pair[0] else (src, tgt)


_INITIAL = re.compile(r"(?<![\w'’])[^\W\d_]")  # not in "don't"


def title(pair: Pair, draw: Random, language: str = "") -> Pair | None:
    """The source in title case; the target stays. None for a single word.

    >>> title(("the weather isn't nice in {town}", "das Wetter in {town} ist nicht schön"), Random(1))
    ("The Weather Isn't Nice In {town}", 'das Wetter in {town} ist nicht schön')
    """
    src = _outside(pair[0], lambda text: _INITIAL.sub(lambda match: _upper_case(match[0], language), text))
    return None if src == pair[0] or len(src.split()) < 2 else (src, pair[1])


# --- punctuation, spaces, lists ---


_FINAL = ".!?…。！？؟।"
_SPACES = " \t\u00a0\u202f\u3000"


def unpunctuated(pair: Pair, draw: Random) -> Pair | None:
    """Both sides without final punctuation. None unless both have some.

    >>> unpunctuated(("¿Cómo estás?", "How are you?"), Random(1))
    ('Cómo estás', 'How are you')
    """
    src, tgt = (_without_end(text) for text in pair)
    return None if src is None or tgt is None else (src, tgt)


def _without_end(text: str) -> str | None:
    bare = text.rstrip(_FINAL + _SPACES)
    end = text[len(bare) :]
    if not bare.strip() or not end.strip(_SPACES) or "." in bare.split()[-1]:  # an abbreviation such as "U.S."
        return None
    for opening, closing in ("¿?", "¡!"):
        if closing in end:
            bare = "".join(bare.rpartition(opening)[::2])
    return bare if bare.strip() else None


_MARK_OF_TEXT = re.compile(r"(?<!\d)[.,;:!?…¿¡\"„“”»«()]+|[.,;:!?…\"„“”»«()]+(?!\d)")  # not in "3.5"
_APOSTROPHE = re.compile(r"(?<=[^\W\d_])['’](?=[^\W\d_])")
_GAP = re.compile(r"[ \t]{2,}")


def bare(pair: Pair, draw: Random, language: str = "") -> Pair | None:
    """The source as typed in a hurry: no punctuation, mostly no capitals, often no apostrophes. The target loses only its final
    punctuation, as in `unpunctuated`. None for a single word.

    >>> bare(("Well, I don't know Ann, sorry!", "Tja, Ann kenne ich leider nicht!"), Random(1))
    ('well i dont know ann sorry', 'Tja, Ann kenne ich leider nicht')
    """
    drops_apostrophes, drops_capitals = draw.random() < 0.5, draw.random() < 0.85

    def strip(text: str) -> str:
        text = _MARK_OF_TEXT.sub(" ", text)
        text = _APOSTROPHE.sub("", text) if drops_apostrophes else text
        return _lower_case(text, language) if drops_capitals else text

    src = _GAP.sub(" ", _outside(pair[0], strip)).strip()
    if src == pair[0] or len(src.split()) < 2:
        return None
    return src, _without_end(pair[1]) or pair[1]


_QUOTES = {
    "en": '""',
    "de": "„“",
    "fr": ("«\u00a0", "\u00a0»"),
}  # in translations; other languages use the English ones
_TYPED_QUOTES = {"en": ('""', '""', "“”", "‘’"), "de": ("„“", "„“", '""', "»«"), "fr": (("« ", " »"), '""')}


def quoted(pair: Pair, draw: Random, languages: tuple[str, str] = ("", "")) -> Pair | None:
    """Both sides in the quotation marks of their language. None if one has some already.

    >>> quoted(("Come in.", "Komm rein."), Random(1), ("en", "de"))
    ('"Come in."', '„Komm rein.“')
    """
    if any(set(text) & set('"„“”‚‘»«‹›') or not text.strip() for text in pair):
        return None
    styles = _TYPED_QUOTES.get(languages[0], ('""',))
    marks = styles[_below(draw, len(styles))], _QUOTES.get(languages[1], '""')
    src, tgt = (f"{opening}{text.strip()}{closing}" for text, (opening, closing) in zip(pair, marks, strict=True))
    return src, tgt


_LIST_MARK = re.compile(r"\s*(?:[-–—•*·‣]|\d+[.)])\s")
_AFTER_PUNCTUATION = re.compile(r"(?<=[^\W\d_][,;:.!?]) (?=[^\W\d_])")
_ONE_SPACE = re.compile(r"(?<=\S) (?=\S)")


def spacing(pair: Pair, draw: Random) -> Pair | None:
    """Doubled spaces, or none after punctuation, in the source only; or a list marker on both sides."""
    for change in _shuffled((_double_spaces, _close_up, _list_item), draw):
        made = change(pair, draw)
        if made is not None:
            return made
    return None


def _double_spaces(pair: Pair, draw: Random) -> Pair | None:
    return _respaced(pair, _ONE_SPACE, "  ", 3, draw)


def _close_up(pair: Pair, draw: Random) -> Pair | None:
    return _respaced(pair, _AFTER_PUNCTUATION, "", len(pair[0]), draw)


def _respaced(pair: Pair, pattern: re.Pattern[str], space: str, most: int, draw: Random) -> Pair | None:
    """The source with other spaces in some of the places that the pattern finds, in at most `most` of them."""
    src, spans = pair[0], fixed_spans(pair[0])
    is_fixed = overlap_with(spans)
    places = [match.start() for match in pattern.finditer(src) if not is_fixed(match.span())]
    if not places:
        return None
    for place in sorted(_some(places, 1 + _below(draw, min(most, len(places))), draw), reverse=True):
        src = src[:place] + space + src[place + 1 :]
    return src, pair[1]


def _list_item(pair: Pair, draw: Random) -> Pair | None:
    if any(_LIST_MARK.match(text) for text in pair):
        return None
    number = 1 + _below(draw, 20)
    marks = ("- ", "- ", "– ", "• ", "• ", "* ", f"{number}. ", f"{number}. ", f"{number}) ")
    mark = marks[_below(draw, len(marks))]
    return mark + pair[0].lstrip(), mark + pair[1].lstrip()


# --- typing errors ---


# A letter of an alphabet (from Latin to Arabic, Georgian, Vietnamese): in other scripts a letter is not one key.
_LETTER = r"(?:(?![\u0700-\u109f\u1100-\u1dff\u2000-\U0010ffff])[^\W\d_])"
_PART = r"[\w\u0300-\u036f\u0591-\u05c7\u064b-\u065f]"  # and combining accents
_WORD = re.compile(rf"(?<!{_PART}){_LETTER}{{4,}}(?!{_PART})")
_TOKEN = re.compile(r"\S+")
_DIGIT = re.compile(r"\d")

_KEYBOARDS = (
    ("qwertyuiop", "asdfghjkl", "zxcvbnm"),
    ("йцукенгшщзхъ", "фывапролджэ", "ячсмитьбю"),
    (" ςερτυθιοπ", "ασδφγηξκλ", "ζχψωβνμ"),
)


def _neighbours() -> dict[str, str]:
    """The neighbours of each letter on the keyboard; each row is shifted half a key to the right of the one above."""
    found = {}
    for rows in _KEYBOARDS:
        places = ((row, column) for row, letters in enumerate(rows) for column in range(len(letters)))
        keys = {(row, column): rows[row][column] for row, column in places if rows[row][column] != " "}
        for (row, column), key in keys.items():
            around = ((0, -1), (0, 1), (-1, 0), (-1, 1), (1, -1), (1, 0))
            found[key] = "".join(keys.get((row + down, column + right), "") for down, right in around)
    return found


_NEIGHBOURS = _neighbours()


def typos(pair: Pair, draw: Random) -> Pair | None:
    """One to three typos in the source, each in a different word of four letters or more; a short sentence gets fewer."""
    src = pair[0]
    with_digits = [match.span() for match in _TOKEN.finditer(src) if _DIGIT.search(match[0])]
    is_fixed = overlap_with([*fixed_spans(src), *with_digits])
    words = [match.span() for match in _WORD.finditer(src) if match[0].isalpha() and not is_fixed(match.span())]
    if not words:
        return None
    count = min(1 + _below(draw, 3), 1 + len(words) // 3)
    for begin, end in sorted(_some(words, count, draw), reverse=True):
        src = src[:begin] + _mistype(src[begin:end], draw) + src[end:]
    return src, pair[1]


def _mistype(word: str, draw: Random) -> str:
    """The word with one typo, never in its first letter, where people make few."""
    for change in _shuffled((_swap, _drop, _double, _next_key), draw):
        made = change(word, draw)
        if made is not None:
            return made
    raise AssertionError("a letter can always be dropped")


def _swap(word: str, draw: Random) -> str | None:
    places = [place for place in range(1, len(word) - 1) if word[place] != word[place + 1]]
    if not places:
        return None
    place = places[_below(draw, len(places))]
    return word[:place] + word[place + 1] + word[place] + word[place + 2 :]


def _drop(word: str, draw: Random) -> str:
    place = 1 + _below(draw, len(word) - 1)
    return word[:place] + word[place + 1 :]


def _double(word: str, draw: Random) -> str:
    place = 1 + _below(draw, len(word) - 1)
    return word[:place] + word[place] + word[place:]


def _next_key(word: str, draw: Random) -> str | None:
    places = [place for place in range(1, len(word)) if word[place].lower() in _NEIGHBOURS]
    if not places:
        return None
    place = places[_below(draw, len(places))]
    keys = _NEIGHBOURS[word[place].lower()]
    key = keys[_below(draw, len(keys))]
    return word[:place] + (key.upper() if word[place].isupper() else key) + word[place + 1 :]


# --- whole sides ---


_LONGEST = 600  # characters of a joined side; training drops longer ones


def join(pairs: Sequence[Pair], draw: Random) -> Pair | None:
    """Two to four neighbouring pairs in one line; None if no pair follows, or the line would be too long.

    >>> join([("Hi.", "Hallo."), ("Go!", "Geh!")], Random(1))
    ('Hi. Go!', 'Hallo. Geh!')
    """
    wanted = pairs[: 2 + _below(draw, JOINED - 1)]
    taken = list(takewhile(lambda pair: not is_empty(*pair), wanted))
    for count in range(len(taken), 1, -1):
        src, tgt = (" ".join(pair[side].strip() for pair in taken[:count]) for side in (0, 1))
        if max(len(src), len(tgt)) <= _LONGEST:
            return src, tgt
    return None


def copy(pair: Pair, draw: Random) -> Pair | None:
    """The target on both sides: the model learns to copy text that is already in the target language."""
    return None if pair[0] == pair[1] else (pair[1], pair[1])


# --- counts ---


@dataclass
class NoiseAccount:
    """How many pairs each kind produced, and how many were skipped."""

    kinds: dict[str, int] = field(default_factory=dict)
    skipped: int = 0
    first: str | None = None  # the first skipped pair: "corpus, line N: text"

    @property
    def kept(self) -> int:
        """Pairs that were noised."""
        return sum(self.kinds.values())

    @property
    def read(self) -> int:
        """Pairs that were read."""
        return self.kept + self.skipped

    def keep(self, kind: str) -> None:
        """Count a pair that this kind produced."""
        self.kinds[kind] += 1

    def skip(self, where: str, line: int, src: str, tgt: str) -> None:
        """Count a skipped pair."""
        self.skipped += 1
        if self.first is None:
            self.first = f"{where}, line {line}: {shorten(src, 40)!r} / {shorten(tgt, 40)!r}"

    def lines(self) -> list[str]:
        """The counts as lines to print: the total, the kinds, the skipped pairs."""
        share = f" ({100 * self.kept / self.read:.1f}%)" if self.read else ""
        kinds = ", ".join(f"{kind}: {count:,}" for kind, count in self.kinds.items())
        skipped = (
            [f"  skipped, empty, too long or nothing to change: {self.skipped:,}, first {self.first}"]
            if self.skipped
            else []
        )
        return [f"{self.read:,} pairs read, {self.kept:,} noised{share}", f"  {kinds}", *skipped]

    def to_json(self) -> dict[str, Any]:
        """The counts as JSON, for resuming."""
        skipped = {"count": self.skipped, "first": self.first}
        return {"read": self.read, "kept": self.kept, "kinds": dict(self.kinds), "skipped": skipped}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> NoiseAccount:
        """The inverse of `to_json`."""
        kinds = {str(kind): int(count) for kind, count in data["kinds"].items()}
        return cls(kinds, int(data["skipped"]["count"]), data["skipped"]["first"])
