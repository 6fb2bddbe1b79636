"""Logs: one JSON object a line on standard error. What users send is never in them: no texts, no query strings, no messages of
exceptions, which may quote either."""

from __future__ import annotations

import json
import logging
import sys
import time
import traceback
from typing import Any

_LOGGER = logging.getLogger("regard.serve")


class _JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "event": record.getMessage(),
        }
        entry |= getattr(record, "facts", {})
        if record.exc_info and record.exc_info[1] is not None:
            entry["error"] = error_places(record.exc_info[1])
        return json.dumps(entry, ensure_ascii=False)


def error_places(error: BaseException) -> str:
    """What kind of error it was and where, without its message."""
    frames = traceback.extract_tb(error.__traceback__)[-6:]
    places = [f"{frame.filename.rpartition('/')[2]}:{frame.lineno} {frame.name}" for frame in frames]
    return f"{type(error).__name__} at {' < '.join(reversed(places))}"


def set_up_logs(level: str = "INFO") -> None:
    """Send what the server and uvicorn say through the one formatter."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonLines())
    for name in ("regard.serve", "uvicorn", "uvicorn.error"):
        logger = logging.getLogger(name)
        logger.handlers = [handler] if name != "uvicorn.error" else []
        logger.propagate = name == "uvicorn.error"
        logger.setLevel(level if name == "regard.serve" else "WARNING")
    logging.getLogger("uvicorn.access").disabled = True  # its lines have the whole URL


def log(event: str, *, level: int = logging.INFO, error: BaseException | None = None, **facts: Any) -> None:
    _LOGGER.log(level, event, extra={"facts": facts}, exc_info=error)
