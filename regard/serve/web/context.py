"""What request handlers share: the models, the keys, the metrics, and how a request is admitted and counted."""

from __future__ import annotations

from dataclasses import dataclass

from fastapi import Request

from regard.serve.document_files import DocumentFiles
from regard.serve.document_jobs import DocumentJobs
from regard.serve.explainers import Explainers
from regard.serve.fairness import CLIENT
from regard.serve.glossary_store import GlossaryStore
from regard.serve.keys import Key, Keys
from regard.serve.service import Answer, OnSentence, Service, TranslateRequest
from regard.serve.watch import Watch
from regard.serve.web.connections import address_key
from regard.serve.web.gate import Admission
from regard.serve.web.prometheus import Metrics


@dataclass(frozen=True)
class Context:
    """Everything that a handler may need, one per process."""

    service: Service
    keys: Keys
    metrics: Metrics
    admission: Admission
    document_files: DocumentFiles
    document_jobs: DocumentJobs
    explainers: Explainers
    watch: Watch | None = None  # the training run to show
    glossaries: GlossaryStore | None = None  # None: this server stores none; else every client has a key


def context_of(request: Request) -> Context:
    """The context of the application that serves this request."""
    context: Context = request.app.state.context
    return context


def admit(request: Request, given: str | None, characters: int) -> None:
    """Check the API key, from a field (`given`) or a header, and charge it for one request and its characters."""
    key = find_key(request, given)
    CLIENT.set(client_of(request, key))
    if key is not None:
        request.scope["facts"]["key"] = key.name
        key.charge(1, characters)
    request.scope["facts"]["characters"] = characters


def client_of(request: Request, key: Key | None) -> str:
    """Who asks, for turns between clients: the name of the key, else the address, which behind a trusted proxy is the forwarded
    one."""
    if key is not None:
        return f"key {key.name}"
    return f"address {address_key(request.client.host)}" if request.client is not None else ""


def count(request: Request, given: str | None, characters: int) -> None:
    """Charge the characters of a document, which are known only after it was translated."""
    key = find_key(request, given)
    if key is not None:
        key.owe(characters)
    request.scope["facts"]["characters"] = characters
    context_of(request).metrics.characters.inc(characters)


def find_key(request: Request, given: str | None) -> Key | None:
    """The key in the Authorization header, or `given`. Raises `Forbidden` if a valid one is required."""
    scheme, _, header = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() in ("bearer", "deepl-auth-key") and header.strip():
        given = header.strip()
    return context_of(request).keys.find(given)


async def answer(
    request: Request, wanted: TranslateRequest, given: str | None, on_sentence: OnSentence | None = None
) -> list[Answer]:
    """Check, admit and count a request, and translate its texts."""
    context = context_of(request)
    context.service.check(wanted)
    admit(request, given, wanted.characters)
    answers = await context.service.translate(wanted, on_sentence)
    context.metrics.characters.inc(wanted.characters)
    return answers
