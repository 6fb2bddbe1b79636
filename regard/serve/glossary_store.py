"""Glossaries that clients store on the server: one file each, in a folder per key that several processes may share. No client sees
those of another key."""

from __future__ import annotations

import hashlib
import json
import os
import re
import threading
import uuid
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from regard.errors import InputError, UserError
from regard.serve.keys import Key
from regard.serve.private_files import write_private

_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
Entries = Sequence[tuple[str, str]]


@dataclass(frozen=True)
class StoredGlossary:
    """A glossary for one language pair."""

    id: str
    name: str
    source: str  # language codes of a served model
    target: str
    created: str  # ISO 8601
    entries: Entries  # (source term, target term)


class GlossaryStore:
    """A folder of stored glossaries."""

    def __init__(self, folder: Path, most: int) -> None:
        """`most`: how many a key may store."""
        self.folder, self.most = folder, most
        self._adding = threading.Lock()
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            is_writable = os.access(folder, os.W_OK | os.X_OK)
        except OSError as error:
            raise UserError(
                f"--glossaries {folder}: the folder cannot be made ({error.strerror}); name another"
            ) from None
        if not is_writable:
            raise UserError(f"--glossaries {folder}: the folder must be writable; name another")

    def add(self, key: Key, name: str, source: str, target: str, entries: Entries) -> StoredGlossary:
        """Store a new glossary. Raises InputError if the key has too many, and `Unavailable` if the disk is full."""
        folder = self._folder(key)
        folder.mkdir(mode=0o700, exist_ok=True)
        glossary = StoredGlossary(
            str(uuid.uuid4()), name, source, target, datetime.now(UTC).isoformat(timespec="milliseconds"), entries
        )
        temporary = folder / f"{glossary.id}.new"
        with self._adding:
            if len([*folder.glob("*.json")]) >= self.most:
                raise InputError(f"a key may store at most {self.most} glossaries; delete one first")
            write_private(temporary, json.dumps(asdict(glossary), ensure_ascii=False).encode())
            temporary.rename(folder / f"{glossary.id}.json")  # a reader sees all of it or nothing
        return glossary

    def all_of(self, key: Key) -> list[StoredGlossary]:
        """All glossaries of a key, oldest first."""
        found = (self.find(key, path.stem) for path in self._folder(key).glob("*.json"))
        return sorted((one for one in found if one is not None), key=lambda one: (one.created, one.id))

    def find(self, key: Key, glossary_id: str) -> StoredGlossary | None:
        """The glossary with this id; None if this key has none."""
        if not _ID.fullmatch(glossary_id):
            return None
        try:
            stored = json.loads((self._folder(key) / f"{glossary_id}.json").read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        stored["entries"] = tuple((source, target) for source, target in stored["entries"])
        return StoredGlossary(**stored)

    def remove(self, key: Key, glossary_id: str) -> bool:
        """Delete a glossary; returns whether there was one."""
        if not _ID.fullmatch(glossary_id):
            return False
        try:
            (self._folder(key) / f"{glossary_id}.json").unlink()
        except FileNotFoundError:
            return False
        return True

    def _folder(self, key: Key) -> Path:
        # By the name: a key that is replaced under the same name keeps its glossaries. Hashed, since a name may hold anything.
        return self.folder / hashlib.sha256(key.name.encode("utf-8", "surrogatepass")).hexdigest()[:32]
