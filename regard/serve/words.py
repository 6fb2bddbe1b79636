"""Translations word by word, for people who work on them: how sure the model is of each word, which others could stand in its
place, and the rest of a sentence again after a given beginning."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from regard.decode.alternatives import Alternative, find_alternatives
from regard.decode.sentences import Split, split_text
from regard.decode.text import Ask as LineAsk
from regard.decode.text import Result, Translator
from regard.decode.words import Word
from regard.errors import UserError
from regard.serve.refusal import Refused
from regard.serve.service import Ask, Detected, Served, Service, search_sentences

Found = TypeVar("Found")
_CHARACTERS = 16  # of a token; words that are one token are seldom longer


@dataclass(frozen=True)
class PlacedWord:
    """A word of a translation with what stands between it and the word before."""

    before: str
    text: str
    probability: float | None  # of its pieces, given all that comes before them; None where the model did not say


@dataclass(frozen=True)
class Way:
    """One translation of a sentence. Its words with what is before them make up the text, but for what follows the last."""

    text: str
    words: list[PlacedWord]


@dataclass(frozen=True)
class Sentence:
    before: str  # what stands between it and the sentence before
    text: str
    ways: list[Way]  # best first


@dataclass(frozen=True)
class WordedText:
    """A text in sentences: each with what is before it, and in the end what follows the last, they make up the text."""

    sentences: list[Sentence]
    after: str
    served: Served
    detected: Detected | None


def check_words(service: Service, ask: Ask, prefix: str) -> None:
    """Refuse what is beyond the limits; a prefix counts as text."""
    service.check(replace(ask, texts=["".join(ask.texts) + prefix]))


async def translate_words(service: Service, ask: Ask, prefix: str = "") -> WordedText:
    """The one text of `ask`, sentence by sentence. With a prefix it is taken as one sentence, whose translation begins so."""
    check_words(service, ask, prefix)
    [text] = ask.texts
    served, detected, plan = await asyncio.to_thread(_prepare, service, ask, text, not prefix)
    if prefix:
        results = await served.apart.run(_begin_with, served, plan.sentences, prefix, ask.alternatives)
    else:
        results = await search_sentences(served, plan.sentences, ask.alternatives, words=True)
    sentences, position = [], 0
    for place, result in zip(plan.places, results, strict=True):
        before = "".join(plan.pieces[position:place])
        position = place + 1
        ways: dict[str, Way] = {}  # two may have the same text
        for way in result.translations:
            ways.setdefault(way.text, Way(way.text, place_words(way.text, way.words)))
        sentences.append(Sentence(before, plan.pieces[place], list(ways.values())))
    return WordedText(sentences, "".join(plan.pieces[position:]), served, detected)


async def other_words(service: Service, ask: Ask, prefix: str, count: int) -> list[Alternative]:
    """The likeliest words right after the beginning of a translation of one sentence."""
    check_words(service, ask, prefix)
    [text] = ask.texts
    served, _, plan = await asyncio.to_thread(_prepare, service, ask, text, False)
    if not plan.sentences:
        return []
    return await served.apart.run(_find_others, served.translator, plan.sentences[0], prefix, count)


def _prepare(service: Service, ask: Ask, text: str, by_sentence: bool) -> tuple[Served, Detected | None, Split]:
    if ask.source is None:
        served, detected = service.detect_for(text, ask.target)
    else:
        served, detected = service.find(ask.source, ask.target), None
    if not by_sentence and len(text.splitlines()) > 1:
        raise Refused(400, "q must be one sentence without line breaks where the beginning of its translation is given")
    return served, detected, split_text(text, served.bundle.source, by_sentence=by_sentence)


def _begin_with(served: Served, sentences: Sequence[str], prefix: str, alternatives: int) -> list[Result]:
    own = served.translator
    _check_prefix(own, prefix)
    if any(len(parts) > 1 for parts in own.cut(sentences)):
        raise Refused(
            400, f"q must be one sentence of at most {own.max_length} tokens where prefix is given; send a part of it"
        )
    options = replace(own.options.changed(None, None, alternatives + 1), words=True)
    translator = Translator(own.tokenizer, own.engine, options, own.max_length)
    return _refusing(translator.translate, sentences, None, [LineAsk(prefix)] * len(sentences))


def _find_others(translator: Translator, sentence: str, prefix: str, count: int) -> list[Alternative]:
    _check_prefix(translator, prefix)
    return _refusing(find_alternatives, translator, sentence, prefix, count)


def _check_prefix(translator: Translator, prefix: str) -> None:
    """A prefix is computed with at once, whatever its length: it may be as long as a sentence."""
    most = translator.max_length
    # The first question spares the tokenizer what is far too long.
    if len(prefix) > _CHARACTERS * most or len(translator.tokenizer.encode(prefix.strip(), "target")) > most:
        raise Refused(400, f"prefix may have at most {most} tokens; give a shorter beginning")


def _refusing(work: Callable[..., Found], *arguments: object) -> Found:
    """Work whose complaints are the client's business; they speak of numbers of tokens and never quote a text."""
    try:
        return work(*arguments)
    except UserError as error:
        raise Refused(400, str(error)) from None


def place_words(text: str, words: Sequence[Word]) -> list[PlacedWord]:
    """The words where they stand in a text; where one is not found there, the text is one word that nothing is known of.

    >>> [(word.before, word.text) for word in place_words("Ja, gut!", [Word(t, -0.1) for t in ("Ja", ",", "gut", "!")])]
    [('', 'Ja'), ('', ','), (' ', 'gut'), ('', '!')]
    """
    placed: list[PlacedWord] = []
    position = 0
    for word in words:
        start = text.find(word.text, position)
        if start < 0 or not word.text:
            placed = []
            break
        placed.append(PlacedWord(text[position:start], word.text, min(1.0, math.exp(word.log_prob))))
        position = start + len(word.text)
    return placed or ([PlacedWord("", text, None)] if text else [])
