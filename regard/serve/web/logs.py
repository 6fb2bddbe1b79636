"""Logs: one JSON object a line on standard error. What users send is never in them: no texts, no query strings, no messages of
exceptions, which may quote either."""

from __future__ import annotations

import json
import logging
import sys
import time
import traceback
from contextlib import suppress
from typing import Any


class _JsonLines(logging.Formatter):
    """For what uvicorn and asyncio say: the words that are written there, without what is put into them."""

    def format(self, record: logging.LogRecord) -> str:
        error = record.exc_info[1] if record.exc_info else None
        # asyncio writes the error's message and what was worked on into its own.
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
    """What kind of error it was and where, without its message."""
    frames = traceback.extract_tb(error.__traceback__)[-6:]
    places = [f"{frame.filename.rpartition('/')[2]}:{frame.lineno} {frame.name}" for frame in frames]
    return f"{type(error).__name__} at {' < '.join(reversed(places))}"


def set_up_logs() -> None:
    """Let uvicorn and asyncio say what they have to say in the same form."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonLines())
    for name in ("uvicorn", "uvicorn.error", "asyncio"):
        logger = logging.getLogger(name)
        is_part = name == "uvicorn.error"  # what it says goes on to uvicorn's
        logger.handlers = [] if is_part else [handler]
        logger.propagate = is_part
        logger.setLevel("WARNING")
    logging.getLogger("uvicorn.access").disabled = True  # its lines have the whole URL


def log(event: str, *, level: int = logging.INFO, error: BaseException | None = None, **facts: Any) -> None:
    # Not through `logging`: there is one line for every request, and its records cost more than the line.
    with suppress(OSError):  # nobody reads it any more, or the disk is full: that is no reason to stop translating
        sys.stderr.write(_line(time.time(), level, event, error, facts) + "\n")
        sys.stderr.flush()
