"""Lines of text: standard input as it arrives, and output files that survive an interruption."""

from __future__ import annotations

import codecs
import io
import json
import os
import queue
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from regard.data.writer import check_settings
from regard.errors import RegardError, UserError
from regard.escaping import for_terminal
from regard.files import check_new_file, lock, read_json, write_atomic, writing

_PATIENCE = 0.05  # seconds to wait for more lines before translating those at hand


def standard_input() -> IO[bytes]:
    """Standard input as bytes, through a separate reader: after Ctrl-C a thread still waits for a line, and Python cannot exit
    while one waits in the reader of `sys.stdin`."""
    try:
        return open(sys.stdin.fileno(), "rb", closefd=False)
    except io.UnsupportedOperation:  # it was replaced by an object without a file
        return sys.stdin.buffer


def read_available(stream: IO[bytes], most: int) -> Iterator[list[str]]:
    """Yield blocks of the lines that have arrived, at most `most` at a time: a person who types gets an answer to each line, and a
    pipe is read in large blocks."""
    lines: queue.Queue[bytes | OSError | None] = queue.Queue(maxsize=2 * most)

    def read() -> None:
        try:
            for line in stream:
                lines.put(line)
        except OSError as error:
            lines.put(error)
        lines.put(None)

    threading.Thread(target=read, daemon=True).start()
    number, over = 0, False
    while not over:
        block: list[str] = []
        wait: float | None = None
        while len(block) < most:
            try:
                line = lines.get(timeout=wait)
            except queue.Empty:
                break
            if line is None:
                over = True
                break
            if isinstance(line, OSError):
                raise UserError(f"standard input, after line {number}: cannot be read ({line.strerror})")
            number += 1
            block.append(_decode(line, number))
            wait = _PATIENCE
        if block:
            yield block


def _decode(line: bytes, number: int) -> str:
    line = line.removesuffix(b"\n").removesuffix(b"\r")
    if number == 1:
        line = line.removeprefix(codecs.BOM_UTF8)
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        byte = line[error.start]
        raise UserError(
            f"standard input, line {number}: is not valid UTF-8 (byte 0x{byte:02x}); convert it to UTF-8"
        ) from None


class LineFile:
    """Output for translations: standard output, or a file that is written as NAME.partial and renamed when complete."""

    def __init__(
        self, path: Path | None, resume: bool = False, settings: Mapping[str, Any] | None = None, is_kept: bool = True
    ) -> None:
        """`settings` are what the lines depend on, which a resumed run must match; None: it cannot be resumed. `is_kept`: whether
        to keep a partial file after an error. `lines_done` is the number of lines that an earlier run wrote."""
        self._is_kept = is_kept
        self.lines_done = 0
        self._size = 0  # bytes
        self._file: IO[str]
        if path is not None:
            check_new_file(path)
            path = path.resolve() if path.is_symlink() else path
        self.path = path
        self._partial = path.with_name(f"{path.name}.partial") if path else None
        if path is None or self._partial is None:
            self._file = sys.stdout
            if isinstance(self._file, io.TextIOWrapper):  # UTF-8 and \n, whatever the console uses
                self._file.reconfigure(encoding="utf-8", newline="\n")
            return
        self._state = path.with_name(f"{path.name}.partial.json")
        is_left = self._partial.exists()
        if resume and path.exists() and not is_left:
            raise UserError(f"{path}: is complete already; there is nothing to resume")
        self._file = self._partial.open("a", encoding="utf-8", newline="\n")
        try:
            if not lock(self._file):
                raise UserError(f"{self._partial}: another process is writing this file; wait for it, or stop it")
            if is_left:
                _check_left(self._partial, self._state, resume, settings or {})
        except UserError:
            self._file.close()
            raise
        if settings is not None:  # before any line, so that none lacks its settings
            document = json.dumps({"settings": dict(settings)}, ensure_ascii=False, indent=2)
            write_atomic(self._state, document + "\n")
        self.lines_done = _whole_lines(self._partial)
        self._size = self._partial.stat().st_size

    def write(self, text: str) -> None:
        """Write text, which may be buffered. A terminal gets its control characters escaped, a file or a pipe every byte."""
        if self.path is None and self._file.isatty():
            text = for_terminal(text)
        self._size += len(text.encode("utf-8", "surrogatepass"))
        with writing(self._partial or Path("standard output"), self._size):
            self._file.write(text)

    def flush(self) -> None:
        """Write buffered text to disk."""
        with writing(self._partial or Path("standard output"), self._size):
            self._file.flush()
            if self._partial is not None:
                os.fsync(self._file.fileno())

    def saved_lines(self) -> int:
        """The number of lines in the file, counted there: after an interruption it is unclear whether the last was written."""
        self.flush()
        return _whole_lines(self._partial) if self._partial is not None else 0

    def __enter__(self) -> LineFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        no_room = None
        try:
            if kind is not BrokenPipeError:
                self.flush()
        except RegardError as raised:
            no_room = raised
        if self.path is not None and self._partial is not None:
            with suppress(OSError):  # closing tries once more to write what found no room
                self._file.close()
            if kind is None and no_room is None:
                os.replace(self._partial, self.path)
                self._state.unlink(missing_ok=True)
            elif not (self._is_kept and self._partial.stat().st_size):
                self._partial.unlink()
                self._state.unlink(missing_ok=True)
        if no_room is not None:
            raise no_room


def _check_left(partial: Path, state: Path, resume: bool, settings: Mapping[str, Any]) -> None:
    """Refuse to continue the file of an interrupted run, unless resuming with the same settings."""
    left = f"{partial}: is left from an interrupted run"
    if not resume:
        raise UserError(f"{left}; {'continue with --resume, or remove it' if state.exists() else 'remove it'}")
    if not state.exists():
        raise UserError(f"{left}; remove it, for {state.name} is missing")
    begun = read_json(state).get("settings")
    if not isinstance(begun, dict):
        raise UserError(f"{state}: is not the state of an interrupted run; remove it and {partial.name}")
    check_settings(settings, begun, state)


def _whole_lines(path: Path) -> int:
    """Count the complete lines of a file and cut off an incomplete last one."""
    count, end = 0, 0
    with path.open("rb+") as file:
        for line in file:
            if line.endswith(b"\n"):
                count += 1
                end += len(line)
        file.truncate(end)
    return count
