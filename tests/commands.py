"""Commands as a person runs them, for tests."""

from __future__ import annotations

import random
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import pytest

from regard.cli import main
from tests.forks import Fork, environment

# Seconds for a process that must end or must come to a certain point, on a machine that is slow or busy.
PATIENCE = 300.0


def fails(capfd: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Run a command that must be refused; its one line."""
    assert main(arguments) == 2
    captured = capfd.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("regard: ")
    assert captured.err.count("\n") == 1
    return captured.err


class Process(Protocol):
    """A command that runs: a `subprocess.Popen[str]` or a `Fork`."""

    pid: int

    @property
    def returncode(self) -> int | Any: ...
    def poll(self) -> int | None: ...
    def kill(self) -> None: ...
    def send_signal(self, number: int, /) -> None: ...
    def communicate(self, text: str | None = None, /, timeout: float = ...) -> tuple[str, Any]: ...


def start(arguments: Sequence[str]) -> subprocess.Popen[str]:
    """Python with these arguments, one thread, in a session of its own; what it says is for `finished`."""
    return subprocess.Popen(
        [sys.executable, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8",
        start_new_session=True, env=environment(),
    )  # fmt: skip


def fork(arguments: Sequence[str], *, encoding: str = "utf-8", **variables: str) -> Fork:
    """As `start`, but torch is imported already."""
    return Fork(arguments, encoding, variables)


def wait_until(process: Process, condition: Callable[[], bool]) -> None:
    """Until something is so, while the process works on it."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert process.poll() is None, "it ended before its time:\n" + finished(process)
        if time.monotonic() > end:
            process.kill()
            pytest.fail("it did not come so far:\n" + finished(process))
        time.sleep(0.001)


def finished(process: Process, text: str | None = None) -> str:
    """What a process said until its end; `text` is on its standard input."""
    try:
        return process.communicate(text, timeout=PATIENCE)[0]
    except subprocess.TimeoutExpired:
        process.kill()
        raise


def together(
    processes: int, *arguments: str, text: str = "", encoding: str = "utf-8", run: Sequence[str] = ("-m", "regard")
) -> tuple[list[int], list[str]]:
    """`regard` with these arguments in several processes, as torchrun starts them but without the time that it takes itself; their
    exit codes and what they said. `text` is on everybody's standard input."""
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(processes)}
    words = [*run, *arguments]
    started = [
        fork(words, encoding=encoding, **shared, RANK=str(rank), LOCAL_RANK=str(rank)) for rank in range(processes)
    ]
    try:
        said = [finished(process, text) for process in started]
    finally:
        for process in started:
            process.kill()  # one that hangs must not outlive the test
    return [process.wait() for process in started], said


def torchrun(processes: int, *arguments: str) -> subprocess.Popen[str]:
    """The command of the guide; the arguments begin with what each process runs, as `-m regard`."""
    return start(["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes), *arguments])


def children(parent: int) -> dict[int, int]:
    """Processes that torchrun has started, by rank."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "environ").read_bytes().split(b"\0")
            ranks = [int(word[5:]) for word in words if word.startswith(b"RANK=")]
            if ranks and int((folder / "stat").read_text().rpartition(")")[2].split()[1]) == parent:
                found[ranks[0]] = int(folder.name)
        except (OSError, ValueError):  # it has ended, or is somebody else's
            continue
    return found


def free_port() -> int:
    """One that stays free until it is used: not among those that the system gives to whoever asks for any."""
    for _ in range(100):
        port = random.SystemRandom().randrange(20_000, 32_000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError("no port is free")
