"""French times of day, dates, measures, sums of money and names, beside English."""

from __future__ import annotations

import re
from random import Random

from scripts.builtin_text import clock
from scripts.builtin_text.amounts import UNITS, Amounts, Forms, Number
from scripts.builtin_text.clock import Clock
from scripts.builtin_text.common import Pair, one_of
from scripts.builtin_text.names import Naming

THIN = "\u202f"  # between thousands
NO_BREAK = "\u00a0"

# --- times and dates ---

_WORDS = "zéro une deux trois quatre cinq six sept huit neuf dix onze douze".split()
_MINUTES = {5: "cinq", 10: "dix", 20: "vingt", 25: "vingt-cinq"}
DAYS = "lundi mardi mercredi jeudi vendredi samedi dimanche".split()
MONTHS = "janvier février mars avril mai juin juillet août septembre octobre novembre décembre".split()
_PARTS_OF_DAY = {
    "in the morning": "du matin", "in the afternoon": "de l'après-midi", "in the evening": "du soir", "at night": "du matin",
}  # fmt: skip


def _hours(hour: int) -> str:
    return "midi" if hour == 12 else f"{_WORDS[hour]} {_heures(hour)}"


def _heures(hour: int) -> str:
    return f"heure{'s' * (hour > 1)}"


def spoken_times(hour: int, minute: int) -> list[Pair]:
    """How people say a time of the clock's twelve hours.

    >>> spoken_times(7, 30)[0], spoken_times(12, 45)[0]
    (('half past seven', 'sept heures et demie'), ('a quarter to one', 'une heure moins le quart'))
    """
    ways, french, after = clock.spoken(hour, minute), _hours(hour), _hours(hour % 12 + 1)
    digits = f"{hour} h {minute}"
    if minute == 0:
        return [(ways[0], french), *zip(ways, (french, f"{hour} {_heures(hour)}", french), strict=True)]
    if minute == 30:
        half = f"{french} et demi{'e' * (hour != 12)}"
        thirty = f"{french} trente" if hour != 12 else half
        return list(zip(ways, (half, half, thirty, half, digits), strict=True))
    if minute in (15, 45):
        quarter = f"{french} et quart" if minute == 15 else f"{after} moins le quart"
        return list(zip(ways, (quarter, quarter, digits), strict=True))
    time = f"{french} {_MINUTES[minute]}" if minute < 30 else f"{after} moins {_MINUTES[60 - minute]}"
    return [(way, time) for way in ways]


def written_times(hour: int, minute: int) -> list[Pair]:
    """How a time of the day's 24 hours is written.

    >>> written_times(14, 5)[0]
    ('2:05 p.m.', '14 h 05')
    """
    ways = clock.written(hour, minute)
    french = f"{hour} h {minute:02d}" if minute else f"{hour} h"
    times = [(way, french) for way in (*ways.minutes, ways.mark)]
    times += [(ways.mark, french.replace(" ", "")), (ways.mark, ways.mark)]
    if minute == 0:
        whole = f"{hour} {_heures(hour)}"
        times += zip(ways.hours, (whole, whole, french), strict=True)
    return times


def day_times(hour: int) -> list[Pair]:
    """Full hours with a part of the day."""
    ways = clock.of_day(hour)
    if hour in (0, 12):
        return [(ways[0], "midi" if hour else "minuit")]
    part, twelve = _PARTS_OF_DAY[clock.part_of_day(hour)], hour % 12 or 12
    whole = _heures(twelve)
    return list(zip(ways, (f"{_WORDS[twelve]} {whole} {part}", f"{twelve} {whole} {part}"), strict=True))


def draw_date(draw: Random) -> Pair:
    """A day, often with the year.

    >>> draw_date(Random(1))[1].split()[1] in MONTHS
    True
    """
    date = clock.draw_date(draw)
    french = f"{'1er' if date.day == 1 else date.day} {MONTHS[date.month]}"
    return date.english, french if date.year is None else f"{french} {date.year}"


def is_usual(pair: Pair) -> bool:
    """Whether the French side is what is usual in print: "7 h 30", and digits for digits.

    >>> is_usual(("at 7:30", "à 7h30")), is_usual(("at 7:30", "à 7 h 30")), is_usual(("at 7:30", "à sept heures et demie"))
    (False, True, False)
    """
    english, french = pair
    is_spoken = re.search(r"\b(?:et demie?|et quart|moins le quart)\b", french) and re.search(r"\d:\d\d", english)
    return not is_spoken and not re.search(r"\dh(?:\d|\b)|\d:\d\d", french)


CLOCK = Clock(
    spoken_times, written_times, day_times, DAYS,
    mentions=re.compile(r"\bheures?\b|\bmidi\b|\d ?h\b"),
    part_of_day=re.compile(r"\b(?:du matin|du soir|de l['’]après-midi|de la nuit)\b"),
    is_odd=re.compile(r"(?:demie?|quart|moins \w+|heures? \w+) (?:heures?|h)\b|\bdes? midi\b|\bles midi\b"),
)  # fmt: skip

# --- numbers, measures, money ---

_SMALL = (
    "zéro un deux trois quatre cinq six sept huit neuf dix onze douze treize quatorze quinze seize dix-sept dix-huit dix-neuf"
).split()
_TENS = {20: "vingt", 30: "trente", 40: "quarante", 50: "cinquante", 60: "soixante", 80: "quatre-vingt"}
_FEMININE = frozenset("tonne semaine minute heure livres couronnes".split())


def spelled(number: int, ends: bool = True) -> str:
    """A number below 1,000,000 in words, with hyphens below a hundred. `ends`: nothing follows, so that "cent" and "quatre-vingt"
    take an s after a factor.

    >>> spelled(71), spelled(80), spelled(95), spelled(201)
    ('soixante et onze', 'quatre-vingts', 'quatre-vingt-quinze', 'deux cent un')
    """
    if number < 20:
        return _SMALL[number]
    if number < 100:
        tens = max(value for value in _TENS if value <= number)
        rest = number - tens
        if not rest:
            return _TENS[tens] + "s" * (tens == 80 and ends)
        joint = " et " if rest in (1, 11) and tens != 80 else "-"
        return f"{_TENS[tens]}{joint}{_SMALL[rest]}"
    if number < 1000:
        many, rest = divmod(number, 100)
        head = "cent" if many == 1 else f"{_SMALL[many]} cent{'s' * (not rest and ends)}"
    else:
        many, rest = divmod(number, 1000)
        head = "mille" if many == 1 else f"{spelled(many, ends=False)} mille"
    return f"{head} {spelled(rest, ends)}" if rest else head


def in_digits(text: str) -> str:
    """An English number as French writes it.

    >>> in_digits("12,600.5").replace(THIN, "_")
    '12_600,5'
    """
    return text.replace(",", THIN).replace(".", ",")


def _number(number: Number, noun: str) -> str:
    text = spelled(int(number.value)) if number.in_words else in_digits(number.english)
    return text + "e" * bool(noun in _FEMININE and re.search(r"\bun$", text))  # vingt et une heures


def _one(unit: str) -> str:
    return "un pour cent" if unit == "pour cent" else f"{'une' if unit.split()[0] in _FEMININE else 'un'} {unit}"


def _measure(number: Number, forms: Forms) -> str:
    return f"{_number(number, forms[0])} {forms[number.value >= 2]}"


def _money(number: Number, currency: str) -> str:
    name = currency if number.value >= 2 else re.sub(r"s\b", "", currency)
    return f"{_number(number, currency)} {name}"


def _scaled(amount: str, scale: str, currency: str) -> str:
    scale = "million" if scale == "million" else "milliard"
    of = "d'" if currency[0] in "aeiou" else "de "
    return f"{in_digits(amount)} {scale}{'s' * (float(amount) >= 2)} {of}{currency}"


AMOUNTS = Amounts(
    units=[(one, several, french) for one, several, _, french in UNITS if french],
    currencies=(
        "euros", "dollars", "livres", "francs suisses", "yens", "couronnes", "roubles", "centimes", "pence", "dollars américains",
    ),
    signs=[
        (sign, sign, word)
        for sign, word in (
            ("€", "euros"), ("$", "dollars"), ("£", "livres"), ("$ US", "dollars américains"), ("CHF", "francs suisses"),
        )
    ],
    one=_one,
    measure=_measure,
    money=_money,
    scaled=_scaled,
    in_digits=in_digits,
    least_cents=2.0,  # so that every currency is in the plural
)  # fmt: skip


def with_any_space(text: str, draw: Random) -> str:
    """A French text with other spaces inside numbers, as people type them.

    >>> with_any_space("1\\u202f000 et 2 b", Random(1)) in {f"1{space}000 et 2 b" for space in (" ", NO_BREAK, THIN)}
    True
    """
    return text.replace(THIN, one_of(draw, (" ", " ", NO_BREAK, THIN)))


# --- names ---

_ELIDES = re.compile("[AEIOUÀÂÄÉÈÊËÎÏÔÖÙÛÜH]")
# Regions and countries take other prepositions than towns.
_TOWNS = [
    ("London", "Londres"), ("Vienna", "Vienne"), ("Geneva", "Genève"), ("Brussels", "Bruxelles"), ("Ghent", "Gand"),
    ("Bruges", "Bruges"), ("Lisbon", "Lisbonne"), ("Seville", "Séville"), ("Cordoba", "Cordoue"), ("Barcelona", "Barcelone"),
    ("Turin", "Turin"), ("Venice", "Venise"), ("Florence", "Florence"), ("Naples", "Naples"), ("Genoa", "Gênes"),
    ("Bologna", "Bologne"), ("Thessaloniki", "Thessalonique"), ("Warsaw", "Varsovie"), ("Krakow", "Cracovie"),
    ("Moscow", "Moscou"), ("Saint Petersburg", "Saint-Pétersbourg"), ("Copenhagen", "Copenhague"), ("Beijing", "Pékin"),
    ("Seoul", "Séoul"), ("Tehran", "Téhéran"), ("Baghdad", "Bagdad"), ("Jerusalem", "Jérusalem"), ("Tangier", "Tanger"),
    ("Damascus", "Damas"), ("Singapore", "Singapour"), ("Manila", "Manille"),
    ("Hamburg", "Hambourg"), ("Nuremberg", "Nuremberg"), ("Basel", "Bâle"), ("Bern", "Berne"), ("Cologne", "Cologne"),
    ("Strasbourg", "Strasbourg"), ("Dunkirk", "Dunkerque"),
]  # fmt: skip


def replace_name(pair: Pair, old: Pair, new: Pair) -> Pair | None:
    """The pair with another name in place of the old one; None where the two sides do not agree. French has no genitive, and "de"
    and "que" lose their vowel before another.

    >>> replace_name(("Tom's dog sees Tom.", "Le chien de Tom voit Tom."), ("Tom", "Tom"), ("Ada", "Ada"))
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


NAMING = Naming(
    replace=replace_name,
    same_person={"Mary": "Marie", "John": "Jean"},
    towns={"London": "Londres", **{town: town for town in ("Boston", "Paris", "Chicago", "Kyoto", "Berlin")}},
    exonyms=_TOWNS,
)
