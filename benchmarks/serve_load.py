"""`regard serve` under load: requests per second and latency, with and without shared batches, compared with CTranslate2
behind a plain FastAPI handler; then tenfold overload, servers stopped under load, and a long run.

    python -m benchmarks.serve_load [-m MODEL] [--seconds 10] [--overload 60] [--stops 20] [--soak 20000]

Each client sends one sentence, waits for the answer and sends the next. Clients run on the same machine, in a process of
their own. All servers run at the same time and take turns, so a slow moment of the machine affects all of them. The plain
handler uses CTranslate2's default search, and in another row the options of Regard's engine, with which it considers more
hypotheses.

Overload means ten times as many clients as the server has places, sending ten times as many requests as it can answer; a
refused client tries again soon, ignoring Retry-After. The command fails if a promise does not hold under overload.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, NamedTuple

import torch

from benchmarks.common import machine, print_facts, print_table, write_json
from regard.builtin import DEFAULT
from regard.bundle import Bundle, find_bundle, load_bundle
from regard.data.corpus import read_lines
from regard.serve.limits import Limits

SOURCE = Path(__file__).parents[1] / "data" / "tatoeba" / "test.en.xz"
ROUNDS = 3  # turns of each server
SERVE = (
    "from regard.serve.web.server import Settings, serve; serve(Settings([{model!r}], port={port}, is_shared={shared}))"
)


@dataclass
class Seen:
    """What the clients observed."""

    statuses: Counter[int] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)  # of the requests that were answered with 200

    def percentile(self, share: float) -> float:
        ordered = sorted(self.seconds)
        return 1000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else float("nan")


class Work(NamedTuple):
    """The requests that servers get."""

    requests: list[bytes]  # of a sentence each
    large: list[bytes]  # of as many sentences as a request may have


@dataclass(frozen=True)
class Load:
    """What clients do."""

    requests: list[bytes]
    count: int  # clients
    seconds: float = 3600.0  # at most
    each: int | None = None  # requests of each client, at most
    pause: float = 0.05  # seconds after a refusal
    address: str = "127.0.0.1"  # that the clients come from


async def client(port: int, load: Load, first: int, until: float, seen: Seen) -> None:
    """A connection that stays open as long as the server keeps it open."""
    reader = writer = None
    number = first
    while time.perf_counter() < until and (load.each is None or number - first < load.each):
        try:
            if writer is None:
                reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(load.address, 0))
            assert reader is not None
            begun = time.perf_counter()
            writer.write(load.requests[number % len(load.requests)])
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
            await asyncio.sleep(load.pause)
            continue
        status = int(head[9:12])
        seen.statuses[status] += 1
        if status == 200:
            seen.seconds.append(time.perf_counter() - begun)
        else:
            await asyncio.sleep(load.pause)
        if b"connection: close" in headers:
            writer.close()
            writer = None
    if writer is not None:
        writer.close()


async def _clients(port: int, load: Load, seen: Seen) -> None:
    until = time.perf_counter() + load.seconds
    stride = len(load.requests) // load.count or 1
    await asyncio.gather(*(client(port, load, stride * n, until, seen) for n in range(load.count)))


def clients(port: int, load: Load, seen: Seen | None = None) -> Seen:
    """Run clients against a server; what they observe is added to `seen`."""
    seen = seen or Seen()
    asyncio.run(_clients(port, load, seen))
    return seen


# --- servers ---


@contextmanager
def server(
    command: list[str], port: int, log: IO[bytes] | int = subprocess.DEVNULL
) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(command, stderr=log)
    try:
        while not _answers(port):
            assert process.poll() is None, command
            time.sleep(0.05)
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


def _answers(port: int) -> bool:
    """Whether a server has begun to answer: its port may be open while it still loads its model."""
    try:
        with socket.create_connection(("127.0.0.1", port), 60) as connection:
            connection.sendall(b"GET /ready HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            return bool(connection.recv(1))
    except OSError:
        return False


OURS = "regard serve"


def contenders(model: str) -> dict[str, Callable[[int], list[str]]]:
    """The commands that start a server on a port."""

    def regard(is_shared: bool) -> Callable[[int], list[str]]:
        return lambda port: [sys.executable, "-c", SERVE.format(model=model, port=port, shared=is_shared)]

    def plain(*options: str) -> Callable[[int], list[str]]:
        return lambda port: [sys.executable, "-m", "benchmarks.plain_server", model, str(port), *options]

    return {
        OURS: regard(True),
        "regard serve, a request a batch": regard(False),
        "plain FastAPI handler": plain(),
        "plain FastAPI handler, the same search": plain("--same-search"),
    }


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def memory(process: subprocess.Popen[bytes]) -> float:
    """Resident memory of a server in MB."""
    pages = int(Path(f"/proc/{process.pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def cpu_seconds(process: subprocess.Popen[bytes]) -> float:
    """CPU time of a server so far, which other load on the machine hardly affects."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


# --- what is measured ---


def measure_speed(model: str, requests: list[bytes], counts: list[int], seconds: float) -> list[dict[str, Any]]:
    rows = []
    with ExitStack() as stack:
        running = {}
        for name, command in contenders(model).items():
            port = free_port()
            running[name] = port, stack.enter_context(server(command(port), port))
            clients(port, Load(requests, 4, 2.0))  # warm up
        for count in counts:
            seen = {name: Seen() for name in running}
            computed = dict.fromkeys(running, 0.0)
            for _ in range(ROUNDS):
                for name, (port, process) in running.items():
                    before = cpu_seconds(process)
                    clients(port, Load(requests, count, seconds / ROUNDS), seen[name])
                    computed[name] += cpu_seconds(process) - before
            for name, one in seen.items():
                rows.append(
                    {
                        "server": name,
                        "clients": count,
                        "requests/s": round(len(one.seconds) / seconds, 1),
                        "p50 ms": round(one.percentile(0.5), 1),
                        "p99 ms": round(one.percentile(0.99), 1),
                        "CPU ms a request": round(1000 * computed[name] / max(1, len(one.seconds)), 2),
                        "statuses": dict(one.statuses),
                    }
                )
                print(rows[-1], flush=True)
    return rows


def measure_overload(model: str, work: Work, seconds: float) -> tuple[dict[str, Any], dict[str, bool]]:
    requests, large = work
    port = free_port()
    places = Limits().places
    with server(contenders(model)[OURS](port), port) as process:
        lone = clients(port, Load(requests, 1, 2.0))
        clients(port, Load(large, 2, each=len(large)))  # batches as large as they get: their memory is kept
        calm_seconds = min(seconds, 10.0)
        calm = clients(port, Load(requests, places, calm_seconds))
        rate = len(calm.seconds) / calm_seconds
        before = memory(process)
        seen = clients(port, Load(requests, 10 * places, seconds, pause=places / rate))
        after = memory(process)
        recovered = _seconds_to_recover(port, requests, 2 * lone.percentile(0.99))
    offered = sum(seen.statuses.values()) / seconds
    facts = {
        "overload": f"{offered:,.0f} requests/s where {rate:,.0f} can be answered, for {seconds:g} s",
        "overload statuses": dict(seen.statuses),
        "p99 ms with 64 clients": round(calm.percentile(0.99), 1),
        "p99 ms of what was accepted": round(seen.percentile(0.99), 1),
        "memory MB": f"{before:.0f} -> {after:.0f}",
        "recovered after s": round(recovered, 2),
    }
    holds = {
        "only 200, 429 and 503 under overload": set(seen.statuses) <= {200, 429, 503},
        "accepted p99 at most twice the p99 with 64 clients": seen.percentile(0.99) <= 2 * calm.percentile(0.99),
        "memory grows under 5% under overload": after < 1.05 * before,
        "recovery within 5 s": recovered <= 5,
    }
    return facts, holds


def _seconds_to_recover(port: int, requests: list[bytes], calm_ms: float) -> float:
    """Until a lone client is answered five times in a row as fast as before the overload."""
    begun = time.perf_counter()
    while time.perf_counter() < begun + 60:
        seen = clients(port, Load(requests, 1, each=5))
        if set(seen.statuses) == {200} and seen.percentile(1) <= calm_ms:
            break
    return time.perf_counter() - begun


def measure_stops(model: str, work: Work, times: int) -> tuple[dict[str, Any], dict[str, bool]]:
    """Servers stopped under load: what a server's log says that it answered, and what the clients received."""
    requests, _ = work
    answered: Counter[int] = Counter()
    received, refused = 0, 0
    for _ in range(times):
        port = free_port()
        with TemporaryFile() as log:
            with server(contenders(model)[OURS](port), port, log) as process:
                stop = threading.Timer(1.0, process.send_signal, [signal.SIGTERM])
                stop.start()
                seen = clients(port, Load(requests, 16, 2.0))
                stop.join()
                process.wait()
            log.seek(0)
            entries = [json.loads(line) for line in log if line.startswith(b"{")]
        answered += Counter(entry["status"] for entry in entries if entry.get("path") == "/translate")
        received += seen.statuses[200]
        refused += seen.statuses[503]
    lost = answered.total() - answered[429] - answered[503] - received
    facts = {
        "servers stopped under load": times,
        "answered, as their logs say": answered[200],
        "received by clients": received,
        "accepted and lost": lost,
        "refused with 503": refused,
    }
    return facts, {"no accepted request is lost when a server is stopped": lost == 0 and received > 0}


def measure_soak(model: str, work: Work, total: int) -> tuple[dict[str, Any], dict[str, bool]]:
    requests, large = work
    port = free_port()
    seen, marks = Seen(), []
    with server(contenders(model)[OURS](port), port) as process:
        clients(port, Load(large, 2, each=len(large)))
        for _ in range(5):
            clients(port, Load(requests, 16, each=-(-total // 80)), seen)  # at least so many in all
            marks.append(round(memory(process), 1))
    facts = {"long run": dict(seen.statuses), "memory MB after each fifth of it": marks}
    return facts, {
        "memory is flat over a long run": marks[-1] < 1.05 * marks[0],
        "every request of a long run is answered": set(seen.statuses) == {200},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--model", help="a bundle, run folder or built-in model (default: en-de)")
    parser.add_argument("--source", type=Path, default=SOURCE, help="sentences, one per line (default: from Tatoeba)")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--seconds", type=float, default=10, help="seconds for each number of clients; 0 skips it")
    parser.add_argument("--overload", type=float, default=60, metavar="SECONDS", help="0: leave it out")
    parser.add_argument("--stops", type=int, default=20, metavar="N", help="stop a server under load N times")
    parser.add_argument("--soak", type=int, default=20_000, metavar="N", help="send N requests and watch memory")
    parser.add_argument("--out", type=Path, help="where the JSON goes")
    arguments = parser.parse_args()
    measure(arguments, load_bundle(find_bundle(arguments.model)))


def measure(arguments: argparse.Namespace, bundle: Bundle) -> None:
    lines = [line for line in read_lines(arguments.source) if line.strip()]
    random.Random(1).shuffle(lines)  # a corpus may be sorted by length, so the faster server would get longer sentences
    requests = [_request(line, bundle.source, bundle.target) for line in lines[:2_000]]
    texts = Limits().texts
    many = [lines[first : first + texts] for first in range(0, len(lines) - texts, texts)]
    work = Work(requests, [_request(some, bundle.source, bundle.target) for some in many])
    model = str(bundle.folder)
    facts: dict[str, Any] = machine(torch.device("cpu"), ["ctranslate2", "fastapi", "uvicorn"])
    facts |= {"cores": len(os.sched_getaffinity(0)), "model": arguments.model or DEFAULT}
    rows = measure_speed(model, requests, arguments.clients, arguments.seconds) if arguments.seconds else []
    holds: dict[str, bool] = {}
    parts = {
        "overload, {:g} s": (arguments.overload, measure_overload),
        "{} servers stopped under load": (arguments.stops, measure_stops),
        "a long run of {} requests": (arguments.soak, measure_soak),
    }
    for title, (amount, part) in parts.items():
        if amount:
            print(f"\n{title.format(amount)}", flush=True)  # each takes minutes
            found, claims = part(model, work, amount)
            print_facts(found)
            facts |= found
            holds |= claims
    print_facts(facts)
    if rows:
        print_table(rows)
    for claim, is_true in holds.items():
        print(f"{'holds' if is_true else 'FAILS'}: {claim}")
    print(f"written to {write_json('serve_load', rows, {**facts, 'holds': holds}, arguments.out)}")
    if not all(holds.values()):
        raise SystemExit(1)


def _request(text: str | list[str], source: str, target: str) -> bytes:
    body = json.dumps({"q": text, "source": source, "target": target}).encode()
    head = f"POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


if __name__ == "__main__":
    main()
