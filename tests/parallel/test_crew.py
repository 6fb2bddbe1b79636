"""Several processes of torchrun that translate one file: the bytes of one process, killed, stopped and gone on with."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from regard.api import Model
from regard.cli import main
from regard.errors import UserError
from regard.parallel.crew import Crew
from regard.parallel.processes import ProcessInfo, cores, own_threads, process_info
from tests.commands import children, fails, finished, together, torchrun, wait_until
from tests.tiny import reversal_pairs

GOLDEN = str(Path(__file__).parents[1] / "golden" / "bundle-1")
ON_CPU = ("translate", "-m", GOLDEN, "--device", "cpu", "--engine", "torch")


def write_lines(path: Path, count: int) -> list[str]:
    """Lines of all lengths, an empty one and one that is cut among them."""
    lines = [source for source, _ in reversal_pairs(count - 2, 9)]
    lines = [*lines[:5], "", " ".join("abcdefgh" * 20), *lines[5:]]
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return lines


def alone(capfd: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main([*ON_CPU, *arguments]) == 0
    return capfd.readouterr().out


SMALL_CHUNKS = """
import sys
from regard.api import Model
from regard.cli import main
Model.chunk = 32
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.slow
def test_two_processes_write_the_file_of_one(tmp_path: Path) -> None:
    write_lines(tmp_path / "in", 137)  # two chunks of two processes, and a rest
    more = ("-i", str(tmp_path / "in"), "--beam", "1")
    assert main([*ON_CPU, *more, "-o", str(tmp_path / "one")]) == 0
    codes, said = together(2, *ON_CPU, *more, "-o", str(tmp_path / "two"), run=("-c", SMALL_CHUNKS))
    assert codes == [0, 0], said
    assert said == ["", ""]
    assert (tmp_path / "two").read_bytes() == (tmp_path / "one").read_bytes()
    assert not list(tmp_path.glob("*.partial"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        ("--nbest", "3", "--prefix", "c ", "--phrase", "d"),
        ("--json", "--words", "--alignment", "--glossary", "terms", "--keep", "e"),
        ("--sample", "--seed", "3", "--beam", "3", "--mbr", "chrf"),
    ],
)
def test_all_options_are_shared_out_alike(
    options: tuple[str, ...], tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("terms").write_text("a\tb\n", encoding="utf-8")
    write_lines(Path("in"), 30)
    expected = alone(capfd, "-i", "in", *options)
    codes, said = together(2, *ON_CPU, "-i", "in", *options)
    assert codes == [0, 0], said
    assert said == [expected, ""]
    if "--json" in options:
        assert len(json.loads(expected)) == 30


@pytest.mark.slow
def test_standard_input_is_read_by_the_first_and_ctranslate2_is_shared_out_too(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("ctranslate2")
    lines = write_lines(tmp_path / "in", 200)
    words = ("translate", "-m", GOLDEN, "--engine", "ctranslate2")
    assert main([*words, "-i", str(tmp_path / "in")]) == 0
    expected = capfd.readouterr().out
    codes, said = together(3, *words, text="".join(f"{line}\n" for line in lines))
    assert codes == [0, 0, 0], said
    assert said == [expected, "", ""]


# `regard` with chunks of 16 lines, of which the second process never finishes its second: it cannot end before it is stopped.
HELD = """
import os, sys, time
from regard.api import Model
from regard.cli import main

stream, chunks = Model.stream, 0

def wait(*arguments):
    global chunks
    chunks += 1
    while chunks == 2 and os.environ["RANK"] == "1":
        time.sleep(0.01)
    return stream(*arguments)

Model.stream, Model.chunk = wait, 16
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.slow
def test_what_killed_and_stopped_processes_have_written_is_gone_on_with(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """First one process is killed, then all are stopped, then another number of them ends the work."""
    source, out, partial = tmp_path / "in", tmp_path / "out", tmp_path / "out.partial"
    held = tmp_path / "held.py"
    held.write_text(HELD)
    write_lines(source, 200)
    expected = alone(capfd, "-i", str(source), "--beam", "2").encode()
    words = ["translate", *ON_CPU[1:], "-i", str(source), "-o", str(out), "--beam", "2"]

    def written() -> bytes:
        return partial.read_bytes() if partial.exists() else b""

    process = torchrun(2, str(held), *words)
    wait_until(process, lambda: written().count(b"\n") == 32)
    os.kill(children(process.pid)[1], signal.SIGKILL)
    finished(process)
    assert process.returncode != 0 and not children(process.pid)
    assert written().count(b"\n") == 32 and expected.startswith(written()) and not out.exists()

    process = torchrun(2, str(held), *words, "--resume")
    wait_until(process, lambda: written().count(b"\n") == 64)
    process.send_signal(signal.SIGINT)
    said = finished(process)
    assert written().count(b"\n") == 64 and expected.startswith(written())
    assert not out.exists() and not children(process.pid)
    assert said.count("stopped after 64 lines, which are saved") == 1, said
    assert "interrupted" not in said and "lost its connection" not in said

    codes, told = together(3, *words, "--resume")
    assert codes == [0, 0, 0], told
    assert out.read_bytes() == expected and not partial.exists()


WATCHED = """
import atexit, sys
from regard.cli import main
atexit.register(print, "cleared away")
code = main(sys.argv[1:])
print("Python goes on to its own end")
sys.exit(code)
"""


@pytest.mark.slow
def test_processes_that_have_met_clear_away_and_end_before_python_does(tmp_path: Path) -> None:
    """Threads of torch's exchange may still be there, and one that meets the end of Python aborts the process."""
    write_lines(tmp_path / "in", 20)
    words = [*ON_CPU, "-i", str(tmp_path / "in"), "-o", str(tmp_path / "out")]
    codes, said = together(2, *words, run=("-c", WATCHED))
    assert codes == [0, 0], said
    assert [each.splitlines()[-1] for each in said] == ["cleared away"] * 2, said
    codes, said = together(2, *words, "--phrase", "", run=("-c", WATCHED))
    assert codes[0] == 2 and codes[1] > 0, said
    assert all("cleared away" in each and "its own end" not in each for each in said), said


@pytest.mark.slow
def test_a_mistake_is_said_once(tmp_path: Path) -> None:
    """Before the work, while a model is loaded, and in the middle of the work; nobody is left waiting."""
    for words, text, speaker, told in (
        (["-i", str(tmp_path / "missing")], "", 0, "missing: there is no such file"),
        (["--beam", "0", "a"], "", 0, "beam must be at least 1"),
        ([], "a b\n\xff\n", 0, "standard input, line 2: is not valid UTF-8"),
        (["--phrase", "", "a", "b"], "", 0, "a phrase that must appear must not be empty"),
        (["--phrase", "", "a"], "", 1, "rank 1: a phrase that must appear must not be empty"),
    ):
        codes, said = together(2, *ON_CPU, *words, text=text, encoding="latin-1")
        assert codes[speaker] == 2, said
        assert told in said[speaker] and said[speaker].count("regard: ") == 1 and said[1 - speaker] == "", said


def test_what_is_for_one_process_is_refused_under_torchrun(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert "info runs in one process; start it without torchrun" in fails(capfd, "info", GOLDEN)
    noise = ("augment", "--noise", "-i", "x.{en,de}", "-o", "y.{en,de}")
    assert "augment --noise runs in one process" in fails(capfd, *noise)
    monkeypatch.setenv("RANK", "zero")
    assert "RANK must be a whole number, but is 'zero'" in fails(capfd, "info", GOLDEN)


# --- without starting processes ---


@pytest.mark.parametrize("form", [(), ("--json",), ("--nbest", "2")], ids=str)
def test_a_file_is_held_a_chunk_at_a_time(
    form: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a chunk came to is in the file before the next one is read."""
    write_lines(tmp_path / "in", 50)
    read, written = [], []

    def lines(path: Path) -> Iterator[str]:
        partial = tmp_path / "out.partial"
        for number, line in enumerate(path.read_text().splitlines()):
            read.append(number)
            if partial.exists() and number % 8 == 0:
                written.append((number, partial.stat().st_size))
            yield line

    sizes: list[int] = []
    share = Crew.share

    def watched(self: Crew, rows: list[Any], *more: Any) -> list[Any]:
        sizes.append(len(rows))
        return share(self, rows, *more)

    monkeypatch.setattr("regard.data.corpus.read_lines", lines)
    monkeypatch.setattr(Model, "chunk", 8)
    monkeypatch.setattr(Crew, "share", watched)
    assert main([*ON_CPU, "-i", str(tmp_path / "in"), "-o", str(tmp_path / "out"), *form]) == 0
    assert sizes == [8] * 6 + [2]
    assert len(read) == 100  # counted, then translated
    grown = [size for _, size in written[-7:]]
    assert grown == sorted(set(grown)) and len(grown) == 7


def test_a_part_of_a_json_document_is_not_left_behind(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is no document, and lines could not go on after it; the same command begins anew."""
    write_lines(tmp_path / "in", 20)
    share, shared = Crew.share, 0

    def stopped(self: Crew, rows: list[Any], *more: Any) -> list[Any]:
        nonlocal shared
        shared += 1
        if shared == 2:
            raise KeyboardInterrupt
        return share(self, rows, *more)

    monkeypatch.setattr(Model, "chunk", 8)
    monkeypatch.setattr(Crew, "share", stopped)
    words = [*ON_CPU, "-i", str(tmp_path / "in"), "-o", str(tmp_path / "out"), "--json"]
    assert main(words) == 130
    assert capfd.readouterr().err.endswith("regard: interrupted\n")
    assert [path.name for path in tmp_path.iterdir()] == ["in"]
    assert main(words) == 0
    assert len(json.loads((tmp_path / "out").read_text())) == 20


def test_the_place_is_that_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WORLD_SIZE", "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    assert process_info() == ProcessInfo() and process_info().name == ""
    monkeypatch.setenv("RANK", "3")  # without WORLD_SIZE it says nothing
    assert process_info() == ProcessInfo()
    monkeypatch.setenv("WORLD_SIZE", "16")
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert process_info() == ProcessInfo(3, 16, 1, 2) and process_info().name == "rank 3: "
    monkeypatch.setenv("WORLD_SIZE", "0")
    with pytest.raises(UserError, match="WORLD_SIZE must be at least 1, but is 0"):
        process_info()
    monkeypatch.setenv("WORLD_SIZE", "many")
    with pytest.raises(UserError, match="WORLD_SIZE must be a whole number, but is 'many'"):
        process_info()


@pytest.mark.parametrize("rank", [0, 1])
def test_what_all_find_wrong_is_said_by_the_first_before_the_others(
    rank: int, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """torchrun ends the others as soon as the first has; nobody ends without a word before that."""
    waits: list[float] = []
    monkeypatch.setattr("regard.parallel.processes.time", SimpleNamespace(sleep=waits.append))
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", str(rank))
    monkeypatch.setenv("LOCAL_RANK", str(rank))
    for words in (
        ("translate", "--bogus"),
        ("info", GOLDEN),
        ("train", "missing.toml"),
        ("train", "missing.en", "missing.de"),
        ("augment", "--distill", "-m", "missing", "-i", "x.{en,de}", "-o", "y.{en,de}"),
        ("translate", "-m", GOLDEN, "--device", "cuda:1", "a"),
    ):
        assert fails(capfd, *words).startswith("regard: rank 1: " if rank else "regard: "), words
        assert len(waits) == rank, words
        waits.clear()


def test_the_processes_of_a_machine_share_its_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regard.parallel.processes.cores", lambda: 12)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    monkeypatch.setenv("WORLD_SIZE", "8")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert own_threads() == 3
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert own_threads() == 1
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "x")  # torchrun has set it to 1 because nobody else has set it
    assert own_threads() == 3
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert own_threads() == 2
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "40")
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert own_threads() == 1
    monkeypatch.undo()
    assert cores() >= 1
