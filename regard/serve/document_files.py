"""Translated documents until they are fetched: in the server's own folder, for ten minutes, under unguessable names."""

from __future__ import annotations

import os
import re
import secrets
import time
from contextlib import suppress
from pathlib import Path

from regard.translation.documents.formats import MEDIA_TYPES

_NAME = re.compile(rf"[0-9a-f]{{32}}\.({'|'.join(MEDIA_TYPES)})")
_SECONDS = 600.0
_MOST = 100  # files; the oldest is removed first


class DocumentFiles:
    """A folder of translated documents; several processes may share it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def put(self, content: bytes, kind: str) -> str:
        """Store a document and return its name, which never depends on the client's."""
        self._sweep()
        name = f"{secrets.token_hex(16)}.{kind}"
        (self.folder / name).write_bytes(content)
        return name

    def read(self, name: str) -> bytes | None:
        """The document of this name; None if it is not ours or has expired."""
        if not _NAME.fullmatch(name):
            return None
        try:
            # Opened first: a file that is swept afterwards can still be read.
            with (self.folder / name).open("rb") as file:
                is_fresh = os.fstat(file.fileno()).st_mtime >= time.time() - _SECONDS
                return file.read() if is_fresh else None
        except FileNotFoundError:
            return None

    def _sweep(self) -> None:
        files = []
        for path in self.folder.glob("*.*"):
            with suppress(FileNotFoundError):  # another process removed it
                files.append((path.stat().st_mtime, path))
        files.sort(reverse=True)
        for number, (age, path) in enumerate(files):
            if number >= _MOST - 1 or age < time.time() - _SECONDS:
                path.unlink(missing_ok=True)
