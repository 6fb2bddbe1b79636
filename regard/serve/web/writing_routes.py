"""What the page's writing view requests besides OpenAI's API: the words that may come next, and attention within a text."""

from __future__ import annotations

import dataclasses
from typing import Any

from fastapi import APIRouter, Request, Response

from regard.serve.next_words import next_words
from regard.serve.served_writer import ServedWriter
from regard.serve.web.context import admit, context_of
from regard.serve.web.fields import body_of, read_fields
from regard.serve.web.libretranslate import ERRORS
from regard.serve.web.openai import find_writer
from regard.serve.web.schemas import AttentionFields, NextWordReply, NextWordsFields, NextWordsReply
from regard.serve.web.status import HttpRefused

_ATTENTION: dict[str, Any] = {
    "description": "attention of every layer and head between the pieces of the text",
    "content": {
        "application/json": {"schema": {"type": "object", "required": ["attention", "heads", "decoder_input"]}}
    },
}
router = APIRouter(tags=["The page"], responses=ERRORS)


@router.post("/write/words", openapi_extra=body_of(NextWordsFields))
async def words(request: Request) -> NextWordsReply:
    """The likeliest next words after a text, by a language model."""
    fields = await read_fields(request, NextWordsFields)
    writer = _admitted(request, fields)
    found = await next_words(writer, fields.text, fields.count)
    return NextWordsReply(words=[NextWordReply(**dataclasses.asdict(one)) for one in found])


@router.post(
    "/write/attention", response_class=Response, responses={200: _ATTENTION}, openapi_extra=body_of(AttentionFields)
)
async def attention(request: Request) -> Response:
    """The attention of a language model within a text."""
    fields = await read_fields(request, AttentionFields)
    writer = _admitted(request, fields)
    content = await context_of(request).explainers.attention(writer, fields.text)
    return Response(content, media_type="application/json")


def _admitted(request: Request, fields: AttentionFields) -> ServedWriter:
    """The model of a request that may go on."""
    writer = find_writer(request, fields.model)
    most = context_of(request).service.limits.characters
    if len(fields.text) > most:
        raise HttpRefused(413, f"text may have at most {most} characters; send the end of it")
    admit(request, fields.api_key, len(fields.text))
    return writer
