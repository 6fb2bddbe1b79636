"""`regard serve` under load: requests a second and latency, with and without shared batches, beside CTranslate2 behind a plain
FastAPI handler; then ten times too many clients, servers that are stopped under load, and a long run.

    python -m benchmarks.serve_load -m MODEL [--seconds 10] [--overload 60] [--stops 20] [--soak 20000]

Each client sends one sentence, waits for the answer and sends the next. Clients run on the same machine, in a process of their own.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

import torch

from benchmarks.common import machine, print_facts, print_table, write_json
from regard.bundle import find_bundle, load_bundle
from regard.data.corpus import read_lines

ROOT = Path(__file__).parents[1]
SERVE = (
    "from regard.serve.web.run import Settings, serve; serve(Settings([{model!r}], port={port}, is_shared={shared}))"
)


@dataclass
class Seen:
    """What the clients saw."""

    statuses: Counter[int] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)  # of the requests that were answered with 200

    def percentile(self, share: float) -> float:
        ordered = sorted(self.seconds)
        return 1000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else float("nan")


async def client(
    port: int, requests: list[bytes], first: int, until: float, seen: Seen, most: int | None = None
) -> None:
    """One connection that is kept, as long as the server keeps it."""
    reader = writer = None
    number = first
    while time.perf_counter() < until and (most is None or number - first < most):
        try:
            if writer is None:
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
            assert reader is not None
            begun = time.perf_counter()
            writer.write(requests[number % len(requests)])
            number += 1
            head = await reader.readuntil(b"\r\n\r\n")
            headers = head.lower()
            length = int(headers.split(b"content-length: ")[1].split(b"\r\n")[0])
            await reader.readexactly(length)
        except (OSError, asyncio.IncompleteReadError):
            seen.statuses[0] += 1  # the server was gone
            if writer is not None:
                writer.close()
            writer = None
            await asyncio.sleep(0.05)
            continue
        status = int(head[9:12])
        seen.statuses[status] += 1
        if status == 200:
            seen.seconds.append(time.perf_counter() - begun)
        else:
            retry = headers.partition(b"retry-after: ")[2].split(b"\r\n")[0]
            await asyncio.sleep(min(0.05, float(retry or 0)))  # impatient: it should wait as long as it is told
        if b"connection: close" in headers:
            writer.close()
            writer = None
    if writer is not None:
        writer.close()


async def clients(port: int, requests: list[bytes], count: int, seconds: float, most: int | None = None) -> Seen:
    seen = Seen()
    until = time.perf_counter() + seconds
    await asyncio.gather(*(client(port, requests, 7 * n, until, seen, most) for n in range(count)))
    return seen


# --- servers ---


@contextmanager
def server(
    command: list[str], port: int, log: IO[bytes] | int = subprocess.DEVNULL
) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(command, stderr=log)
    try:
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                assert process.poll() is None, command
                time.sleep(0.05)
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


def contenders(model: str, port: int) -> dict[str, list[str]]:
    def python(shared: bool) -> list[str]:
        return [sys.executable, "-c", SERVE.format(model=model, port=port, shared=shared)]

    return {
        "regard serve": python(True),
        "regard serve, a request a batch": python(False),
        "plain FastAPI handler": [sys.executable, "-m", "benchmarks.plain_server", model, str(port)],
    }


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def memory(process: subprocess.Popen[bytes]) -> float:
    """MB that a server holds."""
    pages = int(Path(f"/proc/{process.pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def cpu_seconds(process: subprocess.Popen[bytes]) -> float:
    """Time that a server has computed so far: unlike the clock, hardly touched by what else the machine does."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


# --- what is measured ---


def measure_speed(model: str, requests: list[bytes], counts: list[int], seconds: float) -> list[dict[str, Any]]:
    rows = []
    for name in contenders(model, 0):
        port = free_port()
        with server(contenders(model, port)[name], port) as process:
            asyncio.run(clients(port, requests, 4, 2.0))  # warm up
            for count in counts:
                before = cpu_seconds(process)
                seen = asyncio.run(clients(port, requests, count, seconds))
                rows.append(
                    {
                        "server": name,
                        "clients": count,
                        "requests/s": round(len(seen.seconds) / seconds, 1),
                        "p50 ms": round(seen.percentile(0.5), 1),
                        "p99 ms": round(seen.percentile(0.99), 1),
                        "CPU ms a request": round(
                            1000 * (cpu_seconds(process) - before) / max(1, len(seen.seconds)), 2
                        ),
                        "statuses": dict(seen.statuses),
                    }
                )
                print(rows[-1], flush=True)
    return rows


def measure_overload(model: str, requests: list[bytes], seconds: float) -> dict[str, Any]:
    port = free_port()
    with server(contenders(model, port)["regard serve"], port) as process:
        calm = asyncio.run(clients(port, requests, 64, min(seconds, 10)))
        before = memory(process)
        seen = asyncio.run(clients(port, requests, 640, seconds))
        after = memory(process)
        begun = time.perf_counter()
        asyncio.run(clients(port, requests, 1, 60, 1))
        return {
            "overload statuses": dict(seen.statuses),
            "p99 ms with 64 clients": round(calm.percentile(0.99), 1),
            "p99 ms of what was accepted": round(seen.percentile(0.99), 1),
            "memory MB": f"{before:.0f} -> {after:.0f}",
            "first answer after s": round(time.perf_counter() - begun, 2),
        }


def measure_stops(model: str, requests: list[bytes], times: int) -> dict[str, Any]:
    """Servers that are stopped under load: what a server's log says that it answered, and what the clients got."""
    answered, received, refused = 0, 0, 0
    for _ in range(times):
        port = free_port()
        with TemporaryFile() as log:
            with server(contenders(model, port)["regard serve"], port, log) as process:
                seen = asyncio.run(_stop_under_load(port, process, requests))
                process.wait()
            log.seek(0)
            entries = [json.loads(line) for line in log]
        served = Counter(entry["status"] for entry in entries if entry.get("path") == "/translate")
        assert set(served) <= {200, 429, 503}, served
        answered += served[200]
        received += seen.statuses[200]
        refused += seen.statuses[503]
    return {"stops": times, "answered": answered, "received": received, "lost": answered - received, "refused": refused}


async def _stop_under_load(port: int, process: subprocess.Popen[bytes], requests: list[bytes]) -> Seen:
    asyncio.get_running_loop().call_later(1.0, process.send_signal, signal.SIGTERM)
    return await clients(port, requests, 16, 2.0)


def measure_soak(model: str, requests: list[bytes], total: int) -> dict[str, Any]:
    port = free_port()
    with server(contenders(model, port)["regard serve"], port) as process:
        marks = []
        for _ in range(5):
            asyncio.run(clients(port, requests, 16, 3600, total // 80))
            marks.append(round(memory(process), 1))
    return {"soak requests": total, "memory MB after each fifth": marks}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--model", required=True, help="a bundle or a run folder that CTranslate2 knows")
    parser.add_argument("--source", type=Path, help="sentences, one a line (default: some of Tatoeba)")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--seconds", type=float, default=10, help="for each number of clients; 0: leave it out")
    parser.add_argument("--overload", type=float, default=0, metavar="SECONDS", help="640 clients for so long")
    parser.add_argument("--stops", type=int, default=0, metavar="N", help="stop a server under load N times")
    parser.add_argument("--soak", type=int, default=0, metavar="N", help="N requests in a row, memory watched")
    parser.add_argument("--out", type=Path, help="where the JSON goes")
    arguments = parser.parse_args()
    bundle = load_bundle(find_bundle(arguments.model))
    lines = [line for line in _sentences(arguments.source) if line.strip()][:2_000]
    requests = [_request(line, bundle.source, bundle.target) for line in lines]
    rows = measure_speed(arguments.model, requests, arguments.clients, arguments.seconds) if arguments.seconds else []
    facts: dict[str, Any] = machine(torch.device("cpu"), ["ctranslate2", "fastapi", "uvicorn"])
    facts["cores"] = len(os.sched_getaffinity(0))
    if arguments.overload:
        facts |= measure_overload(arguments.model, requests, arguments.overload)
    if arguments.stops:
        facts |= measure_stops(arguments.model, requests, arguments.stops)
    if arguments.soak:
        facts |= measure_soak(arguments.model, requests, arguments.soak)
    print_facts(facts)
    if rows:
        print_table(rows)
    print(f"written to {write_json('serve_load', rows, facts, arguments.out)}")


def _sentences(path: Path | None) -> list[str]:
    if path is not None:
        return list(read_lines(path))
    return list(read_lines(ROOT / "data" / "tatoeba" / "test.en.xz"))


def _request(line: str, source: str, target: str) -> bytes:
    body = json.dumps({"q": line, "source": source, "target": target}).encode()
    head = (
        f"POST /translate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


if __name__ == "__main__":
    main()
