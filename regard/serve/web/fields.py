"""The fields of a request: JSON, a form or the query, checked against a schema. Errors name fields but never quote their values."""

from __future__ import annotations

import json
import re
from difflib import get_close_matches
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
MULTIPART = "multipart/form-data"
_MAX_FIELDS = 1_000
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,39}")  # what may be repeated in an error; anything else may be a text
_NO_LIMIT = 2**40  # the whole body is limited already
_MAX_PARTS, _MAX_PART_BYTES = 20, 131_072  # of a form, its file not counted; one part may be a glossary


def body_of(*schemas: type[BaseModel]) -> dict[str, Any]:
    """The OpenAPI description of a body that may be JSON or a form."""
    schema = schemas[0].model_json_schema(ref_template="#/components/schemas/{model}")
    schema["additionalProperties"] = False
    return {"requestBody": {"required": True, "content": {JSON: {"schema": schema}, FORM: {"schema": schema}}}}


def file_body_of(schema: type[BaseModel]) -> dict[str, Any]:
    """The OpenAPI description of a form with a file and these fields."""
    fields = schema.model_json_schema()
    content = {
        "type": "object",
        "properties": {"file": {"type": "string", "format": "binary"}, **fields["properties"]},
        "required": ["file", *fields["required"]],
        "additionalProperties": False,
    }
    return {"requestBody": {"required": True, "content": {MULTIPART: {"schema": content}}}}


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
    if not request.headers.get("content-type", "").lower().startswith(MULTIPART):
        raise HttpRefused(415, f"content-type must be {MULTIPART} with a part named file")
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
    """The fields of a request as a checked object. Those in the query count like those in the body."""
    query = _parse_form(request.scope["query_string"], "query")
    body = await _read_body(request, may_be_empty=bool(query))
    if twice := query.keys() & body.keys():
        raise HttpRefused(400, f"{_shown(min(twice))} is in the query and in the body; send it once")
    return check_fields({**query, **body}, schema)


async def _read_body(request: Request, may_be_empty: bool) -> dict[str, Any]:
    kind = request.headers.get("content-type", "")
    if kind.lower().startswith(MULTIPART):
        return await _read_parts(request)
    body = await request.body()
    return {} if may_be_empty and not body else parse_body(kind, body)


async def _read_parts(request: Request) -> dict[str, Any]:
    """The fields of a form in parts, as browsers send FormData. It may have no files."""
    parser = _InMemory(request.headers, request.stream(), max_files=0, max_fields=_MAX_FIELDS, max_part_size=_NO_LIMIT)
    try:
        form = await parser.parse()
    except (MultiPartException, UnicodeError):
        raise HttpRefused(
            400, f"the body must be a form in UTF-8 with at most {_MAX_FIELDS} fields and no file"
        ) from None
    return _with_lists([(name, value) for name, value in form.multi_items() if isinstance(value, str)])


def parse_body(content_type: str, body: bytes) -> dict[str, Any]:
    """The fields of a JSON or form body. A form field that comes more than once becomes a list."""
    kind = content_type.partition(";")[0].strip().lower()
    if kind == FORM:
        return _parse_form(body, "body")
    if kind not in (JSON, "", "text/json"):
        raise HttpRefused(415, f"content-type must be {JSON}, {FORM} or {MULTIPART}")
    try:
        fields = json.loads(body)
        if b"\\ud" in body.lower():  # an escaped lone surrogate would fail much later
            json.dumps(fields, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        raise HttpRefused(400, "the body must be JSON in UTF-8") from None
    if not isinstance(fields, dict):
        raise HttpRefused(400, "the body must be a JSON object")
    return fields


def _parse_form(form: bytes, place: str) -> dict[str, Any]:
    try:
        pairs = parse_qsl(form.decode("utf-8"), keep_blank_values=True, errors="strict", max_num_fields=_MAX_FIELDS)
    except ValueError:
        raise HttpRefused(400, f"the {place} must be a form in UTF-8 with at most {_MAX_FIELDS} fields") from None
    return _with_lists(pairs)


def _with_lists(pairs: list[tuple[str, str]]) -> dict[str, Any]:
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
    """The fields as an object of this schema. Raises `HttpRefused` for a field that it does not have, else with the first broken
    rule."""
    known = schema.model_fields
    if unknown := [name for name in fields if name not in known]:
        raise HttpRefused(400, _unknown_field(unknown[0], list(known)), param=unknown[0])
    try:
        return schema.model_validate(fields)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        name = str(first["loc"][0]) if first["loc"] else ""
        # Clients of LibreTranslate and DeepL expect 422 for their own fields; ours are answered with 400.
        status = 400 if name in SearchFields.model_fields else 422
        raise HttpRefused(status, _broken_rule(first["type"], name, schema), param=name or None) from None


def _unknown_field(name: str, known: list[str]) -> str:
    near = get_close_matches(name[:40].lower(), known, 1)
    remedy = f"did you mean {near[0]}?" if near else f"leave it out; the fields are {', '.join(known)}"
    return f"{_shown(name)} is not a field of this request; {remedy}"


def _shown(name: str) -> str:
    return name if _NAME.fullmatch(name) else "a name that was sent"


def _broken_rule(kind: str, name: str, schema: type[BaseModel]) -> str:
    """The field and the rule that it breaks, in the words of the schema."""
    if name not in schema.model_fields:
        return "the request is malformed; see /docs"
    rule = schema.model_fields[name].description or "as in /docs"
    return f"{name} is missing: it must be {rule}" if kind == "missing" else f"{name} must be {rule}"
