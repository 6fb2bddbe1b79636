"""Lines in and lines out."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from regard.decode.lines import LineFile, read_available
from regard.errors import UserError


def test_a_line_is_given_out_before_the_next_one_comes() -> None:
    reader, writer = os.pipe()
    with os.fdopen(reader, "rb") as stream:
        blocks = read_available(stream, 100)
        os.write(writer, b"first\n")
        assert next(blocks) == ["first"]
        os.write(writer, b"second\nthird")
        os.close(writer)
        assert [line for block in blocks for line in block] == ["second", "third"]


def test_a_large_file_comes_in_bounded_blocks_and_in_order() -> None:
    reader, writer = os.pipe()
    lines = [f"line {number}" for number in range(5_000)]

    def write() -> None:
        with os.fdopen(writer, "wb") as stream:
            stream.write("".join(f"{line}\r\n" for line in lines).encode())

    threading.Thread(target=write).start()
    with os.fdopen(reader, "rb") as stream:
        blocks = list(read_available(stream, 64))
    assert [line for block in blocks for line in block] == lines
    assert max(map(len, blocks)) <= 64


def test_a_byte_that_is_no_text_is_named_with_its_line() -> None:
    reader, writer = os.pipe()
    os.write(writer, b"good\nbad \xff\n")
    os.close(writer)
    with os.fdopen(reader, "rb") as stream, pytest.raises(UserError, match=r"standard input, line 2: .*0xff"):
        list(read_available(stream, 10))


def test_a_file_appears_only_when_it_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "out.txt"
    with LineFile(path, resume=False) as out:
        out.write("one\n")
        out.flush()
        assert not path.exists()
    assert path.read_text() == "one\n"
    assert list(tmp_path.iterdir()) == [path]


def test_an_interrupted_file_is_refused_and_then_resumed_after_its_last_whole_line(tmp_path: Path) -> None:
    path = tmp_path / "out.txt"
    out = LineFile(path, resume=False)
    out.write("one\ntwo\nthr")
    out.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
    assert not path.exists()
    with pytest.raises(UserError, match=r"interrupted.*--resume"):
        LineFile(path, resume=False)
    with LineFile(path, resume=True) as out:
        assert out.lines_done == 2
        out.write("three\n")
    assert path.read_text() == "one\ntwo\nthree\n"


def test_a_pipe_is_not_replaced_by_a_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UserError, match=r"pipe: must be a file, but is a device or a pipe; write to it with > "):
        LineFile(tmp_path / "pipe", resume=False)
    assert (tmp_path / "pipe").is_fifo() and len(list(tmp_path.iterdir())) == 1


def test_a_complete_file_is_not_resumed(tmp_path: Path) -> None:
    path = tmp_path / "out.txt"
    path.write_text("done\n")
    with pytest.raises(UserError, match="complete already"):
        LineFile(path, resume=True)
    assert path.read_text() == "done\n"


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not exist"):
        LineFile(tmp_path / "missing" / "out.txt", resume=False)
