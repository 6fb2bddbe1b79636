"""What is offered instead of a word or a sentence: whole words, and translations that the model holds for likely."""

from __future__ import annotations

import math
from functools import cache

import pytest

import regard
from regard.api import Model
from regard.translation.alternatives import LEAST, likely_translations
from regard.translation.results import Translation
from regard.translation.words import Word

SENTENCES = {
    "en-de": ["Where is the nearest train station?", "The cat is lying on the mat.", "Press the bell twice."],
    "de-en": ["Wo ist der nächste Bahnhof?", "Wenn es morgen regnet, bleiben wir zu Hause."],
}
ALL = [(name, text) for name, texts in SENTENCES.items() for text in texts]


@cache
def model(name: str) -> Model:
    return regard.load(name)


def log_prob(name: str, text: str, translation: str) -> float:
    """Of a whole translation, as the model would score it if it came from elsewhere."""
    one = model(name)
    ids = [one.bundle.tokenizer.encode(text, "source"), one.bundle.tokenizer.encode(translation, "target")]
    [values] = one.engine.score([ids[0]], [ids[1]])
    return sum(values)


def places(name: str, text: str) -> list[tuple[str, str]]:
    """The words of the best translation, each with what is before it."""
    [result] = model(name).nbest([text], 1, words=True)
    best, position, found = result.translations[0], 0, []
    for word in best.words:
        start = best.text.index(word.text, position)
        position = start + len(word.text)
        found.append((best.text[:start], word.text))
    return found


@pytest.mark.parametrize(("name", "text"), ALL)
def test_a_word_that_is_offered_stands_whole_in_a_likely_translation(name: str, text: str) -> None:
    best = log_prob(name, text, str(model(name).translate(text)))
    for before, current in places(name, text):
        offered = model(name).alternatives(text, before)
        assert current in [one.word for one in offered]
        assert sum(one.probability for one in offered) <= 1.01
        for one in offered:
            assert one.relative >= LEAST
            with_word = str(model(name).translate(text, prefix=f"{before}{one.word} "))
            rest = with_word.removeprefix(f"{before}{one.word}")
            assert rest != with_word and not rest[:1].isalnum()
            # Two searches may end a little apart, with another beam.
            assert math.exp(log_prob(name, text, with_word) - best) >= 0.8 * LEAST


@pytest.mark.parametrize(
    ("text", "before", "bad"),
    [
        ("Where is the nearest train station?", "Wo ist ", "die"),  # "die nächste Bahnhof"
        ("Where is the nearest train station?", "Wo ist der nächste ", "Zugstation"),
        ("The cat is lying on the mat.", "Die Katze liegt auf der ", "mette"),
        ("The cat is lying on the mat.", "Die Katze liegt auf der Matte", ".."),
        ("Press the bell twice.", "Drücken Sie zweimal ", "den"),  # "den Klingel"
    ],
)
def test_what_spoils_the_sentence_is_not_offered(text: str, before: str, bad: str) -> None:
    assert bad not in [one.word for one in model("en-de").alternatives(text, before)]
    assert bad not in [one.word for one in model("en-de").alternatives(text, before, k=1, least=0)]  # nor the likeliest


def test_a_word_and_a_longer_one_that_begins_with_it_share_their_probability() -> None:
    text, before = "Wenn es morgen regnet, bleiben wir zu Hause.", "If it rains tomorrow, "
    found = {one.word: one for one in model("de-en").alternatives(text, before)}
    assert {"we", "we'll"} <= set(found)
    [result] = model("de-en").nbest([text], 1, words=True, prefix=f"{before}we will ")
    we = next(math.exp(word.log_prob) for word in result.translations[0].words if word.text == "we")
    assert found["we"].probability + found["we'll"].probability == pytest.approx(we, rel=0.02)


def test_a_relative_probability_is_that_of_whole_translations() -> None:
    text = SENTENCES["en-de"][0]
    [der, die] = [one for one in model("en-de").alternatives(text, "Wo ist ", least=0.01) if one.word in ("der", "die")]
    assert der.relative == 1
    ratio = math.exp(
        log_prob("en-de", text, "Wo ist die nächste Bahnhof?") - log_prob("en-de", text, "Wo ist der nächste Bahnhof?")
    )
    assert die.relative == pytest.approx(ratio, rel=0.05)


def test_translations_far_less_likely_than_the_best_are_left_out() -> None:
    def one(text: str, log_prob: float, words: bool = True) -> Translation:
        return Translation(text, log_prob, (Word(text, log_prob),) if words else ())

    best, near, far = one("a", -1.0), one("b", -1.0 + math.log(0.08)), one("c", -1.0 + math.log(0.07))
    assert likely_translations([best, near, far]) == [best, near]
    assert likely_translations([best, near, far], least=0) == [best, near, far]
    assert likely_translations([one("a", -9.0), one("b", -1.0)]) == [one("a", -9.0), one("b", -1.0)]
    assert likely_translations([one("a", -1.0, words=False), one("b", -9.0, words=False)]) == [
        one("a", -1.0, words=False)
    ]
    assert likely_translations([]) == []
