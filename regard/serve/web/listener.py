"""The listening socket. It counts connections as they are accepted, and turns them away when there are too many or no file can be
opened, so that asyncio never sees an error of `accept`: it would stop listening for a second and log each attempt."""

from __future__ import annotations

import errno
import os
import socket
from contextlib import suppress
from typing import Any

from regard.serve.web.connections import Connections, Place

_AT_ONCE = 64  # connections accepted before the event loop does something else
_REFUSED_AT_ONCE = 1_024  # these cost next to nothing
_NO_FILES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class CountedSocket(socket.socket):
    """An accepted connection, which is counted until it is closed."""

    place: Place
    connections: Connections

    def close(self) -> None:
        self.connections.leave(self.place)
        super().close()


class Listener(socket.socket):
    """A listening socket that keeps to the limits of `connections`."""

    def __init__(self, listening: socket.socket, connections: Connections) -> None:
        """Take over an open socket, which is detached."""
        super().__init__(listening.family, listening.type, listening.proto, fileno=listening.detach())
        self.setblocking(False)
        self._connections = connections
        self._accepted = self._refused = 0
        self._reserve = _open_reserve()  # closed to turn a connection away when no file can be opened

    def accept(self) -> tuple[socket.socket, Any]:
        """The next connection; raises BlockingIOError if there is none, or if it is time for other work."""
        while True:
            if self._accepted >= _AT_ONCE or self._refused >= _REFUSED_AT_ONCE:
                self._pause()
            try:
                number, address = self._accept()  # type: ignore[attr-defined]
            except OSError as error:
                if error.errno not in _NO_FILES:
                    raise
                self._connections.make_room()
                self._shed()
            place = self._connections.enter(str(address[0]), number)
            if place is None:
                self._refused += 1
                os.close(number)
                continue
            self._accepted += 1
            connection = CountedSocket(self.family, self.type, self.proto, fileno=number)
            connection.place, connection.connections = place, self._connections
            return connection, address

    def close(self) -> None:
        """Close the socket and the reserve."""
        if self._reserve is not None:
            os.close(self._reserve)
            self._reserve = None
        super().close()

    def _pause(self) -> None:
        self._accepted = self._refused = 0
        raise BlockingIOError

    def _shed(self) -> None:
        """Turn connections away for which no file can be opened; otherwise they would stay in the queue, and the event loop would
        be called for them again and again. Always raises BlockingIOError."""
        if self._reserve is not None:
            os.close(self._reserve)
            self._reserve = None
        for _ in range(_REFUSED_AT_ONCE):
            try:
                number, _ = self._accept()  # type: ignore[attr-defined]
            except OSError:  # no more of them, or another thread took the descriptor
                break
            os.close(number)
            self._connections.count("files")
        self._reserve = _open_reserve()
        self._pause()


def _open_reserve() -> int | None:
    with suppress(OSError):
        return os.open(os.devnull, os.O_RDONLY)
    return None


def raise_file_limit(wanted: int) -> int:
    """Raise this process's limit of open files to `wanted`, as far as it is allowed to; returns the limit."""
    try:
        import resource
    except ImportError:  # Windows: as many sockets as `select` takes
        return 512
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = resource.RLIM_INFINITY
    if soft != unlimited and soft < wanted:
        soft = wanted if hard == unlimited else min(wanted, hard)
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return wanted if soft == unlimited else soft
