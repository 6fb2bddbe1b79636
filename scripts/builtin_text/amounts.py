"""Measures and sums of money in English, beside which `german.py` and `french.py` put theirs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

from scripts.builtin_text.common import Pair, one_of

Forms = tuple[str, str]  # of one, and of several
# One of it, and several, in English, German and French; None: not in this language.
UNITS: Sequence[tuple[str, str, Forms | None, Forms | None]] = [
    ("kilometre", "kilometres", ("Kilometer", "Kilometer"), ("kilomètre", "kilomètres")),
    ("metre", "metres", ("Meter", "Meter"), ("mètre", "mètres")),
    ("kilometer", "kilometers", ("Kilometer", "Kilometer"), ("kilomètre", "kilomètres")),
    ("meter", "meters", ("Meter", "Meter"), ("mètre", "mètres")),
    ("centimetre", "centimetres", ("Zentimeter", "Zentimeter"), ("centimètre", "centimètres")),
    ("mile", "miles", ("Meile", "Meilen"), ("mile", "miles")),
    ("foot", "feet", ("Fuß", "Fuß"), ("pied", "pieds")),
    ("inch", "inches", ("Zoll", "Zoll"), ("pouce", "pouces")),
    ("yard", "yards", ("Yard", "Yards"), None),
    ("litre", "litres", ("Liter", "Liter"), ("litre", "litres")),
    ("gallon", "gallons", ("Gallone", "Gallonen"), ("gallon", "gallons")),
    ("pint", "pints", ("Pint", "Pints"), None),
    ("kilogram", "kilograms", ("Kilogramm", "Kilogramm"), ("kilogramme", "kilogrammes")),
    ("kilo", "kilos", ("Kilo", "Kilo"), ("kilo", "kilos")),
    ("gram", "grams", ("Gramm", "Gramm"), ("gramme", "grammes")),
    ("tonne", "tonnes", ("Tonne", "Tonnen"), ("tonne", "tonnes")),
    ("pound", "pounds", ("Pfund", "Pfund"), None),
    ("ounce", "ounces", ("Unze", "Unzen"), None),
    ("degree", "degrees", ("Grad", "Grad"), ("degré", "degrés")),
    ("percent", "percent", ("Prozent", "Prozent"), ("pour cent", "pour cent")),
    ("per cent", "per cent", ("Prozent", "Prozent"), ("pour cent", "pour cent")),
    ("square metre", "square metres", ("Quadratmeter", "Quadratmeter"), ("mètre carré", "mètres carrés")),
    ("hectare", "hectares", ("Hektar", "Hektar"), ("hectare", "hectares")),
    ("megabyte", "megabytes", ("Megabyte", "Megabyte"), ("mégaoctet", "mégaoctets")),
    ("watt", "watts", ("Watt", "Watt"), ("watt", "watts")),
    ("volt", "volts", ("Volt", "Volt"), ("volt", "volts")),
    ("mile an hour", "miles an hour", ("Meile pro Stunde", "Meilen pro Stunde"), None),
    ("kilometre per hour", "kilometres per hour", None, ("kilomètre par heure", "kilomètres par heure")),
    ("week", "weeks", ("Woche", "Wochen"), ("semaine", "semaines")),
    ("minute", "minutes", ("Minute", "Minuten"), ("minute", "minutes")),
    ("hour", "hours", ("Stunde", "Stunden"), ("heure", "heures")),
]
CURRENCIES = ("euros", "dollars", "pounds", "Swiss francs", "yen", "kroner", "roubles", "cents", "pence", "US dollars")
SIGNS = ("€", "$", "£", "US$", "CHF ")
_TENS = {20: "twenty", 30: "thirty", 40: "forty", 50: "fifty", 60: "sixty", 70: "seventy", 80: "eighty", 90: "ninety"}
_SMALL = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
).split()


def spelled(number: int) -> str:
    """A number below 1,000,000 in words.

    >>> spelled(45), spelled(1250)
    ('forty-five', 'one thousand two hundred and fifty')
    """
    if number < 20:
        return _SMALL[number]
    if number < 100:
        tens, ones = number // 10 * 10, number % 10
        return _TENS[tens] + (f"-{_SMALL[ones]}" if ones else "")
    step, word = (1000, "thousand") if number >= 1000 else (100, "hundred")
    many, rest = divmod(number, step)
    return f"{spelled(many)} {word}" + (f" {'and ' if rest < 100 else ''}{spelled(rest)}" if rest else "")


class Number(NamedTuple):
    """A number as English writes it."""

    english: str
    value: float
    in_words: bool = False


@dataclass(frozen=True)
class Amounts:
    """How a language writes amounts, beside English."""

    units: Sequence[tuple[str, str, Forms]]  # one of it and several in English; both in the language
    currencies: Sequence[str]  # as CURRENCIES
    signs: Sequence[Sequence[str]]  # what may stand after an amount, for each of SIGNS
    one: Callable[[str], str]  # a unit with its article
    measure: Callable[[Number, Forms], str]
    money: Callable[[Number, str], str]  # a number with a currency
    scaled: Callable[[str, str, str], str]  # digits, "million" or "billion", a currency
    in_digits: Callable[[str], str]
    least_cents: float = 0.0  # of a sum with cents


def draw_number(draw: Random) -> Number:
    """A number above 1 as it is written: 3, 2.5, 12,600, forty-five."""
    chance = draw.random()
    if chance < 0.25:
        number = 2 + int(draw.random() ** 2 * 98)
        return Number(spelled(number), number, in_words=True)
    if chance < 0.45:
        number = 2 + int(draw.random() ** 2 * 998)
        return Number(str(number), number)
    if chance < 0.75:
        decimals = 1 + int(draw.random() * 2)
        text = f"{draw.random() ** 2 * 200:.{decimals}f}"
        return Number(text, float(text))
    number = 1000 + int(draw.random() ** 4 * 2_000_000)
    return Number(f"{number:,}", number)


def draw_measure(draw: Random, amounts: Amounts) -> Pair:
    one, several, forms = one_of(draw, amounts.units)
    if draw.random() < 0.05:
        begin = ("a", "an")[one[0] in "aeiou" or one.startswith("hour")]
        return f"{begin} {one}", amounts.one(forms[0])
    number = draw_number(draw)
    return f"{number.english} {several}", amounts.measure(number, forms)


def draw_money(draw: Random, amounts: Amounts) -> Pair:
    chance = draw.random()
    currencies = list(zip(CURRENCIES, amounts.currencies, strict=True))
    if chance < 0.2:
        scale = one_of(draw, ("million", "billion"))
        amount = f"{1.1 + draw.random() ** 2 * 90:.{int(draw.random() * 3)}f}"
        english, other = one_of(draw, currencies[:7])
        return f"{amount} {scale} {english}", amounts.scaled(amount, scale, other)
    if chance < 0.55:
        number = draw_number(draw)
        english, other = one_of(draw, currencies)
        return f"{number.english} {english}", amounts.money(number, other)
    sign, after = one_of(draw, list(zip(SIGNS, amounts.signs, strict=True)))
    cents = f"{draw.random() ** 3 * 20_000 + amounts.least_cents:,.2f}"
    whole = f"{2 + int(draw.random() ** 4 * 900_000):,}"
    amount = one_of(draw, (cents, whole))
    return f"{sign}{amount}", f"{amounts.in_digits(amount)} {one_of(draw, after)}"
