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
    """Add a line and flush it to the disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    line = json.dumps(record, ensure_ascii=False) + "\n"
    with path.open("ab") as file:
        if file.tell() and _lacks_end(path):  # the rest of a line that a crash cut off
            line = "\n" + line
        file.write(line.encode())
        file.flush()
        os.fsync(file.fileno())
    sync(path.parent)


def _lacks_end(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) != b"\n"


def read_records(path: Path) -> list[dict[str, Any]]:
    """All records; a last line that was cut off is left out."""
    if not path.is_file():
        return []
    lines = path.read_text(encoding="utf-8").split("\n")
    records = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except ValueError:
            if number >= len(lines) - 1:
                continue
            raise UserError(f"{path}, line {number}: must be JSON, but is not; delete the line") from None
        records.append(record)
    return records
