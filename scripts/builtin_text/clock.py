"""Times of day and dates as each language writes them, in sentences made for them and in place of others in real sentences."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from random import Random

from scripts.builtin_text.common import Pair, one_of

EN_WORDS = "zero one two three four five six seven eight nine ten eleven twelve".split()
DE_WORDS = "null eins zwei drei vier fünf sechs sieben acht neun zehn elf zwölf".split()
EN_MINUTES = {5: "five", 10: "ten", 20: "twenty", 25: "twenty-five"}
DE_MINUTES = {5: "fünf", 10: "zehn", 20: "zwanzig", 25: "fünfundzwanzig"}
EN_DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
DE_DAYS = "Montag Dienstag Mittwoch Donnerstag Freitag Samstag Sonntag".split()
EN_MONTHS = "January February March April May June July August September October November December".split()
DE_MONTHS = "Januar Februar März April Mai Juni Juli August September Oktober November Dezember".split()
_PART_OF_DAY = re.compile(r"\b(?:früh|morgens|vormittags|mittags|nachmittags|abends|nachts)\b")
_EN_PART_OF_DAY = re.compile(r"\b(?:morning|noon|afternoon|evening|night|tonight)\b|\b[ap]\.?m\b")
_MINUTES = (0, 0, 0, 5, 10, 15, 15, 20, 25, 30, 30, 30, 30, 35, 40, 45, 45, 50, 55)


def _hour(hour: int) -> str:
    return "ein" if hour == 1 else DE_WORDS[hour]


def spoken_times(hour: int, minute: int) -> list[Pair]:
    """How people say a time of the clock's twelve hours.

    >>> spoken_times(7, 30)[0]
    ('half past seven', 'halb acht')
    """
    word, german = EN_WORDS[hour], DE_WORDS[hour]
    after, german_after = EN_WORDS[hour % 12 + 1], DE_WORDS[hour % 12 + 1]
    if minute == 0:
        return [(f"{word} o'clock", f"{_hour(hour)} Uhr"), (f"{hour} o'clock", f"{hour} Uhr"), (word, german)]
    if minute == 30:
        half = f"halb {german_after}"
        return [
            (f"half past {word}", half),
            (f"half past {word}", half),
            (f"{word} thirty", half),
            (f"half {word}", half),  # British
            (f"{hour}:30", half),
        ]
    if minute == 15:
        quarter = f"Viertel nach {german}"
        return [(f"a quarter past {word}", quarter), (f"quarter past {word}", quarter), (f"{hour}:15", quarter)]
    if minute == 45:
        quarter = f"Viertel vor {german_after}"
        regional = f"drei viertel {german_after}"
        return [(f"a quarter to {after}", quarter), (f"quarter to {after}", quarter), (f"quarter to {after}", regional)]
    if minute < 30:
        few, time = EN_MINUTES[minute], f"{DE_MINUTES[minute]} nach {german}"
        return [(f"{few} past {word}", time), (f"{few} past {word}", time), (f"{few} minutes past {word}", time)]
    few, time = EN_MINUTES[60 - minute], f"{DE_MINUTES[60 - minute]} vor {german_after}"
    return [(f"{few} to {after}", time), (f"{few} to {after}", time), (f"{few} minutes to {after}", time)]


def written_times(hour: int, minute: int) -> list[Pair]:
    """How a time of the day's 24 hours is written.

    >>> written_times(14, 5)[0]
    ('2:05 p.m.', '14:05 Uhr')
    """
    half, twelve = ("a.m.", hour % 12 or 12) if hour < 12 else ("p.m.", hour % 12 or 12)
    short = half.replace(".", "")
    mark = f"{hour}:{minute:02d}"
    times = [
        (f"{twelve}:{minute:02d} {half}", f"{mark} Uhr"),
        (f"{twelve}:{minute:02d}{one_way(short, minute)}", f"{mark} Uhr"),
        (mark, f"{mark} Uhr"),
        (mark, f"{mark.replace(':', '.')} Uhr"),
    ]
    if minute == 0:
        times += [
            (f"{twelve} {half}", f"{hour} Uhr"),
            (f"{twelve} {short}", f"{hour} Uhr"),
            (f"{twelve}{short}", f"{hour} Uhr"),
            (f"{twelve} {half}", f"{mark} Uhr"),
        ]
    return times


def one_way(short: str, minute: int) -> str:
    """One of the ways in which people write the half of the day after a time with minutes."""
    return (f" {short}", short, f" {short.upper()}")[minute % 3]


def day_times(hour: int) -> list[Pair]:
    """Full hours with a part of the day."""
    if hour == 0:
        return [("midnight", "Mitternacht")]
    part = (
        ("in the morning", "morgens")
        if 4 <= hour < 12
        else ("in the afternoon", "nachmittags")
        if 12 < hour < 18
        else None
    )
    part = ("at night", "nachts") if hour < 4 else ("in the evening", "abends") if hour >= 18 else part
    if part is None:
        return [("noon", "zwölf Uhr mittags")]
    twelve = hour % 12 or 12
    return [
        (f"{EN_WORDS[twelve]} o'clock {part[0]}", f"{_hour(twelve)} Uhr {part[1]}"),
        (f"{twelve} {part[0]}", f"{twelve} Uhr {part[1]}"),
    ]


@dataclass(frozen=True)
class Clock:
    """How a language tells the time, beside English."""

    spoken: Callable[[int, int], list[Pair]]
    written: Callable[[int, int], list[Pair]]
    of_day: Callable[[int], list[Pair]]
    days: Sequence[str]
    mentions: re.Pattern[str]  # finds sentences that may have a time
    part_of_day: re.Pattern[str]
    is_odd: re.Pattern[str]  # what no sentence may have that was given another time


def draw_time(draw: Random, clock: Clock | None = None) -> Pair:
    clock = clock or GERMAN
    minute = one_of(draw, _MINUTES)
    chance = draw.random()
    if chance < 0.6:
        return one_of(draw, clock.spoken(1 + int(draw.random() * 12), minute))
    if chance < 0.9:
        return one_of(
            draw, clock.written(int(draw.random() * 24), minute if draw.random() < 0.7 else int(draw.random() * 60))
        )
    return one_of(draw, clock.of_day(int(draw.random() * 24)))


def draw_date(draw: Random) -> Pair:
    """A day, often with the year.

    >>> draw_date(Random(1))[1].split()[1] in DE_MONTHS
    True
    """
    month, day, year = int(draw.random() * 12), 1 + int(draw.random() * 28), 1700 + int(draw.random() * 360)
    ending = "th" if 10 < day < 14 else {1: "st", 2: "nd", 3: "rd"}.get(day % 10, "th")
    english, german = EN_MONTHS[month], DE_MONTHS[month]
    if draw.random() < 0.4:
        ways = [f"{english} {day}", f"{english} {day}{ending}", f"{day} {english}", f"the {day}{ending} of {english}"]
        return one_of(draw, ways), f"{day}. {german}"
    ways = [f"{english} {day}, {year}", f"{english} {day}{ending}, {year}", f"{day} {english} {year}"]
    return one_of(draw, ways), f"{day}. {german} {year}"


# English and German, with {t} for the time and {d} for a day of the week.
TIME_FRAMES = [
    ("The meeting begins at {t}.", "Die Besprechung beginnt um {t}."),
    ("On {d} we always eat at {t}.", "Am {d} essen wir immer um {t}."),
    ("He called me at {t}.", "Er rief mich um {t} an."),
    ("I usually go to bed at {t}.", "Ich gehe normalerweise um {t} ins Bett."),
    ("We left the house at {t}.", "Wir haben das Haus um {t} verlassen."),
    ("The bus comes at {t}.", "Der Bus kommt um {t}."),
    ("Can you be here at {t}?", "Kannst du um {t} hier sein?"),
    ("The doors open at {t}.", "Die Türen öffnen um {t}."),
    ("It's {t}.", "Es ist {t}."),
    ("It was {t} when she came back.", "Es war {t}, als sie zurückkam."),
    ("What were you doing at {t}?", "Was hast du um {t} gemacht?"),
    ("She has to get up at {t} on {d}.", "Sie muss am {d} um {t} aufstehen."),
    ("I waited until {t}.", "Ich habe bis {t} gewartet."),
    ("The office is open until {t}.", "Das Büro ist bis {t} geöffnet."),
    ("Please come before {t}.", "Bitte kommen Sie vor {t}."),
    ("After {t} nobody answers the phone.", "Nach {t} geht niemand mehr ans Telefon."),
    ("We have been sitting here since {t}.", "Wir sitzen hier seit {t}."),
    ("The accident happened at about {t}.", "Der Unfall geschah gegen {t}."),
    ("He was born at {t} on a {d}.", "Er wurde an einem {d} um {t} geboren."),
    ("Our plane takes off at {t}.", "Unser Flugzeug startet um {t}."),
    ("The lesson ends at {t}.", "Der Unterricht endet um {t}."),
    ("I finish work at {t}.", "Ich habe um {t} Feierabend."),
    ("Wake me at {t}, please.", "Weck mich bitte um {t}."),
    ("At {t} it was still dark.", "Um {t} war es noch dunkel."),
    ("The film starts at {t}, so hurry up.", "Der Film fängt um {t} an, also beeil dich."),
    ("See you on {d} at {t}!", "Bis {d} um {t}!"),
    ("My watch says {t}.", "Auf meiner Uhr ist es {t}."),
    ("They arrived at {t} in the rain.", "Sie kamen um {t} im Regen an."),
    ("The doctor can see you at {t}.", "Der Arzt hat um {t} Zeit für Sie."),
    ("Is {t} too early for you?", "Ist {t} zu früh für dich?"),
    ("We could also meet at {t}.", "Wir könnten uns auch um {t} treffen."),
    ("Delivery on {d} from {t}", "Lieferung am {d} ab {t}"),
]
DATE_FRAMES = [
    ("He died on {t}.", "Er starb am {t}."),
    ("The course starts on {t}.", "Der Kurs beginnt am {t}."),
    ("On {t} the new law came into force.", "Am {t} trat das neue Gesetz in Kraft."),
    ("The town was founded on {t}.", "Die Stadt wurde am {t} gegründet."),
    ("Her birthday is on {t}.", "Sie hat am {t} Geburtstag."),
    ("We need your answer by {t}.", "Wir brauchen Ihre Antwort bis zum {t}."),
    ("The shop will be closed until {t}.", "Das Geschäft bleibt bis zum {t} geschlossen."),
    ("Since {t} the price has been higher.", "Seit dem {t} ist der Preis höher."),
    ("It happened on the night of {t}.", "Es geschah in der Nacht des {t}."),
    ("The contract of {t} is still valid.", "Der Vertrag vom {t} ist noch gültig."),
    ("Today is {t}.", "Heute ist der {t}."),
    ("Is {t} a public holiday?", "Ist der {t} ein Feiertag?"),
    ("The parcel was sent on {t}.", "Das Paket wurde am {t} verschickt."),
    ("Her letter is dated {t}.", "Ihr Brief ist vom {t}."),
    ("Before {t} nothing will change.", "Vor dem {t} wird sich nichts ändern."),
]


def framed(
    frames: Sequence[Pair],
    draw_value: Callable[[Random], Pair],
    count: int,
    draw: Random,
    days: Sequence[str] = tuple(DE_DAYS),
) -> Iterator[Pair]:
    """Frames, with a value at {t} and a day of the week at {d}."""
    for _ in range(count):
        english, german = one_of(draw, frames)
        value, day = draw_value(draw), int(draw.random() * 7)
        made = english.format(t=value[0], d=EN_DAYS[day]), german.format(t=value[1], d=days[day])
        if made[0].endswith(".."):  # "a.m.."
            made = made[0][:-1], made[1]
        yield made


def is_usual_german(pair: Pair) -> bool:
    """Whether the German side is what most people would write: nothing regional, a colon in digits, digits for digits.

    >>> is_usual_german(("at quarter to five", "um drei viertel fünf")), is_usual_german(("at 7:30", "um 7:30 Uhr"))
    (False, True)
    """
    english, german = pair
    is_spoken = re.search(r"\b(?:halb|Viertel) ", german) and re.search(r"\d:\d\d", english)
    return not is_spoken and "drei viertel" not in german and not re.search(r"\d\.\d\d Uhr", german)


def _index(expressions: Iterable[tuple[int, Pair]], side: int) -> tuple[re.Pattern[str], dict[str, set[int]]]:
    known: dict[str, set[int]] = {}
    for moment, pair in expressions:
        if any(mark in pair[side] for mark in " :."):  # a bare word may mean anything
            known.setdefault(pair[side], set()).add(moment)
    ways = "|".join(re.escape(way) for way in sorted(known, key=len, reverse=True))
    return re.compile(rf"(?<![\w:.])(?:{ways})(?![\w:])"), known


def _moments(clock: Clock) -> Iterator[tuple[int, Pair]]:
    """All times, as minutes of half a day."""
    for hour in range(24):
        for minute in range(60):
            moment = hour % 12 * 60 + minute
            yield from ((moment, pair) for pair in clock.written(hour, minute))
            if minute in (0, 15, 30, 45, *EN_MINUTES, *(60 - few for few in EN_MINUTES)):
                yield from ((moment, pair) for pair in clock.spoken(hour % 12 or 12, minute))


def other_times(pairs: Iterable[Pair], draw: Random, copies: int, clock: Clock | None = None) -> Iterator[Pair]:
    """Real sentences that say the same time on both sides, with other times."""
    clock = clock or GERMAN
    every = list(_moments(clock))
    (english, en_known), (german, de_known) = _index(every, 0), _index(every, 1)
    for pair in pairs:
        if not clock.mentions.search(pair[1]):
            continue
        if clock.part_of_day.search(pair[1]) and not _EN_PART_OF_DAY.search(pair[0]):  # "at ten", "um zehn Uhr abends"
            continue
        one, other = english.findall(pair[0]), german.findall(pair[1])
        if len(one) != 1 or len(other) != 1 or not en_known[one[0]] & de_known[other[0]]:
            continue
        for _ in range(copies):
            minute = one_of(draw, _MINUTES)
            new = one_of(draw, clock.spoken(1 + int(draw.random() * 12), minute))
            made = pair[0].replace(one[0], new[0]), pair[1].replace(other[0], new[1])
            if (" " in new[0] or ":" in new[0]) and not clock.is_odd.search(made[1]):
                yield made


GERMAN = Clock(
    spoken_times, written_times, day_times, DE_DAYS, re.compile("Uhr|halb|iertel"), _PART_OF_DAY,
    re.compile(r"\b(?:halb|nach|vor) \w+ Uhr\b"),
)  # fmt: skip
