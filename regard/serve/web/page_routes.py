"""The page on `/`: its files, a policy that allows nothing else to run, and the settings that it needs."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from fastapi import APIRouter, Request, Response

from regard.serve.web.context import context_of
from regard.serve.web.schemas import PageEncoder, PageLanguage, PageLanguages, PageSettings
from regard.serve.web.status import HttpRefused
from regard.translation.documents.formats import MEDIA_TYPES
from regard.translation.languages import language_name

# Scripts and styles are files of this server; nothing is inline, and nothing comes from elsewhere.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
STATIC = "/static/"
_KINDS = {"css": "text/css", "html": "text/html", "js": "text/javascript", "svg": "image/svg+xml"}
router = APIRouter(tags=["The page"])


@dataclass(frozen=True)
class StaticFile:
    """A file of the page, as it is sent."""

    content: bytes
    media_type: str
    etag: str


@cache
def static_files() -> dict[str, StaticFile]:
    """All files of the page by name. The explain view shares its files with the page that `regard explain` writes."""
    found = {}
    for package in ("regard.explain", "regard.serve"):
        for path in (files(package) / "static").iterdir():
            kind = _KINDS.get(path.name.rpartition(".")[2])
            if kind is not None:
                content = path.read_bytes()
                tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
                found[path.name] = StaticFile(content, f"{kind}; charset=utf-8", tag)
    return found


def _answer(request: Request, name: str) -> Response:
    file = static_files().get(name)
    if file is None:
        raise HttpRefused(404, "there is nothing at this address; see /docs")
    # Revalidated each time, so that a page never gets the files of another version; unchanged ones are not sent again.
    headers = {"content-security-policy": POLICY, "cache-control": "no-cache", "etag": file.etag}
    if request.headers.get("if-none-match") == file.etag:
        return Response(status_code=304, headers=headers)
    return Response(file.content, media_type=file.media_type, headers=headers)


@router.get("/", include_in_schema=False)
async def page(request: Request) -> Response:
    return _answer(request, "page.html")


@router.get(STATIC + "{name}", include_in_schema=False)
async def static(request: Request, name: str) -> Response:
    return _answer(request, name)


@router.get("/frontend/settings")
async def settings(request: Request) -> PageSettings:
    """The settings of the page: LibreTranslate's, and a few of our own."""
    context = context_of(request)
    service = context.service
    source, target = next(iter(service.pairs), ("", ""))  # the page starts with the first model
    return PageSettings(
        apiKeys=context.keys.are_needed,
        keyRequired=context.keys.are_needed,
        charLimit=service.limits.characters,
        alternatives=service.limits.alternatives,
        fileBytes=service.limits.file_bytes,
        glossary=all(served.does_all for served in service.pairs.values()),
        terms=service.limits.terms,
        termCharacters=service.limits.term_characters,
        filesTranslation=True,
        supportedFilesFormat=[f".{kind}" for kind in MEDIA_TYPES],
        suggestions=False,
        frontendTimeout=0,
        language=PageLanguages(
            source=PageLanguage(code=source, name=language_name(source)),
            target=PageLanguage(code=target, name=language_name(target)),
        ),
        training=context.watch is not None,
        writers=list(service.writers),
        chatting=[name for name, writer in service.writers.items() if writer.has_chat],
        encoders={
            name: PageEncoder(task=encoder.bundle.task, texts=list(encoder.num_texts))
            for name, encoder in service.encoders.items()
        },
    )
