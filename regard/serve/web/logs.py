"""Logs: one JSON object per line on standard error. They never contain what users send: no texts, no query strings, and no
exception messages, which may quote either."""

from __future__ import annotations

import json
import logging
import sys
import time
import traceback
from contextlib import suppress
from typing import Any


class _JsonLines(logging.Formatter):
    """For records of uvicorn and asyncio: the message template only, without its arguments."""

    def format(self, record: logging.LogRecord) -> str:
        error = record.exc_info[1] if record.exc_info else None
        # asyncio puts the exception's message and the task into its own message.
        event = "failure in the event loop" if record.name == "asyncio" else str(record.msg).strip()
        return _line(record.created, record.levelno, event, error, {})


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
    for name in ("uvicorn", "uvicorn.error", "asyncio"):
        logger = logging.getLogger(name)
        is_child = name == "uvicorn.error"  # propagates to `uvicorn`
        logger.handlers = [] if is_child else [handler]
        logger.propagate = is_child
        logger.setLevel("WARNING")
    logging.getLogger("uvicorn.access").disabled = True  # it logs whole URLs


def log(event: str, *, level: int = logging.INFO, error: BaseException | None = None, **facts: Any) -> None:
    """Log an event with these facts."""
    # Not through `logging`: there is a line for every request, and a LogRecord costs more than the line.
    with suppress(OSError):  # a closed pipe or a full disk is no reason to stop translating
        sys.stderr.write(_line(time.time(), level, event, error, facts) + "\n")
        sys.stderr.flush()
