"""SHA-256 of large files in pieces: computed while a file is written, checked in parallel when it is opened, and checked again,
a piece now and then, while it is in use. Pieces let all cores work on one file, and tell which part of it is damaged."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from regard.errors import UserError
from regard.parallel.processes import cores

PIECE = 1 << 22  # bytes
INLINE_BYTES = 1 << 20  # up to this many bytes, starting threads would take longer than the work

Digests = dict[str, list[str]]  # file name -> SHA-256 of each of its pieces, the last of which may be shorter


class PieceHasher:
    """The digests of a file that is written bit by bit."""

    def __init__(self) -> None:
        self._done: list[str] = []
        self._hash, self._room = hashlib.sha256(), PIECE

    def update(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            part, view = view[: self._room], view[self._room :]
            self._hash.update(part)
            self._room -= len(part)
            if not self._room:
                self._done.append(self._hash.hexdigest())
                self._hash, self._room = hashlib.sha256(), PIECE

    def digests(self) -> list[str]:
        return [*self._done, self._hash.hexdigest()] if self._room < PIECE else list(self._done)


class Piece(NamedTuple):
    """A part of a memory-mapped file, and the digest that it must have."""

    path: Path
    start: int  # in bytes
    data: NDArray[np.uint8]
    digest: str

    def is_intact(self) -> bool:
        return _digest(self.data) == self.digest


def digests_of(arrays: Mapping[str, NDArray[Any]]) -> Digests:
    """The digests of files that are already there, given as arrays over their content."""
    return {name: [_digest(data) for data in _cut(array)] for name, array in arrays.items()}


def pieces_of(folder: Path, arrays: Mapping[str, NDArray[Any]], digests: Mapping[str, Any]) -> list[Piece]:
    """The pieces of all files; a ValueError if `digests`, as read from JSON, are not the digests of such files."""
    pieces = []
    for name, array in arrays.items():
        parts, found = list(_cut(array)), digests[name]
        if not isinstance(found, list) or len(found) != len(parts):
            raise ValueError(f"{name} must have {len(parts)} digests")
        pieces += [Piece(folder / name, i * PIECE, part, found[i]) for i, part in enumerate(parts)]
    return pieces


def combined(digests: Mapping[str, Sequence[str]]) -> str:
    """One hash for the content of all files."""
    return hashlib.sha256(json.dumps(digests, sort_keys=True).encode()).hexdigest()


def check_pieces(pieces: Sequence[Piece]) -> None:
    """Refuse the first damaged piece, with all cores at work: hashing releases the interpreter's lock."""
    if sum(len(piece.data) for piece in pieces) <= INLINE_BYTES:
        checked = [piece.is_intact() for piece in pieces]
    else:
        with ThreadPoolExecutor(min(cores(), len(pieces))) as threads:
            checked = list(threads.map(Piece.is_intact, pieces))
    for piece, is_intact in zip(pieces, checked, strict=True):
        if not is_intact:
            raise UserError(f"{_fault(piece)}; delete {piece.path.parent}, and it is made anew")


class Recheck:
    """Checks pieces in turn while their files are in use: a page that was dropped from memory is read from the disk again, and
    another program may write to the files."""

    def __init__(self, pieces: Sequence[Piece], start: float = 0.0) -> None:
        """Begin at this share of the pieces, so that several processes begin at different ones."""
        self._pieces = pieces
        self._next, self._due = int(start * len(pieces)), 0.0
        self._sizes = {piece.path: piece.start + len(piece.data) for piece in pieces}  # those of each file's last piece

    def advance(self, share: float) -> None:
        """Check the size of all files, and this share of all pieces, in whole pieces: what is left over counts for the next call.
        The size comes first: reading a mapped file beyond its end kills the process."""
        for path, size in self._sizes.items():
            if (now := _size(path)) != size:
                raise UserError(
                    f"{path}: must have {size:,} bytes, but has {now:,}: cut short while it was in use; delete {path.parent}, and "
                    "resume from a checkpoint of before"
                )
        self._due += share * len(self._pieces)
        while self._due >= 1.0:
            piece = self._pieces[self._next % len(self._pieces)]
            if not piece.is_intact():
                raise UserError(
                    f"{_fault(piece)} while it was in use; delete {piece.path.parent}, and resume from a checkpoint of before"
                )
            self._next += 1
            self._due -= 1.0


def _size(path: Path) -> int:
    """The bytes of a file; 0 if it is not there."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _fault(piece: Piece) -> str:
    stop = piece.start + len(piece.data)
    return f"{piece.path}: bytes {piece.start:,} to {stop:,} do not match their checksum: damaged or changed"


def _cut(array: NDArray[Any]) -> Iterator[NDArray[np.uint8]]:
    data = array.view(np.uint8)
    return (data[start : start + PIECE] for start in range(0, len(data), PIECE))


def _digest(data: NDArray[np.uint8]) -> str:
    return hashlib.sha256(data.data).hexdigest()
