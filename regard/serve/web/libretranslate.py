"""LibreTranslate's API."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

from fastapi import APIRouter, Request, Response

from regard.serve.document_files import room_for
from regard.serve.service import Answer, OnSentence, TranslateRequest
from regard.serve.web.context import admit, answer, context_of, count
from regard.serve.web.events import stream, wants_events
from regard.serve.web.fields import body_of, file_body_of, read_fields, read_upload
from regard.serve.web.schemas import (
    AlignmentReply,
    DetectedLanguage,
    DetectFields,
    Error,
    FileFields,
    Language,
    TranslateFields,
    TranslateFileReply,
    TranslateReply,
    UnmetReply,
    language_reply,
)
from regard.serve.web.search_fields import search_of, terms_only
from regard.serve.web.status import HttpRefused
from regard.translation.detection import detect
from regard.translation.documents.formats import MEDIA_TYPES, kind_of, output_kind

ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": Error} for status in (400, 403, 404, 408, 413, 415, 422, 429, 500, 501, 503)
}
router = APIRouter(tags=["LibreTranslate"], responses=ERRORS)


@router.post(
    "/translate",
    response_model=TranslateReply,
    response_model_exclude_none=True,
    openapi_extra=body_of(TranslateFields),
)
async def translate(request: Request) -> Response:
    """Translate a text or a list of texts. With `Accept: text/event-stream`, sentences are sent as they are finished."""
    fields = await read_fields(request, TranslateFields)
    if not wants_events(request):
        done = to_reply(fields, await answer(request, to_request(fields), fields.api_key))
        return Response(done.model_dump_json(exclude_none=True), media_type="application/json")

    async def work(on_sentence: OnSentence) -> dict[str, Any]:
        answers = await answer(request, to_request(fields), fields.api_key, on_sentence)
        return to_reply(fields, answers).model_dump(exclude_none=True)

    return await stream(work)


def to_request(fields: TranslateFields) -> TranslateRequest:
    """From LibreTranslate's fields to a request for the service."""
    source = None if fields.source.strip().lower() == "auto" else fields.source
    texts = [fields.q] if isinstance(fields.q, str) else fields.q
    return TranslateRequest(
        texts,
        source,
        fields.target,
        fields.format == "html",
        fields.alternatives,
        alignments=fields.alignments,
        search=search_of(fields),
    )


def to_reply(fields: TranslateFields, answers: list[Answer]) -> TranslateReply:
    """From the service's answers, one per text, to LibreTranslate's reply."""
    texts = [one.translations[0] for one in answers]
    others = [one.translations[1 : fields.alternatives + 1] for one in answers] if fields.alternatives else None
    detected = [reply for one in answers if (reply := language_reply(one.detected))]
    aligned = [
        AlignmentReply(
            source=list(one.alignment.source), target=list(one.alignment.target), pairs=list(one.alignment.pairs)
        )
        for one in answers
        if one.alignment is not None
    ]
    unmet = [[UnmetReply(**dataclasses.asdict(lost)) for lost in one.unmet] for one in answers]
    other_languages = [language_reply(one.other) for one in answers]
    if isinstance(fields.q, list):
        return TranslateReply(
            translatedText=texts,
            alternatives=others,
            detectedLanguage=detected or None,
            alignments=aligned if fields.alignments else None,
            unmet=unmet if any(unmet) else None,
            otherLanguage=other_languages if any(other_languages) else None,
        )
    return TranslateReply(
        translatedText=texts[0],
        alternatives=others[0] if others is not None else None,
        detectedLanguage=detected[0] if detected else None,
        alignments=aligned[0] if aligned else None,
        unmet=unmet[0] or None,
        otherLanguage=other_languages[0],
    )


@router.post("/detect", openapi_extra=body_of(DetectFields))
async def detect_language(request: Request) -> list[DetectedLanguage]:
    """Detect the language of a text. An empty list if the text has no letters."""
    fields = await read_fields(request, DetectFields)
    limit = context_of(request).service.limits.characters
    if len(fields.q) > limit:
        raise HttpRefused(413, f"q may have at most {limit} characters; a page of text is enough")
    admit(request, fields.api_key, 0)
    found = await context_of(request).service.texts.run(detect, fields.q)
    return [reply] if (reply := language_reply(found)) else []


@router.post(
    "/translate_file",
    response_model=TranslateFileReply,
    response_model_exclude_none=True,
    openapi_extra=file_body_of(FileFields),
)
async def translate_file(request: Request) -> TranslateFileReply | Response:
    """Translate a document, and reply with a URL that is valid for some minutes. With `Accept: text/event-stream`, progress is
    sent, too."""
    upload, fields = await read_upload(request, FileFields)
    context = context_of(request)
    kind = kind_of(upload.name)
    if len(upload.content) > context.service.limits.file_bytes:
        raise HttpRefused(413, f"file may have at most {context.service.limits.file_bytes} bytes; send it in parts")
    source = None if fields.source.strip().lower() == "auto" else fields.source
    search = terms_only(fields)
    search.check(context.service.limits)
    admit(request, fields.api_key, 0)

    async def work(on_sentence: OnSentence) -> dict[str, Any]:
        files = context.document_files
        name = await asyncio.to_thread(files.begin, output_kind(kind), room_for(upload.content))
        try:
            translated = await context.service.translate_file(
                upload.content, kind, source, fields.target, fields.column or None, on_sentence, search
            )
            count(request, fields.api_key, translated.characters)
            await asyncio.to_thread(files.finish, name, translated.content)
        except BaseException:
            files.give_up(name)
            raise
        reply = {"translatedFileUrl": str(request.url_for("download_file", name=name))}
        return reply | ({"unmet": list(map(dataclasses.asdict, translated.unmet))} if translated.unmet else {})

    if wants_events(request):
        return await stream(work)
    return TranslateFileReply(**await work(lambda progress: None))


@router.get("/download_file/{name}", response_class=Response)
async def download_file(request: Request, name: str) -> Response:
    """Download a document that was translated in the last minutes."""
    content = await asyncio.to_thread(context_of(request).document_files.read, name)
    if content is None:
        raise HttpRefused(404, "there is no such document, or it has expired; translate it again")
    kind = kind_of(name)
    headers = {"content-disposition": f'attachment; filename="translated.{kind}"'}
    return Response(content, media_type=MEDIA_TYPES[kind], headers=headers)


@router.get("/languages")
async def languages(request: Request) -> list[Language]:
    """The languages of the models and the target languages of each."""
    service = context_of(request).service
    return [Language(code=code, name=name, targets=service.targets_of(code)) for code, name in service.names().items()]
