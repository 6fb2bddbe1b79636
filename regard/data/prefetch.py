"""Prepares the next items in a thread while the current one is in use: numpy and copies to a device release the GIL."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class Prefetcher(Generic[T]):
    """Iterates over `items` in a background thread that keeps up to `depth` of them ready.

    An exception from `items` is raised where its item would have come. To stop early, call `close` or leave the `with` block.
    """

    def __init__(self, items: Iterable[T], depth: int = 2) -> None:
        if depth < 1:
            raise ValueError(f"`depth` must be at least 1, but is {depth}")
        self._items: Iterator[T] = iter(items)
        self._depth = depth
        self._ready: deque[T] = deque()
        self._error: BaseException | None = None
        self._ended = False  # the items are exhausted, or close() was called
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="prefetch", daemon=True)
        self._thread.start()

    def __iter__(self) -> Prefetcher[T]:
        return self

    def __next__(self) -> T:
        with self._changed:
            self._changed.wait_for(lambda: self._ready or self._ended)
            if self._ready:
                self._changed.notify_all()
                return self._ready.popleft()
            error, self._error = self._error, None
        if error is not None:
            raise error
        raise StopIteration

    def __enter__(self) -> Prefetcher[T]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop the thread, drop what is ready and wait for the item in progress; further calls do nothing."""
        with self._changed:
            self._ended = True
            self._ready.clear()
            self._error = None
            self._changed.notify_all()
        self._thread.join()

    def _run(self) -> None:
        error: BaseException | None = None
        try:
            while self._has_room():
                item = next(self._items)
                with self._changed:
                    if not self._ended:
                        self._ready.append(item)
                        self._changed.notify_all()
                del item  # a batch that was taken must not stay alive until the next is ready
        except StopIteration:
            pass
        except BaseException as raised:  # noqa: BLE001 - __next__ raises it again
            error = raised
        with self._changed:
            if not self._ended:
                self._error = error
                self._ended = True
            self._changed.notify_all()

    def _has_room(self) -> bool:
        """Wait for room before preparing an item, so that never more than `depth` are ahead; False once closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended or len(self._ready) < self._depth)
            return not self._ended
