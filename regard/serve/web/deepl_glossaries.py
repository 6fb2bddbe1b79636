"""DeepL's API for stored glossaries, and their use in a translation. Without `--glossaries` both are refused, with the remedy."""

from __future__ import annotations

import asyncio
import csv
import dataclasses

from fastapi import APIRouter, Request, Response

from regard.errors import InputError
from regard.serve.glossary_store import GlossaryStore, StoredGlossary
from regard.serve.keys import Key
from regard.serve.limits import Limits
from regard.serve.search import SearchRequest
from regard.serve.web.context import admit, context_of, find_key
from regard.serve.web.deepl_errors import ERRORS, deepl_names
from regard.serve.web.fields import body_of, read_fields
from regard.serve.web.schemas import (
    DeepLDocumentFields,
    DeepLFields,
    DeepLGlossaries,
    DeepLGlossary,
    DeepLGlossaryFields,
    DeepLGlossaryPair,
    DeepLGlossaryPairs,
)
from regard.serve.web.status import HttpRefused

router = APIRouter(prefix="/v2", tags=["DeepL"], responses=ERRORS)
_TSV = "text/tab-separated-values; charset=utf-8"
_NAME_CHARACTERS = 1_024
_MOST_IDS = 5  # of glossary_ids, as at DeepL


@router.post("/glossaries", status_code=201, openapi_extra=body_of(DeepLGlossaryFields))
async def create(request: Request) -> DeepLGlossary:
    """Store a glossary."""
    fields = await read_fields(request, DeepLGlossaryFields)
    store, key = _admitted(request, fields.auth_key)
    service = context_of(request).service
    if not fields.name.strip() or len(fields.name) > _NAME_CHARACTERS:
        raise HttpRefused(400, f"name must be a string of 1 to {_NAME_CHARACTERS} characters")
    with deepl_names():
        bundle = service.find(fields.source_lang, fields.target_lang).bundle
    entries = _entries(fields.entries, fields.entries_format, service.limits)
    stored = await asyncio.to_thread(store.add, key, fields.name, bundle.source, bundle.target, entries)
    return _reply(stored)


@router.get("/glossaries")
async def list_all(request: Request) -> DeepLGlossaries:
    """The stored glossaries of this key."""
    store, key = _admitted(request)
    return DeepLGlossaries(glossaries=[_reply(one) for one in await asyncio.to_thread(store.all_of, key)])


@router.get("/glossaries/{glossary_id}")
async def details(request: Request, glossary_id: str) -> DeepLGlossary:
    """A stored glossary, without its entries."""
    return _reply(await _found(*_admitted(request), glossary_id))


@router.get("/glossaries/{glossary_id}/entries", response_class=Response)
async def entries_of(request: Request, glossary_id: str) -> Response:
    """The entries of a stored glossary: a term, a tab and its translation on each line."""
    stored = await _found(*_admitted(request), glossary_id)
    return Response("\n".join("\t".join(entry) for entry in stored.entries), media_type=_TSV)


@router.delete("/glossaries/{glossary_id}", status_code=204)
async def remove(request: Request, glossary_id: str) -> None:
    """Delete a stored glossary."""
    store, key = _admitted(request)
    if not await asyncio.to_thread(store.remove, key, glossary_id):
        raise _missing()


@router.get("/glossary-language-pairs")
async def language_pairs(request: Request) -> DeepLGlossaryPairs:
    """The language pairs for which a glossary can be stored; none if this server stores none."""
    context = context_of(request)
    served = context.service.pairs.items() if context.glossaries is not None else ()
    pairs = [
        DeepLGlossaryPair(source_lang=source, target_lang=target)
        for (source, target), model in sorted(served, key=lambda one: one[0])
        if model.does_all
    ]
    return DeepLGlossaryPairs(supported_languages=pairs)


async def with_stored(
    request: Request, fields: DeepLFields | DeepLDocumentFields, search: SearchRequest
) -> SearchRequest:
    """The search with the entries of the stored glossaries that a request names. Of two entries for a term the first counts."""
    several = fields.glossary_ids
    listed = several.split(",") if isinstance(several, str) else several or []
    name = "glossary_ids" if listed else "glossary_id"
    ids = [one.strip() for one in [fields.glossary_id or "", *listed] if one.strip()]
    if not ids:
        return search
    context = context_of(request)
    if context.glossaries is None:
        raise HttpRefused(400, f"{name} is not supported by this server; send the entries themselves as glossary")
    if len(ids) > _MOST_IDS:
        raise HttpRefused(400, f"{name} may have at most {_MOST_IDS} glossaries; send fewer")
    if search.glossary:
        raise HttpRefused(400, f"glossary and {name} do not go together; send one of them")
    if not fields.source_lang:
        raise HttpRefused(400, f"{name} needs source_lang; send the language of the text")
    with deepl_names():
        bundle = context.service.find(fields.source_lang, fields.target_lang).bundle
        key = _key(request, fields.auth_key)
    entries: dict[str, str] = {}
    for glossary_id in ids:
        stored = await _found(context.glossaries, key, glossary_id)
        if (stored.source, stored.target) != (bundle.source, bundle.target):
            raise HttpRefused(
                400, f"{name} names a glossary from {stored.source} to {stored.target}; name one for these languages"
            )
        entries = {**dict(stored.entries), **entries}
    return dataclasses.replace(search, glossary=tuple(entries.items()))


def _admitted(request: Request, given: str | None = None) -> tuple[GlossaryStore, Key]:
    """The store and the client's key, after its request has been counted."""
    with deepl_names():
        admit(request, given, 0)
        store = context_of(request).glossaries
        if store is None:
            raise HttpRefused(
                400,
                "this server stores no glossaries; send the entries as glossary with each text, or ask its operator to start it "
                "with --glossaries",
            )
        return store, _key(request, given)


def _key(request: Request, given: str | None) -> Key:
    key = find_key(request, given)
    assert key is not None  # --glossaries needs --keys
    return key


async def _found(store: GlossaryStore, key: Key, glossary_id: str) -> StoredGlossary:
    stored = await asyncio.to_thread(store.find, key, glossary_id)
    if stored is None:
        raise _missing()
    return stored


def _missing() -> HttpRefused:
    return HttpRefused(404, "this key has no glossary with this glossary_id; list them with GET /v2/glossaries")


def _entries(text: str, form: str, limits: Limits) -> tuple[tuple[str, str], ...]:
    """The entries of a glossary as DeepL's clients send it. CSV may have two more columns, with the languages."""
    lines = text.splitlines()
    rows = csv.reader(lines) if form == "csv" else (line.split("\t") for line in lines)
    widths = (2, 3, 4) if form == "csv" else (2,)
    entries: dict[str, str] = {}
    try:
        for number, row in enumerate(rows, 1):
            if not any(cell.strip() for cell in row):
                continue
            if len(row) not in widths:
                comma = "a comma" if form == "csv" else "a tab"
                raise HttpRefused(400, f"entries, line {number} must be a term, {comma} and its translation")
            source, target = row[0].strip(), row[1].strip()
            if source in entries:
                raise HttpRefused(400, f"entries, line {number} has a term that is there already; remove one of them")
            entries[source] = target
    except csv.Error:
        raise HttpRefused(400, "entries must be CSV with quoted fields closed; see entries_format") from None
    if not 1 <= len(entries) <= limits.terms:
        raise HttpRefused(400, f"entries must be 1 to {limits.terms} lines, each with a term and its translation")
    try:
        SearchRequest(glossary=tuple(entries.items())).check(limits)
    except InputError as error:
        raise InputError(str(error).replace("glossary, entry", "entries, entry", 1)) from None
    return tuple(entries.items())


def _reply(stored: StoredGlossary) -> DeepLGlossary:
    return DeepLGlossary(
        glossary_id=stored.id,
        name=stored.name,
        ready=True,
        source_lang=stored.source,
        target_lang=stored.target,
        creation_time=stored.created,
        entry_count=len(stored.entries),
    )
