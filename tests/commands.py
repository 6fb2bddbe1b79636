"""Commands as a person runs them, for tests."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from regard.cli import main

LIMIT = 300  # seconds, for what takes some on a machine that has nothing else to do


def fails(capfd: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Run a command that must be refused; its one line."""
    assert main(arguments) == 2
    captured = capfd.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("regard: ")
    assert captured.err.count("\n") == 1
    return captured.err


def together(processes: int, *arguments: str, text: str = "", encoding: str = "utf-8") -> tuple[list[int], list[str]]:
    """`regard` with these arguments in several processes, as torchrun starts them but without the time that it takes itself; their
    exit codes and what they said. `text` is on everybody's standard input."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    shared = {**os.environ, "OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "regard", *arguments],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding=encoding,
            env={**shared, "WORLD_SIZE": str(processes), "RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in range(processes)
    ]  # fmt: skip
    try:
        said = [process.communicate(text, timeout=LIMIT)[0] for process in started]
    finally:
        for process in started:
            process.kill()  # one that hangs must not outlive the test
    return [process.returncode for process in started], said


def torchrun(processes: int, *arguments: str) -> subprocess.Popen[str]:
    """The command of the guide, in a session of its own."""
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    return subprocess.Popen(
        [*words, "-m", "regard", *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
        start_new_session=True,
    )  # fmt: skip


def wait_until(process: subprocess.Popen[str], condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT
    while not condition():
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.001)


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
