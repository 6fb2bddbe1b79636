"""Claims: text takes its name only when it is complete, and whatever happened before, the bytes are the same."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from regard.data.corpus import Corpus
from regard.data.writer import CorpusWriter
from regard.errors import UserError
from regard.files import write_atomic

PAIRS = [(f"zeile {number} ä", f"line {number}") for number in range(300)]
SETTINGS = {"beam": 4}


def paths(folder: Path, suffix: str) -> list[Path]:
    return [folder / f"new.de{suffix}", folder / f"new.en{suffix}"]


def write_all(files: list[Path]) -> list[bytes]:
    files[0].parent.mkdir(exist_ok=True)
    with CorpusWriter(files, SETTINGS, resume=False) as writer:
        writer.append(PAIRS[:100], {"lines": 100})
        writer.append(PAIRS[100:], {"lines": 300})
        assert not any(file.exists() for file in files)
        writer.finish()
    return [file.read_bytes() for file in files]


@pytest.mark.parametrize("suffix", ["", ".gz", ".xz", ".zst"])
def test_what_is_written_is_read_back_and_nothing_else_is_left(tmp_path: Path, suffix: str) -> None:
    files = paths(tmp_path, suffix)
    write_all(files)
    assert list(Corpus("", *files).pairs()) == PAIRS
    assert sorted(tmp_path.iterdir()) == files


@pytest.mark.parametrize("suffix", ["", ".gz", ".xz", ".zst"])
def test_a_resumed_file_has_the_bytes_of_an_uninterrupted_one(tmp_path: Path, suffix: str) -> None:
    whole = write_all(paths(tmp_path / "whole", suffix))
    files = paths(tmp_path, suffix)
    with CorpusWriter(files, SETTINGS, resume=False) as writer:
        writer.append(PAIRS[:100], {"lines": 100})
    for partial in writer.partials:
        with partial.open("ab") as file:
            file.write(b"half of the next ch")
    with CorpusWriter(files, SETTINGS, resume=True) as writer:
        assert writer.saved == {"lines": 100}
        writer.append(PAIRS[100:], {"lines": 300})
        writer.finish()
    assert [file.read_bytes() for file in files] == whole


def test_a_compressed_file_tells_neither_when_nor_under_which_name_it_was_made(tmp_path: Path) -> None:
    header = write_all(paths(tmp_path, ".gz"))[0][:8]
    assert header[3:] == bytes(5)  # flags, time


class Killed(BaseException):
    pass


@pytest.mark.parametrize(
    ("suffix", "calls"), [(suffix, calls) for suffix, steps in (("", 4), (".xz", 6)) for calls in range(steps)]
)
def test_finishing_can_be_killed_anywhere_and_done_again(
    tmp_path: Path, suffix: str, calls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between any two renames and removals; the second process may see any state in between."""
    whole = write_all(paths(tmp_path / "whole", suffix))
    files = paths(tmp_path, suffix)

    def killed_after(function: Callable[..., None]) -> Callable[..., None]:
        def call(*arguments: object, **options: object) -> None:
            nonlocal calls
            if calls == 0:
                raise Killed
            calls -= 1
            function(*arguments, **options)

        return call

    writer = CorpusWriter(files, SETTINGS, resume=False)
    writer.__enter__()
    writer.append(PAIRS, {"lines": 300})
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", killed_after(os.replace))
        patch.setattr(Path, "unlink", killed_after(Path.unlink))
        with pytest.raises(Killed):
            writer.finish()
    writer.__exit__(None, None, None)  # a dead process has no files open
    (tmp_path / f".{files[1].name}.999.tmp").write_bytes(b"half of a compressed file")
    with CorpusWriter(files, SETTINGS, resume=True) as writer:
        assert writer.saved == {"lines": 300}
        writer.finish()
    assert [file.read_bytes() for file in files] == whole
    assert sorted(path for path in tmp_path.iterdir() if path.is_file()) == files


def test_a_state_that_was_not_written_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = paths(tmp_path, "")

    def full_disk(path: Path, content: str) -> None:
        if '"lines": 300' in content:
            raise OSError(28, "No space left on device")
        write_atomic(path, content)

    with monkeypatch.context() as patch:
        patch.setattr("regard.data.writer.write_atomic", full_disk)
        with pytest.raises(OSError, match="No space"):
            write_all(files)
    with CorpusWriter(files, SETTINGS, resume=True) as writer:
        assert writer.saved == {"lines": 100}
        writer.append(PAIRS[100:], {"lines": 300})
        writer.finish()
    assert list(Corpus("", *files).pairs()) == PAIRS


def test_two_processes_do_not_write_one_corpus(tmp_path: Path) -> None:
    files = paths(tmp_path, "")
    with CorpusWriter(files, SETTINGS, resume=False) as writer:
        writer.append(PAIRS[:5], {"lines": 5})
        with (
            pytest.raises(UserError, match=r"new\.de\.partial: another process is writing"),
            CorpusWriter(files, SETTINGS, resume=True),
        ):
            pass
        writer.append(PAIRS[5:], {"lines": 300})
        writer.finish()
    assert list(Corpus("", *files).pairs()) == PAIRS


def interrupted(files: list[Path]) -> CorpusWriter:
    with CorpusWriter(files, SETTINGS, resume=False) as writer:
        writer.append(PAIRS[:5], {"lines": 5})
    return writer


def test_what_cannot_be_gone_on_with_is_refused_with_a_remedy(tmp_path: Path) -> None:
    files = paths(tmp_path, ".xz")
    writer = interrupted(files)
    with pytest.raises(
        UserError, match=r"beam is 5, but .*new\.de\.xz\.partial\.json was started with 4; use the same, or"
    ):
        CorpusWriter(files, {"beam": 5}, resume=True)
    writer.partials[1].write_bytes(b"cut")
    with pytest.raises(UserError, match=r"new\.en\.xz\.partial: must have at least the 35 bytes .* start over"):
        CorpusWriter(files, SETTINGS, resume=True)
    writer.state.write_text(json.dumps({"something": "else"}))
    with pytest.raises(UserError, match="must be the state of an interrupted run"):
        CorpusWriter(files, SETTINGS, resume=True)
    writer.state.unlink()
    with pytest.raises(
        UserError, match=r"new\.de\.xz\.partial: .* new\.de\.xz\.partial\.json is missing, so remove it"
    ):
        CorpusWriter(files, SETTINGS, resume=True)


def test_a_missing_package_is_missed_before_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(UserError, match=r"new\.de\.zst: writing \.zst needs .* pip install zstandard"):
        CorpusWriter(paths(tmp_path, ".zst"), SETTINGS, resume=False)
