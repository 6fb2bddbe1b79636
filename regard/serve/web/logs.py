"""Logs: one JSON object per line on standard error. They never contain what users send: no texts, no query strings, and no
exception messages, which may quote either. What clients can cause at will is limited to some lines a second."""

from __future__ import annotations

import json
import logging
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

_LIBRARY_LINES = 5  # a second, of each message of uvicorn and asyncio


class RateLimit:
    """How many lines of each kind have been logged in this second."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._second = clock, 0
        self._logged: Counter[str] = Counter()
        self.left_out: Counter[str] = (
            Counter()
        )  # lines that were not logged, until a later line of their kind counts them

    def admits(self, kind: str, most: int) -> bool:
        """Whether another line of this kind may be logged, of which there are at most `most` a second."""
        if (second := int(self._clock())) != self._second:
            self._second = second
            self._logged.clear()
        self._logged[kind] += 1
        if self._logged[kind] > most:
            self.left_out[kind] += 1
            return False
        return True


_RATE = RateLimit()


class _JsonLines(logging.Formatter):
    """For records of uvicorn and asyncio: the message template only, without its arguments."""

    def format(self, record: logging.LogRecord) -> str:
        error = record.exc_info[1] if record.exc_info else None
        # asyncio puts the exception's message and the task into its own message.
        event = "failure in the event loop" if record.name == "asyncio" else str(record.msg).strip()
        left_out = _RATE.left_out.pop(_kind(record), 0)
        return _line(record.created, record.levelno, event, error, {"left_out": left_out} if left_out else {})


def _kind(record: logging.LogRecord) -> str:
    return f"{record.name} {record.msg if record.name != 'asyncio' else ''}"[:200]


def _is_admitted(record: logging.LogRecord) -> bool:
    return _RATE.admits(_kind(record), _LIBRARY_LINES)


def _line(seconds: float, level: int, event: str, error: BaseException | None, facts: dict[str, Any]) -> str:
    entry: dict[str, Any] = {
        "time": f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{int(seconds % 1 * 1000):03d}Z",
        "level": logging.getLevelName(level).lower(),
        "event": event,
        **facts,
    }
    if error is not None:
        entry["error"] = error_places(error)
    return json.dumps(entry, ensure_ascii=False)


def error_places(error: BaseException) -> str:
    """The type of an error and where it was raised, without its message."""
    frames = traceback.extract_tb(error.__traceback__)[-6:]
    places = [f"{frame.filename.rpartition('/')[2]}:{frame.lineno} {frame.name}" for frame in frames]
    return f"{type(error).__name__} at {' < '.join(reversed(places))}"


def set_up_logs() -> None:
    """Send what uvicorn and asyncio log through the same format."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonLines())
    handler.addFilter(_is_admitted)
    for name in ("uvicorn", "uvicorn.error", "asyncio"):
        logger = logging.getLogger(name)
        is_child = name == "uvicorn.error"  # propagates to `uvicorn`
        logger.handlers = [] if is_child else [handler]
        logger.propagate = is_child
        logger.setLevel("WARNING")
    logging.getLogger("uvicorn.access").disabled = True  # it logs whole URLs


def log(
    event: str, *, level: int = logging.INFO, error: BaseException | None = None, most: int = 0, **facts: Any
) -> None:
    """Log an event with these facts; `most`: no more than this many lines a second of those that have such a limit."""
    if most:
        if not _RATE.admits(event, most):
            return
        if left_out := _RATE.left_out.pop(event, 0):
            facts["left_out"] = left_out
    # Not through `logging`: there is a line for every request, and a LogRecord costs more than the line.
    with suppress(OSError):  # a closed pipe or a full disk is no reason to stop translating
        sys.stderr.write(_line(time.time(), level, event, error, facts) + "\n")
        sys.stderr.flush()
