"""The server's own folder for documents, and files in it that only the server's user may read.

The room for a result is reserved before the work begins, so that a full disk is reported at once and not after minutes of work. The
folder is locked while its server runs; one that a killed server left behind is removed when the next one starts. Earlier versions
did not lock theirs: of those only documents are removed that have long expired.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from regard.errors import UserError
from regard.serve.refusal import Unavailable

_PREFIX = "regard-serve-"
_MARK = ".regard"  # a file in each folder that has been locked since it was made
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # also by a quota or a limit of the file size
_RETRY = 60  # seconds
_DOCUMENT = re.compile(r"[0-9a-f]{32}\.\w+(?:\.part)?")  # as in document_files.py
_UNLOCKED_SECONDS = 86_400.0  # documents expire after minutes


@contextmanager
def document_folder() -> Iterator[Path]:
    """A new folder for documents, removed at the end. Folders of servers that were killed are removed now."""
    try:
        root = Path(tempfile.gettempdir())
        sweep_folders(root)
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=root))  # with mode 0700
    except OSError as error:
        raise UserError(
            f"no temporary folder for documents can be made ({error.strerror or error}); set TMPDIR to one with some room"
        ) from None
    try:
        with _locked(folder) as is_locked:
            if is_locked:
                with suppress(OSError):  # on a full disk; unmarked, the folder stays if the server is killed
                    (folder / _MARK).touch(0o600)
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def sweep_folders(root: Path) -> None:
    """Remove the folders in `root` that servers of this user left behind when they were killed."""
    for folder in root.glob(f"{_PREFIX}*"):
        with suppress(OSError):  # another server removed it, or it is another user's
            is_own = not hasattr(os, "geteuid") or folder.lstat().st_uid == os.geteuid()
            if not is_own or folder.is_symlink():
                continue
            if not (folder / _MARK).is_file():
                _sweep_unlocked(folder)
                continue
            with _locked(folder) as is_locked:
                if is_locked:
                    shutil.rmtree(folder, ignore_errors=True)


def _sweep_unlocked(folder: Path) -> None:
    """Remove the old documents of a folder whose server, of an earlier version, may still run."""
    for path in folder.iterdir():
        with suppress(OSError):
            is_old = path.lstat().st_mtime < time.time() - _UNLOCKED_SECONDS
            if is_old and _DOCUMENT.fullmatch(path.name) and path.is_file() and not path.is_symlink():
                path.unlink()


@contextmanager
def _locked(folder: Path) -> Iterator[bool]:
    """Hold a folder's lock; False if another process has it, or if the system cannot lock folders. systemd-tmpfiles leaves locked
    folders alone, too."""
    try:
        import fcntl

        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except (ImportError, OSError):
        yield False
        return
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_locked = True
        except OSError:
            is_locked = False
        yield is_locked
    finally:
        os.close(descriptor)


def reserve(path: Path, size: int) -> None:
    """Make a private file with room for this many bytes. Raises `Unavailable` if there is no room, and leaves nothing behind."""
    with _or_nothing(path), _open(path) as descriptor:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(descriptor, 0, max(1, size))
        else:
            os.write(descriptor, bytes(size))


def write_private(path: Path, content: bytes) -> None:
    """Write a private file, into the room that was reserved for it if there is some. Raises `Unavailable` if there is no room, and
    leaves nothing behind."""
    with _or_nothing(path), _open(path) as descriptor:
        left = memoryview(content)
        while left:
            left = left[os.write(descriptor, left) :]
        os.ftruncate(descriptor, len(content))


@contextmanager
def _open(path: Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o600)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def _or_nothing(path: Path) -> Iterator[None]:
    """Remove the file if it cannot be written."""
    try:
        yield
    except OSError as error:
        with suppress(OSError):
            path.unlink(missing_ok=True)
        if error.errno not in _FULL:
            raise
        raise Unavailable(
            f"the server has no room for documents at the moment; try again in {_RETRY} s", _RETRY
        ) from None
