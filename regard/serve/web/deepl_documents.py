"""DeepL's API for documents: upload one, poll its status, download the result."""

from __future__ import annotations

import asyncio
import logging
import time

from fastapi import APIRouter, Request, Response

from regard.serve.document_files import room_for
from regard.serve.document_jobs import DocumentHandle, DocumentState
from regard.serve.web.context import Context, admit, context_of, find_key
from regard.serve.web.deepl import check_options
from regard.serve.web.deepl_errors import ERRORS, deepl_names
from regard.serve.web.deepl_glossaries import with_stored
from regard.serve.web.fields import body_of, file_body_of, read_fields, read_upload
from regard.serve.web.logs import log
from regard.serve.web.schemas import (
    DeepLDocument,
    DeepLDocumentFields,
    DeepLDocumentKey,
    DeepLDocumentStatus,
    UnmetReply,
)
from regard.serve.web.search_fields import terms_only
from regard.serve.web.status import REFUSALS, HttpRefused
from regard.translation.documents.formats import MEDIA_TYPES, find_kind, kind_of, output_kind

router = APIRouter(prefix="/v2", tags=["DeepL"], responses=ERRORS)
# Clients poll only every five seconds, so a status request waits a little for a document that is nearly done.
_WAIT_SECONDS, _POLL_SECONDS = 1.0, 0.05


@router.post("/document", openapi_extra=file_body_of(DeepLDocumentFields))
async def send(request: Request) -> DeepLDocument:
    """Start translating a document. The id and the key in the reply are needed to poll and download it."""
    upload, fields = await read_upload(request, DeepLDocumentFields)
    context = context_of(request)
    limits = context.service.limits
    check_options(fields)
    # A file that has no name of its own is called "file" by some libraries.
    kind = find_kind(upload.name) or kind_of(fields.filename or "")
    if fields.output_format not in (None, "", output_kind(kind)):
        raise HttpRefused(400, "output_format must be that of the file; leave it out")
    if len(upload.content) > limits.file_bytes:
        raise HttpRefused(413, f"file may have at most {limits.file_bytes} bytes; send it in parts")
    search = await with_stored(request, fields, terms_only(fields))
    search.check(limits)
    with deepl_names():
        if fields.source_lang:
            context.service.find(fields.source_lang, fields.target_lang)
        admit(request, fields.auth_key, 0)
        key = find_key(request, fields.auth_key)
    handle = await asyncio.to_thread(
        context.document_jobs.begin, output_kind(kind), limits.file_seconds + 10, room_for(upload.content)
    )

    async def work() -> int:
        async with asyncio.timeout(limits.file_seconds):
            with deepl_names():
                translated = await context.service.translate_file(
                    upload.content, kind, fields.source_lang or None, fields.target_lang, search=search
                )
        if key is not None:
            key.owe(translated.characters)
        context.metrics.characters.inc(translated.characters)
        # Last, since a client may ask for its usage as soon as the document is done.
        await asyncio.to_thread(
            context.document_jobs.finish, handle, translated.content, translated.characters, translated.unmet
        )
        return translated.characters

    async def run() -> None:
        start = time.monotonic()
        status, characters = "done", 0
        try:
            characters = await work()
        except REFUSALS as error:
            status = "refused"
            context.document_jobs.fail(handle, str(error))
        except TimeoutError:
            status = "refused"
            context.document_jobs.fail(
                handle, f"the document took longer than {limits.file_seconds:g} s; send less text"
            )
        except BaseException as error:
            status = "failed"
            context.document_jobs.fail(handle, "internal error")
            if not isinstance(error, Exception):
                raise
            log("failure", level=logging.ERROR, error=error, id=request.scope["request_id"], path="/v2/document")
        finally:
            ms = round((time.monotonic() - start) * 1000, 1)
            log("document", id=request.scope["request_id"], status=status, characters=characters, ms=ms)

    context.admission.run_in_background(run())
    return DeepLDocument(document_id=handle.id, document_key=handle.key)


@router.post("/document/{document_id}", openapi_extra=body_of(DeepLDocumentKey))
async def status_of(request: Request, document_id: str) -> DeepLDocumentStatus:
    """The status of a document. Waits a moment for one that is nearly done."""
    context, handle = await _identify(request, document_id)
    until = time.monotonic() + _WAIT_SECONDS
    while (state := _found(context, handle)).status == "translating" and time.monotonic() < until:
        await asyncio.sleep(_POLL_SECONDS)
    left = max(1, round(state.ends - time.time())) if state.status == "translating" else None
    return DeepLDocumentStatus(
        document_id=handle.id,
        status=state.status,
        seconds_remaining=left,
        billed_characters=state.characters if state.status == "done" else None,
        error_message=state.error or None,
        unmet=[UnmetReply(option=option, text=text) for option, text in state.unmet] or None,
    )


@router.post("/document/{document_id}/result", response_class=Response, openapi_extra=body_of(DeepLDocumentKey))
async def result_of(request: Request, document_id: str) -> Response:
    """Download a finished document."""
    context, handle = await _identify(request, document_id)
    state = _found(context, handle)
    if state.status == "translating":
        raise HttpRefused(503, "the document is not finished; poll its status", 1)
    if state.status == "error":
        raise HttpRefused(404, "the document could not be translated; its status has the reason")
    try:
        content = await asyncio.to_thread(context.document_jobs.result, handle)
    except FileNotFoundError:  # it expired just now
        raise _gone() from None
    headers = {"content-disposition": f'attachment; filename="translated.{state.kind}"'}
    return Response(content, media_type=MEDIA_TYPES[state.kind], headers=headers)


async def _identify(request: Request, document_id: str) -> tuple[Context, DocumentHandle]:
    fields = await read_fields(request, DeepLDocumentKey)
    with deepl_names():
        find_key(request, fields.auth_key)
    return context_of(request), DocumentHandle(document_id, fields.document_key)


def _found(context: Context, handle: DocumentHandle) -> DocumentState:
    state = context.document_jobs.find(handle)
    if state is None:
        raise _gone()
    return state


def _gone() -> HttpRefused:
    return HttpRefused(404, "there is no document with this id and key, or it has expired; send it again")
