"""A file of results, a JSON object per line, to which each run appends. No torch here."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from regard.errors import UserError
from regard.files import sync


def append_record(path: Path, record: Mapping[str, Any]) -> None:
    """Add a line and flush it to the disk. The rest of a line that a crash cut off is removed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    line = json.dumps(record, ensure_ascii=False) + "\n"
    with path.open("a+b") as file:
        file.seek(0)
        content = file.read()
        last = content[content.rfind(b"\n") + 1 :]
        if last and _parsed(last) is None:
            file.truncate(len(content) - len(last))
        elif last:  # whole, but for its end
            line = "\n" + line
        file.write(line.encode())
        file.flush()
        os.fsync(file.fileno())
    sync(path.parent)


def read_records(path: Path) -> list[dict[str, Any]]:
    """All records; a last line that was cut off is left out."""
    if not path.is_file():
        return []
    lines = path.read_bytes().split(b"\n")
    records = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        record = _parsed(line)
        if record is not None:
            records.append(record)
        elif number < len(lines):  # it has an end, so no crash cut it off
            raise UserError(f"{path}, line {number}: must be a JSON object, but is not; delete the line")
    return records


def _parsed(line: bytes) -> dict[str, Any] | None:
    """The object in a line; None if there is none."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
