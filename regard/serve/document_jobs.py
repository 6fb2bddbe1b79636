"""Documents translated in the background: the state of each, in a folder that several processes may share, until ten minutes after
it is finished. A client names both the document's id and its key, of which only a hash is stored."""

from __future__ import annotations

import hmac
import json
import re
import secrets
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from regard.serve.keys import hash_key
from regard.serve.private_files import reserve, write_private
from regard.translation.results import Unmet

_ID = re.compile(r"[0-9a-f]{32}")
_SECONDS = 600.0  # after the end of the work
_MOST = 100  # finished or failed documents; the oldest is removed first

DocumentStatus = Literal["translating", "done", "error"]


@dataclass(frozen=True)
class DocumentState:
    """The state of a document."""

    key_sha256: str
    kind: str  # its file extension
    ends: float  # when it times out, in seconds since 1970
    status: DocumentStatus = "translating"
    characters: int = 0
    error: str = ""
    unmet: Sequence[tuple[str, str]] = ()  # options and texts that were asked for and are not in the translation


@dataclass(frozen=True)
class DocumentHandle:
    """What identifies a document to its client."""

    id: str
    key: str


class DocumentJobs:
    """A folder of documents in translation; created on first use."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def begin(self, kind: str, seconds: float, size: int) -> DocumentHandle:
        """Register a new document that will be finished or time out within `seconds`; there is room for `size` bytes. Raises
        `Unavailable` if there is not."""
        self._sweep()
        handle = DocumentHandle(secrets.token_hex(16), secrets.token_hex(32))
        self.folder.mkdir(mode=0o700, exist_ok=True)
        reserve(self._result(handle.id), size)
        try:
            self._write(handle, DocumentState(hash_key(handle.key), kind, time.time() + seconds))
        except BaseException:
            self._result(handle.id).unlink(missing_ok=True)
            raise
        return handle

    def finish(self, handle: DocumentHandle, content: bytes, characters: int, unmet: Sequence[Unmet] = ()) -> None:
        """Store the translated document, unless it was removed meanwhile. Raises `Unavailable` if there is no room for it."""
        state = self._read(handle.id)
        if state is not None:
            write_private(self._result(handle.id), content)
            lost = [(one.option, one.text) for one in unmet]
            self._write(handle, DocumentState(state.key_sha256, state.kind, state.ends, "done", characters, unmet=lost))

    def fail(self, handle: DocumentHandle, error: str) -> None:
        """Record that the translation failed, with the message for the client."""
        state = self._read(handle.id)
        self._result(handle.id).unlink(missing_ok=True)  # first: on a full disk this makes room for the record
        if state is not None:
            self._write(handle, DocumentState(state.key_sha256, state.kind, state.ends, "error", error=error))

    def find(self, handle: DocumentHandle) -> DocumentState | None:
        """The state of a document; None if there is none with this id and key. One that timed out counts as failed."""
        state = self._read(handle.id) if _ID.fullmatch(handle.id) else None
        if state is None or not hmac.compare_digest(state.key_sha256, hash_key(handle.key)):
            return None
        ended = self._ended(handle.id, state)
        if ended is None or ended < time.time() - _SECONDS:
            return None
        if _is_given_up(state):
            return DocumentState(
                state.key_sha256, state.kind, state.ends, "error", error="the document timed out; send it again"
            )
        return state

    def result(self, handle: DocumentHandle) -> bytes:
        """A finished document."""
        return self._result(handle.id).read_bytes()

    def _result(self, name: str) -> Path:
        return self.folder / f"{name}.result"

    def _read(self, name: str) -> DocumentState | None:
        try:
            return DocumentState(**json.loads((self.folder / f"{name}.json").read_text()))
        except FileNotFoundError:
            return None

    def _write(self, handle: DocumentHandle, state: DocumentState) -> None:
        temporary = self.folder / f"{handle.id}.{secrets.token_hex(4)}.new"
        write_private(temporary, json.dumps(asdict(state)).encode())
        temporary.rename(self.folder / f"{handle.id}.json")  # a reader sees the old state or the new one

    def _ended(self, name: str, state: DocumentState) -> float | None:
        """When a document was finished or will time out, in seconds since 1970; None if it has been removed."""
        if state.status == "translating":
            return state.ends
        try:
            return (self.folder / f"{name}.json").stat().st_mtime
        except FileNotFoundError:
            return None

    def _sweep(self) -> None:
        """Remove finished documents that are too old or too many. Those in translation stay: they are limited elsewhere."""
        over = []
        for path in self.folder.glob("*.json"):
            state = self._read(path.stem)
            if state is None or (state.status == "translating" and not _is_given_up(state)):
                continue
            ended = self._ended(path.stem, state)
            if ended is not None:  # else another process removed it
                over.append((ended, path))
        over.sort(reverse=True)
        for number, (ended, path) in enumerate(over):
            if number >= _MOST - 1 or ended < time.time() - _SECONDS:
                path.unlink(missing_ok=True)
                path.with_suffix(".result").unlink(missing_ok=True)


def _is_given_up(state: DocumentState) -> bool:
    return state.status == "translating" and time.time() > state.ends
