"""Parallel text out: files that grow chunk by chunk, survive an interruption and take their names when they are complete.

Until then the lines lie plain in NAME.partial, where people can look at them, and a small state file says up to where they
count; what a killed process wrote after it is cut off when the work goes on. Compression comes last: it is quick beside whatever
made the text, one stream packs better than many pieces, and a file that was resumed is the same as one that never was.
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
from regard.files import lock, read_json, sync, write_atomic
from regard.progress import OnProgress

_BLOCK = 1 << 20


class CorpusWriter:
    """Two files, a side in each, or one of source<TAB>target lines.

    `settings` say what the text is made of and how; a resumed writer must have the same. `saved` is what the caller gave with the
    last chunk, None before the first. Nothing is written before `with`.
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
            self._check_nothing_is_there(resume)

    def _check_nothing_is_there(self, resume: bool) -> None:
        for path in self.paths:
            if path.exists():
                raise UserError(
                    f"{path}: is complete already; there is nothing to resume"
                    if resume
                    else f"{path}: exists already; choose another name with -o, or remove it"
                )
        for path in (self.state, *self.partials):
            if path.exists():
                remedy = (
                    f"remove it, for {self.state.name} is missing" if resume else "go on with --resume, or remove it"
                )
                raise UserError(f"{path}: is left from an interrupted run; {remedy}")

    def _read_state(self) -> None:
        state = read_json(self.state)
        try:
            settings, sizes = dict(state["settings"]), [int(size) for size in state["sizes"]]
            self.saved, self.is_complete = state["saved"], bool(state["complete"])
        except (KeyError, TypeError, ValueError):
            raise UserError(f"{self.state}: is not the state of an interrupted run; remove it and start anew") from None
        check_settings(self.settings, settings, self.state)
        if not self.is_complete:
            for partial, size in zip(self.partials, sizes, strict=True):
                if not partial.exists() or partial.stat().st_size < size:
                    raise UserError(
                        f"{partial}: must have at least the {size:,} bytes that {self.state.name} counts, but is shorter or gone; "
                        f"remove {self.state} and the .partial files to start anew"
                    )
        self._sizes = sizes

    def __enter__(self) -> CorpusWriter:
        # A complete corpus may have given up some of its partial files already.
        self._files = [path.open("ab") for path in self.partials if not self.is_complete or path.exists()]
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
        if self.saved is None:  # nothing was done that a later run could go on from
            for path in (*self.partials, self.state):
                path.unlink(missing_ok=True)

    def append(self, pairs: Sequence[Pair], saved: dict[str, Any]) -> None:
        """Write a chunk; once this returns, neither the pairs nor `saved` are lost, whatever happens."""
        for number, (file, text) in enumerate(zip(self._files, _columns(pairs, len(self.paths)), strict=True)):
            data = text.encode("utf-8")
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
            self._sizes[number] += len(data)
        self.saved = saved
        self._write_state()

    def discard(self) -> None:
        """Leave nothing of what was written so far behind."""
        self.saved = None

    def finish(self, on_progress: OnProgress = lambda count: None) -> None:
        """Give the files their names; `on_progress` is called with the bytes newly compressed. A killed one is repeated."""
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
        for path in (*self.paths, self.state):  # what writers that were killed left under temporary names
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


def check_settings(own: Mapping[str, Any], begun: Mapping[str, Any], state: Path) -> None:
    """Refuse to go on with what was begun with other settings, which are in this file."""
    for key in dict.fromkeys([*own, *begun]):  # the caller names first what says most
        if own.get(key) != begun.get(key):
            raise UserError(
                f"--resume: {key} is {own.get(key)!r}, but {state} was begun with {begun.get(key)!r}; "
                f"use the same, or remove {state} and the .partial files to start anew"
            )


def _beside(path: Path, ending: str) -> Path:
    return path.with_name(path.name + ending)


def _columns(pairs: Sequence[Pair], num_files: int) -> list[str]:
    """The text of each file; a tab inside a side would be read as its end."""
    if num_files == 1:
        rows = ("\t".join(side.replace("\t", " ") for side in pair) for pair in pairs)
        return ["".join(f"{row}\n" for row in rows)]
    return ["".join(f"{pair[side]}\n" for pair in pairs) for side in (0, 1)]


# --- compression ---


def _compress(plain: Path, path: Path, on_progress: OnProgress) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with plain.open("rb") as source, temporary.open("wb") as file, _COMPRESSORS[path.suffix](file) as packed:
        while block := source.read(_BLOCK):
            packed.write(block)
            on_progress(len(block))
    shutil.copymode(plain, temporary)
    sync(temporary)
    os.replace(temporary, path)


@contextmanager
def _gzip(file: IO[bytes]) -> Iterator[IO[bytes]]:
    # Neither name nor time in the header: the same text gives the same file.
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
