"""uvicorn's protocol, with a short way to refuse requests while all places are taken.

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

if TYPE_CHECKING:
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


def make_protocol(gate: Gate) -> type[H11Protocol]:
    """The protocol class, which uvicorn instantiates for each connection."""

    class Protocol(H11Protocol):
        def data_received(self, data: bytes) -> None:
            if gate.admission.are_full and self._is_between_requests and (path := path_of_whole_request(data)):
                self._unset_keepalive_if_required()
                self.transport.write(gate.turn_away(path, self.server_state.default_headers))
                self.timeout_keep_alive_task = self.loop.call_later(
                    self.timeout_keep_alive, self.timeout_keep_alive_handler
                )
                return
            super().data_received(data)

        @property
        def _is_between_requests(self) -> bool:
            states = self.conn.our_state, self.conn.their_state
            is_idle = states == (h11.IDLE, h11.IDLE) and not self.conn.trailing_data[0]
            return is_idle and not self.flow.write_paused  # no answers pile up for a client that does not read

    return Protocol
