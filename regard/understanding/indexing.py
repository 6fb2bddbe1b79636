"""Makes and updates an index (`index.py`) of a folder: changed documents are embedded again, removed ones dropped, the rest copied.

Vectors go into INDEX.partial, document by document, until the index is complete, so that an interrupted run can continue. The
index itself is replaced in one step.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import IO, Any, Self

import numpy as np

from regard.bounds import check_whole
from regard.data.windows import text_room
from regard.errors import Interrupted, UserError
from regard.files import atomic_folder, lock, read_json, sha256, write_all, write_atomic, write_manifest
from regard.progress import OnProgress
from regard.translation.documents.files import walk
from regard.translation.documents.formats import find_kind, list_kinds
from regard.understanding.embedder import Embedder, Vectors, scaled
from regard.understanding.index import (
    DOCUMENT,
    FORMAT,
    INDEX,
    PASSAGES,
    PLACES,
    VECTORS,
    Index,
    IndexedDocument,
    fingerprint,
    model_name,
    prompt_for,
)
from regard.understanding.passages import Passage, make_passages, read_paragraphs

PASSAGE_TOKENS = 128
_TOGETHER = 512  # passages that are embedded and saved at a time
_PARTIAL = ".partial"  # ends the name of a folder with what an unfinished run has embedded
_SETTINGS, _DOCUMENTS, _VECTORS = "settings.json", "documents.jsonl", "vectors.bin"


@dataclass
class Changes:
    """What an update did to each document: counts, and the names of those left out."""

    added: int = 0
    changed: int = 0
    removed: int = 0
    unchanged: int = 0
    skipped: list[str] = field(default_factory=list)  # files of unknown formats
    failed: list[str] = field(default_factory=list)  # a line for each document that could not be read

    @property
    def any(self) -> bool:
        return bool(self.added or self.changed or self.removed)


@dataclass(frozen=True)
class _Rows:
    """The passages of a document: rows of the old index, or of the partial one."""

    document: IndexedDocument
    is_old: bool
    first: int


def update_index(
    folder: Path,
    out: Path,
    embedder: Embedder,
    passage_tokens: int | None = None,
    on_start: Callable[[int], None] | None = None,
    on_progress: OnProgress | None = None,
) -> tuple[Index, Changes]:
    """Make the index `out` of the documents in a folder, or bring it up to date. `on_start` is called with the number of documents
    to embed, `on_progress` as they are done."""
    if not folder.is_dir():
        raise UserError(
            f"{folder}: must be a folder of documents, but {'is a file' if folder.exists() else 'does not exist'}"
        )
    if is_index(folder):
        raise UserError(
            f"{folder}: must be a folder of documents, but is an index; search it: regard search {folder} QUERY"
        )
    old = _old_index(folder, out, embedder)
    size = _passage_size(passage_tokens, old, embedder)
    files = list(walk(folder, out, is_index))
    documents = [path for path in files if find_kind(path.name) is not None]
    if not documents and old is None:
        raise UserError(f"{folder}: has no documents; their names end in one of {list_kinds()}")
    changes = Changes(skipped=[str(path) for path in files if find_kind(path.name) is None])
    out.parent.mkdir(parents=True, exist_ok=True)
    with _Partial(out, {"fingerprint": fingerprint(embedder.bundle), "passage_tokens": size}) as partial:
        known = {one.path: _Rows(one, True, first) for one, first in _with_firsts(old.documents if old else [])}
        rows, work = _plan(folder, documents, known, partial, changes)
        if on_start is not None:
            on_start(len(work))
        try:
            rows |= _embed(work, embedder, size, partial, changes, on_progress)
        except KeyboardInterrupt:
            raise Interrupted(
                f"stopped with {len(partial.found):,} documents embedded, which are saved; the same command continues"
            ) from None
        _count(changes, known, rows)
        if old is None and not rows:
            raise UserError(f"{folder}: none of its documents can be read: {changes.failed[0]}")
        if old is None or changes.any:
            _write(folder, out, old, partial, [rows[path] for path in sorted(rows)], embedder, size)
        partial.is_done = True
    return Index(out, embedder), changes


def is_index(folder: Path) -> bool:
    """Whether a folder is an index, or what is left of an interrupted run: neither holds documents."""
    is_partial = folder.name.endswith(_PARTIAL) and (folder / _SETTINGS).is_file() and (folder / _VECTORS).exists()
    return is_partial or all((folder / name).is_file() for name in (INDEX, VECTORS, PASSAGES, PLACES))


def _old_index(folder: Path, out: Path, embedder: Embedder) -> Index | None:
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return None
    old = Index(out)
    old.check_model(embedder.bundle)
    if old.root != folder.resolve():
        raise UserError(
            f"{out}: is the index of {old.root}, not of {folder}; choose another name with --index, or remove it"
        )
    return old


def _passage_size(given: int | None, old: Index | None, embedder: Embedder) -> int:
    room = text_room(embedder.tokenizer, embedder.engine.max_length)
    if given is None:
        return old.passage_tokens if old else min(PASSAGE_TOKENS, room)
    check_whole("passage_tokens", given, 1, room)
    if old is not None and given != old.passage_tokens:
        raise UserError(
            f"{old.folder}: has passages of {old.passage_tokens} tokens, so passage_tokens must be the same, but is {given}; "
            "remove the index to make it again"
        )
    return given


def _with_firsts(documents: Sequence[IndexedDocument]) -> Iterator[tuple[IndexedDocument, int]]:
    first = 0
    for one in documents:
        yield one, first
        first += one.passages


def _plan(
    folder: Path, documents: Sequence[Path], known: Mapping[str, _Rows], partial: _Partial, changes: Changes
) -> tuple[dict[str, _Rows], list[tuple[Path, IndexedDocument]]]:
    """The rows of documents that are already embedded, and the documents to embed. A file whose size and modification time are the
    same counts as unchanged."""
    rows: dict[str, _Rows] = {}
    work: list[tuple[Path, IndexedDocument]] = []
    for path in documents:
        name = path.relative_to(folder).as_posix()
        before = known.get(name)
        try:
            status = path.stat()
            if before and (before.document.size, before.document.changed) == (status.st_size, status.st_mtime_ns):
                rows[name] = before
                continue
            now = IndexedDocument(name, sha256(path), status.st_size, status.st_mtime_ns, 0)
        except OSError as error:  # not readable, or removed meanwhile
            changes.failed.append(f"{path}: cannot be read ({error.strerror})")
            continue
        if before and before.document.sha256 == now.sha256:
            rows[name] = before
        elif saved := partial.found.get((name, now.sha256)):
            rows[name] = saved
        else:
            work.append((path, now))
    return rows, work


def _count(changes: Changes, known: Mapping[str, _Rows], rows: Mapping[str, _Rows]) -> None:
    changes.removed = len(known.keys() - rows.keys())
    for path, own in rows.items():
        if own.is_old:
            changes.unchanged += 1
        elif path in known:
            changes.changed += 1
        else:
            changes.added += 1


# --- embedding ---


def _embed(
    work: Sequence[tuple[Path, IndexedDocument]],
    embedder: Embedder,
    size: int,
    partial: _Partial,
    changes: Changes,
    on_progress: OnProgress | None,
) -> dict[str, _Rows]:
    """Embed documents and save them, several at a time."""
    found: dict[str, _Rows] = {}
    waiting: list[tuple[IndexedDocument, list[Passage]]] = []

    def save() -> None:
        texts = [passage.text for _, passages in waiting for passage in passages]
        vectors = scaled(embedder.embed(texts, prompt_for(embedder.bundle, DOCUMENT)))
        first = 0
        for document, passages in waiting:
            found[document.path] = partial.add(document, passages, vectors[first : first + len(passages)])
            first += len(passages)
        partial.flush()
        if on_progress is not None:
            on_progress(len(waiting))
        waiting.clear()

    def count(texts: Sequence[str]) -> list[int]:
        return [len(ids) for ids in embedder.tokenizer.encode_batch(texts)]

    for path, document in work:
        try:
            passages = make_passages(read_paragraphs(path), size, count)
        except UserError as error:
            changes.failed.append(str(error))
            if on_progress is not None:
                on_progress(1)
            continue
        waiting.append((replace(document, passages=len(passages)), passages))
        if sum(len(passages) for _, passages in waiting) >= _TOGETHER:
            save()
    if waiting:
        save()
    return found


class _Partial:
    """The work of an unfinished run: a line for each embedded document, and the vectors of its passages."""

    def __init__(self, out: Path, settings: Mapping[str, Any]) -> None:
        self.folder, self.settings = out.with_name(out.name + _PARTIAL), dict(settings)
        self.found: dict[tuple[str, str], _Rows] = {}  # by path and SHA-256
        self.passages: dict[tuple[str, str], list[Any]] = {}  # by the same: place and text of each
        self.is_done = False
        self._rows = 0
        self._lines: list[bytes] = []

    def __enter__(self) -> Self:
        self.folder.mkdir(exist_ok=True)
        self._lock: IO[Any] = (self.folder / ".lock").open("w")
        if not lock(self._lock):
            self._lock.close()
            raise UserError(f"{self.folder}: another process is making this index; wait for it to end")
        path = self.folder / _SETTINGS
        if path.exists() and read_json(path) == self.settings:
            self._read()
        else:
            for name in (_DOCUMENTS, _VECTORS):
                (self.folder / name).unlink(missing_ok=True)
            write_atomic(path, json.dumps(self.settings) + "\n")
        self._documents = (self.folder / _DOCUMENTS).open("ab", buffering=0)
        self._vectors = (self.folder / _VECTORS).open("ab", buffering=0)
        return self

    def _read(self) -> None:
        """Read the complete documents of an earlier run; a truncated last line is dropped."""
        whole, width = 0, 0
        documents, vectors = self.folder / _DOCUMENTS, self.folder / _VECTORS
        if not documents.exists() or not vectors.exists():
            return
        with documents.open("rb") as file:
            for line in file:
                try:
                    content = json.loads(line)
                    document = IndexedDocument(**content["document"])
                    rows, width = int(content["rows"]), int(content["width"])
                except (KeyError, TypeError, ValueError):
                    break
                if not line.endswith(b"\n") or vectors.stat().st_size < 4 * width * (self._rows + rows):
                    break
                self._remember(document, content["passages"])
                whole += len(line)
        os.truncate(documents, whole)
        os.truncate(vectors, 4 * width * self._rows)

    def _remember(self, document: IndexedDocument, passages: list[Any]) -> _Rows:
        rows = _Rows(document, False, self._rows)
        self.found[document.path, document.sha256] = rows
        self.passages[document.path, document.sha256] = passages
        self._rows += document.passages
        return rows

    def add(self, document: IndexedDocument, passages: Sequence[Passage], vectors: Vectors) -> _Rows:
        """Add a document; `flush` saves it."""
        texts = [[passage.place, passage.text] for passage in passages]
        write_all(self._vectors, np.ascontiguousarray(vectors, np.float32).tobytes())
        content = {"document": asdict(document), "rows": len(texts), "width": vectors.shape[1], "passages": texts}
        self._lines.append(json.dumps(content).encode() + b"\n")
        return self._remember(document, texts)

    def flush(self) -> None:
        """Write the lines of the added documents, after their vectors are on disk."""
        os.fsync(self._vectors.fileno())
        write_all(self._documents, b"".join(self._lines))
        self._lines.clear()

    def vectors(self, width: int) -> Vectors:
        """All vectors, (passages, d_model)."""
        if not self._rows:
            return np.empty((0, width), np.float32)
        return np.memmap(self.folder / _VECTORS, np.float32, "r", shape=(self._rows, width))

    def __exit__(self, *raised: object) -> None:
        self._documents.close()
        self._vectors.close()
        if self.is_done:
            shutil.rmtree(self.folder, ignore_errors=True)
        self._lock.close()


# --- writing ---


def _write(
    folder: Path, out: Path, old: Index | None, partial: _Partial, rows: Sequence[_Rows], embedder: Embedder, size: int
) -> None:
    """Write the whole index beside the old one and replace it."""
    total = sum(one.document.passages for one in rows)
    new = partial.vectors(embedder.width)
    with atomic_folder(out) as temporary:
        vectors = np.lib.format.open_memmap(temporary / VECTORS, "w+", np.float32, (total, embedder.width))
        places = np.zeros(total + 1, np.int64)
        row = 0
        with (temporary / PASSAGES).open("wb") as file:
            for one in rows:
                count = one.document.passages
                given = old.vectors if one.is_old and old is not None else new
                vectors[row : row + count] = given[one.first : one.first + count]
                for number, line in enumerate(_lines(one, old, partial), row + 1):
                    places[number] = places[number - 1] + file.write(line)
                row += count
        vectors.flush()
        del vectors
        np.save(temporary / PLACES, places)
        settings = {
            "format": FORMAT,
            "model": model_name(embedder.bundle),
            "fingerprint": fingerprint(embedder.bundle),
            "folder": str(folder.resolve()),
            "passage_tokens": size,
            "documents": [asdict(one.document) for one in rows],
        }
        # ASCII, since file names may not be valid UTF-8.
        (temporary / INDEX).write_text(json.dumps(settings) + "\n", encoding="ascii")
        write_manifest(temporary, format=FORMAT)


def _lines(rows: _Rows, old: Index | None, partial: _Partial) -> Iterator[bytes]:
    """The passages of a document as lines of JSON."""
    if rows.is_old and old is not None:
        yield from old.raw_passages(rows.first, rows.document.passages)
        return
    for place, text in partial.passages[rows.document.path, rows.document.sha256]:
        yield json.dumps({"place": place, "text": text}, ensure_ascii=False).encode("utf-8", "replace") + b"\n"
