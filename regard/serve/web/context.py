"""What the handlers of requests share: the models, the keys, the counters, and how an allowed request is counted."""

from __future__ import annotations

from dataclasses import dataclass

from fastapi import Request

from regard.serve.keys import Keys
from regard.serve.service import Answer, Ask, Service
from regard.serve.web.gate import Doors
from regard.serve.web.metrics import Metrics


@dataclass(frozen=True)
class Context:
    service: Service
    keys: Keys
    metrics: Metrics
    doors: Doors


def context_of(request: Request) -> Context:
    context: Context = request.app.state.context
    return context


def admit(request: Request, given: str | None, characters: int) -> None:
    """Check the key that a client named in a field or a header, and count what it wants translated."""
    scheme, _, header = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() in ("bearer", "deepl-auth-key") and header.strip():
        given = header.strip()
    key = context_of(request).keys.find(given)
    if key is not None:
        request.scope["facts"]["key"] = key.name
        key.charge(characters)
    request.scope["facts"]["characters"] = characters


async def answer(request: Request, ask: Ask, given: str | None) -> list[Answer]:
    """Translate for a client."""
    context = context_of(request)
    context.service.check(ask)
    characters = sum(map(len, ask.texts))
    admit(request, given, characters)
    answers = await context.service.translate(ask)
    context.metrics.characters.inc(characters)
    return answers
