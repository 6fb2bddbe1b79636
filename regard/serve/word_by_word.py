"""Translations word by word, for people who work on them: how sure the model is of each word, which others could stand in its
place, and the rest of a sentence again after a given beginning."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass

from regard.serve.batched_sentences import search_sentences
from regard.serve.refusal import refusing
from regard.serve.served import Served
from regard.serve.service import Ask, Detected, Service, check_one_line
from regard.translation.alternatives import Alternative, find_alternatives
from regard.translation.glossary import places_said
from regard.translation.sentences import Split, split_text
from regard.translation.terms import find_terms
from regard.translation.words import Word


@dataclass(frozen=True)
class PlacedWord:
    """A word of a translation with what stands between it and the word before."""

    before: str
    text: str
    probability: float | None  # of its pieces, given all that comes before them; None where the model did not say
    held: bool = False  # whether it stands there by a glossary, or was to be kept


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


async def translate_words(service: Service, ask: Ask) -> WordedText:
    """The one text of `ask`, sentence by sentence. With a prefix or phrases it is taken as one sentence."""
    service.check(ask)
    [text] = ask.texts
    served, detected, plan = await asyncio.to_thread(_prepare, service, ask, text, ask.search.is_of_one_sentence)
    results = await search_sentences(served, plan.sentences, ask.alternatives, words=True, search=ask.search)
    terms = await asyncio.to_thread(_terms, served, ask, plan.sentences) if ask.search.has_terms else {}
    sentences, position = [], 0
    for place, result in zip(plan.places, results, strict=True):
        before = "".join(plan.pieces[position:place])
        position = place + 1
        listed: dict[str, Way] = {}  # two may have the same text
        for way in result.translations:
            held = [one for ways in terms.get(plan.pieces[place], ()) for one in places_said(way.text, ways)]
            placed = place_words(way.text, way.words, held)
            listed.setdefault(way.text, Way(way.text, placed))
        sentences.append(Sentence(before, plan.pieces[place], list(listed.values())))
    return WordedText(sentences, "".join(plan.pieces[position:]), served, detected)


async def other_words(service: Service, ask: Ask, count: int) -> list[Alternative]:
    """The likeliest words right after the beginning of a translation of one sentence, the prefix of `ask`."""
    service.check(ask)
    [text] = ask.texts
    served, _, plan = await asyncio.to_thread(_prepare, service, ask, text, True)
    if not plan.sentences:
        return []
    return await served.apart.run(_find_others, served, plan.sentences[0], ask, count)


def _prepare(service: Service, ask: Ask, text: str, is_sentence: bool) -> tuple[Served, Detected | None, Split]:
    if ask.source is None:
        served, detected = service.detect_for(text, ask.target)
    else:
        served, detected = service.find(ask.source, ask.target), None
    if is_sentence:
        check_one_line(text)
    return served, detected, split_text(text, served.bundle.source, by_sentence=not is_sentence)


def _find_others(served: Served, sentence: str, ask: Ask, count: int) -> list[Alternative]:
    translator = served.translator_for(ask.search)
    with refusing("finding other words"):
        return find_alternatives(translator, sentence, ask.search.prefix, count)


def _terms(served: Served, ask: Ask, sentences: Sequence[str]) -> dict[str, list[tuple[str, ...]]]:
    """Of each sentence what a glossary wants to be said, each in one of several ways, and what of it is to be kept."""
    options = served.translator_for(ask.search, ask.alternatives).options
    terms = {}
    for sentence in sentences:
        kept = find_terms(sentence, options.keep)
        wanted = options.glossary.wanted(sentence, kept) if options.glossary is not None else {}
        terms[sentence] = [*wanted, *((sentence[slice(*place)],) for place in kept)]
    return terms


def place_words(text: str, words: Sequence[Word], held: Sequence[tuple[int, int]] = ()) -> list[PlacedWord]:
    """The words where they stand in a text; where one is not found there, the text is one word that nothing is known of. Those at
    the places `held` are marked.

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
        before, position = text[position:start], start + len(word.text)
        is_held = any(start < end and begin < position for begin, end in held)
        placed.append(PlacedWord(before, word.text, min(1.0, math.exp(word.log_prob)), is_held))
    return placed or ([PlacedWord("", text, None)] if text else [])
