"""Translated documents until they are fetched: in the server's own folder, for ten minutes, under unguessable names."""

from __future__ import annotations

import os
import re
import secrets
import time
from contextlib import suppress
from pathlib import Path

from regard.serve.private_files import reserve, write_private
from regard.translation.documents.formats import MEDIA_TYPES

_NAME = re.compile(rf"[0-9a-f]{{32}}\.({'|'.join(MEDIA_TYPES)})")
_PART = ".part"  # of a document that is being translated
_SECONDS = 600.0
_PART_SECONDS = 86_400.0  # only a process that was killed leaves one behind
_MOST = 100  # files; the oldest is removed first


class DocumentFiles:
    """A folder of translated documents; several processes may share it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def begin(self, kind: str, size: int) -> str:
        """The name for a new document, which never depends on the client's; there is room for `size` bytes. Raises `Unavailable` if
        there is not."""
        self._sweep()
        name = f"{secrets.token_hex(16)}.{kind}"
        reserve(self.folder / (name + _PART), size)
        return name

    def finish(self, name: str, content: bytes) -> None:
        """Store a document that was begun. Raises `Unavailable` if there is no room for it."""
        part = self.folder / (name + _PART)
        write_private(part, content)
        os.utime(part)
        part.rename(self.folder / name)

    def give_up(self, name: str) -> None:
        """Remove a document that was begun and will not be finished."""
        (self.folder / (name + _PART)).unlink(missing_ok=True)

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
                if _NAME.fullmatch(path.name):
                    files.append((path.stat().st_mtime, path))
                elif path.suffix == _PART and path.stat().st_mtime < time.time() - _PART_SECONDS:
                    path.unlink()
        files.sort(reverse=True)
        for number, (age, path) in enumerate(files):
            if number >= _MOST - 1 or age < time.time() - _SECONDS:
                path.unlink(missing_ok=True)


def room_for(upload: bytes) -> int:
    """How many bytes to reserve for the translation of a document: generous, since some languages take twice the bytes."""
    return 2 * len(upload) + 65_536
