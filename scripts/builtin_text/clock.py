"""Times of day and dates in English, beside which `german.py` and `french.py` put theirs: in sentences made for them, and in place
of others in real sentences."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

from scripts.builtin_text.common import Pair, one_of

WORDS = "zero one two three four five six seven eight nine ten eleven twelve".split()
MINUTES = {5: "five", 10: "ten", 20: "twenty", 25: "twenty-five"}
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
MONTHS = "January February March April May June July August September October November December".split()
_PART_OF_DAY = re.compile(r"\b(?:morning|noon|afternoon|evening|night|tonight)\b|\b[ap]\.?m\b")
_DRAWN_MINUTES = (0, 0, 0, 5, 10, 15, 15, 20, 25, 30, 30, 30, 30, 35, 40, 45, 45, 50, 55)


def spoken(hour: int, minute: int) -> list[str]:
    """The ways to say a time of the clock's twelve hours.

    >>> spoken(7, 0), spoken(6, 50)
    (["seven o'clock", "7 o'clock", 'seven'], ['ten to seven', 'ten to seven', 'ten minutes to seven'])
    """
    word, after = WORDS[hour], WORDS[hour % 12 + 1]
    if minute == 0:
        return [f"{word} o'clock", f"{hour} o'clock", word]
    if minute == 30:
        half = f"half past {word}"
        return [half, half, f"{word} thirty", f"half {word}", f"{hour}:30"]  # "half seven" is British
    if minute == 15:
        return [f"a quarter past {word}", f"quarter past {word}", f"{hour}:15"]
    if minute == 45:
        return [f"a quarter to {after}", f"quarter to {after}", f"{hour}:45"]
    few, side = (MINUTES[minute], f"past {word}") if minute < 30 else (MINUTES[60 - minute], f"to {after}")
    return [f"{few} {side}", f"{few} {side}", f"{few} minutes {side}"]


class Written(NamedTuple):
    """The ways to write a time of the day's 24 hours."""

    minutes: list[str]  # 2:05 p.m., 2:05pm
    mark: str  # 14:05
    hours: list[str]  # 2 p.m., 2 pm, 2pm; only of full hours


def written(hour: int, minute: int) -> Written:
    """
    >>> written(14, 5)
    Written(minutes=['2:05 p.m.', '2:05 PM'], mark='14:05', hours=[])
    """
    half, twelve = "a.m." if hour < 12 else "p.m.", hour % 12 or 12
    short = half.replace(".", "")
    way = (f" {short}", short, f" {short.upper()}")[minute % 3]  # people write it in several
    minutes = [f"{twelve}:{minute:02d} {half}", f"{twelve}:{minute:02d}{way}"]
    hours = [] if minute else [f"{twelve} {half}", f"{twelve} {short}", f"{twelve}{short}"]
    return Written(minutes, f"{hour}:{minute:02d}", hours)


def part_of_day(hour: int) -> str:
    """
    >>> part_of_day(0), part_of_day(3), part_of_day(12), part_of_day(13)
    ('midnight', 'at night', 'noon', 'in the afternoon')
    """
    if hour in (0, 12):
        return "noon" if hour else "midnight"
    if hour < 4:
        return "at night"
    return "in the morning" if hour < 12 else "in the afternoon" if hour < 18 else "in the evening"


def of_day(hour: int) -> list[str]:
    """The ways to say a full hour with its part of the day: in words, in digits; or one, noon or midnight."""
    part, twelve = part_of_day(hour), hour % 12 or 12
    return [part] if hour in (0, 12) else [f"{WORDS[twelve]} o'clock {part}", f"{twelve} {part}"]


class Date(NamedTuple):
    """A date in English, and what it says."""

    english: str
    month: int  # from 0
    day: int
    year: int | None


def draw_date(draw: Random) -> Date:
    """A day, often with the year.

    >>> date = draw_date(Random(1))
    >>> MONTHS[date.month] in date.english
    True
    """
    month, day, year = int(draw.random() * 12), 1 + int(draw.random() * 28), 1700 + int(draw.random() * 360)
    ending = "th" if 10 < day < 14 else {1: "st", 2: "nd", 3: "rd"}.get(day % 10, "th")
    name = MONTHS[month]
    if draw.random() < 0.4:
        ways = [f"{name} {day}", f"{name} {day}{ending}", f"{day} {name}", f"the {day}{ending} of {name}"]
        return Date(one_of(draw, ways), month, day, None)
    ways = [f"{name} {day}, {year}", f"{name} {day}{ending}, {year}", f"{day} {name} {year}"]
    return Date(one_of(draw, ways), month, day, year)


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


def draw_time(draw: Random, clock: Clock) -> Pair:
    minute = one_of(draw, _DRAWN_MINUTES)
    chance = draw.random()
    if chance < 0.6:
        return one_of(draw, clock.spoken(1 + int(draw.random() * 12), minute))
    if chance < 0.9:
        return one_of(
            draw, clock.written(int(draw.random() * 24), minute if draw.random() < 0.7 else int(draw.random() * 60))
        )
    return one_of(draw, clock.of_day(int(draw.random() * 24)))


def framed(
    frames: Sequence[Pair],
    draw_value: Callable[[Random], Pair],
    count: int,
    draw: Random,
    days: Sequence[str],
) -> Iterator[Pair]:
    """Frames, with a value at {t} and a day of the week at {d}."""
    for _ in range(count):
        english, other = one_of(draw, frames)
        value, day = draw_value(draw), int(draw.random() * 7)
        made = english.format(t=value[0], d=DAYS[day]), other.format(t=value[1], d=days[day])
        if made[0].endswith(".."):  # "a.m.."
            made = made[0][:-1], made[1]
        yield made


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
            if minute in (0, 15, 30, 45, *MINUTES, *(60 - few for few in MINUTES)):
                yield from ((moment, pair) for pair in clock.spoken(hour % 12 or 12, minute))


def other_times(pairs: Iterable[Pair], draw: Random, copies: int, clock: Clock) -> Iterator[Pair]:
    """Real sentences that say the same time on both sides, with other times."""
    every = list(_moments(clock))
    (english, known), (beside, known_beside) = _index(every, 0), _index(every, 1)
    for pair in pairs:
        if not clock.mentions.search(pair[1]):
            continue
        if clock.part_of_day.search(pair[1]) and not _PART_OF_DAY.search(pair[0]):  # "at ten", "um zehn Uhr abends"
            continue
        one, other = english.findall(pair[0]), beside.findall(pair[1])
        if len(one) != 1 or len(other) != 1 or not known[one[0]] & known_beside[other[0]]:
            continue
        for _ in range(copies):
            minute = one_of(draw, _DRAWN_MINUTES)
            new = one_of(draw, clock.spoken(1 + int(draw.random() * 12), minute))
            made = pair[0].replace(one[0], new[0]), pair[1].replace(other[0], new[1])
            if (" " in new[0] or ":" in new[0]) and not clock.is_odd.search(made[1]):
                yield made
