"""Several processes on one port."""

from __future__ import annotations

import json
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.serve.server import running, until
from tests.serve.test_gate import ANSWER, BODY


def pids(lines: list[str]) -> list[int]:
    return [entry["process"] for entry in map(json.loads, list(lines)) if entry["event"] == "listening"]


@pytest.mark.slow
def test_workers_share_a_port_their_metrics_and_their_end() -> None:
    with running("--workers", "2") as server:
        until(lambda: len(pids(server.lines)) == 2)
        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(lambda _: server.post("/translate", json=BODY).json(), range(40)))
        assert answers == [ANSWER] * 40
        for _ in range(5):  # whichever process answers, the count is of both
            assert server.get("/v2/usage").json()["character_count"] == 40 * 5
        lines = server.stop()
    events = [json.loads(line)["event"] for line in lines]
    assert events.count("stopped") == 2
    entries = [json.loads(line) for line in lines]
    assert len([entry for entry in entries if entry.get("status") == 200 and entry["path"] == "/translate"]) == 40


@pytest.mark.slow
def test_workers_end_with_their_parent() -> None:
    with running("--workers", "2") as server:
        until(lambda: len(pids(server.lines)) == 2)
        children = pids(server.lines)
        os.kill(server.process.pid, signal.SIGKILL)
        until(lambda: not any(is_alive(child) for child in children))


def is_alive(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):  # the one before the file is opened, the other after that
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"
