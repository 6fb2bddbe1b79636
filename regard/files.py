"""Files and folders that are never half-written: content goes to a temporary name, is flushed to disk and then renamed. A reader
sees the old content or the new, never a mixture."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
import stat
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from regard.errors import NoRoom, UserError
from regard.escaping import shorten

MANIFEST = "manifest.json"
PIPE_SECONDS = 10.0  # how long a named pipe may be without a writer before it is refused

_BLOCK = 1 << 18
_MAX_JSON = 256 * 1024 * 1024  # bytes of a JSON file; Regard's own have a few megabytes at most
_TEMPORARY = re.compile(r"^\.(.+)\.\d+\.tmp$")  # the names that files and folders have until they are complete
_NO_ROOM = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EFBIG: "no file may become so large here (ulimit -f)",
}


# --- writing ---


def sync(path: Path) -> None:
    """Flush a file or folder to disk. A file system that cannot flush folders is not an error."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(descriptor)
    except OSError:
        if not path.is_dir():
            raise
    finally:
        os.close(descriptor)


def write_atomic(path: Path, content: str | bytes, *, is_private: bool = False) -> None:
    """Replace the file's content in one step. A symbolic link stays, and its target is replaced. `is_private`: only its owner may
    read it."""
    path = path.resolve()
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    data = content.encode("utf-8") if isinstance(content, str) else content
    with writing(path, len(data)):
        try:
            if is_private:
                temporary.unlink(missing_ok=True)
                temporary.touch(0o600)
            temporary.write_bytes(data)
            sync(temporary)
            os.replace(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    sync(path.parent)


@contextmanager
def writing(path: Path, size: int) -> Iterator[None]:
    """Within this block a file is written that needs `size` bytes so far. If there is no room for it, the error says so, with the
    name that the file would have had in the end."""
    try:
        yield
    except Exception as error:
        reason = no_room(error)
        if reason is None:
            raise
        raise NoRoom(
            f"{final_name(path)}: cannot be written, since {reason}; it needs {size:,} bytes: make room, then run the command again"
        ) from error


def final_name(path: Path) -> Path:
    """The name that a temporary file, or a file in a temporary folder, would have had in the end.

    >>> str(final_name(Path("run/.model.123.tmp/config.json")))
    'run/model/config.json'
    """
    return Path(*(_TEMPORARY.sub(r"\1", part) for part in path.parts))


def no_room(error: BaseException) -> str | None:
    """Why there was no room for a file, if that is what the error means; None for any other error."""
    if isinstance(error, OSError):
        return _NO_ROOM.get(error.errno or 0)
    if type(error).__module__.startswith("safetensors"):  # it raises errors of its own, with the number in the text
        number = re.search(r"\(os error (\d+)\)", str(error))
        return _NO_ROOM.get(int(number[1])) if number else None
    return None


def write_all(file: IO[bytes], data: bytes) -> None:
    """Write to an unbuffered file. Unlike a buffered one, it has nothing left to write, and to fail with, when it is closed."""
    view = memoryview(data)
    while view:
        view = view[file.write(view) :]


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """A temporary folder beside `path` that replaces it when the block succeeds, and is removed when it raises.

    For a moment the old folder lies beside the new one under a hidden name. A symbolic link stays, and its target is replaced.
    """
    path = path.resolve()
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    try:
        with _writing_folder(path, temporary):
            yield temporary
        permissions = temporary.stat().st_mode & 0o666
        for file in sorted(temporary.rglob("*")):
            if file.is_file():
                _add_permissions(file, permissions)  # safetensors writes files that only their owner may read
            sync(file)
        sync(temporary)
        if path.exists():
            old = path.with_name(f".{path.name}.{os.getpid()}.old")
            os.replace(path, old)
            os.replace(temporary, path)
            shutil.rmtree(old)
        else:
            os.replace(temporary, path)
        sync(path.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


@contextmanager
def _writing_folder(path: Path, temporary: Path) -> Iterator[None]:
    """As `writing`, for whatever writes into the folder without naming its own file."""
    try:
        yield
    except Exception as error:
        if no_room(error) is None:
            raise
        size = sum(file.stat().st_size for file in temporary.rglob("*") if file.is_file())
        with writing(path, size):
            raise


def _add_permissions(file: Path, permissions: int) -> None:
    mode = stat.S_IMODE(file.stat().st_mode)
    if mode | permissions != mode:
        with suppress(OSError):  # a file system without permissions
            file.chmod(mode | permissions)


# --- checks ---


def lock(file: IO[Any]) -> bool:
    """Lock an open file until it is closed; False if another process holds the lock. Without lock support (Windows, some network
    file systems) this always succeeds."""
    try:
        import fcntl
    except ImportError:
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def check_new_folder(path: Path) -> None:
    """Refuse a folder that has content, so that nothing is overwritten."""
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise UserError(f"{path}: already exists; choose another folder with -o")
    if path.resolve() == Path.cwd():
        raise UserError(f"{path}: is the current folder; choose another with -o")


def check_new_file(path: Path) -> None:
    """Refuse, before any work is done, a path that a finished file could not be moved to."""
    if not path.name:
        raise UserError(f"{path}: must be the name of a file; choose another with -o")
    folder = path.resolve().parent if path.is_symlink() else path.parent
    if not folder.is_dir():
        raise UserError(f"{path}: the folder {folder} does not exist")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UserError(f"{path}: cannot be written, since the folder {folder} is read-only for you; choose another")
    if path.is_dir():
        raise UserError(f"{path}: must be a file, but is a folder")
    if path.exists() and not path.is_file():
        raise UserError(f"{path}: must be a file, but is a device or a pipe; write to it with > {path}")


def check_overwrite(path: Path, force: bool) -> None:
    """Refuse to overwrite the file of -o without --force."""
    if path.exists() and not force:
        raise UserError(f"-o {path}: already exists; choose another name, or add --force to overwrite it")


def is_same_file(one: Path, other: Path) -> bool:
    try:
        return one.is_file() and one.samefile(other)
    except OSError:  # one of them does not exist
        return False


def sweep_temporaries(folder: Path) -> None:
    """Remove what an interrupted `atomic_folder` or `write_atomic` left behind in this folder."""
    for leftover in [*folder.glob(".*.tmp"), *folder.glob(".*.old")]:
        if leftover.is_dir():
            shutil.rmtree(leftover, ignore_errors=True)
        else:
            leftover.unlink(missing_ok=True)


# --- reading ---


def open_input(path: Path) -> IO[bytes]:
    """Open a file or pipe that the user named. A named pipe is refused if nobody opens its other end within PIPE_SECONDS:
    the system itself would wait for ever."""
    if not path.is_fifo():
        return open(path, "rb", buffering=_BLOCK)
    opened: list[IO[bytes] | OSError] = []

    def wait_for_writer() -> None:
        try:
            opened.append(open(path, "rb", buffering=_BLOCK))  # noqa: SIM115 - the caller closes it
        except OSError as error:
            opened.append(error)

    thread = threading.Thread(target=wait_for_writer, daemon=True)
    thread.start()
    thread.join(PIPE_SECONDS)
    if thread.is_alive():
        with suppress(OSError):  # a writer, if only for a moment, ends the wait of the thread
            os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
            thread.join()
            for file in opened:
                if not isinstance(file, OSError):
                    file.close()
        raise UserError(
            f"{path}: is a pipe that nobody writes to; start the program that writes to it, or name a file instead"
        )
    [file] = opened
    if isinstance(file, OSError):
        raise file
    return file


def check_regular(path: Path, reason: str) -> None:
    """Refuse a pipe or a device where only a file will do."""
    if path.exists() and not path.is_file():
        raise UserError(f"{path}: must be a regular file, since {reason}, but is {_kind(path)}; {_REMEDY}")


_REMEDY = "write its content to a file first, and name that"


def _kind(path: Path) -> str:
    return "a folder" if path.is_dir() else "a pipe" if path.is_fifo() else "a device or a socket"


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_manifest(folder: Path, **facts: Any) -> None:
    """Write manifest.json: the given facts, and the SHA-256 of every other file in the folder."""
    files = sorted(f for f in folder.rglob("*") if f.is_file() and f.name != MANIFEST)
    hashes = {f.relative_to(folder).as_posix(): sha256(f) for f in files}
    (folder / MANIFEST).write_text(json.dumps({**facts, "files": hashes}, indent=2) + "\n", encoding="utf-8")


def cache_folder() -> Path:
    """Where Regard keeps models that it converted, and where people may put models to be found by name."""
    if given := os.environ.get("REGARD_CACHE"):
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "regard"


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in this file; a UserError where there is none."""
    check_regular(path, "it is read more than once")
    try:
        if path.stat().st_size > _MAX_JSON:
            raise UserError(f"{path}: must have at most {_MAX_JSON:,} bytes, but has {path.stat().st_size:,}")
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path}: is missing") from None
    except RecursionError:
        raise UserError(f"{path}: cannot be read (nested too deeply)") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read ({error})") from None
    if not isinstance(value, dict):
        raise UserError(f"{path}: must hold a JSON object")
    return value


def path_inside(folder: Path, name: str) -> Path:
    """The path of a folder's file, whose name may come from a stranger: names and links that lead out of the folder are refused. In
    a download cache of Hugging Face, the files of `snapshots/REVISION` are links into `blobs` beside it, which belongs to it."""
    path = folder / name
    try:
        real, root = Path(os.path.realpath(path)), Path(os.path.realpath(folder))
    except (OSError, ValueError):  # a name that no file can have
        raise UserError(f"{folder}: {shorten(name)} cannot be the name of a file") from None
    roots = [root, root.parent.parent / "blobs"] if root.parent.name == "snapshots" else [root]
    if Path(name).is_absolute() or ".." in Path(name).parts or not any(map(real.is_relative_to, roots)):
        raise UserError(
            f"{folder}: must hold its files itself, but {shorten(name)} leads out of it; put a copy of the file there"
        )
    return path


def check_manifest(folder: Path, required: Iterable[str] = ()) -> dict[str, Any]:
    """Read manifest.json and refuse the folder if a listed file is missing or its hash differs, or if a required one is not
    listed."""
    manifest = read_json(path_inside(folder, MANIFEST))
    files = manifest.get("files")
    if not isinstance(files, dict) or not files:
        raise UserError(f"{folder / MANIFEST}: has no list of files")
    for name in required:
        if name not in files:
            raise UserError(
                f"{folder / MANIFEST}: must list every file that is used, but {name} is not there; copy the whole folder again"
            )
    for name, expected in files.items():
        path = path_inside(folder, name)
        if not os.path.isfile(path):
            raise UserError(f"{path}: is missing, though {MANIFEST} lists it; copy the whole folder again")
        if sha256(path) != expected:
            raise UserError(f"{path}: differs from what {MANIFEST} says; the file is damaged or was changed")
    return manifest
