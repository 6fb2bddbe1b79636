"""Writes parallel text chunk by chunk, resumable after an interruption; files get their names when they are complete.

Until then the lines are in NAME.partial, uncompressed and readable, and a small state file records how many bytes are valid;
what a killed process wrote beyond them is cut off on resuming. Compression comes last: it is fast compared with making the
text, one stream compresses better than many, and a resumed file is identical to one that was never interrupted.
"""

from __future__ import annotations

import glob
import gzip
import json
import lzma
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import IO, Any, cast

from regard.data.corpus import Pair, import_zstandard
from regard.errors import UserError
from regard.files import lock, read_json, sync, write_all, write_atomic, writing
from regard.progress import OnProgress

_BLOCK = 1 << 20


class CorpusWriter:
    """Writes two files, one per side, or one of source<TAB>target lines.

    `settings` describe how the text is made; a resumed writer must have the same. `saved` is what the caller passed with the
    last chunk, None before the first. Nothing is written before the `with` block is entered.
    """

    def __init__(self, paths: Sequence[Path], settings: Mapping[str, Any], resume: bool) -> None:
        self.paths = list(paths)
        self.settings = dict(settings)
        self.state = _beside(self.paths[0], ".partial.json")
        self.partials = [_beside(path, ".partial") for path in self.paths]
        self.saved: dict[str, Any] | None = None
        self.is_complete = False
        self._sizes = [0 for _ in self.paths]
        self._files: list[IO[bytes]] = []
        for path in self.paths:
            if not path.parent.is_dir():
                raise UserError(f"{path}: the folder {path.parent} does not exist")
            if path.suffix == ".zst":
                import_zstandard(path, "writing")
        if resume and self.state.exists():
            self._read_state()
        else:
            self._check_no_files(resume)

    def _check_no_files(self, resume: bool) -> None:
        for path in self.paths:
            if path.exists():
                raise UserError(
                    f"{path}: is already complete; there is nothing to resume"
                    if resume
                    else f"{path}: already exists; choose another name with -o, or remove it"
                )
        for path in (self.state, *self.partials):
            if path.exists():
                remedy = (
                    f"{self.state.name} is missing, so remove it" if resume else "continue with --resume, or remove it"
                )
                raise UserError(f"{path}: is left from an interrupted run; {remedy}")

    def _read_state(self) -> None:
        state = read_json(self.state)
        try:
            settings, sizes = dict(state["settings"]), [int(size) for size in state["sizes"]]
            self.saved, self.is_complete = state["saved"], bool(state["complete"])
        except (KeyError, TypeError, ValueError):
            raise UserError(
                f"{self.state}: must be the state of an interrupted run, but is not; remove it to start over"
            ) from None
        check_settings(self.settings, settings, self.state)
        if not self.is_complete:
            for partial, size in zip(self.partials, sizes, strict=True):
                if not partial.exists() or partial.stat().st_size < size:
                    raise UserError(
                        f"{partial}: must have at least the {size:,} bytes that {self.state.name} counts, but is shorter or gone; "
                        f"remove {self.state} and the .partial files to start over"
                    )
        self._sizes = sizes

    def __enter__(self) -> CorpusWriter:
        # Some partial files of a complete corpus may be renamed already.
        self._files = [path.open("ab", buffering=0) for path in self.partials if not self.is_complete or path.exists()]
        if self._files and not lock(self._files[0]):
            self._close()
            raise UserError(f"{self.partials[0]}: another process is writing this file; wait for it, or stop it")
        if not self.is_complete:
            for file, size in zip(self._files, self._sizes, strict=True):
                file.truncate(size)
            self._write_state()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()
        if self.saved is None:  # there is nothing to resume from
            for path in (*self.partials, self.state):
                path.unlink(missing_ok=True)

    def append(self, pairs: Sequence[Pair], saved: dict[str, Any]) -> None:
        """Write a chunk. Once this returns, the pairs and `saved` are safely on disk."""
        for number, (file, text) in enumerate(zip(self._files, _columns(pairs, len(self.paths)), strict=True)):
            data = text.encode("utf-8")
            size = self._sizes[number] + len(data)
            with writing(self.partials[number], size):
                write_all(file, data)
                os.fsync(file.fileno())
            self._sizes[number] = size
        self.saved = saved
        self._write_state()

    def discard(self) -> None:
        """Forget what was written so far: leaving the `with` block deletes it."""
        self.saved = None

    def finish(self, on_progress: OnProgress = lambda count: None) -> None:
        """Compress the files and give them their names; `on_progress` gets the number of bytes newly compressed.

        A run that is killed meanwhile does this again when it is resumed.
        """
        self.is_complete = True
        self._write_state()
        for path, partial in zip(self.paths, self.partials, strict=True):
            if partial.exists():
                if path.suffix in _COMPRESSORS:
                    _compress(partial, path, on_progress)
                    partial.unlink()
                else:
                    os.replace(partial, path)
        sync(self.paths[0].parent)
        sync(self.paths[-1].parent)
        self.state.unlink()
        for path in (*self.paths, self.state):  # temporary files of writers that were killed
            for leftover in path.parent.glob(f".{glob.escape(path.name)}.[0-9]*.tmp"):
                leftover.unlink()

    @property
    def bytes_to_compress(self) -> int:
        return sum(size for path, size in zip(self.paths, self._sizes, strict=True) if path.suffix in _COMPRESSORS)

    def _write_state(self) -> None:
        state = {
            "settings": self.settings, "sizes": self._sizes, "complete": self.is_complete, "saved": self.saved
        }  # fmt: skip
        write_atomic(self.state, json.dumps(state, ensure_ascii=False, indent=2) + "\n")

    def _close(self) -> None:
        for file in self._files:
            file.close()
        self._files = []


def check_settings(settings: Mapping[str, Any], saved: Mapping[str, Any], state: Path) -> None:
    """Refuse to resume with other settings than those saved in the state file."""
    for key in dict.fromkeys([*settings, *saved]):  # in the caller's order: the most telling first
        if settings.get(key) != saved.get(key):
            now, before = settings.get(key), saved.get(key)
            raise UserError(
                f"--resume: {key} is {'not set' if now is None else repr(now)}, but {state} was started "
                f"{'without it' if before is None else f'with {before!r}'}; "
                f"use the same, or remove {state} and the .partial files to start over"
            )


def _beside(path: Path, ending: str) -> Path:
    return path.with_name(path.name + ending)


def _columns(pairs: Sequence[Pair], num_files: int) -> list[str]:
    """The text of each file. In a file with tabs, tabs inside a side become spaces."""
    if num_files == 1:
        rows = ("\t".join(side.replace("\t", " ") for side in pair) for pair in pairs)
        return ["".join(f"{row}\n" for row in rows)]
    return ["".join(f"{pair[side]}\n" for pair in pairs) for side in (0, 1)]


# --- compression ---


def _compress(plain: Path, path: Path, on_progress: OnProgress) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with (
        writing(path, plain.stat().st_size),  # at most
        plain.open("rb") as source,
        temporary.open("wb") as file,
        _COMPRESSORS[path.suffix](file) as packed,
    ):
        while block := source.read(_BLOCK):
            packed.write(block)
            on_progress(len(block))
    shutil.copymode(plain, temporary)
    sync(temporary)
    os.replace(temporary, path)


@contextmanager
def _gzip(file: IO[bytes]) -> Iterator[IO[bytes]]:
    # No name or time in the header, so that the same text gives the same file.
    with gzip.GzipFile("", "wb", fileobj=file, mtime=0) as packed:
        yield cast(IO[bytes], packed)


@contextmanager
def _xz(file: IO[bytes]) -> Iterator[IO[bytes]]:
    with lzma.open(file, "wb") as packed:
        yield cast(IO[bytes], packed)


@contextmanager
def _zstd(file: IO[bytes]) -> Iterator[IO[bytes]]:
    import zstandard

    with zstandard.ZstdCompressor(level=10).stream_writer(file, closefd=False) as packed:
        yield cast(IO[bytes], packed)


_COMPRESSORS = {".gz": _gzip, ".xz": _xz, ".zst": _zstd}
