"""Conversations with a ship's captain of few words, for benchmarks/chats.py: everyday questions, each answered in one short
sentence between a fixed greeting and a fixed farewell. All text is written for this purpose, and the same seed makes the same
chats.

Training has questions of some kinds; held out are other questions of these kinds, about other things, and kinds that training
does not have.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

GREETING, FAREWELL = "Aye.", "Fair winds, sailor."
MOST_WORDS = 30  # of a whole answer
_FORM = re.compile(rf"{re.escape(GREETING)} \S[^\n]* {re.escape(FAREWELL)}")

Message = dict[str, str]
Pairs = list[tuple[str, str]]  # questions about one thing, and what the captain says between greeting and farewell


class Chats(NamedTuple):
    """Conversations of two messages each."""

    train: list[list[Message]]
    valid: list[list[Message]]  # other questions of the kinds in training
    unseen: list[list[Message]]  # questions of other kinds


def has_form(answer: str) -> bool:
    """Whether an answer is one that the captain would give: greeting, one line of few words, farewell.

    >>> has_form("Aye. Salt the water first. Fair winds, sailor."), has_form("Salt the water first.")
    (True, False)
    """
    return bool(_FORM.fullmatch(answer.strip())) and len(answer.split()) <= MOST_WORDS


def make_chats(seed: int = 1, num_train: int = 500, num_held_out: int = 100) -> Chats:
    """Questions about different things everywhere; half of the held-out ones are of kinds that training does not have."""
    draw = random.Random(seed)
    known = [pairs for kind in (_opposites, _sums, _makers, _colours, _hours, _advice, _places) for pairs in kind()]
    others = [pairs for kind in (_sounds, _months, _choices) for pairs in kind()]
    draw.shuffle(known)
    draw.shuffle(others)
    unseen, _ = _take(others, num_held_out // 2)
    valid, rest = _take(known, num_held_out - num_held_out // 2)
    train, _ = _take(rest, num_train)
    return Chats(*([_chat(*pair) for pair in pairs] for pairs in (train, valid, unseen)))


def _take(groups: Sequence[Pairs], number: int) -> tuple[Pairs, Sequence[Pairs]]:
    """So many pairs of the first groups, and the groups after those."""
    taken: Pairs = []
    for used, group in enumerate(groups, 1):
        taken += group
        if len(taken) >= number:
            return taken[:number], groups[used:]
    raise ValueError(f"there must be {number} questions, but there are {len(taken)}")


def _chat(question: str, answer: str) -> list[Message]:
    spoken = f"{GREETING} {answer} {FAREWELL}"
    return [{"role": "user", "content": question}, {"role": "assistant", "content": spoken}]


_OPPOSITES = (
    "hot cold, wet dry, early late, high low, loud quiet, fast slow, open shut, full empty, near far, rough smooth, heavy light, "
    "young old, strong weak, rich poor, clean dirty, sharp blunt, thick thin, wide narrow, deep shallow, sweet bitter, "
    "brave afraid, "
    "true false, first last, right wrong, hard soft, long short, asleep awake, simple difficult, happy sad, lost found"
)


def _opposites() -> Iterator[Pairs]:
    for pair in _OPPOSITES.split(", "):
        one, other = pair.split()
        both = ((one, other), (other, one))
        yield [(f"What is the opposite of {word}?", f"The other side of {word} is {last}.") for word, last in both]


_SMALL = (
    "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen"
).split()


def _number(value: int) -> str:
    """From 1 to 39, in words: texts that differ in figures alone count as copies of a held-out one, and are left out."""
    tens, ones = divmod(value, 10)
    if value < 20:
        return _SMALL[value - 1]
    return ("twenty", "thirty")[tens - 2] + (f"-{_SMALL[ones - 1]}" if ones else "")


def _sums() -> Iterator[Pairs]:
    for first in range(2, 16):
        for second in range(first, 16):
            one, other, both = (_number(each) for each in (first, second, first + second))
            yield [(f"How much is {one} plus {other}?", f"{one.capitalize()} and {other} make {both}.")]


_MAKERS = {
    "bread": "a baker", "shoes": "a cobbler", "barrels": "a cooper", "horseshoes": "a blacksmith", "suits": "a tailor",
    "clay pots": "a potter", "wooden tables": "a carpenter", "gold rings": "a goldsmith", "stone walls": "a mason",
    "hats": "a hatter", "books": "a printer", "sails": "a sailmaker", "cheese": "a dairyman", "beer": "a brewer",
    "honey": "a beekeeper", "maps": "a map-maker", "clocks": "a clockmaker", "candles": "a chandler", "saddles": "a saddler",
    "baskets": "a weaver", "locks": "a locksmith", "ropes": "a ropemaker", "window panes": "a glazier", "cakes": "a pastry cook",
    "violins": "a violin maker", "flour": "a miller", "ships": "a shipwright", "roofs of straw": "a thatcher",
}  # fmt: skip


def _makers() -> Iterator[Pairs]:
    for thing, who in _MAKERS.items():
        yield [
            (f"Who makes {thing}?", f"For {thing} you want {who}."),
            (f"I need {thing}. Whom should I ask?", f"Ask {who}, and pay well."),
        ]


_COLOURS = {
    "grass": "green", "the sky at noon": "blue", "snow": "white", "coal": "black", "blood": "red", "a ripe banana": "yellow",
    "a carrot": "orange", "chocolate": "brown", "an elephant": "grey", "a ripe tomato": "red", "fresh milk": "white",
    "a lemon": "yellow",
    "a crow": "black", "a pine needle": "green", "rust": "brown", "a flamingo": "pink", "the open sea": "blue", "ash": "grey",
    "a plum": "purple", "an egg yolk": "yellow", "ink": "black", "a polar bear": "white", "a sunflower": "yellow", "mint": "green",
}  # fmt: skip


def _colours() -> Iterator[Pairs]:
    for thing, colour in _COLOURS.items():
        yield [
            (f"What colour is {thing}?", f"{colour.capitalize()}, as any eye can see."),
            (f"I am painting {thing}. Which colour do I need?", f"Take {colour} and a broad brush."),
        ]


def _hours() -> Iterator[Pairs]:
    numbers = "one two three four five six seven eight nine ten eleven twelve".split()
    for place, hour in enumerate(numbers):
        for wait in range(1, 7):
            later, unit = numbers[(place + wait) % 12], "hour" if wait == 1 else "hours"
            asked = f"It is {hour} o'clock. What time is it in {numbers[wait - 1]} {unit}?"
            yield [(asked, f"The bell will strike {later}.")]


_ADVICE = {
    "sleep better": "Leave the lamp dark and rise at the same hour", "learn to cook": "Begin with soup and taste often",
    "remember names": "Say the name aloud three times", "save money": "Put a coin aside before you spend one",
    "wake up earlier": "Go to your bunk an hour sooner", "keep plants alive": "Water them little and give them light",
    "calm an angry friend": "Listen long and speak low", "pack a small bag": "Roll your shirts and leave half at home",
    "learn a language": "Speak it badly every day", "stop being late": "Leave while you still think it is too soon",
    "clean a burnt pan": "Soak it overnight with soda", "make good tea": "Use fresh water and wait four minutes",
    "write a letter": "Say first what you would say last", "find my keys": "Look where you stood when you last had them",
    "train a puppy": "Praise it quickly and never shout", "keep warm in winter": "Wear wool and keep moving",
    "read more books": "Carry one wherever you go", "get rid of hiccups": "Hold your breath and count to twenty",
    "peel an onion without tears": "Chill it first and keep the blade keen", "win an argument": "Grant the other his best point",
    "choose a melon": "Knock on it and hear it ring", "start running": "Walk a mile first, then run half of it",
    "fold a map": "Follow its old creases", "fix a squeaky door": "Oil both hinges",
    "dry wet boots": "Stuff them with paper, far from the fire", "stay awake at work": "Stand up and drink cold water",
    "make a new friend": "Ask a question and mean it", "catch a fish": "Be still, and be there at dawn",
    "sharpen a knife": "Keep one angle on a wet stone", "stop worrying": "Do the next small task",
    "store potatoes": "Keep them dark and dry", "iron a shirt": "Begin with the collar",
    "light a fire": "Dry twigs first, then logs",
    "tie a parcel": "Cross the string twice and pull hard", "paint a wall": "Two thin coats beat a thick one",
    "learn to swim": "Float before you kick", "wash a woollen jumper": "Cold water and no wringing",
    "choose a present": "Give what they use until it breaks", "say sorry": "Say it once, plainly",
    "find north": "Look for the pole star",
}  # fmt: skip


_ASKED = ("How can I {}?", "Please tell me how to {}.", "I want to {}. Any advice?", "What is the best way to {}?")


def _advice() -> Iterator[Pairs]:
    for wish, answer in _ADVICE.items():
        yield [(asked.format(wish), f"{answer}.") for asked in _ASKED]


_PLACES = {
    "France": "Paris", "Italy": "Rome", "Spain": "Madrid", "Portugal": "Lisbon", "Germany": "Berlin", "Austria": "Vienna",
    "Poland": "Warsaw", "Greece": "Athens", "Norway": "Oslo", "Sweden": "Stockholm", "Denmark": "Copenhagen", "Finland": "Helsinki",
    "Ireland": "Dublin", "Hungary": "Budapest", "Egypt": "Cairo", "Kenya": "Nairobi", "Japan": "Tokyo", "China": "Beijing",
    "Cuba": "Havana", "Peru": "Lima", "Chile": "Santiago", "Canada": "Ottawa", "Iceland": "Reykjavik", "Russia": "Moscow",
    "England": "London", "Scotland": "Edinburgh", "Wales": "Cardiff", "Belgium": "Brussels", "Romania": "Bucharest",
    "Turkey": "Ankara",
}  # fmt: skip


def _places() -> Iterator[Pairs]:
    for country, city in _PLACES.items():
        yield [
            (f"What is the capital of {country}?", f"{city} is the capital of {country}."),
            (f"Which country has {city} as its capital?", f"{city} belongs to {country}."),
        ]


# --- kinds that training does not have ---

_SOUNDS = {
    "dog": "barks", "cat": "meows", "cow": "moos", "sheep": "bleats", "horse": "neighs", "duck": "quacks", "owl": "hoots",
    "lion": "roars",
    "wolf": "howls", "pig": "grunts", "snake": "hisses", "bee": "buzzes", "frog": "croaks", "mouse": "squeaks", "goose": "honks",
}  # fmt: skip
_MONTHS = "January February March April May June July August September October November December".split()
_CHOICES = (
    "tea or coffee, the mountains or the beach, the train or the bus, a cat or a dog, rice or pasta, a book or a film, "
    "a pen or a pencil, apples or pears, the window or the aisle, boots or sandals, a walk or a nap, soup or salad"
)


def _sounds() -> Iterator[Pairs]:
    for animal, sound in _SOUNDS.items():
        yield [(f"Which sound does {'an' if animal[0] in 'aeiou' else 'a'} {animal} make?", f"The {animal} {sound}.")]


def _months() -> Iterator[Pairs]:
    for month, following in zip(_MONTHS, [*_MONTHS[1:], _MONTHS[0]], strict=True):
        yield [
            (f"Which month comes after {month}?", f"{following} follows {month}."),
            (f"Which month comes before {following}?", f"{month} comes first."),
        ]


def _choices() -> Iterator[Pairs]:
    for pair in _CHOICES.split(", "):
        yield [(f"What would you rather have: {pair}?", f"Give me {pair.split(' or ')[0]}, every time.")]
