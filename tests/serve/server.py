"""A real server on a free port, in a process of its own, for tests that speak HTTP to it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import Queue
from typing import Any

import httpx

ROOT = Path(__file__).parents[2]
PATIENCE = 240  # seconds for what must come, on a machine that is slow or busy
GOLDEN = ROOT / "tests" / "golden" / "bundle-1"  # it reverses letters: "a b c" -> "c b a"
# What a server may take is no test's business unless it says so.
PATIENT = [
    word
    for name in ("seconds", "header_seconds", "body_seconds", "send_seconds", "drain_seconds")
    for word in ("--limit", f"{name}={PATIENCE}")
]


@dataclass
class Running:
    process: subprocess.Popen[str]
    url: str
    port: int
    lines: list[str]  # of its log
    reader: threading.Thread

    def client(self, **settings: Any) -> httpx.Client:
        # To load certificates, which plain HTTP does not need, takes longer than most requests.
        return httpx.Client(base_url=self.url, timeout=PATIENCE, trust_env=False, verify=False, **settings)

    def post(self, path: str, **settings: Any) -> httpx.Response:
        with self.client() as client:
            return client.post(path, **settings)

    def get(self, path: str) -> httpx.Response:
        with self.client() as client:
            return client.get(path)

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE)

    def stop(self) -> list[str]:
        """Send SIGTERM; all that the server logged."""
        self.process.send_signal(signal.SIGTERM)
        return self.wait()

    def wait(self) -> list[str]:
        assert self.process.wait(timeout=PATIENCE) == 0
        self.reader.join()
        return self.lines


@contextmanager
def running(
    *arguments: str, model: Path | None = GOLDEN, code: str = "", folder: Path | None = None
) -> Iterator[Running]:
    """A server with this model (None: the built-in ones), in this folder; `code` runs in its process first, to change what it
    is made of."""
    start = f"{code}\nimport sys\nfrom regard.cli import main\nsys.exit(main(sys.argv[1:]))"
    named = [] if model is None else ["-m", str(model)]
    command = [sys.executable, "-W", "error", "-c", start, "serve", *named, "--port", "0", *PATIENT, *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment, cwd=folder)
    lines: list[str] = []
    listening: Queue[str] = Queue()

    def read() -> None:
        """Take what the server logs as it comes: one that nobody listens to stands still in the end."""
        assert process.stderr is not None
        for line in process.stderr:
            lines.append(line.rstrip("\n"))
            entry = json.loads(line) if line.startswith("{") else {}
            if entry.get("event") == "listening":
                listening.put(entry["address"])
        listening.put("")

    reader = threading.Thread(target=read)
    reader.start()
    try:
        url = listening.get(timeout=PATIENCE)
        assert url, "\n".join(lines)
        yield Running(process, url, int(url.rpartition(":")[2]), lines, reader)
    finally:
        process.kill()
        process.wait()
        reader.join()
        assert process.stderr is not None
        process.stderr.close()


def started(hold: Path) -> Path:
    return hold.with_suffix(".started")


def held_by(file: Path, engine: str = "ctranslate2_engine.CTranslate2Engine", search: str = "translate") -> str:
    """Code that makes an engine wait in its search as long as there is this file, and say so with another."""
    module, name = engine.split(".")
    return f"""
import pathlib, time
from regard.generate.engines.{module} import {name} as Engine
search = Engine.{search}
def wait(self, *arguments):
    pathlib.Path({str(started(file))!r}).touch()
    while pathlib.Path({str(file)!r}).exists():
        time.sleep(0.01)
    return search(self, *arguments)
Engine.{search} = wait
"""


def until(condition: Callable[[], bool]) -> None:
    """Wait for what must come."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.01)
