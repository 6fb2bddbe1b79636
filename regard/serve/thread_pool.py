"""Threads for work beside the batcher, each kind with its own few, so that slow work of one kind never blocks another. Clients take
turns as at the batches (`fairness.py`): all that is done for a client counts."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from regard.serve.fairness import CLIENT, Client, FairShares
from regard.serve.refusal import Busy

Output = TypeVar("Output")
Input = TypeVar("Input")
_Job = tuple[Future[Any], list[Callable[[], Any]]]
_RETRY = 3  # seconds
_LOOK_SECONDS = 0.02  # between two looks at whether it is someone's turn
PATIENCE = 5.0  # seconds for running jobs when the server stops


class ThreadPool:
    """A fixed number of threads, and a limit on jobs that run or wait. A cancelled job that has not started never starts; one that
    has started cannot be stopped and holds its place until it ends. The threads are daemons, so the process can exit."""

    def __init__(self, name: str, threads: int, places: int = sys.maxsize, shares: FairShares | None = None) -> None:
        """`name` is the kind of work, for the refusal. Without `places` the callers limit the jobs themselves."""
        self.name, self.places = name, places
        self._shares = shares or FairShares()
        self._entered: Counter[str] = Counter()  # jobs that run or wait, by client
        self._abandoned: set[Future[Any]] = set()
        self._changed = threading.Condition()
        # Of equals, whoever was served longest ago comes first; only clients with jobs that wait are in here.
        self._queues: dict[Client, deque[_Job]] = {}
        self._is_closed = False
        self._threads = [
            threading.Thread(target=self._work, name=f"regard-apart-{n}", daemon=True) for n in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def abandoned(self) -> int:
        """How many jobs still run although their callers are gone."""
        return len(self._abandoned)

    async def run(self, work: Callable[..., Output], *arguments: object) -> Output:
        """Run `work(*arguments)` in a thread; raises Busy if all places are taken."""
        client = self._enter()
        return await self._begin(work, *arguments, done=lambda: self._exit(client))

    async def run_each(self, work: Callable[[Input], Output], portions: Sequence[Input]) -> list[Output]:
        """Run `work` on each portion, in one place: other jobs take turns between two portions, and after a cancellation the rest
        never starts."""
        client = self._enter()
        try:
            return [await self._begin(work, portion) for portion in portions]
        finally:
            self._exit(client)

    def _enter(self) -> str:
        client = CLIENT.get()
        with self._changed:
            # Those who take all places leave a share to others.
            share = self.places / (len({*self._entered, client}) + 1)
            if self._entered.total() >= self.places and self._entered[client] + 1 > share:
                raise Busy(f"{self.places} {self.name} are being worked on; try again in {_RETRY} s", _RETRY)
            self._entered[client] += 1
        return client

    def _exit(self, client: str) -> None:
        with self._changed:
            self._entered[client] -= 1
            self._entered += Counter()  # drops zeros

    async def _begin(
        self, work: Callable[..., Output], *arguments: object, done: Callable[[], None] | None = None
    ) -> Output:
        future: Future[Output] = Future()
        if done is not None:
            future.add_done_callback(lambda _: done())
        waiting = [lambda: work(*arguments)]
        client = self._shares.enter(CLIENT.get())
        future.add_done_callback(lambda _: self._shares.leave(client))
        with self._changed:
            self._queues.setdefault(client, deque()).append((future, waiting))
            self._changed.notify()
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            if future.cancel():
                waiting.clear()  # free its arguments now, not when its turn comes
            else:  # it has started
                self._abandoned.add(future)
                future.add_done_callback(self._abandoned.discard)
            raise

    def _work(self) -> None:
        while (taken := self._take()) is not None:
            client, job = taken
            self._shares.begin({client: 0.0})
            start = time.monotonic()
            _do(*job)
            self._shares.end({client: 0.0}, {client: time.monotonic() - start})
            del taken, client, job  # hold nothing while idle

    def _take(self) -> tuple[Client, _Job] | None:
        """Wait for the next job; None when the pool is closed."""
        with self._changed:
            while not self._is_closed:
                may_begin = [client for client in self._queues if self._shares.may_begin(client, is_slow=True)]
                if may_begin:
                    client = min(may_begin, key=lambda client: client.clock)
                    queue = self._queues.pop(client)
                    job = queue.popleft()
                    if queue:
                        self._queues[client] = queue  # at the end
                    return client, job
                self._changed.wait(_LOOK_SECONDS if self._queues else None)
            return None

    def close(self) -> None:
        """Drop the jobs that wait, and give the running ones a little time."""
        with self._changed:
            self._is_closed = True
            waiting = [future for queue in self._queues.values() for future, _ in queue]
            self._queues.clear()
            self._changed.notify_all()
        for future in waiting:
            future.cancel()
        end = time.monotonic() + PATIENCE
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))


def _do(future: Future[Any], waiting: Sequence[Callable[[], Any]]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        found = waiting[0]()
    except BaseException as error:  # noqa: BLE001 - reported through the future
        future.set_exception(error)
    else:
        future.set_result(found)
