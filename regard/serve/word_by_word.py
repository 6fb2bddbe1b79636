"""Translations word by word, for people who edit them: the probability of each word, alternatives to it, and a new translation
after a given prefix."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from regard.serve.batched_sentences import search_sentences
from regard.serve.refusal import refusing
from regard.serve.served_model import ServedModel
from regard.serve.service import Service, TranslateRequest, check_one_line
from regard.translation.alternatives import Alternative, find_alternatives, likely_translations
from regard.translation.detection import Detected
from regard.translation.glossary import Variants, find_variants
from regard.translation.results import Unmet
from regard.translation.sentences import Split, split_text
from regard.translation.terms import find_terms, overlap_with
from regard.translation.words import Word


@dataclass(frozen=True)
class TranslatedWord:
    """A word of a translation, with the characters between the previous word and this one."""

    before: str
    text: str
    probability: float | None  # given everything before it; None if unknown
    held: bool = False  # whether it comes from the glossary or from keep


@dataclass(frozen=True)
class WordedTranslation:
    """One translation of a sentence. The words, each with its `before`, make up the text except for its end."""

    text: str
    words: list[TranslatedWord]


@dataclass(frozen=True)
class WordedSentence:
    """A source sentence and its translations, best first."""

    before: str  # the characters between the previous sentence and this one
    text: str
    translations: list[WordedTranslation]
    unmet: Sequence[Unmet] = ()  # what the first translation lacks of what was asked for


@dataclass(frozen=True)
class WordedText:
    """A text in sentences. The sentences, each with its `before`, and then `after` make up the text."""

    sentences: list[WordedSentence]
    after: str
    served: ServedModel
    detected: Detected | None
    other: Detected | None = None  # the language of the text, if it clearly is not the model's


async def translate_words(service: Service, request: TranslateRequest, least: float | None = None) -> WordedText:
    """Translate the one text of `request` sentence by sentence. With a prefix or phrases it is treated as one sentence. Of the
    alternatives only those remain that are at least `least` times as likely as the best translation (`likely_translations`)."""
    service.check(request)
    [text] = request.texts
    served, detected, plan = await service.texts.run(
        _prepare, service, request, text, request.search.is_of_one_sentence
    )
    other = await service.texts.run(service.other_language, served, plan)
    results = await search_sentences(served, plan.sentences, request.alternatives, words=True, search=request.search)
    terms = await served.texts.run(_terms, served, request, plan.sentences) if request.search.has_terms else {}
    sentences, position = [], 0
    for place, result in zip(plan.places, results, strict=True):
        before = "".join(plan.pieces[position:place])
        position = place + 1
        listed: dict[str, WordedTranslation] = {}  # two may have the same text
        for one in likely_translations(result.translations, least):
            held = [
                span for variants in terms.get(plan.pieces[place], ()) for span in find_variants(one.text, variants)
            ]
            listed.setdefault(one.text, WordedTranslation(one.text, place_words(one.text, one.words, held)))
        sentences.append(WordedSentence(before, plan.pieces[place], list(listed.values()), result.unmet))
    return WordedText(sentences, "".join(plan.pieces[position:]), served, detected, other)


async def other_words(
    service: Service, request: TranslateRequest, count: int, least: float | None = None
) -> list[Alternative]:
    """The likeliest words right after the prefix of `request`, which has one sentence; at most `count`, best first; `least` as
    for `find_alternatives`."""
    service.check(request)
    [text] = request.texts
    served, _, plan = await service.texts.run(_prepare, service, request, text, True)
    if not plan.sentences:
        return []
    return await served.threads.run(_find_others, served, plan.sentences[0], request, count, least)


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


def _find_others(
    served: ServedModel, sentence: str, request: TranslateRequest, count: int, least: float | None
) -> list[Alternative]:
    side = served.text_side_for(request.search)
    with refusing("finding other words"):
        return find_alternatives(side, served.engine, sentence, request.search.prefix, count, least)


def _terms(served: ServedModel, request: TranslateRequest, sentences: Sequence[str]) -> dict[str, list[Variants]]:
    """The glossary terms of each sentence, each as its variants, and the words in it to keep."""
    options = served.text_side_for(request.search, request.alternatives).options
    terms = {}
    for sentence in sentences:
        kept = find_terms(sentence, options.keep)
        wanted = options.glossary.find(sentence, kept) if options.glossary is not None else {}
        terms[sentence] = [*wanted, *((sentence[slice(*place)],) for place in kept)]
    return terms


def place_words(text: str, words: Sequence[Word], held: Sequence[tuple[int, int]] = ()) -> list[TranslatedWord]:
    """The words at their places in a text, those that overlap a span of `held` marked. If a word is not found in the text, the
    whole text becomes one word without a probability.

    >>> [(word.before, word.text) for word in place_words("Ja, gut!", [Word(t, -0.1) for t in ("Ja", ",", "gut", "!")])]
    [('', 'Ja'), ('', ','), (' ', 'gut'), ('', '!')]
    """
    placed: list[TranslatedWord] = []
    position = 0
    is_held = overlap_with(held)
    for word in words:
        start = text.find(word.text, position)
        if start < 0 or not word.text:
            placed = []
            break
        before, position = text[position:start], start + len(word.text)
        placed.append(TranslatedWord(before, word.text, min(1.0, math.exp(word.log_prob)), is_held((start, position))))
    return placed or ([TranslatedWord("", text, None)] if text else [])
