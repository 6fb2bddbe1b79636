"""Measures and sums of money as each language writes them."""

from __future__ import annotations

from random import Random

from scripts.builtin_text.common import Pair, one_of

# One of it, and several, in English and German.
UNITS = [
    ("kilometre", "kilometres", "Kilometer", "Kilometer"), ("metre", "metres", "Meter", "Meter"),
    ("kilometer", "kilometers", "Kilometer", "Kilometer"), ("meter", "meters", "Meter", "Meter"),
    ("centimetre", "centimetres", "Zentimeter", "Zentimeter"), ("mile", "miles", "Meile", "Meilen"),
    ("foot", "feet", "Fuß", "Fuß"), ("inch", "inches", "Zoll", "Zoll"), ("yard", "yards", "Yard", "Yards"),
    ("litre", "litres", "Liter", "Liter"), ("gallon", "gallons", "Gallone", "Gallonen"), ("pint", "pints", "Pint", "Pints"),
    ("kilogram", "kilograms", "Kilogramm", "Kilogramm"), ("kilo", "kilos", "Kilo", "Kilo"), ("gram", "grams", "Gramm", "Gramm"),
    ("tonne", "tonnes", "Tonne", "Tonnen"), ("pound", "pounds", "Pfund", "Pfund"), ("ounce", "ounces", "Unze", "Unzen"),
    ("degree", "degrees", "Grad", "Grad"), ("percent", "percent", "Prozent", "Prozent"),
    ("per cent", "per cent", "Prozent", "Prozent"),
    ("square metre", "square metres", "Quadratmeter", "Quadratmeter"),
    ("hectare", "hectares", "Hektar", "Hektar"), ("megabyte", "megabytes", "Megabyte", "Megabyte"),
    ("watt", "watts", "Watt", "Watt"), ("volt", "volts", "Volt", "Volt"),
    ("mile an hour", "miles an hour", "Meile pro Stunde", "Meilen pro Stunde"),
    ("week", "weeks", "Woche", "Wochen"), ("minute", "minutes", "Minute", "Minuten"), ("hour", "hours", "Stunde", "Stunden"),
]  # fmt: skip
SIGNS = [
    ("€", "€", "Euro"),
    ("$", "$", "Dollar"),
    ("£", "£", "Pfund"),
    ("US$", "US-$", "US-Dollar"),
    ("CHF ", "CHF", "Franken"),
]
CURRENCIES = [
    ("euros", "Euro"), ("dollars", "Dollar"), ("pounds", "Pfund"), ("Swiss francs", "Schweizer Franken"), ("yen", "Yen"),
    ("kroner", "Kronen"), ("roubles", "Rubel"), ("cents", "Cent"), ("pence", "Pence"), ("US dollars", "US-Dollar"),
]  # fmt: skip
EN_TENS = {20: "twenty", 30: "thirty", 40: "forty", 50: "fifty", 60: "sixty", 70: "seventy", 80: "eighty", 90: "ninety"}
DE_TENS = {
    20: "zwanzig",
    30: "dreißig",
    40: "vierzig",
    50: "fünfzig",
    60: "sechzig",
    70: "siebzig",
    80: "achtzig",
    90: "neunzig",
}
EN_SMALL = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
).split()
DE_SMALL = (
    "null ein zwei drei vier fünf sechs sieben acht neun zehn elf zwölf dreizehn vierzehn fünfzehn sechzehn siebzehn "
    "achtzehn neunzehn"
).split()


def spelled(number: int) -> Pair:
    """A number below 1,000,000 in words.

    >>> spelled(45), spelled(1250)
    (('forty-five', 'fünfundvierzig'), ('one thousand two hundred and fifty', 'eintausendzweihundertfünfzig'))
    """
    if number < 20:
        return EN_SMALL[number], "eins" if number == 1 else DE_SMALL[number]
    if number < 100:
        tens, ones = number // 10 * 10, number % 10
        if not ones:
            return EN_TENS[tens], DE_TENS[tens]
        return f"{EN_TENS[tens]}-{EN_SMALL[ones]}", f"{DE_SMALL[ones]}und{DE_TENS[tens]}"
    step, english, german = (1000, "thousand", "tausend") if number >= 1000 else (100, "hundred", "hundert")
    many, rest = divmod(number, step)
    head = spelled(many)
    begin = f"{head[0]} {english}", f"{'ein' if many == 1 else head[1]}{german}"
    if not rest:
        return begin
    end = spelled(rest)
    return f"{begin[0]} {'and ' if rest < 100 else ''}{end[0]}", begin[1] + end[1]


def draw_number(draw: Random) -> Pair:
    """A number above 1 as it is written: 3, 2.5, 12,600, forty-five."""
    chance = draw.random()
    if chance < 0.25:
        return spelled(2 + int(draw.random() ** 2 * 98))
    if chance < 0.45:
        number = str(2 + int(draw.random() ** 2 * 998))
        return number, number
    if chance < 0.75:
        decimals = 1 + int(draw.random() * 2)
        number = f"{draw.random() ** 2 * 200:.{decimals}f}"
        return number, number.replace(".", ",")
    return _grouped(1000 + int(draw.random() ** 4 * 2_000_000))


def _grouped(number: int) -> Pair:
    text = f"{number:,}"
    return text, text.replace(",", ".")


def draw_measure(draw: Random) -> Pair:
    one, several, german, german_several = one_of(draw, UNITS)
    chance = draw.random()
    if chance < 0.05:
        begin = ("a", "an")[one[0] in "aeiou" or one.startswith("hour")]
        article = "eine" if german[-1] == "e" else "ein"
        return f"{begin} {one}", f"{article} {german}"
    number = draw_number(draw)
    return f"{number[0]} {several}", f"{number[1]} {german_several}"


def draw_money(draw: Random) -> Pair:
    chance = draw.random()
    if chance < 0.2:
        scale = one_of(draw, [("million", "Millionen"), ("billion", "Milliarden")])
        amount = f"{1.1 + draw.random() ** 2 * 90:.{int(draw.random() * 3)}f}"
        currency = one_of(draw, CURRENCIES[:7])
        return f"{amount} {scale[0]} {currency[0]}", f"{amount.replace('.', ',')} {scale[1]} {currency[1]}"
    if chance < 0.55:
        number = draw_number(draw)
        currency = one_of(draw, CURRENCIES)
        return f"{number[0]} {currency[0]}", f"{number[1]} {currency[1]}"
    sign, german_sign, word = one_of(draw, SIGNS)
    cents, whole = f"{draw.random() ** 3 * 20_000:,.2f}", f"{2 + int(draw.random() ** 4 * 900_000):,}"
    amount = one_of(draw, (cents, whole))
    german = amount.translate(str.maketrans(",.", ".,"))
    return f"{sign}{amount}", f"{german} {one_of(draw, (german_sign, word, word))}"


MEASURE_FRAMES = [
    ("It is {t} from here to the coast.", "Von hier bis zur Küste sind es {t}."),
    ("We still have {t} left.", "Wir haben noch {t} übrig."),
    ("That makes {t} in total.", "Das macht insgesamt {t}."),
    ("The difference was {t}.", "Der Unterschied betrug {t}."),
    ("She measured exactly {t}.", "Sie hat genau {t} gemessen."),
    ("At least {t} are needed.", "Es werden mindestens {t} gebraucht."),
    ("{t} is too much.", "{t} sind zu viel."),
    ("Only {t} were left after the fire.", "Nach dem Brand waren nur noch {t} übrig."),
    ("It has grown by {t}.", "Es ist um {t} gewachsen."),
    ("Last year it was more than {t}.", "Letztes Jahr waren es mehr als {t}."),
    ("I would have guessed {t}.", "Ich hätte {t} geschätzt."),
    ("Length: {t}", "Länge: {t}"),
    ("Do not use more than {t}.", "Verwenden Sie nicht mehr als {t}."),
    ("He said it was nearly {t}.", "Er sagte, es seien fast {t}."),
]
MONEY_FRAMES = [
    ("It costs {t}.", "Es kostet {t}."),
    ("I paid {t} for it.", "Ich habe dafür {t} bezahlt."),
    ("The price has risen to {t}.", "Der Preis ist auf {t} gestiegen."),
    ("She gave him {t}.", "Sie gab ihm {t}."),
    ("They want {t} for the car.", "Sie wollen {t} für das Auto."),
    ("The damage amounts to {t}.", "Der Schaden beträgt {t}."),
    ("He still owes me {t}.", "Er schuldet mir noch {t}."),
    ("With {t} you won't get far.", "Mit {t} kommst du nicht weit."),
    ("The project received {t} last year.", "Das Projekt hat letztes Jahr {t} erhalten."),
    ("We saved {t}.", "Wir haben {t} gespart."),
    ("Total: {t}", "Summe: {t}"),
    ("The rent is {t} a month.", "Die Miete beträgt {t} im Monat."),
    ("Who would pay {t} for that?", "Wer würde dafür {t} bezahlen?"),
]
