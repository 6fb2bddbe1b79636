"""What every request passes before FastAPI sees it: how many may be inside, how large a body may be and how long it may take,
who is still there to read the answer, and the headers of every response. Plain ASGI."""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from regard.serve.limits import Limits
from regard.serve.refusal import Refused
from regard.serve.web.logs import log
from regard.serve.web.metrics import Metrics

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

GONE = 499  # in logs and metrics: the client left before the answer
FILES = frozenset({"/translate_file"})  # documents: larger, slower, fewer
DOWNLOADS = "/download_file/"
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_DRAIN_SECONDS = 2.0

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


@dataclass
class Doors:
    """Who is inside. Only the event loop touches it."""

    limits: Limits
    inside: int = 0
    files_inside: int = 0
    held_bytes: int = 0
    is_draining: bool = False
    is_ready: bool = True
    seconds_left: Callable[[], int] = field(default=lambda: 1)

    def check(self, is_file: bool) -> None:
        if self.is_draining:
            raise Refused(503, "the server is being stopped; try another one", 1)
        if self.inside >= self.limits.places or (is_file and self.files_inside >= self.limits.file_places):
            seconds = self.seconds_left()
            raise Refused(429, f"too many requests are waiting; try again in {seconds} s", seconds)


class _Exchange:
    """The response on its way out: adds headers and remembers what was sent."""

    def __init__(self, send: Send, number: str) -> None:
        self._send, self.number = send, number
        self.status = 0
        self.is_read = False  # whether the whole request has come
        self.is_complete = False  # whether the whole answer is out

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            given = {name.lower() for name, _ in message.get("headers", [])}
            added = {**SECURITY_HEADERS, "x-request-id": self.number}
            message["headers"] = [
                *message.get("headers", []),
                *((k.encode(), v.encode()) for k, v in added.items() if k.encode() not in given),
            ]
        elif message["type"] == "http.response.body" and not message.get("more_body", False):
            self.is_complete = True
        await self._send(message)

    async def refuse(self, path: str, refused: Refused, *, close: bool = True) -> None:
        if self.status:
            return  # it has begun; all that can be done is to stop
        body = json.dumps(problem(path, str(refused))).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        if refused.retry is not None:
            headers.append((b"retry-after", str(refused.retry).encode()))
        if close:
            headers.append((b"connection", b"close"))
        await self.send({"type": "http.response.start", "status": refused.status, "headers": headers})
        await self.send({"type": "http.response.body", "body": body})


def problem(path: str, message: str) -> dict[str, str]:
    """An error as the clients of this path read it."""
    return {"message": message} if path.startswith("/v2/") else {"error": message}


def internal_error(number: str) -> str:
    return f"internal error; its number is {number}"


class Gate:
    """An ASGI app around another."""

    def __init__(self, app: App, doors: Doors, metrics: Metrics, paths: frozenset[str]) -> None:
        self.app, self.doors, self.metrics, self.paths = app, doors, metrics, paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        start = time.monotonic()
        exchange = _Exchange(send, secrets.token_hex(8))
        scope["number"] = exchange.number
        scope["facts"] = {}  # what the handlers want in the log line
        path = scope["path"] if scope["path"] in self.paths else "other"
        if scope["path"].startswith(DOWNLOADS):
            path = DOWNLOADS  # the name that follows is a secret
        try:
            await self._answer(scope, receive, exchange)
        except Refused as refused:
            if not exchange.is_read:
                await self._drain(receive)
            await exchange.refuse(scope["path"], refused, close=not exchange.is_read or self.doors.is_draining)
        except Exception as error:  # noqa: BLE001 - logged without its message, which may hold somebody's text
            log("failure", level=logging.ERROR, error=error, id=exchange.number, path=path)
            await exchange.refuse(scope["path"], Refused(500, internal_error(exchange.number)))
        finally:
            self._record(scope, exchange, path, time.monotonic() - start)

    def _record(self, scope: Scope, exchange: _Exchange, path: str, seconds: float) -> None:
        status = exchange.status if exchange.is_complete else GONE
        self.metrics.requests.labels(path, str(status)).inc()
        self.metrics.seconds.labels(path).observe(seconds)
        method = scope["method"] if scope["method"] in _METHODS else "other"
        log(
            "request",
            id=exchange.number,
            method=method,
            path=path,
            status=status,
            ms=round(seconds * 1000, 1),
            **scope["facts"],
        )

    async def _answer(self, scope: Scope, receive: Receive, exchange: _Exchange) -> None:
        limits, doors = self.doors.limits, self.doors
        is_work = scope["method"] not in ("GET", "HEAD", "OPTIONS")
        is_file = scope["path"] in FILES
        if is_work:
            doors.check(is_file)  # before anything is read
        reading = _Reading(doors, limits.file_bytes + 16_384 if is_file else limits.body_bytes)
        try:
            body = await reading.read(scope, receive, limits.body_seconds)
            exchange.is_read = True
            scope["facts"]["bytes"] = len(body)
            if not is_work:
                await self._run(scope, body, receive, exchange, limits.seconds)
                return
            doors.check(is_file)  # others may have come in meanwhile; a place is not held by a slow sender
            doors.inside += 1
            doors.files_inside += is_file
            self.metrics.places.set(doors.inside)
            try:
                seconds = limits.file_seconds if is_file else limits.seconds
                await self._run(scope, body, receive, exchange, seconds)
            finally:
                doors.inside -= 1
                doors.files_inside -= is_file
                self.metrics.places.set(doors.inside)
        finally:
            reading.release()

    async def _run(self, scope: Scope, body: bytes, receive: Receive, exchange: _Exchange, seconds: float) -> None:
        """Let the app work while somebody waits for it, and not longer than so many seconds."""

        async def watch() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass

        watcher = asyncio.create_task(watch())
        rest: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def replay() -> Message:
            if rest:
                return rest.pop()
            await asyncio.wait({watcher})
            return {"type": "http.disconnect"}

        work = asyncio.create_task(self._call(scope, replay, exchange))
        try:
            done, _ = await asyncio.wait({work, watcher}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                raise Refused(503, f"the request took longer than {seconds:g} s; send less text", 5)
            if work not in done and exchange.is_complete:
                await asyncio.wait({work}, timeout=1)  # the answer is out; what is left is tidying up
            if work.done():
                work.result()
        finally:
            for task in (work, watcher):
                task.cancel()
                with suppress(asyncio.CancelledError, Exception):
                    await task

    async def _call(self, scope: Scope, receive: Receive, exchange: _Exchange) -> None:
        await self.app(scope, receive, exchange.send)

    async def _drain(self, receive: Receive) -> None:
        """Read what a refused client still sends, within bounds: a connection that is closed with data unread is reset, and the
        client never sees the answer."""
        left = 4 * self.doors.limits.body_bytes

        async def read() -> None:
            nonlocal left
            while left > 0:
                message = await receive()
                left -= len(message.get("body", b""))
                if message["type"] != "http.request" or not message.get("more_body", False):
                    return

        with suppress(TimeoutError):
            await asyncio.wait_for(read(), _DRAIN_SECONDS)


class _Reading:
    """A request body that is being received, and its share of what may be held at a time."""

    def __init__(self, doors: Doors, most: int) -> None:
        self.doors, self.most, self.held = doors, most, 0

    async def read(self, scope: Scope, receive: Receive, seconds: float) -> bytes:
        length = dict(scope["headers"]).get(b"content-length", b"")
        if length.isdigit() and int(length) > self.most:
            raise self._too_large()
        try:
            return await asyncio.wait_for(self._receive(receive), seconds)
        except TimeoutError:
            raise Refused(408, f"the request must arrive within {seconds:g} s") from None

    async def _receive(self, receive: Receive) -> bytes:
        chunks = []
        while True:
            message = await receive()
            if message["type"] != "http.request":
                raise Refused(400, "the request ended early")
            chunk = message.get("body", b"")
            self.held += len(chunk)
            self.doors.held_bytes += len(chunk)
            if self.held > self.most:  # counted as it comes: a chunked body does not say its length
                raise self._too_large()
            if self.doors.held_bytes > self.doors.limits.held_bytes:
                raise Refused(429, "too much is being received; try again in 1 s", 1)
            chunks.append(chunk)
            if not message.get("more_body", False):
                return b"".join(chunks)

    def release(self) -> None:
        self.doors.held_bytes -= self.held
        self.held = 0

    def _too_large(self) -> Refused:
        return Refused(413, f"the request may have at most {self.most} bytes; send parts")
