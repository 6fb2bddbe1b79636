"""Server-sent events: each sentence as it is finished, then the whole answer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

from fastapi import Request
from fastapi.responses import StreamingResponse

from regard.serve.service import OnSentence, SentenceProgress
from regard.serve.web.status import REFUSALS, HttpRefused, as_http

MEDIA_TYPE = "text/event-stream"
Event = tuple[str, dict[str, Any]]


def wants_events(request: Request) -> bool:
    """Whether the client accepts server-sent events."""
    return MEDIA_TYPE in request.headers.get("accept", "")


async def stream(work: Callable[[OnSentence], Coroutine[Any, Any, dict[str, Any]]]) -> StreamingResponse:
    """Send `sentence` events while `work` runs, then a `result` or an `error`. An error before the first sentence becomes an
    ordinary HTTP error."""
    queue: asyncio.Queue[Event] = asyncio.Queue()

    def on_sentence(progress: SentenceProgress) -> None:
        queue.put_nowait(
            (
                "sentence",
                {
                    "text": progress.text,
                    "sentence": progress.sentence,
                    "of": progress.of,
                    "total": progress.total,
                    "translatedText": progress.translation,
                },
            )
        )

    async def run() -> None:
        try:
            queue.put_nowait(("result", await work(on_sentence)))
        except REFUSALS as error:
            refused = as_http(error)
            queue.put_nowait(("error", {"error": str(refused), "status": refused.status, "retry": refused.retry}))
        except Exception:
            queue.put_nowait(("error", {"error": "internal error", "status": 500, "retry": None}))
            raise

    task = asyncio.create_task(run())
    try:
        first = await queue.get()
    except asyncio.CancelledError:
        task.cancel()
        raise
    if first[0] == "error":
        await task  # re-raises internal errors
        raise HttpRefused(first[1]["status"], first[1]["error"], first[1]["retry"])

    async def events() -> AsyncIterator[str]:
        event = first
        try:
            while True:
                yield f"event: {event[0]}\ndata: {json.dumps(event[1], ensure_ascii=False)}\n\n"
                if event[0] != "sentence":
                    break
                event = await queue.get()
            await task
        finally:
            task.cancel()  # the client may be gone

    return StreamingResponse(events(), media_type=MEDIA_TYPE, headers={"x-accel-buffering": "no"})
