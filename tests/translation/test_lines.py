"""Lines in and lines out."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from regard.errors import UserError
from regard.translation.lines import LineFile, read_available


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


def interrupted(path: Path, text: str, settings: dict[str, object] | None) -> None:
    out = LineFile(path, settings=settings)
    out.write(text)
    out.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)


def test_an_interrupted_file_is_refused_and_then_resumed_after_its_last_whole_line(tmp_path: Path) -> None:
    path = tmp_path / "out.txt"
    interrupted(path, "one\ntwo\nthr", {"beam": 4})
    assert not path.exists()
    with pytest.raises(UserError, match=r"out.txt.partial: is left from an interrupted run; continue with --resume"):
        LineFile(path)
    with LineFile(path, resume=True, settings={"beam": 4}) as out:
        assert out.lines_done == 2
        out.write("three\n")
    assert path.read_text() == "one\ntwo\nthree\n" and list(tmp_path.iterdir()) == [path]


def test_a_file_is_not_resumed_with_other_settings(tmp_path: Path) -> None:
    path = tmp_path / "out.txt"
    interrupted(path, "one\n", {"beam": 4})
    for other in ({"beam": 8}, {"beam": 4, "keep": ["Regard"]}, {}, None):
        with pytest.raises(UserError, match=r"--resume: .* was started with(out it)?.*use the same, or remove"):
            LineFile(path, resume=True, settings=other)
    assert path.with_name("out.txt.partial").read_text() == "one\n"
    path.with_name("out.txt.partial.json").write_text("[]")
    with pytest.raises(UserError, match=r"out.txt.partial.json"):
        LineFile(path, resume=True, settings={"beam": 4})
    path.with_name("out.txt.partial.json").unlink()
    with pytest.raises(UserError, match=r"remove it, for out.txt.partial.json is missing"):
        LineFile(path, resume=True, settings={"beam": 4})


def test_what_nobody_can_go_on_with_says_so(tmp_path: Path) -> None:
    interrupted(tmp_path / "out.txt", "1\t-0.5\tone\n", None)
    with pytest.raises(UserError, match=r"interrupted run; remove it$"):
        LineFile(tmp_path / "out.txt")


def test_nothing_is_left_of_a_file_without_a_line(tmp_path: Path) -> None:
    interrupted(tmp_path / "out.txt", "", {"beam": 4})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("resume", [False, True])
def test_a_file_that_another_writes_is_left_alone(tmp_path: Path, resume: bool) -> None:
    path = tmp_path / "out.txt"
    with LineFile(path, settings={"beam": 4}) as out:
        out.write("one\ntw")
        out.flush()
        with pytest.raises(UserError, match=r"out.txt.partial: another process is writing this file"):
            LineFile(path, resume=resume, settings={"beam": 4})
        out.write("o\n")
    assert path.read_text() == "one\ntwo\n"


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
