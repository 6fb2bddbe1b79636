"""uvicorn's protocol, with time limits for clients that are slow to send or to read, and a short way to refuse requests while all
places are taken.

uvicorn limits only the time between two requests. Here the headers of a request must arrive within `header_seconds` of the first
byte (of the connection, for its first request), and an answer must be read within `send_seconds` or at least go on being read. The
gate limits the time of a body.

A plain request that arrives in one piece is answered with 429 before it is parsed. Any other takes the long way, through uvicorn
and the gate, with the same answer.

This is the one file that uses uvicorn's internals, and the server needs it. A refusal takes 35 to 46 µs of the event loop this way
and 270 to 340 the long way, an accepted short sentence 1,200 to 1,800 (CPU time of the main thread in /proc, 8,000 refusals,
uvicorn 0.54, 2026-11-17, two busy cores). At ten times the capacity (`benchmarks/serve_load.py`), the refusals would take twice the
time of the requests that are accepted. uvicorn's own `limit_concurrency` counts health checks too and answers 503.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from regard.serve.web.connections import Connections, address_key

if TYPE_CHECKING:
    import asyncio

    from regard.serve.web.gate import Gate

_START = re.compile(rb"POST (/translate|/v2/translate) HTTP/1\.1\r\n")
# One plain length, and no header that changes how the body or the connection is read.
_LENGTH = re.compile(rb"\r\ncontent-length: ?(\d{1,7})(?=\r\n)", re.IGNORECASE)
_NOT_PLAIN = re.compile(
    rb"\r\n(?:transfer-encoding|expect|upgrade|connection[ \t]*:(?![ \t]*keep-alive[ \t]*\r))", re.IGNORECASE
)


def path_of_whole_request(data: bytes) -> str | None:
    """The path of a translation request, if these bytes are exactly one and nothing about it is unusual.

    >>> path_of_whole_request(b"POST /translate HTTP/1.1\\r\\nHost: x\\r\\nContent-Length: 2\\r\\n\\r\\n{}")
    '/translate'
    >>> head = b"POST /translate HTTP/1.1\\r\\nHost: x\\r\\nContent-Length: 2\\r\\n"
    >>> path_of_whole_request(head + b"Connection: keep-alive\\r\\n\\r\\n{}")
    '/translate'
    >>> path_of_whole_request(head + b"Connection: close\\r\\n\\r\\n{}")
    >>> path_of_whole_request(b"POST /translate HTTP/1.1\\r\\nHost: x\\r\\nContent-Length: 3\\r\\n\\r\\n{}")
    """
    start = _START.match(data)
    end = data.find(b"\r\n\r\n")
    if start is None or end < 0:
        return None
    head = data[: end + 2]
    lengths = _LENGTH.findall(head)
    if len(lengths) != 1 or head.lower().count(b"content-length") != 1 or _NOT_PLAIN.search(head):
        return None
    return start[1].decode() if int(lengths[0]) == len(data) - end - 4 else None


_TOO_LATE = b"HTTP/1.1 408 Request Timeout\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%s"
_PROGRESS = 16_384  # bytes of an answer that a client must read within `send_seconds`


class SlowClient:
    """How long a connection has waited for its client. The time is the event loop's."""

    def __init__(self, now: float, header_seconds: float, send_seconds: float) -> None:
        self.header_seconds, self.send_seconds = header_seconds, send_seconds
        self.head_since: float | None = now  # when the headers that are incomplete began
        self._unsent, self._unsent_since = 0, now

    def note_head(self, is_incomplete: bool, now: float) -> None:
        """Called when bytes of a request have arrived."""
        if not is_incomplete:
            self.head_since = None
        elif self.head_since is None:
            self.head_since = now

    def note_progress(self, now: float) -> None:
        """Called when a good part of an answer has been sent."""
        self._unsent_since = now

    def is_late(self, now: float) -> bool:
        """Whether the headers have taken too long."""
        return self.head_since is not None and now - self.head_since > self.header_seconds

    def is_stalled(self, unsent: int, now: float) -> bool:
        """Whether the client does not read its answer, of which so many bytes are not sent."""
        if unsent == 0 or self._unsent == 0 or unsent <= self._unsent - _PROGRESS:
            self._unsent, self._unsent_since = unsent, now
        return unsent > 0 and now - self._unsent_since > self.send_seconds


def make_protocol(gate: Gate, connections: Connections) -> type[H11Protocol]:
    """The protocol class, which uvicorn instantiates for each connection."""
    limits = gate.admission.limits
    message = b'{"error": "the headers of a request must arrive within %g s"}' % limits.header_seconds
    too_late = _TOO_LATE % (len(message), message)

    class Protocol(H11Protocol):
        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            peer = transport.get_extra_info("peername")
            self._address = address_key(peer[0]) if peer else ""
            self.slow = SlowClient(self.loop.time(), limits.header_seconds, limits.send_seconds)
            connections.attach(transport.get_extra_info("socket").fileno(), self)

        def data_received(self, data: bytes) -> None:
            if (
                gate.admission.are_full(self._address)
                and self._is_between_requests
                and (path := path_of_whole_request(data))
            ):
                self._unset_keepalive_if_required()
                self.slow.note_head(False, self.loop.time())
                self.transport.write(gate.turn_away(path, self.server_state.default_headers))
                self.timeout_keep_alive_task = self.loop.call_later(
                    self.timeout_keep_alive, self.timeout_keep_alive_handler
                )
                return
            super().data_received(data)
            self._note_head()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            self._note_head()  # part of the next request may have arrived already

        def resume_writing(self) -> None:
            super().resume_writing()
            self.slow.note_progress(self.loop.time())

        @property
        def is_waiting(self) -> bool:
            is_answering = self.cycle is not None and not self.cycle.response_complete
            return not is_answering or self.conn.their_state is h11.SEND_BODY

        def abort(self) -> None:
            self.transport.abort()

        def close_if_slow(self, now: float) -> str | None:
            if self.slow.is_stalled(self.transport.get_write_buffer_size(), now):
                self.transport.abort()
                return "stalled"
            if self.slow.is_late(now) and not self.transport.is_closing():
                if self.conn.trailing_data[0]:  # a client that has sent nothing expects no answer
                    self.transport.write(too_late)
                self.transport.close()
                return "late"
            return None

        def _note_head(self) -> None:
            is_incomplete = self.conn.their_state is h11.IDLE and bool(self.conn.trailing_data[0])
            self.slow.note_head(is_incomplete, self.loop.time())

        @property
        def _is_between_requests(self) -> bool:
            states = self.conn.our_state, self.conn.their_state
            is_idle = states == (h11.IDLE, h11.IDLE) and not self.conn.trailing_data[0]
            return is_idle and not self.flow.write_paused  # no answers pile up for a client that does not read

    return Protocol
