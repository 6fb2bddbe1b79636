"""A short form of what `benchmarks/serve_load.py` tries for longer: many requests, too many clients, and memory that stays."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from tests.serve.server import Running, running

pytestmark = pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux's /proc")


def request(text: str | list[str]) -> bytes:
    body = json.dumps({"q": text, "source": "src", "target": "tgt"}).encode()
    head = f"POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


async def ask(port: int, requests: list[bytes]) -> list[int]:
    """One client with one connection; the statuses of its answers."""
    statuses = []
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for one in requests:
        writer.write(one)
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        await reader.readexactly(int(head.split(b"content-length: ")[1].split(b"\r\n")[0]))
        statuses.append(int(head[9:12]))
    writer.close()
    await writer.wait_closed()
    return statuses


def ask_all(server: Running, clients: int, requests: list[bytes]) -> set[int]:
    async def together() -> list[list[int]]:
        return await asyncio.gather(*(ask(server.port, requests) for _ in range(clients)))

    return {status for statuses in asyncio.run(together()) for status in statuses}


def memory(server: Running) -> int:
    """Pages."""
    return int(Path(f"/proc/{server.process.pid}/statm").read_text().split()[1])


@pytest.mark.slow
def test_memory_stays_over_many_requests_and_under_ten_times_too_many() -> None:
    sentences = [" ".join("abcdefghijklmnop"[:n]) for n in range(1, 16)]
    small = [request(sentence) for sentence in sentences]
    with running("--limit", "places=16") as server:
        server.post("/detect", json={"q": "hello"})  # what it takes to recognise languages is loaded in the background
        assert ask_all(server, 2, [request([sentences[-1]] * 256)] * 4) == {200}  # batches as large as they get
        assert ask_all(server, 16, small * 2) == {200}
        before = memory(server)
        assert ask_all(server, 16, small * 4) == {200}
        assert memory(server) < 1.05 * before
        assert ask_all(server, 160, small * 4) == {200, 429}
        assert memory(server) < 1.05 * before
        assert ask_all(server, 1, small) == {200}
