"""Turns between clients: who is served next, and how much at a time, so that one client delays the others by little.

Start-time fair queueing: a client's clock counts the engine's seconds that it was given, and the client whose clock is behind comes
first. Someone who returns after a pause starts at the clocks of those who are there, so idling saves up nothing. All batchers of a
process share one `FairShares`, since they compete for the same cores.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass

TURN_SECONDS = 0.15  # of the engine that one client is given at a time, while others are there
_PRESENT_SECONDS = (
    0.5  # a client counts as there for this long after its last request: it reads the answer and sends the next
)
_FEW_CLIENTS = 128  # accounts before those who left are looked for

# Who asks, in the task of a request and what it starts: the name of a key, or an address.
CLIENT: ContextVar[str] = ContextVar("client", default="")


@dataclass(eq=False)
class Client:
    """One client's account."""

    clock: float = 0.0  # seconds of the engine
    jobs: int = 0  # that wait or are computed
    alone_in: int = 0  # threads that compute for this client only
    last_seen: float = float("-inf")


class FairShares:
    """The accounts of all clients."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now, self._lock = now, threading.Lock()
        self._clients: dict[str, Client] = {}
        self._next_sweep = _FEW_CLIENTS
        self._start = 0.0  # the clock of whoever was served last, at that time
        self.threads = 0  # of all fast batchers
        self.busy = 0  # those of them that compute

    def enter(self, name: str) -> Client:
        """A client's account, with one job more."""
        with self._lock:
            if len(self._clients) >= self._next_sweep:
                self._sweep()
            client = self._clients.setdefault(name, Client())
            if not client.jobs:
                client.clock = max(client.clock, self._start)
            client.jobs += 1
            client.last_seen = self._now()
            return client

    def _sweep(self) -> None:
        """Forget those who left, unless they were given more than those who are there."""
        since = self._now() - _PRESENT_SECONDS
        self._clients = {
            name: client
            for name, client in self._clients.items()
            if client.jobs or client.last_seen > since or client.clock > self._start
        }
        self._next_sweep = 2 * max(_FEW_CLIENTS, len(self._clients))

    def leave(self, client: Client) -> None:
        """A job of the client has ended."""
        with self._lock:
            client.jobs -= 1
            client.last_seen = self._now()

    def begin(self, costs: dict[Client, float], is_slow: bool) -> None:
        """A thread begins to compute for these clients; `costs` are estimates in seconds."""
        with self._lock:
            self._start = max(self._start, min(client.clock for client in costs))
            self._move(costs, 1, is_slow)

    def end(self, corrections: dict[Client, float], is_slow: bool) -> None:
        """The thread is done; the estimates were wrong by so much."""
        with self._lock:
            self._move(corrections, -1, is_slow)

    def _move(self, costs: dict[Client, float], step: int, is_slow: bool) -> None:
        self.busy += 0 if is_slow else step
        for client, seconds in costs.items():
            client.clock += seconds
            client.alone_in += step * (len(costs) == 1)

    def others_than(self, client: Client) -> bool:
        """Whether another client is there."""
        with self._lock:
            since = self._now() - _PRESENT_SECONDS
            return any(one is not client and (one.jobs or one.last_seen > since) for one in self._clients.values())

    def is_behind(self, client: Client) -> bool:
        """Whether no other client that waits or is computed has been given less."""
        with self._lock:
            return all(one is client or not one.jobs or one.clock >= client.clock for one in self._clients.values())
