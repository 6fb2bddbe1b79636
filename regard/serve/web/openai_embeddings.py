"""OpenAI's /v1/embeddings for the models that embed texts."""

from __future__ import annotations

import base64
import json
from functools import partial
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, BeforeValidator, Field

from regard.errors import InputError
from regard.serve.web.context import context_of
from regard.serve.web.encoder_routes import admit_texts, find_encoder
from regard.serve.web.fields import JSON
from regard.serve.web.openai import ERRORS, as_openai_object, check_key, openai_keys
from regard.serve.web.openai_fields import as_refusal, read_openai
from regard.serve.web.schemas import not_bool
from regard.serve.web.status import HttpRefused
from regard.understanding.embedder import Vectors

_INLINE_NUMBERS = 4_096  # that are written in the event loop; more in a thread
router = APIRouter(prefix="/v1", tags=["OpenAI"], responses=ERRORS)


class EmbeddingFields(BaseModel, strict=True):
    """Texts whose vectors are wanted."""

    model: str = Field(description="a string: the name of a model that embeds texts; see /v1/models")
    input: str | list[str] | list[int] | list[list[int]] = Field(
        description="a string, a list of strings, or the same as lists of token ids: the texts to embed"
    )
    encoding_format: Literal["float", "base64"] | None = Field(
        None, description="float, for numbers (the default), or base64, for the bytes of 32-bit floats"
    )
    dimensions: Annotated[int | None, BeforeValidator(not_bool)] = Field(
        None, ge=1, description="an integer: the numbers of a vector; only as many as the model has"
    )
    user: str | None = Field(None, description="a string; it is ignored")


def _body() -> dict[str, Any]:
    content = EmbeddingFields.model_json_schema(ref_template="#/components/schemas/{model}")
    content["additionalProperties"] = False
    return {"requestBody": {"required": True, "content": {JSON: {"schema": content}}}}


@router.post("/embeddings", response_class=Response, responses=as_openai_object(), openapi_extra=_body())
async def embeddings(request: Request) -> Response:
    """The vectors of texts. A text longer than the model reads is cut into windows, whose vectors are joined."""
    check_key(request)
    fields = await read_openai(request, EmbeddingFields)
    encoder = find_encoder(request, "embed", fields.model)
    width = encoder.bundle.config.d_model
    if fields.dimensions not in (None, width):
        raise HttpRefused(400, f"dimensions must be {width}, as many as this model has", param="dimensions")
    texts = _texts(fields)
    with openai_keys():
        admit_texts(request, texts, None, "input")
    try:
        vectors, tokens = await encoder.embed(texts)
    except InputError as error:
        raise as_refusal(error, "input") from None
    context_of(request).metrics.characters.inc(request.scope["facts"]["characters"])
    request.scope["facts"]["tokens"] = tokens
    render = partial(_render, encoder.name, vectors, tokens, fields.encoding_format == "base64")
    content = render() if vectors.size <= _INLINE_NUMBERS else await encoder.texts.run(render)
    return Response(content, media_type=JSON)


def _render(model: str, vectors: Vectors, tokens: int, is_base64: bool) -> bytes:
    """The answer as OpenAI's clients read it."""
    data = [
        {
            "object": "embedding",
            "index": number,
            "embedding": base64.b64encode(vector.astype("<f4").tobytes()).decode() if is_base64 else vector.tolist(),
        }
        for number, vector in enumerate(vectors)
    ]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return json.dumps({"object": "list", "data": data, "model": model, "usage": usage}).encode()


def _texts(fields: EmbeddingFields) -> list[str | list[int]]:
    """The texts, one after the other."""
    given = fields.input
    if isinstance(given, str):
        return [given]
    if not given:
        raise HttpRefused(400, "input must not be an empty list; send at least one text", param="input")
    if all(isinstance(one, int) for one in given):
        return [[one for one in given if isinstance(one, int)]]
    return [one for one in given if not isinstance(one, int)]
