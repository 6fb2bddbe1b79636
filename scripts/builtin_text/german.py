"""German times of day, dates, measures, sums of money and names, beside English."""

from __future__ import annotations

import re
from random import Random

from scripts.builtin_text import clock
from scripts.builtin_text.amounts import UNITS, Amounts, Forms, Number
from scripts.builtin_text.clock import Clock
from scripts.builtin_text.common import Pair
from scripts.builtin_text.names import Naming

# --- times and dates ---

_WORDS = "null eins zwei drei vier fünf sechs sieben acht neun zehn elf zwölf".split()
_MINUTES = {5: "fünf", 10: "zehn", 20: "zwanzig", 25: "fünfundzwanzig"}
DAYS = "Montag Dienstag Mittwoch Donnerstag Freitag Samstag Sonntag".split()
MONTHS = "Januar Februar März April Mai Juni Juli August September Oktober November Dezember".split()
_PARTS_OF_DAY = {
    "in the morning": "morgens", "in the afternoon": "nachmittags", "in the evening": "abends", "at night": "nachts",
}  # fmt: skip


def _hour(hour: int) -> str:
    return "ein" if hour == 1 else _WORDS[hour]


def spoken_times(hour: int, minute: int) -> list[Pair]:
    """How people say a time of the clock's twelve hours.

    >>> spoken_times(7, 30)[0]
    ('half past seven', 'halb acht')
    """
    ways, word, after = clock.spoken(hour, minute), _WORDS[hour], _WORDS[hour % 12 + 1]
    if minute == 0:
        return list(zip(ways, (f"{_hour(hour)} Uhr", f"{hour} Uhr", word), strict=True))
    if minute == 45:
        with_article, without, _ = ways
        regional = (without, f"drei viertel {after}")
        return [(with_article, f"Viertel vor {after}"), (without, f"Viertel vor {after}"), regional]
    if minute == 30:
        time = f"halb {after}"
    elif minute == 15:
        time = f"Viertel nach {word}"
    else:
        time = f"{_MINUTES[minute]} nach {word}" if minute < 30 else f"{_MINUTES[60 - minute]} vor {after}"
    return [(way, time) for way in ways]


def written_times(hour: int, minute: int) -> list[Pair]:
    """How a time of the day's 24 hours is written.

    >>> written_times(14, 5)[0]
    ('2:05 p.m.', '14:05 Uhr')
    """
    ways = clock.written(hour, minute)
    time = f"{ways.mark} Uhr"
    times = [(way, time) for way in (*ways.minutes, ways.mark)]
    times.append((ways.mark, f"{ways.mark.replace(':', '.')} Uhr"))
    if minute == 0:
        times += [(way, f"{hour} Uhr") for way in ways.hours]
        times.append((ways.hours[0], time))
    return times


def day_times(hour: int) -> list[Pair]:
    """Full hours with a part of the day."""
    ways = clock.of_day(hour)
    if hour in (0, 12):
        return [(ways[0], "zwölf Uhr mittags" if hour else "Mitternacht")]
    part, twelve = _PARTS_OF_DAY[clock.part_of_day(hour)], hour % 12 or 12
    return list(zip(ways, (f"{_hour(twelve)} Uhr {part}", f"{twelve} Uhr {part}"), strict=True))


def draw_date(draw: Random) -> Pair:
    """A day, often with the year.

    >>> draw_date(Random(1))[1].split()[1] in MONTHS
    True
    """
    date = clock.draw_date(draw)
    german = f"{date.day}. {MONTHS[date.month]}"
    return date.english, german if date.year is None else f"{german} {date.year}"


def is_usual(pair: Pair) -> bool:
    """Whether the German side is what most people would write: nothing regional, a colon in digits, digits for digits.

    >>> is_usual(("at quarter to five", "um drei viertel fünf")), is_usual(("at 7:30", "um 7:30 Uhr"))
    (False, True)
    """
    english, german = pair
    is_spoken = re.search(r"\b(?:halb|Viertel) ", german) and re.search(r"\d:\d\d", english)
    return not is_spoken and "drei viertel" not in german and not re.search(r"\d\.\d\d Uhr", german)


CLOCK = Clock(
    spoken_times, written_times, day_times, DAYS,
    mentions=re.compile("Uhr|halb|iertel"),
    part_of_day=re.compile(r"\b(?:früh|morgens|vormittags|mittags|nachmittags|abends|nachts)\b"),
    is_odd=re.compile(r"\b(?:halb|nach|vor) \w+ Uhr\b"),
)  # fmt: skip

# --- measures and money ---

_TENS = {
    20: "zwanzig", 30: "dreißig", 40: "vierzig", 50: "fünfzig", 60: "sechzig", 70: "siebzig", 80: "achtzig", 90: "neunzig",
}  # fmt: skip
_SMALL = (
    "null ein zwei drei vier fünf sechs sieben acht neun zehn elf zwölf dreizehn vierzehn fünfzehn sechzehn siebzehn "
    "achtzehn neunzehn"
).split()


def spelled(number: int) -> str:
    """A number below 1,000,000 in words.

    >>> spelled(1), spelled(45), spelled(1250)
    ('eins', 'fünfundvierzig', 'eintausendzweihundertfünfzig')
    """
    if number < 20:
        return "eins" if number == 1 else _SMALL[number]
    if number < 100:
        tens, ones = number // 10 * 10, number % 10
        return f"{_SMALL[ones]}und{_TENS[tens]}" if ones else _TENS[tens]
    step, word = (1000, "tausend") if number >= 1000 else (100, "hundert")
    many, rest = divmod(number, step)
    return f"{'ein' if many == 1 else spelled(many)}{word}" + (spelled(rest) if rest else "")


def in_digits(text: str) -> str:
    """An English number as German writes it.

    >>> in_digits("12,600.5")
    '12.600,5'
    """
    return text.translate(str.maketrans(",.", ".,"))


def _number(number: Number) -> str:
    return spelled(int(number.value)) if number.in_words else in_digits(number.english)


def _measure(number: Number, forms: Forms) -> str:
    return f"{_number(number)} {forms[1]}"


def _scaled(amount: str, scale: str, currency: str) -> str:
    return f"{in_digits(amount)} {'Millionen' if scale == 'million' else 'Milliarden'} {currency}"


AMOUNTS = Amounts(
    units=[(one, several, german) for one, several, german, _ in UNITS if german],
    currencies=(
        "Euro", "Dollar", "Pfund", "Schweizer Franken", "Yen", "Kronen", "Rubel", "Cent", "Pence", "US-Dollar",
    ),
    signs=[
        (sign, word, word)
        for sign, word in (("€", "Euro"), ("$", "Dollar"), ("£", "Pfund"), ("US-$", "US-Dollar"), ("CHF", "Franken"))
    ],
    one=lambda unit: f"{'eine' if unit[-1] == 'e' else 'ein'} {unit}",
    measure=_measure,
    money=lambda number, currency: f"{_number(number)} {currency}",
    scaled=_scaled,
    in_digits=in_digits,
)  # fmt: skip

# --- names ---

_NO_GENITIVE = ("s", "x", "z", "ß", "ce")  # German writes those with an apostrophe


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


NAMING = Naming(
    replace=replace_name,
    same_person={"Mary": "Maria", "John": "Johannes"},
    towns={
        town: town
        for town in ("Boston", "Berlin", "London", "Paris", "Chicago", "Kyoto", "Hamburg", "Osaka", "Sydney")
    },
)  # fmt: skip
