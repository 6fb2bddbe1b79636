"""Thousands of connections that send a byte now and then, from many loopback addresses, while another client asks for /health."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import resource
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from benchmarks.attacks.outcome import Tally
from regard.serve.limits import Limits
from tests.serve.server import running, until

HALF = b"POST /translate HTTP/1.1\r\nHost: localhost\r\n"
HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
WITHIN = 1.0  # seconds


@dataclass(frozen=True)
class Siege:
    """Who attacks, and for how long."""

    connections: int = 10_000
    addresses: int = 250
    seconds: float = 30.0


def slow_connections(siege: Siege, open_files: list[int]) -> Iterator[Tally]:
    """One siege for each limit of open files: each request for /health counts."""
    for files in open_files:
        tally = Tally(f"/health among {siege.connections:,} slow connections, {files:,} open files")
        code = f"import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, ({files}, {files}))"
        limits = Limits()  # a server for tests is more patient
        with running("--limit", f"header_seconds={limits.header_seconds:g}", code=code) as server:
            until(lambda: any('"listening"' in line for line in server.lines))
            facts = json.loads(next(line for line in server.lines if '"listening"' in line))
            context = multiprocessing.get_context("fork")
            attackers = [
                context.Process(target=_attack, args=(server.port, siege, share, 2), daemon=True) for share in range(2)
            ]
            for attacker in attackers:
                attacker.start()
            slowest = _ask(server.port, siege.seconds, tally)
            held = len(list(Path(f"/proc/{server.process.pid}/fd").iterdir()))
            for attacker in attackers:
                attacker.kill()
                attacker.join()
            log = sum(map(len, server.stop()))
        tally.add("its log", "survived" if log < 1_000_000 else "silent", f"{log} bytes")
        tally.note = (
            f"with a limit of {facts['open_files']:,} open files the server held at most {facts['connections']:,} connections "
            f"({held:,} files were open at the end), the slowest answer took {slowest:.2f} s, and the log had {log:,} bytes"
        )
        yield tally


def _ask(port: int, seconds: float, tally: Tally) -> float:
    """Ask for /health ten times a second, from an address of our own; the longest time that it took."""
    end, slowest = time.monotonic() + seconds, 0.0
    while time.monotonic() < end:
        start = time.monotonic()
        answer = b""
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), 30, ("127.0.1.1", 0)) as connection:
            connection.sendall(HEALTH)
            answer = connection.recv(100)
        took = time.monotonic() - start
        slowest = max(slowest, took)
        is_answered = answer.startswith(b"HTTP/1.1 200") and took < WITHIN
        tally.add("/health", "survived" if is_answered else "hang", f"{took:.2f} s, {answer!r}")
        time.sleep(0.1)
    return slowest


def _attack(port: int, siege: Siege, share: int, shares: int) -> None:
    """Hold connections open, and open another for each that the server closes."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    os.nice(5)
    numbers = range(share, siege.connections, shares)

    async def all_of_them() -> None:
        await asyncio.gather(*(_hold(port, f"127.0.0.{2 + number % siege.addresses}") for number in numbers))

    asyncio.run(all_of_them())


async def _hold(port: int, address: str) -> None:
    while True:
        writer = None
        with suppress(OSError, TimeoutError):
            opening = asyncio.open_connection("127.0.0.1", port, local_addr=(address, 0))
            reader, writer = await asyncio.wait_for(opening, 10)
            writer.write(HALF)
            while not reader.at_eof():
                writer.write(b"X-Slow: 1\r\n")
                await writer.drain()
                with suppress(TimeoutError):
                    await asyncio.wait_for(reader.read(100), 2)
        if writer is not None:
            writer.close()
        await asyncio.sleep(1)
