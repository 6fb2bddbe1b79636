"""POST /explain, for the page's explain view and for programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter, Request, Response

from regard.explain.encoder_explanation import check_task
from regard.serve.web.context import admit, context_of
from regard.serve.web.fields import body_of, read_fields
from regard.serve.web.libretranslate import ERRORS
from regard.serve.web.schemas import ExplainFields
from regard.serve.web.status import HttpRefused

_PARTS = (
    "model", "text", "translation", "given", "source", "decoder_input", "target", "attention", "heads", "steps", "log_prob",
    "alignment", "saliency", "beam", "caution", "saliency_method",
)  # fmt: skip
_ENCODER_PARTS = ("model", "text", "readings", "predictions", "attributions", "similarity", "method", "caution", "note")
_EXPLAINED: dict[str, Any] = {
    "description": "the output of `regard explain -o data.json` with fewer digits, and sentences on how to read it",
    "content": {
        "application/json": {
            "schema": {"anyOf": [{"type": "object", "required": list(some)} for some in (_PARTS, _ENCODER_PARTS)]}
        }
    },
}
_OF_ENCODERS = ("label", "token", "at", "window")
router = APIRouter(tags=["The page"], responses={**ERRORS, 200: _EXPLAINED})


@router.post("/explain", response_class=Response, openapi_extra=body_of(ExplainFields))
async def explain(request: Request) -> Response:
    """Explain the translation of one sentence: attention of every layer and head, candidates at each step, the beam, saliency. Of a
    `model` without a decoder, what it says about a text: attention, probabilities, and which words decided."""
    fields = await read_fields(request, ExplainFields)
    texts = [fields.q] if isinstance(fields.q, str) else fields.q
    characters = sum(map(len, texts)) + len(fields.translation) + len(fields.prefix)
    limit = context_of(request).service.limits.characters
    if characters > limit:
        raise HttpRefused(413, f"q may have at most {limit} characters; send one sentence")
    work = _translation if fields.model is None and not _is_for_encoder(request, fields) else _encoder
    content = await work(request, fields, characters)
    context_of(request).metrics.characters.inc(characters)
    return Response(content, media_type="application/json")


def _is_for_encoder(request: Request, fields: ExplainFields) -> bool:
    """Whether a request that names neither a model nor languages can only mean an encoder."""
    service = context_of(request).service
    return fields.source is None and fields.target is None and bool(service.encoders) and not service.pairs


async def _translation(request: Request, fields: ExplainFields, characters: int) -> bytes:
    context = context_of(request)
    for name in ("source", "target"):
        if getattr(fields, name) is None:
            what = ExplainFields.model_fields[name].description
            raise HttpRefused(422, f"{name} is missing: it must be {what}", param=name)
    if not isinstance(fields.q, str):
        raise HttpRefused(422, "q must be one string, the sentence to translate", param="q")
    check_task("translate", _given(fields, _OF_ENCODERS))
    served = context.service.find(fields.source or "", fields.target or "")
    admit(request, fields.api_key, characters)
    return await context.explainers.explain(served, fields.q, fields.translation or None, fields.prefix or None)


async def _encoder(request: Request, fields: ExplainFields, characters: int) -> bytes:
    encoders = context_of(request).service.encoders
    if fields.model is None and len(encoders) == 1:
        served = next(iter(encoders.values()))
    elif fields.model in encoders:
        served = encoders[fields.model]
    else:
        names = ", ".join(sorted(encoders)) or "none"
        raise HttpRefused(
            404,
            f"model must be one without a decoder that is served here: {names}",
            param="model",
            code="model_not_found",
        )
    if wrong := _given(fields, ("source", "target", "translation", "prefix")):
        raise HttpRefused(
            400, f"{wrong[0]} is for models that translate, but a model without a decoder is named; leave it out"
        )
    given = _given(fields, _OF_ENCODERS)
    check_task(served.bundle.task, given)
    text = fields.q if isinstance(fields.q, str) else (fields.q[0], fields.q[1])
    admit(request, fields.api_key, characters)
    options = {name: getattr(fields, name) for name in given}
    return await context_of(request).explainers.explain_encoder(served, text, options)


def _given(fields: ExplainFields, names: Sequence[str]) -> list[str]:
    return [name for name in names if getattr(fields, name) not in (None, "")]
