"""What every request passes before FastAPI sees it: how many may be inside, how large a body may be and how long it may take,
who is still there to read the answer, and the headers of every response. Plain ASGI."""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Coroutine, MutableMapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from regard.serve.limits import Limits
from regard.serve.web.logs import log
from regard.serve.web.prometheus import Metrics
from regard.serve.web.status import REFUSALS, HttpRefused, as_http

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

GONE = 499  # in logs and metrics: the client left before the answer
FILES = frozenset({"/translate_file", "/v2/document"})  # documents: larger, slower, fewer
DOWNLOADS, DOCUMENTS = "/download_file/", "/v2/document/"  # the names that follow are secrets
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_DRAIN_SECONDS = 2.0
_FIELD_BYTES = 262_144  # of a form without its file; a glossary may be in it
_KEY_BYTES = 16_384  # of who asks after a document

SECURITY_HEADERS: dict[str, str] = {
    "content-security-policy": "default-src 'none'; style-src 'self'; img-src 'self'; frame-ancestors 'none'; "
    "base-uri 'none'; form-action 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "cache-control": "no-store",
}
_HEADERS = [(name.encode(), value.encode()) for name, value in SECURITY_HEADERS.items()]


@dataclass
class Admission:
    """Who is inside. Only the event loop touches it."""

    limits: Limits
    in_flight: int = 0
    files_in_flight: int = 0
    held_bytes: int = 0
    is_draining: bool = False
    is_ready: bool = True
    seconds_left: Callable[[], int] = field(default=lambda: 1)
    abandoned_files: Callable[[], int] = field(default=lambda: 0)  # documents that are worked on after their requests
    on_change: Callable[[int], None] = field(
        default=lambda in_flight: None
    )  # called with the new number of requests in flight
    background: set[asyncio.Task[None]] = field(default_factory=set)  # work whose clients do not wait for it

    @property
    def are_full(self) -> bool:
        """Whether nothing more gets in, for lack of a place alone."""
        return self.in_flight >= self.limits.places and not self.is_draining

    def check(self, is_file: bool) -> None:
        if self.is_draining:
            raise HttpRefused(503, "the server is being stopped; try another one", 1)
        files = self.files_in_flight + self.abandoned_files()
        if self.are_full or (is_file and files >= self.limits.file_places):
            raise self.too_many()

    def enter(self, is_file: bool) -> None:
        self._move(1, is_file)

    def leave(self, is_file: bool) -> None:
        self._move(-1, is_file)

    def _move(self, step: int, is_file: bool) -> None:
        self.in_flight += step
        self.files_in_flight += step * is_file
        self.on_change(self.in_flight)

    def run_in_background(self, work: Coroutine[Any, Any, None]) -> None:
        """Let work on a document go on after its request, in a place of its own."""
        self.enter(True)
        task = asyncio.create_task(work)
        self.background.add(task)
        task.add_done_callback(self._end)

    def _end(self, task: asyncio.Task[None]) -> None:
        self.background.discard(task)
        self.leave(True)

    def too_many(self) -> HttpRefused:
        seconds = self.seconds_left()
        return HttpRefused(429, f"too many requests are waiting; try again in {seconds} s", seconds)


class _Exchange:
    """The response on its way out: adds headers and remembers what was sent."""

    def __init__(self, send: Send, request_id: str) -> None:
        self._send, self.request_id = send, request_id
        self.status = 0
        self.is_read = False  # whether the whole request has come
        self.is_complete = False  # whether the whole answer is out

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            given = {name.lower() for name, _ in message.get("headers", [])}
            message["headers"] = [
                *message.get("headers", []),
                *(header for header in _HEADERS if header[0] not in given),
                (b"x-request-id", self.request_id.encode()),
            ]
        elif message["type"] == "http.response.body" and not message.get("more_body", False):
            self.is_complete = True
        await self._send(message)

    async def refuse(self, path: str, refused: HttpRefused, *, close: bool = True) -> None:
        if self.status:
            return  # it has begun; all that can be done is to stop
        headers, body = refusal(path, refused)
        if close:
            headers.append((b"connection", b"close"))
        await self.send({"type": "http.response.start", "status": refused.status, "headers": headers})
        await self.send({"type": "http.response.body", "body": body})


def problem(path: str, message: str) -> dict[str, str]:
    """An error as the clients of this path read it."""
    return {"message": message} if path.startswith("/v2/") else {"error": message}


def refusal(path: str, refused: HttpRefused) -> tuple[list[tuple[bytes, bytes]], bytes]:
    """The headers and the body that say why."""
    body = json.dumps(problem(path, str(refused))).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if refused.retry is not None:
        headers.append((b"retry-after", str(refused.retry).encode()))
    return headers, body


def internal_error(request_id: str) -> str:
    return f"internal error; its number is {request_id}"


class Gate:
    """An ASGI app around another."""

    def __init__(self, app: App, admission: Admission, metrics: Metrics, paths: frozenset[str]) -> None:
        self.app, self.admission, self.metrics, self.paths = app, admission, metrics, paths
        self._turned_away = 0
        admission.on_change = metrics.places.set

    def turn_away(self, path: str, headers: list[tuple[bytes, bytes]]) -> bytes:
        """A whole response, for a request that finds no place and is not looked at further (`protocol.py`), with these headers
        besides. Such requests are counted one by one, and logged together, once a second."""
        why, body = refusal(path, self.admission.too_many())
        headers = [*headers, *why, *_HEADERS, (b"x-request-id", secrets.token_hex(8).encode())]
        self.metrics.requests.labels(path, "429").inc()
        if not self._turned_away:
            asyncio.get_running_loop().call_later(1.0, self.log_turned_away)
        self._turned_away += 1
        lines = b"".join(b"%s: %s\r\n" % header for header in headers)
        return b"HTTP/1.1 429 Too Many Requests\r\n%s\r\n%s" % (lines, body)

    def log_turned_away(self) -> None:
        if self._turned_away:
            log("turned away", count=self._turned_away, status=429)
        self._turned_away = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        start = time.monotonic()
        exchange = _Exchange(send, secrets.token_hex(8))
        scope["request_id"] = exchange.request_id
        scope["facts"] = {}  # what the handlers want in the log line
        path = scope["path"] if scope["path"] in self.paths else "other"
        for prefix in (DOWNLOADS, DOCUMENTS):
            if scope["path"].startswith(prefix):
                path = prefix
        try:
            await self._answer(scope, receive, exchange)
        except REFUSALS as error:
            if not exchange.is_read:
                exchange.is_read = await self._drain(receive)
            await exchange.refuse(
                scope["path"], as_http(error), close=not exchange.is_read or self.admission.is_draining
            )
        except Exception as error:  # noqa: BLE001 - logged without its message, which may hold somebody's text
            log("failure", level=logging.ERROR, error=error, id=exchange.request_id, path=path)
            await exchange.refuse(scope["path"], HttpRefused(500, internal_error(exchange.request_id)))
        finally:
            self._record(scope, exchange, path, time.monotonic() - start)

    def _record(self, scope: Scope, exchange: _Exchange, path: str, seconds: float) -> None:
        status = exchange.status if exchange.is_complete else GONE
        self.metrics.requests.labels(path, str(status)).inc()
        self.metrics.seconds.labels(path).observe(seconds)
        method = scope["method"] if scope["method"] in _METHODS else "other"
        log(
            "request",
            id=exchange.request_id,
            method=method,
            path=path,
            status=status,
            ms=round(seconds * 1000, 1),
            **scope["facts"],
        )

    async def _answer(self, scope: Scope, receive: Receive, exchange: _Exchange) -> None:
        limits, admission = self.admission.limits, self.admission
        # Whoever asks after a document takes no place, so that one that was accepted can be fetched whatever the load.
        is_work = scope["method"] not in ("GET", "HEAD", "OPTIONS") and not scope["path"].startswith(DOCUMENTS)
        is_file = scope["path"] in FILES
        if is_work:
            admission.check(is_file)  # before anything is read
        most = limits.file_bytes + _FIELD_BYTES if is_file else limits.body_bytes
        if scope["path"].startswith(DOCUMENTS):
            most = min(most, _KEY_BYTES)  # a key or two; nothing counts who sends them
        reading = _BodyReader(admission, most)
        try:
            body = await reading.read(scope, receive, limits.body_seconds)
            exchange.is_read = True
            scope["facts"]["bytes"] = len(body)
            if not is_work:
                await self._run(scope, body, receive, exchange, limits.seconds)
                return
            admission.check(is_file)  # others may have come in meanwhile; a place is not held by a slow sender
            admission.enter(is_file)
            try:
                seconds = limits.file_seconds if is_file else limits.seconds
                await self._run(scope, body, receive, exchange, seconds)
            finally:
                admission.leave(is_file)
        finally:
            reading.release()

    async def _run(self, scope: Scope, body: bytes, receive: Receive, exchange: _Exchange, seconds: float) -> None:
        """Let the app work while somebody waits for it, and not longer than so many seconds."""

        task = asyncio.current_task()
        assert task is not None
        is_gone = False

        async def watch() -> None:
            nonlocal is_gone
            while (await receive())["type"] != "http.disconnect":
                pass
            if not exchange.is_complete:  # after the answer is out, the client may go
                is_gone = True
                task.cancel()

        watcher = asyncio.create_task(watch())
        rest: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def replay() -> Message:
            if rest:
                return rest.pop()
            await asyncio.wait({watcher})
            return {"type": "http.disconnect"}

        try:
            async with asyncio.timeout(seconds) as clock:
                await self.app(scope, replay, exchange.send)
        except TimeoutError:
            if not clock.expired():
                raise
            raise HttpRefused(503, f"the request took longer than {seconds:g} s; send less text", 5) from None
        except asyncio.CancelledError:
            if not is_gone:
                raise
            task.uncancel()
        finally:
            watcher.cancel()

    async def _drain(self, receive: Receive) -> bool:
        """Read what a refused client still sends, within bounds, and say whether that was all: a connection that is closed with
        data unread is reset, and the client never sees the answer."""
        left = 4 * self.admission.limits.body_bytes
        with suppress(TimeoutError):
            async with asyncio.timeout(_DRAIN_SECONDS):
                while left > 0:
                    message = await receive()
                    left -= len(message.get("body", b""))
                    if message["type"] != "http.request":
                        return False
                    if not message.get("more_body", False):
                        return True
        return False


class _BodyReader:
    """A request body that is being received, and its share of what may be held at a time."""

    def __init__(self, admission: Admission, most: int) -> None:
        self.admission, self.most, self.held = admission, most, 0

    async def read(self, scope: Scope, receive: Receive, seconds: float) -> bytes:
        length = dict(scope["headers"]).get(b"content-length", b"")
        if length.isdigit() and int(length) > self.most:
            raise self._too_large()
        try:
            async with asyncio.timeout(seconds):
                return await self._receive(receive)
        except TimeoutError:
            raise HttpRefused(408, f"the request must arrive within {seconds:g} s") from None

    async def _receive(self, receive: Receive) -> bytes:
        chunks = []
        while True:
            message = await receive()
            if message["type"] != "http.request":
                raise HttpRefused(400, "the request ended early")
            chunk = message.get("body", b"")
            self.held += len(chunk)
            self.admission.held_bytes += len(chunk)
            if self.held > self.most:  # counted as it comes: a chunked body does not say its length
                raise self._too_large()
            if self.admission.held_bytes > self.admission.limits.held_bytes:
                raise HttpRefused(429, "too much is being received; try again in 1 s", 1)
            chunks.append(chunk)
            if not message.get("more_body", False):
                return b"".join(chunks)

    def release(self) -> None:
        self.admission.held_bytes -= self.held
        self.held = 0

    def _too_large(self) -> HttpRefused:
        return HttpRefused(413, f"the request may have at most {self.most} bytes; send parts")
