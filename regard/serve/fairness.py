"""Turns between clients: who is served next, and how much at a time, so that one client delays the others by little.

Start-time fair queueing: a client's clock counts the engine's seconds that it was given, and the client whose clock is behind comes
first. Someone who returns after a pause starts at the clocks of those who are there, so idling saves up nothing. All batchers of a
process share one `FairShares`, since they compete for the same cores.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass

TURN_SECONDS = 0.15  # of the engine that one client is given at a time, while others are there
_PRESENT_SECONDS = (
    0.5  # a client counts as there for this long after its last request: it reads the answer and sends the next
)
_USAGE_SECONDS = 1.0
_EQUAL_SECONDS = 2 * TURN_SECONDS  # clients whose clocks differ by less were given the same
_EQUAL_USAGE = 1.5  # times what the others use on average: this, too, counts as the same
_MOST_USED = 0.7  # of the threads left to others: if they use more, they would use all of them
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
    usage: float = 0.0  # threads that computed for it, on average over the last second, at the time `used`
    used: float = 0.0


class FairShares:
    """The accounts of all clients."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now, self._lock = now, threading.Lock()
        self._clients: dict[str, Client] = {}
        self._next_sweep = _FEW_CLIENTS
        self._start = 0.0  # the clock of whoever was served last, at that time
        self.threads = 0  # of all fast batchers

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
        """Forget those who left, unless they were given more than those who are there and have not stayed away for as long. So many
        clients that come once each leave no accounts behind."""
        now = self._now()
        self._clients = {
            name: client
            for name, client in self._clients.items()
            if client.jobs or now - client.last_seen < max(_PRESENT_SECONDS, client.clock - self._start)
        }
        self._next_sweep = 2 * max(_FEW_CLIENTS, len(self._clients))

    def leave(self, client: Client) -> None:
        """A job of the client has ended."""
        with self._lock:
            client.jobs -= 1
            client.last_seen = self._now()

    def begin(self, estimates: Mapping[Client, float]) -> None:
        """A thread begins to compute for these clients, probably for so many seconds each."""
        with self._lock:
            self._start = max(self._start, min(client.clock for client in estimates))
            for client, seconds in estimates.items():
                client.clock += seconds
                client.alone_in += len(estimates) == 1

    def end(self, estimates: Mapping[Client, float], spent: Mapping[Client, float]) -> None:
        """The thread is done, after so many seconds for each client."""
        with self._lock:
            now = self._now()
            for client, seconds in spent.items():
                client.clock += seconds - estimates[client]
                client.alone_in -= len(spent) == 1
                client.usage, client.used = _usage(client, now) + seconds / _USAGE_SECONDS, now

    def others_than(self, client: Client) -> bool:
        """Whether another client is there."""
        with self._lock:
            since = self._now() - _PRESENT_SECONDS
            return any(one is not client and (one.jobs or one.last_seen > since) for one in self._clients.values())

    def may_begin(self, client: Client, is_slow: bool = False) -> bool:
        """Whether another thread may compute for a client. While others are there, one thread is left to them. A client that was
        given more than others waits for its turn, unless the threads that this leaves are more than the others use. `is_slow`:
        a thread beyond those that the cores are for."""
        with self._lock:
            now = self._now()
            others = [
                one
                for one in self._clients.values()
                if one is not client and (one.jobs or one.last_seen > now - _PRESENT_SECONDS)
            ]
            if not others:
                return True
            if not is_slow and client.alone_in >= max(1, self.threads - 1):
                return False
            if all(one.clock >= client.clock - _EQUAL_SECONDS for one in others if one.jobs):
                return True
            used = sum(_usage(one, now) for one in others)
            if _usage(client, now) <= _EQUAL_USAGE * used / len(others):
                return True  # one of many who want about the same: keeping threads idle would help nobody
            return used < _MOST_USED * max(0.5, self.threads - client.alone_in - 1)


def _usage(client: Client, now: float) -> float:
    return client.usage * math.exp((client.used - now) / _USAGE_SECONDS)
