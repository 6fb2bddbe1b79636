"""Translations word by word, for people who work on them: how sure the model is of each word, which others could stand in its
place, and the rest of a sentence again after a given beginning."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass

from regard.serve.batched_sentences import search_sentences
from regard.serve.refusal import refusing
from regard.serve.served_model import ServedModel
from regard.serve.service import Detected, Service, TranslateRequest, check_one_line
from regard.translation.alternatives import Alternative, find_alternatives
from regard.translation.glossary import places_said
from regard.translation.sentences import Split, split_text
from regard.translation.terms import find_terms
from regard.translation.words import Word


@dataclass(frozen=True)
class TranslatedWord:
    """A word of a translation with what stands between it and the word before."""

    before: str
    text: str
    probability: float | None  # of its pieces, given all that comes before them; None where the model did not say
    held: bool = False  # whether it stands there by a glossary, or was to be kept


@dataclass(frozen=True)
class WordedTranslation:
    """One translation of a sentence. Its words with what is before them make up the text, but for what follows the last."""

    text: str
    words: list[TranslatedWord]


@dataclass(frozen=True)
class WordedSentence:
    before: str  # what stands between it and the sentence before
    text: str
    ways: list[WordedTranslation]  # best first


@dataclass(frozen=True)
class WordedText:
    """A text in sentences: each with what is before it, and in the end what follows the last, they make up the text."""

    sentences: list[WordedSentence]
    after: str
    served: ServedModel
    detected: Detected | None


async def translate_words(service: Service, request: TranslateRequest) -> WordedText:
    """The one text of `request`, sentence by sentence. With a prefix or phrases it is taken as one sentence."""
    service.check(request)
    [text] = request.texts
    served, detected, plan = await asyncio.to_thread(
        _prepare, service, request, text, request.search.is_of_one_sentence
    )
    results = await search_sentences(served, plan.sentences, request.alternatives, words=True, search=request.search)
    terms = await asyncio.to_thread(_terms, served, request, plan.sentences) if request.search.has_terms else {}
    sentences, position = [], 0
    for place, result in zip(plan.places, results, strict=True):
        before = "".join(plan.pieces[position:place])
        position = place + 1
        listed: dict[str, WordedTranslation] = {}  # two may have the same text
        for way in result.translations:
            held = [one for ways in terms.get(plan.pieces[place], ()) for one in places_said(way.text, ways)]
            placed = place_words(way.text, way.words, held)
            listed.setdefault(way.text, WordedTranslation(way.text, placed))
        sentences.append(WordedSentence(before, plan.pieces[place], list(listed.values())))
    return WordedText(sentences, "".join(plan.pieces[position:]), served, detected)


async def other_words(service: Service, request: TranslateRequest, count: int) -> list[Alternative]:
    """The likeliest words right after the beginning of a translation of one sentence, the prefix of `request`."""
    service.check(request)
    [text] = request.texts
    served, _, plan = await asyncio.to_thread(_prepare, service, request, text, True)
    if not plan.sentences:
        return []
    return await served.threads.run(_find_others, served, plan.sentences[0], request, count)


def _prepare(
    service: Service, request: TranslateRequest, text: str, is_sentence: bool
) -> tuple[ServedModel, Detected | None, Split]:
    if request.source is None:
        served, detected = service.detect_for(text, request.target)
    else:
        served, detected = service.find(request.source, request.target), None
    if is_sentence:
        check_one_line(text)
    return served, detected, split_text(text, served.bundle.source, by_sentence=not is_sentence)


def _find_others(served: ServedModel, sentence: str, request: TranslateRequest, count: int) -> list[Alternative]:
    side = served.text_side_for(request.search)
    with refusing("finding other words"):
        return find_alternatives(side, served.engine, sentence, request.search.prefix, count)


def _terms(
    served: ServedModel, request: TranslateRequest, sentences: Sequence[str]
) -> dict[str, list[tuple[str, ...]]]:
    """Of each sentence what a glossary wants to be said, each in one of several ways, and what of it is to be kept."""
    options = served.text_side_for(request.search, request.alternatives).options
    terms = {}
    for sentence in sentences:
        kept = find_terms(sentence, options.keep)
        wanted = options.glossary.find(sentence, kept) if options.glossary is not None else {}
        terms[sentence] = [*wanted, *((sentence[slice(*place)],) for place in kept)]
    return terms


def place_words(text: str, words: Sequence[Word], held: Sequence[tuple[int, int]] = ()) -> list[TranslatedWord]:
    """The words where they stand in a text; where one is not found there, the text is one word that nothing is known of. Those at
    the places `held` are marked.

    >>> [(word.before, word.text) for word in place_words("Ja, gut!", [Word(t, -0.1) for t in ("Ja", ",", "gut", "!")])]
    [('', 'Ja'), ('', ','), (' ', 'gut'), ('', '!')]
    """
    placed: list[TranslatedWord] = []
    position = 0
    for word in words:
        start = text.find(word.text, position)
        if start < 0 or not word.text:
            placed = []
            break
        before, position = text[position:start], start + len(word.text)
        is_held = any(start < end and begin < position for begin, end in held)
        placed.append(TranslatedWord(before, word.text, min(1.0, math.exp(word.log_prob)), is_held))
    return placed or ([TranslatedWord("", text, None)] if text else [])
