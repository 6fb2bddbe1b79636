"""The part of DeepL's API that clients need to translate text; documents are in `deepl_documents.py`, stored
glossaries in `deepl_glossaries.py`. Unsupported options are
refused by name, never ignored."""

from __future__ import annotations

import dataclasses

from fastapi import APIRouter, Request

from regard.serve.service import TranslateRequest
from regard.serve.web.context import admit, answer, context_of
from regard.serve.web.deepl_errors import ERRORS, deepl_names
from regard.serve.web.deepl_glossaries import with_stored
from regard.serve.web.fields import FORM, body_of, parse_body, read_fields
from regard.serve.web.schemas import (
    DeepLFields,
    DeepLLanguage,
    DeepLTranslation,
    DeepLTranslations,
    DeepLUnsupported,
    DeepLUsage,
    ModelType,
    UnmetReply,
    language_reply,
)
from regard.serve.web.search_fields import search_of
from regard.serve.web.status import HttpRefused
from regard.translation.languages import language_name
from regard.translation.markup.tags import Xml

router = APIRouter(prefix="/v2", tags=["DeepL"], responses=ERRORS)
_NO_LIMIT = 1_000_000_000_000  # clients require a number


@router.post("/translate", response_model_exclude_none=True, openapi_extra=body_of(DeepLFields))
async def translate(request: Request) -> DeepLTranslations:
    """Translate texts."""
    fields = await read_fields(request, DeepLFields)
    check_options(fields)
    if fields.tag_handling not in (None, "", "html", "xml"):
        raise HttpRefused(400, "tag_handling must be html or xml, or left out")
    split = str(fields.split_sentences if fields.split_sentences is not None else "1").lower()
    if split not in ("0", "1", "nonewlines", "true", "false"):
        raise HttpRefused(400, "split_sentences must be 0, 1 or nonewlines")
    texts = [fields.text] if isinstance(fields.text, str) else fields.text
    wanted = TranslateRequest(
        texts,
        fields.source_lang or None,
        fields.target_lang,
        is_html=fields.tag_handling == "html",
        by_sentence=split not in ("0", "false"),
        joins_lines=None if fields.split_sentences is None else split == "nonewlines",
        xml=xml_of(fields),
        search=await with_stored(request, fields, search_of(fields)),
        context=fields.context or "",
    )
    with deepl_names():
        answers = await answer(request, wanted, fields.auth_key)
    quality = fields.model_type in ("quality_optimized", "prefer_quality_optimized")
    model_type: ModelType = "quality_optimized" if quality else "latency_optimized"
    translations = [
        DeepLTranslation(
            detected_source_language=one.source.upper(),
            text=one.translations[0],
            billed_characters=len(text),
            model_type_used=model_type if fields.model_type else None,
            unmet=[UnmetReply(**dataclasses.asdict(lost)) for lost in one.unmet] or None,
            other_language=language_reply(one.other),
        )
        for one, text in zip(answers, texts, strict=True)
    ]
    return DeepLTranslations(translations=translations)


def check_options(fields: DeepLUnsupported) -> None:
    """Refuse options that no model here supports."""
    for name in DeepLUnsupported.model_fields:
        if name != "formality" and getattr(fields, name):
            raise HttpRefused(400, f"{name} is not supported by this server; leave it out")
    if fields.formality not in (None, "", "default", "prefer_more", "prefer_less"):
        raise HttpRefused(
            400,
            "formality must be default, prefer_more or prefer_less, since the models have one form only; leave it out",
        )


def xml_of(fields: DeepLFields) -> Xml | None:
    """How to treat the tags of an XML text; None for other texts."""
    if fields.tag_handling != "xml":
        for name in ("splitting_tags", "non_splitting_tags", "ignore_tags"):
            if getattr(fields, name):
                raise HttpRefused(400, f"{name} needs tag_handling=xml; send that, or leave it out")
        return None
    outline = str(1 if fields.outline_detection is None else fields.outline_detection).lower()
    if outline not in ("0", "1", "true", "false"):
        raise HttpRefused(400, "outline_detection must be 0 or 1")
    return Xml(
        _names(fields.splitting_tags),
        _names(fields.non_splitting_tags),
        _names(fields.ignore_tags),
        by_outline=outline in ("1", "true"),
    )


def _names(tags: str | list[str] | None) -> frozenset[str]:
    parts = tags.split(",") if isinstance(tags, str) else tags or []
    return frozenset(part.strip() for part in parts if part.strip())


@router.get("/languages", response_model_exclude_none=True)
async def languages(request: Request, type: str = "source") -> list[DeepLLanguage]:
    """The source languages, or with type=target the target languages."""
    service = context_of(request).service
    body = await request.body()
    if body and request.headers.get("content-type", "").startswith(FORM):  # DeepL's Python client sends it in the body
        type = str(parse_body(FORM, body).get("type", type))
    if type == "target":
        return [
            DeepLLanguage(language=code.upper(), name=language_name(code), supports_formality=False)
            for code in service.targets
        ]
    return [DeepLLanguage(language=code.upper(), name=language_name(code)) for code in service.sources]


@router.get("/usage")
async def usage(request: Request) -> DeepLUsage:
    """Characters translated since the server started. There is no limit."""
    with deepl_names():
        admit(request, None, 0)
    counted = context_of(request).metrics.total("regard_characters_total")
    return DeepLUsage(character_count=int(counted), character_limit=_NO_LIMIT)
