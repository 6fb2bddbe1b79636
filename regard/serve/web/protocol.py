"""uvicorn's protocol, and a short way to turn requests away while all places are taken.

A refusal that goes the way of a request costs about as much of Python's time as a small translation, so that those who are turned
away would take it from those who are inside. Here a request that came whole, in one piece, is answered before anything is made of
it. Whatever is not plain goes the long way, where the gate says the same.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

if TYPE_CHECKING:
    from regard.serve.web.gate import Gate

_START = re.compile(rb"POST (/translate|/v2/translate) HTTP/1\.1\r\n")
# One plain length, and nothing that changes what a body or a connection is.
_LENGTH = re.compile(rb"\r\ncontent-length: ?(\d{1,7})(?=\r\n)", re.IGNORECASE)
_NOT_PLAIN = re.compile(
    rb"\r\n(?:transfer-encoding|expect|upgrade|connection[ \t]*:(?![ \t]*keep-alive[ \t]*\r))", re.IGNORECASE
)


def path_of_whole_request(data: bytes) -> str | None:
    """The path of a request to translate, if these bytes are exactly one and there is nothing unusual about it.

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
    """The class that uvicorn makes one of for each connection."""

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
            return is_idle and not self.flow.write_paused  # nothing is heaped up for those who do not read

    return Protocol
