"""The cache of converted and merged models.

    $REGARD_CACHE or ~/.cache/regard     (XDG_CACHE_HOME replaces ~/.cache)
      ctranslate2/KEY/model/             KEY: hash of the bundle's manifest, weight format, converter version
      onnxruntime/KEY/model/
      adapted/KEY/NAME/                  a model with an adapter merged; KEY: hashes of both (`regard/adapter.py`)

An entry has a manifest, since CTranslate2 loads a file with flipped bits without complaint; a damaged entry is converted again.
One process at a time writes or reads an entry. Entries that were not used for a month are removed.

Folder and lock are made by hand: a translation should start fast, and importing filelock takes longer than the rest of this
module; platformdirs would move the cache of everyone on macOS.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO

from regard.bundle import Bundle
from regard.errors import NoRoom, UserError
from regard.files import (
    MANIFEST,
    atomic_folder,
    cache_folder,
    check_manifest,
    sha256,
    sweep_temporaries,
    write_manifest,
)

_UNUSED_SECONDS = 30 * 24 * 3600.0
_LOCK = ".lock"
_ENTRY = re.compile(r"[0-9a-f]{32}-[a-z0-9]+(-\d+)?")  # other programs may keep files here, too


@contextmanager
def cached_folder(
    bundle: Bundle, program: str, key: str, files: tuple[str, ...], write: Callable[[Path], None]
) -> Iterator[Path]:
    """A folder with the bundle converted for a program, to be loaded inside the block. `write` writes these files, if the cache
    does not have them under this key."""
    entry = cache_folder() / program / f"{sha256(bundle.folder / MANIFEST)[:32]}-{key}"
    with ExitStack() as stack:
        try:
            stack.enter_context(locked(entry))

            def write_entry(folder: Path) -> None:
                with atomic_folder(folder) as temporary:
                    write(temporary)
                    write_manifest(temporary)

            folder = entry / "model"
            ensure(folder, lambda folder: check_manifest(folder, files), write_entry)
        except (OSError, NoRoom):
            # A full disk or a read-only home folder: convert the model for this one time.
            folder = Path(stack.enter_context(TemporaryDirectory(prefix="regard-")))
            write(folder)
        yield folder


def ensure(folder: Path, check: Callable[[Path], object], write: Callable[[Path], object]) -> None:
    """Write the folder of an entry, unless `check` finds it intact."""
    entry = folder.parent
    with suppress(OSError):
        os.utime(entry)  # marks it as used
    try:
        check(folder)
    except (OSError, UserError):  # missing or damaged
        sweep_temporaries(entry)
        write(folder)
        _remove_unused(entry.parent)


def _remove_unused(root: Path) -> None:
    """Remove entries that were not used for a month."""
    oldest = time.time() - _UNUSED_SECONDS
    for entry in root.iterdir():
        if _ENTRY.fullmatch(entry.name) and (entry / _LOCK).is_file() and entry.stat().st_mtime < oldest:
            shutil.rmtree(entry, ignore_errors=True)


@contextmanager
def locked(entry: Path) -> Iterator[None]:
    """Hold the entry's lock; without one if the entry is not writable or the system has no locks."""
    file: IO[str] | None = None
    with suppress(ImportError, OSError):
        import fcntl

        entry.mkdir(parents=True, exist_ok=True)
        file = (entry / _LOCK).open("w")
        fcntl.flock(file, fcntl.LOCK_EX)
    try:
        yield
    finally:
        if file is not None:
            file.close()
