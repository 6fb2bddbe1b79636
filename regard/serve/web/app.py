"""The application: the routes of both APIs, health, metrics and documentation, behind the gate."""

from __future__ import annotations

import html
import json
from typing import Any

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse
from starlette.exceptions import HTTPException

from regard.serve.document_files import DocumentFiles
from regard.serve.document_jobs import DocumentJobs
from regard.serve.explainers import Explainers
from regard.serve.glossary_store import GlossaryStore
from regard.serve.keys import Keys
from regard.serve.limits import Limits
from regard.serve.service import Service
from regard.serve.watch import Watch
from regard.serve.web import (
    deepl,
    deepl_documents,
    deepl_glossaries,
    encoder_routes,
    explain_routes,
    libretranslate,
    openai,
    openai_embeddings,
    page_routes,
    training_routes,
    word_routes,
    writing_routes,
)
from regard.serve.web.context import Context, context_of
from regard.serve.web.gate import Admission, Gate, internal_error, problem
from regard.serve.web.hosts import Hosts
from regard.serve.web.prometheus import Metrics
from regard.serve.web.proxies import Proxies
from regard.serve.web.schemas import Health, Ready
from regard.serve.web.status import REFUSALS, HttpRefused, as_http
from regard.version import __version__

_MESSAGES = {
    404: "there is nothing at this address; see /docs",
    405: "this address does not allow this method; see /docs",
}
# Parts of DeepL's and OpenAI's APIs that are not offered.
_NOT_OFFERED = {
    "/v1/responses": "responses are not offered by this server; use /v1/chat/completions",
    "/v1/audio/": "audio is not offered by this server",
    "/v1/images/": "images are not offered by this server",
    "/v1/": "this path of OpenAI's API is not offered; there are /v1/models, /v1/completions, /v1/chat/completions and "
    "/v1/embeddings",
    "/v2/write/": "rephrasing and correcting are not offered by this server",
    "/v3/glossaries": "glossaries of several language pairs are not offered by this server; use /v2/glossaries, one for each pair",
    "/v3/style_rules": "style rules are not offered by this server",
    "/v3/translation_memories": "translation memories are not offered by this server; translate a .tmx file as a document",
    "/v2/admin/": "keys are not managed over HTTP; use regard serve --keys FILE --new-key NAME",
}
router = APIRouter(tags=["The server"])


@router.get("/health")
async def health() -> Health:
    """Liveness: the process is running."""
    return Health(status="ok")


@router.get("/ready", responses={503: {"model": Ready}})
async def ready(request: Request) -> Response:
    """Readiness: 503 while the server is shutting down or after an internal failure, so that a load balancer sends it no more
    requests."""
    context = context_of(request)
    is_ready = context.admission.is_ready and not context.admission.is_draining and context.service.is_alive
    state = Ready(status="ready" if is_ready else "not ready", models=context.service.names_of_models)
    return JSONResponse(state.model_dump(), status_code=200 if is_ready else 503)


@router.get("/metrics", response_class=Response)
async def metrics(request: Request) -> Response:
    """Metrics for Prometheus."""
    context = context_of(request)
    return Response(context.metrics.render(context.service), media_type="text/plain; version=0.0.4; charset=utf-8")


@router.get("/docs", response_class=HTMLResponse, include_in_schema=False)
async def docs(request: Request) -> HTMLResponse:
    """The OpenAPI document as a page without scripts, which needs nothing from other servers."""
    return HTMLResponse(_docs_page(request.app.openapi()))


@router.get("/spec", include_in_schema=False)
async def spec(request: Request) -> Response:
    """The OpenAPI document at LibreTranslate's address for it."""
    return JSONResponse(request.app.openapi())


def make_app(
    service: Service,
    document_files: DocumentFiles,
    keys: Keys | None = None,
    metrics: Metrics | None = None,
    watch: Watch | None = None,
    hosts: Hosts | None = None,
    proxies: Proxies | None = None,
    glossaries: GlossaryStore | None = None,
) -> Gate:
    """The application as uvicorn runs it."""
    app = FastAPI(
        title="Regard",
        version=__version__,
        description="Translation with the APIs of LibreTranslate and DeepL, language models and vectors with OpenAI's.",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,  # a redirect would echo the client's host and path
    )
    app.include_router(libretranslate.router)
    app.include_router(deepl.router)
    app.include_router(openai.router)
    for part in (
        deepl_documents,
        deepl_glossaries,
        word_routes,
        explain_routes,
        encoder_routes,
        openai_embeddings,
        writing_routes,
        training_routes,
        page_routes,
    ):
        app.include_router(part.router)
    app.include_router(router)
    counters = metrics or Metrics()
    admission = Admission(service.limits)
    admission.seconds_left = lambda: max((batcher.seconds_left() for batcher in service.batchers), default=1)
    admission.abandoned_files = lambda: service.abandoned_documents
    app.state.context = Context(
        service,
        keys or Keys(),
        counters,
        admission,
        document_files,
        DocumentJobs(document_files.folder / "documents"),
        Explainers(service.limits.explain_places),
        watch,
        glossaries,
    )
    for error_type in REFUSALS:
        app.add_exception_handler(error_type, _refused)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(Exception, _failed)
    _describe_limits(app.openapi(), service.limits)
    own = [page_routes.STATIC + name for name in page_routes.static_files()]
    paths = frozenset({*app.openapi()["paths"], "/", "/docs", "/openapi.json", "/spec", *own})
    return Gate(app, admission, counters, paths, hosts or Hosts(), proxies or Proxies())


def _describe_limits(document: dict[str, Any], limits: Limits) -> None:
    """Put this server's beam limit, which the command line may have changed, into the OpenAPI document."""
    for methods in document["paths"].values():
        for operation in methods.values():
            for content in operation.get("requestBody", {}).get("content", {}).values():
                for name in ("beam", "groups"):
                    if name in content["schema"].get("properties", {}):
                        field = content["schema"]["properties"][name]
                        field["description"] = field["description"].replace(
                            f"and {field['maximum']:g}", f"and {limits.beam}"
                        )
                        field["maximum"] = limits.beam


def _refused(request: Request, error: Exception) -> Response:
    refused = as_http(error)
    headers = {} if refused.retry is None else {"retry-after": str(refused.retry)}
    return JSONResponse(problem(request.url.path, refused), refused.status, headers)


def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = _MESSAGES.get(error.status_code, "the request is malformed; see /docs")
    if error.status_code == 404:
        message = next((why for path, why in _NOT_OFFERED.items() if request.url.path.startswith(path)), message)
    refused = HttpRefused(error.status_code, message)
    return JSONResponse(problem(request.url.path, refused), error.status_code, dict(error.headers or {}))


def _invalid(request: Request, error: Exception) -> Response:
    # FastAPI's own answer would quote the request.
    return JSONResponse(problem(request.url.path, HttpRefused(422, "a parameter is malformed; see /docs")), 422)


def _failed(request: Request, error: Exception) -> Response:
    refused = HttpRefused(500, internal_error(request.scope["request_id"]))
    return JSONResponse(problem(request.url.path, refused), 500)


def _docs_page(document: dict[str, Any]) -> str:
    rows = ["<!DOCTYPE html><html lang=en><meta charset=utf-8><title>Regard API</title><h1>Regard API</h1>"]
    rows.append('<p>Machine-readable: <a href="openapi.json">openapi.json</a></p>')
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            rows.append(
                f"<h2>{method.upper()} {html.escape(path)}</h2><p>{html.escape(operation.get('description', ''))}</p>"
            )
            for kind, content in operation.get("requestBody", {}).get("content", {}).items():
                fields = content.get("schema", {}).get("properties", {})
                shown = {name: field.get("description", "") for name, field in fields.items()}
                rows.append(f"<p>{html.escape(kind)}</p><pre>{html.escape(json.dumps(shown, indent=2))}</pre>")
    return "".join(rows)
