"""What the handlers of requests share: the models, the keys, the counters, and how an allowed request is counted."""

from __future__ import annotations

from dataclasses import dataclass

from fastapi import Request

from regard.serve.document_files import DocumentFiles
from regard.serve.document_jobs import DocumentJobs
from regard.serve.explainers import Explainers
from regard.serve.keys import Key, Keys
from regard.serve.service import Answer, OnSentence, Service, TranslateRequest
from regard.serve.watch import Watch
from regard.serve.web.gate import Admission
from regard.serve.web.prometheus import Metrics


@dataclass(frozen=True)
class Context:
    service: Service
    keys: Keys
    metrics: Metrics
    admission: Admission
    store: DocumentFiles
    jobs: DocumentJobs
    explainers: Explainers
    watch: Watch | None = None  # the run that is watched


def context_of(request: Request) -> Context:
    context: Context = request.app.state.context
    return context


def admit(request: Request, given: str | None, characters: int) -> None:
    """Check the key that a client named in a field or a header, and charge it with a request and what it wants translated."""
    key = find_key(request, given)
    if key is not None:
        request.scope["facts"]["key"] = key.name
        key.charge(1, characters)
    request.scope["facts"]["characters"] = characters


def count(request: Request, given: str | None, characters: int) -> None:
    """Charge what is known only after it was done: the text of a document."""
    key = find_key(request, given)
    if key is not None:
        key.owe(characters)
    request.scope["facts"]["characters"] = characters
    context_of(request).metrics.characters.inc(characters)


def find_key(request: Request, given: str | None) -> Key | None:
    scheme, _, header = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() in ("bearer", "deepl-auth-key") and header.strip():
        given = header.strip()
    return context_of(request).keys.find(given)


async def answer(
    request: Request, wanted: TranslateRequest, given: str | None, on_sentence: OnSentence | None = None
) -> list[Answer]:
    """Translate for a client."""
    context = context_of(request)
    context.service.check(wanted)
    admit(request, given, wanted.characters)
    answers = await context.service.translate(wanted, on_sentence)
    context.metrics.characters.inc(wanted.characters)
    return answers
