"""What every request passes before FastAPI: whether it is meant for this server, limits on concurrency, body size and time,
cancellation when the client disconnects, and the headers of every response. Plain ASGI."""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterator, MutableMapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from regard.serve.limits import Limits
from regard.serve.web.connections import address_key
from regard.serve.web.hosts import Hosts
from regard.serve.web.logs import log
from regard.serve.web.prometheus import Metrics
from regard.serve.web.proxies import Proxies, is_loopback
from regard.serve.web.status import REFUSALS, HttpRefused, as_http

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

GONE = 499  # in logs and metrics: the client disconnected before the answer
OPENAI = "/v1/"
MODELS = "/v1/models/"
WRITING = frozenset({"/v1/completions", "/v1/chat/completions"})  # texts that are written have their own limit of time
FILES = frozenset({"/translate_file", "/v2/document"})  # documents have their own limits
GLOSSARIES = "/v2/glossaries/"
DOWNLOADS, DOCUMENTS = "/download_file/", "/v2/document/"  # what follows is a secret, and not logged
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_DRAIN_SECONDS = 2.0
_REFUSED_LINES = 100  # of the log in a second; more are counted
_FIELD_BYTES = 262_144  # of a form besides its file; it may contain a glossary
_KEY_BYTES = 16_384  # of a request for a document's status or result

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
    """Requests in flight, and whether another one may enter. Used by the event loop only."""

    limits: Limits
    in_flight: int = 0
    files_in_flight: int = 0
    held_bytes: int = 0
    is_draining: bool = False
    is_ready: bool = True
    seconds_left: Callable[[], int] = field(default=lambda: 1)
    abandoned_files: Callable[[], int] = field(
        default=lambda: 0
    )  # documents still in a thread after their requests ended
    on_change: Callable[[int], None] = field(
        default=lambda in_flight: None
    )  # called with the new number of requests in flight
    background: set[asyncio.Task[None]] = field(default_factory=set)  # documents whose clients poll for them

    by_address: Counter[str] = field(default_factory=Counter)  # requests in flight

    def are_full(self, address: str = "") -> bool:
        """Whether all places are taken for a client from this address; while draining, another reason applies. Those who take all
        places leave a share to others."""
        if self.in_flight < self.limits.places or self.is_draining:
            return False
        share = self.limits.places / (len({*self.by_address, address}) + 1)
        return self.by_address[address] + 1 > share

    def check(self, is_file: bool, address: str = "") -> None:
        """Raise `HttpRefused` if there is no place for another request from this address."""
        if self.is_draining:
            raise HttpRefused(503, "the server is shutting down; try another one", 1)
        files = self.files_in_flight + self.abandoned_files()
        if self.are_full(address) or (is_file and files >= self.limits.file_places):
            raise self.too_many()

    def enter(self, is_file: bool, address: str = "") -> None:
        """Count a request that takes a place; a file takes a file place, too."""
        self._move(1, is_file, address)

    def leave(self, is_file: bool, address: str = "") -> None:
        """Free the place of a request."""
        self._move(-1, is_file, address)

    def _move(self, step: int, is_file: bool, address: str) -> None:
        self.by_address[address] += step
        if not self.by_address[address]:
            del self.by_address[address]
        self.in_flight += step
        self.files_in_flight += step * is_file
        self.on_change(self.in_flight)

    def run_in_background(self, work: Coroutine[Any, Any, None]) -> None:
        """Continue work on a document after its request, in a place of its own."""
        self.enter(True)
        task = asyncio.create_task(work)
        self.background.add(task)
        task.add_done_callback(self._end)

    def _end(self, task: asyncio.Task[None]) -> None:
        self.background.discard(task)
        self.leave(True)

    def too_many(self) -> HttpRefused:
        """The refusal for a request that finds all places taken, with the time until a retry makes sense."""
        seconds = self.seconds_left()
        return HttpRefused(429, f"too many requests are waiting; try again in {seconds} s", seconds)


class _Exchange:
    """The response: adds headers and keeps track of what was sent."""

    def __init__(self, send: Send, request_id: str) -> None:
        self._send, self.request_id = send, request_id
        self.status = 0
        self.is_read = False  # whether the whole request was received
        self.is_complete = False  # whether the whole answer was sent

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
            return  # a response that has begun can only be cut off
        headers, body = refusal(path, refused)
        if close:
            headers.append((b"connection", b"close"))
        await self.send({"type": "http.response.start", "status": refused.status, "headers": headers})
        await self.send({"type": "http.response.body", "body": body})


def problem(path: str, refused: HttpRefused) -> dict[str, Any]:
    """An error in the format of the API that this path belongs to."""
    if path.startswith(OPENAI):
        return openai_error(refused)
    return {"message" if path.startswith(("/v2/", "/v3/")) else "error": str(refused)}


def openai_error(refused: HttpRefused) -> dict[str, Any]:
    """An error as OpenAI's clients read it."""
    kinds = {401: "invalid_request_error", 404: "invalid_request_error", 429: "rate_limit_error"}
    kind = kinds.get(refused.status, "server_error" if refused.status >= 500 else "invalid_request_error")
    code = refused.code or {401: "invalid_api_key", 429: "rate_limit_exceeded"}.get(refused.status)
    return {"error": {"message": str(refused), "type": kind, "param": refused.param, "code": code}}


def refusal(path: str, refused: HttpRefused) -> tuple[list[tuple[bytes, bytes]], bytes]:
    """The headers and the body of a refusal."""
    body = json.dumps(problem(path, refused)).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if refused.retry is not None:
        headers.append((b"retry-after", str(refused.retry).encode()))
    return headers, body


def internal_error(request_id: str) -> str:
    """The message of a response with status 500, with the id that the log line has."""
    return f"internal error; look for {request_id} in the server's log"


class Gate:
    """An ASGI app around another, which enforces the limits."""

    def __init__(
        self,
        app: App,
        admission: Admission,
        metrics: Metrics,
        paths: frozenset[str],
        hosts: Hosts,
        proxies: Proxies,
    ) -> None:
        self.app, self.admission, self.metrics, self.paths = app, admission, metrics, paths
        self.hosts, self.proxies = hosts, proxies
        self._behind_proxies: Counter[str] = Counter()  # requests in flight by the client's address
        self.on_startup: Callable[[], None] = lambda: None  # called in the event loop before requests are served
        self._turned_away = 0
        admission.on_change = metrics.places.set

    def turn_away(self, path: str, headers: list[tuple[bytes, bytes]]) -> bytes:
        """A complete response with these additional headers, for a request that is refused before it is parsed (`protocol.py`).
        Such requests are counted one by one, but logged together, once a second."""
        why, body = refusal(path, self.admission.too_many())
        headers = [*headers, *why, *_HEADERS, (b"x-request-id", secrets.token_hex(8).encode())]
        self.metrics.requests.labels(path, "429").inc()
        if not self._turned_away:
            asyncio.get_running_loop().call_later(1.0, self.log_turned_away)
        self._turned_away += 1
        lines = b"".join(b"%s: %s\r\n" % header for header in headers)
        return b"HTTP/1.1 429 Too Many Requests\r\n%s\r\n%s" % (lines, body)

    def log_turned_away(self) -> None:
        """Log the requests turned away since the last call."""
        if self._turned_away:
            log("turned away", count=self._turned_away, status=429)
        self._turned_away = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
            return
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        start = time.monotonic()
        exchange = _Exchange(send, secrets.token_hex(8))
        scope["request_id"] = exchange.request_id
        scope["facts"] = {}  # what handlers add to the log line
        path = scope["path"] if scope["path"] in self.paths else "other"
        for prefix in (DOWNLOADS, DOCUMENTS, GLOSSARIES, MODELS):
            if scope["path"].startswith(prefix):
                path = prefix
        try:
            with self._from_client(scope):
                self.hosts.check(scope["method"], scope["path"], scope["headers"])
                await self._answer(scope, receive, exchange)
        except REFUSALS as error:
            if not exchange.is_read:
                exchange.is_read = await self._drain(receive)
            await exchange.refuse(
                scope["path"], as_http(error), close=not exchange.is_read or self.admission.is_draining
            )
        except Exception as error:  # noqa: BLE001 - logged without its message, which may contain a user's text
            log(
                "failure",
                level=logging.ERROR,
                error=error,
                most=_REFUSED_LINES,
                id=exchange.request_id,
                path=path,
            )
            await exchange.refuse(scope["path"], HttpRefused(500, internal_error(exchange.request_id)))
        finally:
            self._record(scope, exchange, path, time.monotonic() - start)

    @contextmanager
    def _from_client(self, scope: Scope) -> Iterator[None]:
        """Put the client's address and scheme into the scope. Behind a trusted proxy, requests are counted by address, as
        connections are elsewhere."""
        peer = scope["client"][0] if scope.get("client") else ""
        is_proxy = self.proxies.trusts(peer)
        if is_proxy or is_loopback(peer):  # a proxy on this machine need not be named for the scheme
            said = [value for name, value in scope["headers"] if name == b"x-forwarded-proto"]
            if said and said[-1].strip().lower() in (b"http", b"https"):
                scope["scheme"] = said[-1].strip().lower().decode()
        if not is_proxy:
            yield
            return
        client = self.proxies.client_of(peer, [value for name, value in scope["headers"] if name == b"x-forwarded-for"])
        scope["client"] = (client, 0)
        key = address_key(client)
        self._behind_proxies[key] += 1
        try:
            if self._behind_proxies[key] > self.admission.limits.address_connections and not self.proxies.trusts(
                client
            ):
                raise HttpRefused(429, "this address has too many requests; try again in 1 s", 1)
            yield
        finally:
            self._behind_proxies[key] -= 1
            if not self._behind_proxies[key]:
                del self._behind_proxies[key]

    async def _live(self, receive: Receive, send: Send) -> None:
        """Startup and shutdown of the server. The app inside has nothing to do at either."""
        await receive()
        self.on_startup()
        await send({"type": "lifespan.startup.complete"})
        with suppress(asyncio.CancelledError):  # a second signal ends the event loop without a shutdown message
            await receive()
        await send({"type": "lifespan.shutdown.complete"})

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
            most=0 if status < 400 else _REFUSED_LINES,
            **scope["facts"],
        )

    async def _answer(self, scope: Scope, receive: Receive, exchange: _Exchange) -> None:
        limits, admission = self.admission.limits, self.admission
        # Polling for a document takes no place, so that an accepted one can be downloaded under any load.
        is_work = scope["method"] not in ("GET", "HEAD", "OPTIONS") and not scope["path"].startswith(DOCUMENTS)
        is_file = scope["path"] in FILES
        address = address_key(scope["client"][0]) if scope.get("client") else ""
        if is_work:
            admission.check(is_file, address)  # before anything is read
        max_bytes = limits.file_bytes + _FIELD_BYTES if is_file else limits.body_bytes
        if scope["path"].startswith(DOCUMENTS):
            max_bytes = min(max_bytes, _KEY_BYTES)  # a key or two; these requests are not counted
        reader = _BodyReader(admission, max_bytes)
        try:
            body = await reader.read(scope, receive, limits.body_seconds)
            exchange.is_read = True
            scope["facts"]["bytes"] = len(body)
            if not is_work:
                await self._run(scope, body, receive, exchange, limits.seconds)
                return
            admission.check(is_file, address)  # again, since a slow sender holds no place while it sends
            admission.enter(is_file, address)
            try:
                seconds = limits.file_seconds if is_file else limits.seconds
                seconds = limits.writing_seconds if scope["path"] in WRITING else seconds
                await self._run(scope, body, receive, exchange, seconds)
            finally:
                admission.leave(is_file, address)
        finally:
            reader.release()

    async def _run(self, scope: Scope, body: bytes, receive: Receive, exchange: _Exchange, seconds: float) -> None:
        """Run the app until it is done, the client disconnects or `seconds` are over."""

        task = asyncio.current_task()
        assert task is not None
        is_gone = False

        async def watch() -> None:
            nonlocal is_gone
            while (await receive())["type"] != "http.disconnect":
                pass
            if not exchange.is_complete:  # afterwards the client may leave
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
            less = "ask for fewer tokens" if scope["path"] in WRITING else "send less text"
            raise HttpRefused(503, f"the request took longer than {seconds:g} s; {less}", 5) from None
        except asyncio.CancelledError:
            if not is_gone:
                raise
            task.uncancel()
        finally:
            watcher.cancel()

    async def _drain(self, receive: Receive) -> bool:
        """Read the rest of a refused request, within bounds; returns whether that was all. Closing a connection with unread data
        resets it, and the client would never see the answer."""
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
    """Receives one request body, and counts it towards the bytes that may be held at a time."""

    def __init__(self, admission: Admission, max_bytes: int) -> None:
        self.admission, self.max_bytes, self.held = admission, max_bytes, 0

    async def read(self, scope: Scope, receive: Receive, seconds: float) -> bytes:
        length = dict(scope["headers"]).get(b"content-length", b"")
        if length.isdigit() and int(length) > self.max_bytes:
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
                raise HttpRefused(400, "the request ended before its body was complete")
            chunk = message.get("body", b"")
            self.held += len(chunk)
            self.admission.held_bytes += len(chunk)
            if self.held > self.max_bytes:  # counted as it arrives, since a chunked body has no declared length
                raise self._too_large()
            if self.admission.held_bytes > self.admission.limits.held_bytes:
                raise HttpRefused(429, "too many bytes are being received; try again in 1 s", 1)
            chunks.append(chunk)
            if not message.get("more_body", False):
                return b"".join(chunks)

    def release(self) -> None:
        self.admission.held_bytes -= self.held
        self.held = 0

    def _too_large(self) -> HttpRefused:
        return HttpRefused(413, f"the request may have at most {self.max_bytes} bytes; send it in parts")
