"""Memory between requests, with glibc: kept while there is work, and given back when there is none.

A batch needs tens of megabytes per engine thread, and getting them from the system each time costs time, so freed memory is kept
for the next batch. What unusual requests leave behind is given back once the server is idle, or after a while if it never is.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # as malloc.h numbers them
_KEPT_BYTES = 32 << 20  # the largest block that is kept; glibc allows no more
_GROWTH = 64 << 20  # bytes that may stay without being given back
_IDLE_SECONDS = 5.0
_BUSY_SECONDS = 60.0


def keep_memory() -> None:
    """Make glibc reuse freed memory instead of returning it to the system and asking for it again.

    glibc decides from earlier frees whether it keeps blocks, so that a server's memory would swing with the batch sizes, and each
    swing costs time. This sets both thresholds from the start to where glibc would end up. Larger blocks are still returned at
    once. With other C libraries nothing is done."""
    mallopt = _from_libc("mallopt")
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _KEPT_BYTES)
        mallopt(_M_TRIM_THRESHOLD, 2 * _KEPT_BYTES)


class MemoryTrimmer:
    """Gives freed memory back to the system: when the server has been idle for some seconds, and once a minute while it is busy, if
    it holds much more than after the last time."""

    def __init__(self, trim: Callable[[], None], held: Callable[[], int], now: float) -> None:
        """`held` says how many bytes the process holds."""
        self._trim, self._held = trim, held
        self._level = held()
        self._busy_at = self._trimmed_at = now

    def tick(self, in_flight: int, now: float) -> bool:
        """Called every second or so with the number of requests; returns whether memory was given back."""
        if in_flight:
            self._busy_at = now
        is_idle = now - self._busy_at >= _IDLE_SECONDS and self._trimmed_at <= self._busy_at
        if not is_idle and now - self._trimmed_at < _BUSY_SECONDS:
            return False
        self._trimmed_at = now
        if self._held() < self._level + _GROWTH:
            return False
        self._trim()
        return True

    def note_level(self) -> None:
        """Remember how much is held after memory was given back."""
        self._level = self._held()


def make_trimmer(now: float) -> MemoryTrimmer | None:
    """The trimmer of this process; None if its C library or its system has no means. It works in a thread, since it takes some
    milliseconds."""
    malloc_trim = _from_libc("malloc_trim")
    statm = Path("/proc/self/statm")
    if malloc_trim is None or not statm.exists():
        return None
    page = os.sysconf("SC_PAGE_SIZE")

    def work() -> None:
        malloc_trim(0)
        trimmer.note_level()

    def trim() -> None:
        threading.Thread(target=work, daemon=True).start()

    trimmer = MemoryTrimmer(trim, lambda: int(statm.read_text().split()[1]) * page, now)
    return trimmer


def _from_libc(name: str) -> Callable[..., int] | None:
    return None if sys.platform == "win32" else getattr(ctypes.CDLL(None), name, None)
