"""Models as CTranslate2 reads them, kept for the next time.

    $REGARD_CACHE or ~/.cache/regard     (XDG_CACHE_HOME moves ~/.cache)
      ctranslate2/KEY/model/             KEY: the bundle's manifest, how the weights are stored, the converter's version

An entry has a manifest, since CTranslate2 loads a file with flipped bits without a word; one that is damaged is made anew.
One process at a time makes or reads an entry, and those that nobody used for a month are removed.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO

from regard.bundle import Bundle
from regard.errors import UserError
from regard.files import MANIFEST, atomic_folder, check_manifest, sha256, sweep_temporaries, write_manifest
from regard.generate.engines.ctranslate2_model import CONVERTER, Weights, convert

_UNUSED_SECONDS = 30 * 24 * 3600.0
_LOCK = ".lock"
_ENTRY = re.compile(r"[0-9a-f]{32}-[a-z0-9]+-\d+")  # other programs may keep something here, too


def cache_folder() -> Path:
    """Where Regard keeps what it can make again."""
    if given := os.environ.get("REGARD_CACHE"):
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "regard"


@contextmanager
def converted(bundle: Bundle, weights: Weights) -> Iterator[Path]:
    """A folder with the bundle as CTranslate2 reads it, to be loaded inside the block."""
    root = cache_folder() / "ctranslate2"
    entry = root / f"{sha256(bundle.folder / MANIFEST)[:32]}-{weights}-{CONVERTER}"
    with ExitStack() as stack:
        try:
            stack.enter_context(_locked(entry))
            _make_sure(bundle, weights, entry)
            folder = entry / "model"
        except OSError:
            # A full disk, a home that may not be written: the model is converted for this one time.
            folder = Path(stack.enter_context(TemporaryDirectory(prefix="regard-")))
            convert(bundle, folder, weights)
        yield folder


def _make_sure(bundle: Bundle, weights: Weights, entry: Path) -> None:
    """Make the entry where it is missing or damaged."""
    with suppress(OSError):
        os.utime(entry)  # so that it counts as used
    try:
        check_manifest(entry / "model")
    except UserError:
        sweep_temporaries(entry)
        with atomic_folder(entry / "model") as temporary:
            convert(bundle, temporary, weights)
            write_manifest(temporary)
        _remove_unused(entry.parent)


def _remove_unused(root: Path) -> None:
    oldest = time.time() - _UNUSED_SECONDS
    for entry in root.iterdir():
        if _ENTRY.fullmatch(entry.name) and (entry / _LOCK).is_file() and entry.stat().st_mtime < oldest:
            shutil.rmtree(entry, ignore_errors=True)


@contextmanager
def _locked(entry: Path) -> Iterator[None]:
    """Let one process at a time at an entry; where it cannot be written, or the system has no locks, all go at once."""
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
