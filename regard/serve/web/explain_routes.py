"""POST /explain, for the page's explain view and for programs."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response

from regard.serve.web.context import admit, context_of
from regard.serve.web.fields import body_of, read_fields
from regard.serve.web.libretranslate import ERRORS
from regard.serve.web.schemas import ExplainFields
from regard.serve.web.status import HttpRefused

_PARTS = (
    "model", "text", "translation", "given", "source", "decoder_input", "target", "attention", "heads", "steps", "log_prob",
    "alignment", "saliency", "beam", "caution", "saliency_method",
)  # fmt: skip
_EXPLAINED: dict[str, Any] = {
    "description": "the output of `regard explain -o data.json` with fewer digits, and two sentences on how to read it",
    "content": {"application/json": {"schema": {"type": "object", "required": list(_PARTS)}}},
}
router = APIRouter(tags=["The page"], responses={**ERRORS, 200: _EXPLAINED})


@router.post("/explain", response_class=Response, openapi_extra=body_of(ExplainFields))
async def explain(request: Request) -> Response:
    """Explain the translation of one sentence: attention of every layer and head, candidates at each step, the beam, saliency."""
    fields = await read_fields(request, ExplainFields)
    context = context_of(request)
    served = context.service.find(fields.source, fields.target)
    characters = len(fields.q) + len(fields.translation) + len(fields.prefix)
    if characters > context.service.limits.characters:
        raise HttpRefused(413, f"q may have at most {context.service.limits.characters} characters; send one sentence")
    admit(request, fields.api_key, characters)
    content = await context.explainers.explain(served, fields.q, fields.translation or None, fields.prefix or None)
    context.metrics.characters.inc(characters)
    return Response(content, media_type="application/json")
