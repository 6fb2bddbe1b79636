"""The API of LibreTranslate: what its clients send and expect."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import APIRouter, Request

from regard.serve.languages import detect
from regard.serve.refusal import Refused
from regard.serve.service import Answer, Ask
from regard.serve.web.context import admit, answer, context_of
from regard.serve.web.fields import body_of, read_fields
from regard.serve.web.schemas import DetectedLanguage, DetectFields, Error, Language, Translated, TranslateFields

ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": Error} for status in (400, 403, 408, 413, 415, 422, 429, 500, 503)
}
router = APIRouter(tags=["LibreTranslate"], responses=ERRORS)


@router.post("/translate", response_model_exclude_none=True, openapi_extra=body_of(TranslateFields))
async def translate(request: Request) -> Translated:
    """Translate a text or a list of texts."""
    fields = await read_fields(request, TranslateFields)
    answers = await answer(request, as_ask(fields), fields.api_key)
    return translated(fields, answers)


def as_ask(fields: TranslateFields) -> Ask:
    source = None if fields.source.strip().lower() == "auto" else fields.source
    texts = [fields.q] if isinstance(fields.q, str) else fields.q
    return Ask(texts, source, fields.target, fields.format == "html", fields.alternatives)


def translated(fields: TranslateFields, answers: list[Answer]) -> Translated:
    texts = [one.ways[0] for one in answers]
    others = [one.ways[1 : fields.alternatives + 1] for one in answers] if fields.alternatives else None
    found = [
        DetectedLanguage(confidence=one.detected.confidence, language=one.detected.language)
        for one in answers
        if one.detected is not None
    ]
    if isinstance(fields.q, list):
        return Translated(translatedText=texts, alternatives=others, detectedLanguage=found or None)
    return Translated(
        translatedText=texts[0],
        alternatives=others[0] if others is not None else None,
        detectedLanguage=found[0] if found else None,
    )


@router.post("/detect", openapi_extra=body_of(DetectFields))
async def detect_language(request: Request) -> list[DetectedLanguage]:
    """Which language a text is in, and how sure that is; nothing where there are no letters to go by."""
    fields = await read_fields(request, DetectFields)
    if len(fields.q) > context_of(request).service.limits.characters:
        raise Refused(413, "q has more characters than are allowed; a page of it is enough")
    admit(request, fields.api_key, 0)
    found = await asyncio.to_thread(detect, fields.q)
    return [DetectedLanguage(confidence=found[1], language=found[0])] if found else []


@router.get("/languages")
async def languages(request: Request) -> list[Language]:
    """The languages of the models, and what each can be translated into."""
    service = context_of(request).service
    return [Language(code=code, name=name, targets=service.targets_of(code)) for code, name in service.names().items()]
