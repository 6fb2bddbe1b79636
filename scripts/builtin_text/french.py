"""French times of day, dates, measures, sums of money, and the sentences around them and around words."""

from __future__ import annotations

import re
from random import Random

from scripts.builtin_text.amounts import CURRENCIES as _GERMAN_CURRENCIES
from scripts.builtin_text.amounts import EN_SMALL, EN_TENS
from scripts.builtin_text.clock import EN_MINUTES, EN_MONTHS, EN_WORDS, Clock, one_way
from scripts.builtin_text.common import Pair, one_of

THIN = "\u202f"  # between thousands
NO_BREAK = "\u00a0"
WORDS = "zéro une deux trois quatre cinq six sept huit neuf dix onze douze".split()
MINUTES = {5: "cinq", 10: "dix", 20: "vingt", 25: "vingt-cinq"}
DAYS = "lundi mardi mercredi jeudi vendredi samedi dimanche".split()
MONTHS = "janvier février mars avril mai juin juillet août septembre octobre novembre décembre".split()
PART_OF_DAY = re.compile(r"\b(?:du matin|du soir|de l['’]après-midi|de la nuit)\b")
MENTIONS = re.compile(r"\bheures?\b|\bmidi\b|\d ?h\b")


# --- times and dates ---


def _hours(hour: int) -> str:
    return "midi" if hour == 12 else f"{WORDS[hour]} heure{'s' * (hour > 1)}"


def spoken_times(hour: int, minute: int) -> list[Pair]:
    """How people say a time of the clock's twelve hours.

    >>> spoken_times(7, 30)[0], spoken_times(12, 45)[0]
    (('half past seven', 'sept heures et demie'), ('a quarter to one', 'une heure moins le quart'))
    """
    word, after = EN_WORDS[hour], EN_WORDS[hour % 12 + 1]
    french, french_after = _hours(hour), _hours(hour % 12 + 1)
    digits = f"{hour} h"
    if minute == 0:
        whole = f"{hour} heure{'s' * (hour > 1)}"
        return [(f"{word} o'clock", french), (f"{word} o'clock", french), (f"{hour} o'clock", whole), (word, french)]
    if minute == 30:
        half = f"{french} et demi{'e' * (hour != 12)}"
        return [
            (f"half past {word}", half),
            (f"half past {word}", half),
            (f"{word} thirty", f"{french} trente" if hour != 12 else half),
            (f"half {word}", half),  # British
            (f"{hour}:30", f"{digits} 30"),
        ]
    if minute == 15:
        quarter = f"{french} et quart"
        return [(f"a quarter past {word}", quarter), (f"quarter past {word}", quarter), (f"{hour}:15", f"{digits} 15")]
    if minute == 45:
        quarter = f"{french_after} moins le quart"
        return [(f"a quarter to {after}", quarter), (f"quarter to {after}", quarter), (f"{hour}:45", f"{digits} 45")]
    if minute < 30:
        few, time = EN_MINUTES[minute], f"{french} {MINUTES[minute]}"
        return [(f"{few} past {word}", time), (f"{few} past {word}", time), (f"{few} minutes past {word}", time)]
    few, time = EN_MINUTES[60 - minute], f"{french_after} moins {MINUTES[60 - minute]}"
    return [(f"{few} to {after}", time), (f"{few} to {after}", time), (f"{few} minutes to {after}", time)]


def written_times(hour: int, minute: int) -> list[Pair]:
    """How a time of the day's 24 hours is written.

    >>> written_times(14, 5)[0]
    ('2:05 p.m.', '14 h 05')
    """
    half, twelve = ("a.m.", hour % 12 or 12) if hour < 12 else ("p.m.", hour % 12 or 12)
    short, mark = half.replace(".", ""), f"{hour}:{minute:02d}"
    french = f"{hour} h {minute:02d}" if minute else f"{hour} h"
    times = [
        (f"{twelve}:{minute:02d} {half}", french),
        (f"{twelve}:{minute:02d}{one_way(short, minute)}", french),
        (mark, french),
        (mark, french.replace(" ", "")),
        (mark, mark),
    ]
    if minute == 0:
        whole = f"{hour} heure{'s' * (hour > 1)}"
        times += [(f"{twelve} {half}", whole), (f"{twelve} {short}", whole), (f"{twelve}{short}", french)]
    return times


def day_times(hour: int) -> list[Pair]:
    """Full hours with a part of the day."""
    if hour in (0, 12):
        return [("noon", "midi") if hour else ("midnight", "minuit")]
    part = ("in the morning", "du matin") if 4 <= hour < 12 else ("in the afternoon", "de l'après-midi")
    part = ("at night", "du matin") if hour < 4 else ("in the evening", "du soir") if hour >= 18 else part
    twelve = hour % 12 or 12
    whole = f"heure{'s' * (twelve > 1)}"
    return [
        (f"{EN_WORDS[twelve]} o'clock {part[0]}", f"{WORDS[twelve]} {whole} {part[1]}"),
        (f"{twelve} {part[0]}", f"{twelve} {whole} {part[1]}"),
    ]


def draw_date(draw: Random) -> Pair:
    """A day, often with the year.

    >>> draw_date(Random(1))[1].split()[1] in MONTHS
    True
    """
    month, day, year = int(draw.random() * 12), 1 + int(draw.random() * 28), 1700 + int(draw.random() * 360)
    ending = "th" if 10 < day < 14 else {1: "st", 2: "nd", 3: "rd"}.get(day % 10, "th")
    english, french = EN_MONTHS[month], f"{'1er' if day == 1 else day} {MONTHS[month]}"
    if draw.random() < 0.4:
        ways = [f"{english} {day}", f"{english} {day}{ending}", f"{day} {english}", f"the {day}{ending} of {english}"]
        return one_of(draw, ways), french
    ways = [f"{english} {day}, {year}", f"{english} {day}{ending}, {year}", f"{day} {english} {year}"]
    return one_of(draw, ways), f"{french} {year}"


def is_usual(pair: Pair) -> bool:
    """Whether the French side is what is usual in print: "7 h 30", and digits for digits.

    >>> is_usual(("at 7:30", "à 7h30")), is_usual(("at 7:30", "à 7 h 30")), is_usual(("at 7:30", "à sept heures et demie"))
    (False, True, False)
    """
    english, french = pair
    is_spoken = re.search(r"\b(?:et demie?|et quart|moins le quart)\b", french) and re.search(r"\d:\d\d", english)
    return not is_spoken and not re.search(r"\dh(?:\d|\b)|\d:\d\d", french)


TIME_FRAMES = [
    ("The meeting begins at {t}.", "La réunion commence à {t}."),
    ("On {d} we always eat at {t}.", "Le {d}, nous mangeons toujours à {t}."),
    ("He called me at {t}.", "Il m'a appelé à {t}."),
    ("I usually go to bed at {t}.", "Je me couche d'habitude à {t}."),
    ("We left the house at {t}.", "Nous avons quitté la maison à {t}."),
    ("The bus comes at {t}.", "Le bus passe à {t}."),
    ("Can you be here at {t}?", "Peux-tu être ici à {t} ?"),
    ("The doors open at {t}.", "Les portes ouvrent à {t}."),
    ("It's {t}.", "Il est {t}."),
    ("It was {t} when she came back.", "Il était {t} quand elle est revenue."),
    ("What were you doing at {t}?", "Que faisais-tu à {t} ?"),
    ("She has to get up at {t} on {d}.", "Elle doit se lever à {t} {d}."),
    ("I waited until {t}.", "J'ai attendu jusqu'à {t}."),
    ("The office is open until {t}.", "Le bureau est ouvert jusqu'à {t}."),
    ("Please come before {t}.", "Venez avant {t}, s'il vous plaît."),
    ("After {t} nobody answers the phone.", "Après {t}, plus personne ne répond au téléphone."),
    ("We have been sitting here since {t}.", "Nous sommes assis ici depuis {t}."),
    ("The accident happened at about {t}.", "L'accident s'est produit vers {t}."),
    ("He was born at {t} on a {d}.", "Il est né un {d} à {t}."),
    ("Our plane takes off at {t}.", "Notre avion décolle à {t}."),
    ("The lesson ends at {t}.", "Le cours se termine à {t}."),
    ("I finish work at {t}.", "Je finis le travail à {t}."),
    ("Wake me at {t}, please.", "Réveille-moi à {t}, s'il te plaît."),
    ("At {t} it was still dark.", "À {t}, il faisait encore nuit."),
    ("The film starts at {t}, so hurry up.", "Le film commence à {t}, alors dépêche-toi."),
    ("See you on {d} at {t}!", "À {d}, {t} !"),
    ("My watch says {t}.", "Il est {t} à ma montre."),
    ("They arrived at {t} in the rain.", "Ils sont arrivés à {t} sous la pluie."),
    ("The doctor can see you at {t}.", "Le médecin peut vous recevoir à {t}."),
    ("Is {t} too early for you?", "Est-ce que {t}, c'est trop tôt pour toi ?"),
    ("We could also meet at {t}.", "On pourrait aussi se retrouver à {t}."),
    ("Delivery on {d} from {t}", "Livraison {d} à partir de {t}"),
]
DATE_FRAMES = [
    ("He died on {t}.", "Il est mort le {t}."),
    ("The course starts on {t}.", "Le cours commence le {t}."),
    ("On {t} the new law came into force.", "Le {t}, la nouvelle loi est entrée en vigueur."),
    ("The town was founded on {t}.", "La ville a été fondée le {t}."),
    ("Her birthday is on {t}.", "Son anniversaire est le {t}."),
    ("We need your answer by {t}.", "Il nous faut votre réponse d'ici le {t}."),
    ("The shop will be closed until {t}.", "Le magasin sera fermé jusqu'au {t}."),
    ("Since {t} the price has been higher.", "Depuis le {t}, le prix est plus élevé."),
    ("It happened on the night of {t}.", "C'est arrivé dans la nuit du {t}."),
    ("The contract of {t} is still valid.", "Le contrat du {t} est toujours valable."),
    ("Today is {t}.", "Nous sommes le {t}."),
    ("Is {t} a public holiday?", "Le {t} est-il un jour férié ?"),
    ("The parcel was sent on {t}.", "Le colis a été envoyé le {t}."),
    ("Her letter is dated {t}.", "Sa lettre est datée du {t}."),
    ("Before {t} nothing will change.", "Avant le {t}, rien ne changera."),
]

# --- numbers, measures, money ---

_SMALL = (
    "zéro un deux trois quatre cinq six sept huit neuf dix onze douze treize quatorze quinze seize dix-sept dix-huit dix-neuf"
).split()
_TENS = {20: "vingt", 30: "trente", 40: "quarante", 50: "cinquante", 60: "soixante", 80: "quatre-vingt"}
# One of it, and several, in English and French.
UNITS = [
    ("kilometre", "kilometres", "kilomètre", "kilomètres"), ("metre", "metres", "mètre", "mètres"),
    ("kilometer", "kilometers", "kilomètre", "kilomètres"), ("meter", "meters", "mètre", "mètres"),
    ("centimetre", "centimetres", "centimètre", "centimètres"), ("mile", "miles", "mile", "miles"),
    ("foot", "feet", "pied", "pieds"), ("inch", "inches", "pouce", "pouces"), ("litre", "litres", "litre", "litres"),
    ("gallon", "gallons", "gallon", "gallons"), ("kilogram", "kilograms", "kilogramme", "kilogrammes"),
    ("kilo", "kilos", "kilo", "kilos"), ("gram", "grams", "gramme", "grammes"), ("tonne", "tonnes", "tonne", "tonnes"),
    ("degree", "degrees", "degré", "degrés"), ("percent", "percent", "pour cent", "pour cent"),
    ("per cent", "per cent", "pour cent", "pour cent"), ("square metre", "square metres", "mètre carré", "mètres carrés"),
    ("hectare", "hectares", "hectare", "hectares"), ("megabyte", "megabytes", "mégaoctet", "mégaoctets"),
    ("watt", "watts", "watt", "watts"), ("volt", "volts", "volt", "volts"),
    ("kilometre per hour", "kilometres per hour", "kilomètre par heure", "kilomètres par heure"),
    ("week", "weeks", "semaine", "semaines"), ("minute", "minutes", "minute", "minutes"), ("hour", "hours", "heure", "heures"),
]  # fmt: skip
_FEMININE = frozenset("tonne semaine minute heure".split())
SIGNS = [("€", "€", "euros"), ("$", "$", "dollars"), ("£", "£", "livres"), ("US$", "$ US", "dollars américains"),
         ("CHF ", "CHF", "francs suisses")]  # fmt: skip
_CURRENCY_NAMES = ("euros", "dollars", "livres", "francs suisses", "yens", "couronnes", "roubles", "centimes", "pence",
                   "dollars américains")  # fmt: skip
CURRENCIES = [(english, french) for (english, _), french in zip(_GERMAN_CURRENCIES, _CURRENCY_NAMES, strict=True)]


def spelled(number: int) -> Pair:
    """A number below 1,000,000 in words, with hyphens below a hundred.

    >>> spelled(71)[1], spelled(80)[1], spelled(95)[1], spelled(201)[1], spelled(1250)
    ('soixante et onze', 'quatre-vingts', 'quatre-vingt-quinze', 'deux cent un', \
('one thousand two hundred and fifty', 'mille deux cent cinquante'))
    """
    return _english(number), _french(number)


def _english(number: int) -> str:
    if number < 20:
        return EN_SMALL[number]
    if number < 100:
        tens, ones = number // 10 * 10, number % 10
        return EN_TENS[tens] + (f"-{EN_SMALL[ones]}" if ones else "")
    step, word = (1000, "thousand") if number >= 1000 else (100, "hundred")
    many, rest = divmod(number, step)
    return f"{_english(many)} {word}" + (f" {'and ' if rest < 100 else ''}{_english(rest)}" if rest else "")


def _french(number: int, ends: bool = True) -> str:
    """`ends`: nothing follows, so that "cent" and "quatre-vingt" take an s after a factor."""
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
        head = "mille" if many == 1 else f"{_french(many, ends=False)} mille"
    return f"{head} {_french(rest, ends)}" if rest else head


def in_digits(text: str) -> str:
    """An English number as French writes it.

    >>> in_digits("12,600.5").replace(THIN, "_")
    '12_600,5'
    """
    return text.replace(",", THIN).replace(".", ",")


def draw_number(draw: Random) -> tuple[str, str, float]:
    """A number above 1 as it is written, 3, 2.5, 12,600, forty-five; and its value."""
    chance = draw.random()
    if chance < 0.25:
        number = 2 + int(draw.random() ** 2 * 98)
        return *spelled(number), number
    if chance < 0.45:
        number = 2 + int(draw.random() ** 2 * 998)
        return str(number), str(number), number
    if chance < 0.75:
        text = f"{draw.random() ** 2 * 200:.{1 + int(draw.random() * 2)}f}"
        return text, in_digits(text), float(text)
    number = 1000 + int(draw.random() ** 4 * 2_000_000)
    return f"{number:,}", in_digits(f"{number:,}"), number


def draw_measure(draw: Random) -> Pair:
    one, several, french, french_several = one_of(draw, UNITS)
    if draw.random() < 0.05:
        begin = ("a", "an")[one[0] in "aeiou" or one.startswith("hour")]
        article = "une" if french.split()[0] in _FEMININE else "un"
        return f"{begin} {one}", f"{article} {french}" if french != "pour cent" else "un pour cent"
    english, number, value = draw_number(draw)
    if french in _FEMININE and re.search(r"\bun$", number):  # vingt et une heures
        number += "e"
    return f"{english} {several}", f"{number} {french_several if value >= 2 else french}"


def draw_money(draw: Random) -> Pair:
    chance = draw.random()
    if chance < 0.2:
        scale, french = one_of(draw, [("million", "million"), ("billion", "milliard")])
        amount = f"{1.1 + draw.random() ** 2 * 90:.{int(draw.random() * 3)}f}"
        currency = one_of(draw, CURRENCIES[:7])
        of = "d'" if currency[1][0] in "aeiou" else "de "
        plural = "s" * (float(amount) >= 2)
        return f"{amount} {scale} {currency[0]}", f"{in_digits(amount)} {french}{plural} {of}{currency[1]}"
    if chance < 0.55:
        english, number, value = draw_number(draw)
        currency = one_of(draw, CURRENCIES)
        if currency[1] in ("livres", "couronnes") and re.search(r"\bun$", number):
            number += "e"
        name = currency[1] if value >= 2 else re.sub(r"s\b", "", currency[1])
        return f"{english} {currency[0]}", f"{number} {name}"
    sign, french_sign, word = one_of(draw, SIGNS)
    cents, whole = f"{draw.random() ** 3 * 20_000 + 2:,.2f}", f"{2 + int(draw.random() ** 4 * 900_000):,}"
    amount = one_of(draw, (cents, whole))
    return f"{sign}{amount}", f"{in_digits(amount)} {one_of(draw, (french_sign, french_sign, word))}"


MEASURE_FRAMES = [
    ("It is {t} from here to the coast.", "Il y a {t} d'ici à la côte."),
    ("We still have {t} left.", "Il nous reste encore {t}."),
    ("That makes {t} in total.", "Cela fait {t} au total."),
    ("The difference was {t}.", "La différence était de {t}."),
    ("She measured exactly {t}.", "Elle a mesuré exactement {t}."),
    ("At least {t} are needed.", "Il faut au moins {t}."),
    ("{t} is too much.", "{t}, c'est trop."),
    ("Only {t} were left after the fire.", "Il ne restait que {t} après l'incendie."),
    ("It has grown by {t}.", "Il a augmenté de {t}."),
    ("Last year it was more than {t}.", "L'année dernière, c'était plus de {t}."),
    ("I would have guessed {t}.", "J'aurais dit {t}."),
    ("Length: {t}", "Longueur : {t}"),
    ("Do not use more than {t}.", "N'utilisez pas plus de {t}."),
    ("He said it was nearly {t}.", "Il a dit que c'était presque {t}."),
]
MONEY_FRAMES = [
    ("It costs {t}.", "Cela coûte {t}."),
    ("I paid {t} for it.", "Je l'ai payé {t}."),
    ("The price has risen to {t}.", "Le prix est passé à {t}."),
    ("She gave him {t}.", "Elle lui a donné {t}."),
    ("They want {t} for the car.", "Ils veulent {t} pour la voiture."),
    ("The damage amounts to {t}.", "Les dégâts s'élèvent à {t}."),
    ("He still owes me {t}.", "Il me doit encore {t}."),
    ("With {t} you won't get far.", "Avec {t}, tu n'iras pas loin."),
    ("The project received {t} last year.", "Le projet a reçu {t} l'année dernière."),
    ("We saved {t}.", "Nous avons économisé {t}."),
    ("Total: {t}", "Total : {t}"),
    ("The rent is {t} a month.", "Le loyer est de {t} par mois."),
    ("Who would pay {t} for that?", "Qui paierait {t} pour cela ?"),
]

# --- around words ---

HEADS = [
    ("", ""), ("", ""), ("", ""), ("Needed: ", "Il faut : "), ("Keywords: ", "Mots clés : "), ("For sale: ", "À vendre : "),
    ("Not included: ", "Non compris : "), ("The list says: ", "Sur la liste : "), ("- ", "- "), ("• ", "• "),
]  # fmt: skip
QUOTED = [
    ('The word "{w}" is missing.', "Il manque le mot «\u00a0{w}\u00a0»."),
    ('He shouted "{w}" several times.', "Il a crié plusieurs fois «\u00a0{w}\u00a0»."),
    ('What does "{w}" mean?', "Que veut dire «\u00a0{w}\u00a0» ?"),
    ('On the box it says "{w}".', "Sur la boîte, il est écrit «\u00a0{w}\u00a0»."),
    ('They call it "{w}".', "Ils appellent cela «\u00a0{w}\u00a0»."),
    ('"{w}" is not the right word.', "«\u00a0{w}\u00a0» n'est pas le bon mot."),
    ('Look under "{w}" in the index.', "Regarde à «\u00a0{w}\u00a0» dans l'index."),
    ('The chapter "{w}" is short.', "Le chapitre «\u00a0{w}\u00a0» est court."),
    ('Someone wrote "{w}" on the wall.', "Quelqu'un a écrit «\u00a0{w}\u00a0» sur le mur."),
]
SPOKEN = [
    ('"{s}," said {n}.', "«\u00a0{s}\u00a0», dit {n}."),
    ('"{s}," {n} whispered.', "«\u00a0{s}\u00a0», murmura {n}."),
    ('{n} said: "{s}."', "{n} a dit\u00a0: «\u00a0{s}.\u00a0»"),
    ('"{s}," she replied.', "«\u00a0{s}\u00a0», répondit-elle."),
    ("“{s},” he said at last.", "«\u00a0{s}\u00a0», dit-il enfin."),
    ('I heard him say, "{s}."', "Je l'ai entendu dire\u00a0: «\u00a0{s}.\u00a0»"),
]
TOWNS = [
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


def with_any_space(text: str, draw: Random) -> str:
    """A French text with other spaces inside numbers, as people type them.

    >>> with_any_space("1\\u202f000 et 2 b", Random(1)) in {f"1{space}000 et 2 b" for space in (" ", NO_BREAK, THIN)}
    True
    """
    return text.replace(THIN, one_of(draw, (" ", " ", NO_BREAK, THIN)))


CLOCK = Clock(
    spoken_times, written_times, day_times, DAYS, MENTIONS, PART_OF_DAY,
    re.compile(r"(?:demie?|quart|moins \w+|heures? \w+) (?:heures?|h)\b|\bdes? midi\b|\bles midi\b"),
)  # fmt: skip
