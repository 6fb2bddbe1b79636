"""Commands as a person runs them, for tests."""

from __future__ import annotations

import os
import random
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from regard.cli import main


def fails(capfd: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Run a command that must be refused; its one line."""
    assert main(arguments) == 2
    captured = capfd.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("regard: ")
    assert captured.err.count("\n") == 1
    return captured.err


PATIENCE = (
    240.0  # seconds for a process that must end or must come to a certain point, on a machine that is slow or busy
)


def start(arguments: Sequence[str], **variables: str) -> subprocess.Popen[str]:
    """Python with these arguments, one thread, in a session of its own; what it says is for `finished`."""
    root = str(Path(__file__).parents[1])
    quiet = {"TORCH_CPP_LOG_LEVEL": "ERROR"}  # torch warns where 127.0.0.1 has no name, as without a network
    return subprocess.Popen(
        [sys.executable, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": root, **quiet, **variables},
    )  # fmt: skip


def wait_until(process: subprocess.Popen[str], condition: Callable[[], bool]) -> None:
    """Until something is so, while the process works on it."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert process.poll() is None, "it ended before its time:\n" + finished(process)
        if time.monotonic() > end:
            process.kill()
            pytest.fail("it did not come so far:\n" + finished(process))
        time.sleep(0.001)


def finished(process: subprocess.Popen[str]) -> str:
    """What a process said until its end."""
    try:
        return process.communicate(timeout=PATIENCE)[0]
    except subprocess.TimeoutExpired:
        process.kill()
        raise


def start_ranks(processes: int, arguments: Sequence[str]) -> list[subprocess.Popen[str]]:
    """Several of them that find each other, as torchrun starts them, without the time that it takes itself."""
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(processes)}
    return [start(arguments, **shared, RANK=str(rank), LOCAL_RANK=str(rank)) for rank in range(processes)]


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
