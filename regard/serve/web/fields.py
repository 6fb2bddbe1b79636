"""The fields of a request: JSON or a form, checked against a schema. Errors never quote the request."""

from __future__ import annotations

import json
from typing import Any, NamedTuple, TypeVar
from urllib.parse import parse_qsl

from fastapi import Request
from pydantic import BaseModel, ValidationError
from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from regard.serve.web.schemas import SearchFields
from regard.serve.web.status import HttpRefused

Schema = TypeVar("Schema", bound=BaseModel)

JSON = "application/json"
FORM = "application/x-www-form-urlencoded"
_MAX_FIELDS = 1_000
_MAX_PARTS, _MAX_PART_BYTES = 20, 131_072  # of a form, its file not counted; one part may be a glossary


def body_of(*schemas: type[BaseModel]) -> dict[str, Any]:
    """The OpenAPI description of a body that may be JSON or a form."""
    schema = schemas[0].model_json_schema(ref_template="#/components/schemas/{model}")
    return {"requestBody": {"required": True, "content": {JSON: {"schema": schema}, FORM: {"schema": schema}}}}


def file_body_of(schema: type[BaseModel]) -> dict[str, Any]:
    """The OpenAPI description of a form with a file and these fields."""
    fields = schema.model_json_schema()
    content = {
        "type": "object",
        "properties": {"file": {"type": "string", "format": "binary"}, **fields["properties"]},
        "required": ["file", *fields["required"]],
    }
    return {"requestBody": {"required": True, "content": {"multipart/form-data": {"schema": content}}}}


class _InMemory(MultiPartParser):
    """Keeps an uploaded file in memory, where the whole body is already. Starlette writes a large one to a temporary file, and the
    disk may be full."""

    spool_max_size = 0  # no limit


class Upload(NamedTuple):
    """A file that was sent in a form."""

    name: str  # as the client gave it; only its extension is used
    content: bytes


async def read_upload(request: Request, schema: type[Schema]) -> tuple[Upload, Schema]:
    """The file and the other fields of a form."""
    if not request.headers.get("content-type", "").lower().startswith("multipart/form-data"):
        raise HttpRefused(415, "content-type must be multipart/form-data with a part named file")
    parser = _InMemory(
        request.headers, request.stream(), max_files=1, max_fields=_MAX_PARTS, max_part_size=_MAX_PART_BYTES
    )
    try:
        form = await parser.parse()
        try:
            upload = form.get("file")
            if not isinstance(upload, UploadFile):
                raise HttpRefused(422, "file is missing: it must be a document to translate")
            fields = {name: value for name, value in form.items() if isinstance(value, str)}
            return Upload(upload.filename or "", await upload.read()), check_fields(fields, schema)
        finally:
            await form.close()
    except (MultiPartException, UnicodeError):
        raise HttpRefused(
            400,
            f"the body must be a form with one file and at most {_MAX_PARTS} fields in UTF-8 of at most {_MAX_PART_BYTES} bytes",
        ) from None


async def read_fields(request: Request, schema: type[Schema]) -> Schema:
    """The body of a request as a checked object."""
    return check_fields(parse_body(request.headers.get("content-type", ""), await request.body()), schema)


def parse_body(content_type: str, body: bytes) -> dict[str, Any]:
    """The fields of a JSON or form body. A form field that comes more than once becomes a list."""
    kind = content_type.partition(";")[0].strip().lower()
    if kind == FORM:
        return _parse_form(body)
    if kind not in (JSON, "", "text/json"):
        raise HttpRefused(415, f"content-type must be {JSON} or {FORM}")
    try:
        fields = json.loads(body)
        if b"\\ud" in body.lower():  # an escaped lone surrogate would fail much later
            json.dumps(fields, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        raise HttpRefused(400, "the body must be JSON in UTF-8") from None
    if not isinstance(fields, dict):
        raise HttpRefused(400, "the body must be a JSON object")
    return fields


def _parse_form(body: bytes) -> dict[str, Any]:
    try:
        pairs = parse_qsl(body.decode("utf-8"), keep_blank_values=True, errors="strict", max_num_fields=_MAX_FIELDS)
    except ValueError:
        raise HttpRefused(400, f"the body must be a form in UTF-8 with at most {_MAX_FIELDS} fields") from None
    fields: dict[str, Any] = {}
    for name, value in pairs:
        if name not in fields:
            fields[name] = value
        elif isinstance(fields[name], list):
            fields[name].append(value)
        else:
            fields[name] = [fields[name], value]
    return fields


def check_fields(fields: dict[str, Any], schema: type[Schema]) -> Schema:
    """The fields as an object of this schema. Raises `HttpRefused` with the first broken rule."""
    try:
        return schema.model_validate(fields)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        name = str(first["loc"][0]) if first["loc"] else ""
        # Clients of LibreTranslate and DeepL expect 422 for their own fields; ours are answered with 400.
        status = 400 if name in SearchFields.model_fields else 422
        raise HttpRefused(status, _broken_rule(first["type"], name, schema)) from None


def _broken_rule(kind: str, name: str, schema: type[BaseModel]) -> str:
    """The field and the rule that it breaks, in the words of the schema."""
    if name not in schema.model_fields:
        return "the request is malformed; see /docs"
    rule = schema.model_fields[name].description or "as in /docs"
    return f"{name} is missing: it must be {rule}" if kind == "missing" else f"{name} must be {rule}"
