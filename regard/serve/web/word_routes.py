"""What the page requests while somebody types or changes words: sentences with word probabilities, and alternatives for a word."""

from __future__ import annotations

import dataclasses

from fastapi import APIRouter, Request

from regard.serve.search import SearchRequest
from regard.serve.service import TranslateRequest
from regard.serve.web.context import admit, context_of
from regard.serve.web.fields import body_of, read_fields
from regard.serve.web.libretranslate import ERRORS
from regard.serve.web.schemas import (
    AlternativesFields,
    AlternativesReply,
    AlternativeWord,
    SentenceReply,
    SentencesFields,
    SentencesReply,
    TranslationReply,
    UnmetReply,
    language_reply,
)
from regard.serve.web.search_fields import search_of, terms_of
from regard.serve.word_by_word import WordedSentence, other_words, translate_words

router = APIRouter(tags=["The page"], responses=ERRORS)


@router.post("/sentences", openapi_extra=body_of(SentencesFields))
async def sentences(request: Request) -> SentencesReply:
    """Translate a text sentence by sentence, with the probability of each word. `prefix` and `phrases` constrain the translation
    of a single sentence."""
    fields = await read_fields(request, SentencesFields)
    context = context_of(request)
    source = None if fields.source.strip().lower() == "auto" else fields.source
    wanted = TranslateRequest(
        [fields.q], source, fields.target, alternatives=fields.alternatives, search=search_of(fields)
    )
    context.service.check(wanted)
    admit(request, fields.api_key, wanted.characters)
    found = await translate_words(context.service, wanted, fields.least)
    context.metrics.characters.inc(wanted.characters)
    bundle = found.served.bundle
    return SentencesReply(
        sentences=[_sentence_reply(one) for one in found.sentences],
        after=found.after,
        source=bundle.source,
        target=bundle.target,
        detectedLanguage=language_reply(found.detected),
        otherLanguage=language_reply(found.other),
    )


def _sentence_reply(sentence: WordedSentence) -> SentenceReply:
    translations = [TranslationReply.model_validate(dataclasses.asdict(one)) for one in sentence.translations]
    unmet = [UnmetReply(**dataclasses.asdict(one)) for one in sentence.unmet]
    return SentenceReply(before=sentence.before, text=sentence.text, ways=translations, unmet=unmet)


@router.post("/alternatives", openapi_extra=body_of(AlternativesFields))
async def alternatives(request: Request) -> AlternativesReply:
    """The likeliest next words after the beginning of a translation: whole words that lead to a likely translation."""
    fields = await read_fields(request, AlternativesFields)
    context = context_of(request)
    search = SearchRequest(keep=terms_of(fields.keep), prefix=fields.prefix)
    wanted = TranslateRequest([fields.q], fields.source, fields.target, search=search)
    context.service.check(wanted)
    admit(request, fields.api_key, wanted.characters)
    found = await other_words(context.service, wanted, fields.count, fields.least)
    return AlternativesReply(
        words=[
            AlternativeWord(word=one.word, probability=min(1.0, one.probability), relative=one.relative)
            for one in found
        ]
    )
