"""Slow clients and too many connections: who is disconnected, who still gets in, and what the log says of it."""

from __future__ import annotations

import asyncio
import errno
import json
import socket
from collections import Counter
from pathlib import Path

import httpx
import pytest

from regard.errors import UserError
from regard.serve.limits import Limits
from regard.serve.web.connections import Connections
from regard.serve.web.gate import Admission
from regard.serve.web.listener import Listener
from regard.serve.web.logs import RateLimit
from regard.serve.web.prometheus import Metrics
from regard.serve.web.protocol import SlowClient
from regard.serve.web.proxies import Proxies
from regard.serve.web.server import keep_watch
from tests.serve.server import PATIENCE, Running, running, until
from tests.serve.test_gate import read_answer

HALF = b"POST /translate HTTP/1.1\r\nHost: localhost\r\nX-Slow: "


class Client:
    """The protocol of a connection, without a connection."""

    def __init__(self, is_waiting: bool = True) -> None:
        self.is_waiting, self.is_aborted = is_waiting, False
        self.reason: str | None = None

    def abort(self) -> None:
        self.is_aborted = True

    def close_if_slow(self, now: float) -> str | None:
        return self.reason


def fill(connections: Connections, hosts: list[str], is_waiting: bool = True) -> list[Client]:
    """Connect once for each of these addresses."""
    clients: list[Client] = []
    for host in hosts:
        number = 1_000 + len(clients) + 10_000 * len(connections)
        if connections.enter(host, number) is not None:
            clients.append(Client(is_waiting))
            connections.attach(number, clients[-1])
    return clients


def test_an_address_at_its_limit_loses_its_oldest_idle_connection() -> None:
    connections = Connections(most=100, most_of_address=3)
    first, second, third, fourth = fill(connections, ["192.0.2.1"] * 4)
    assert first.is_aborted and not (second.is_aborted or third.is_aborted or fourth.is_aborted)
    assert len(connections) == 3 and connections.closed == {"address": 1}


def test_an_address_whose_connections_are_all_busy_gets_no_other() -> None:
    connections = Connections(most=100, most_of_address=3)
    busy = fill(connections, ["192.0.2.1"] * 3, is_waiting=False)
    assert connections.enter("192.0.2.1", 1) is None
    assert connections.enter("192.0.2.2", 2) is not None
    assert not any(client.is_aborted for client in busy)


def test_addresses_of_one_ipv6_network_count_as_one() -> None:
    connections = Connections(most=100, most_of_address=3)
    clients = fill(connections, [f"2001:db8::{n}" for n in range(1, 6)])
    assert sum(client.is_aborted for client in clients) == 2
    assert not any(client.is_aborted for client in fill(connections, ["2001:db8:1::1"]))


def test_when_all_is_full_those_with_the_most_make_room_for_those_with_few() -> None:
    connections = Connections(most=160, most_of_address=100)
    many = fill(connections, ["192.0.2.1"] * 90)
    some = fill(connections, ["192.0.2.2"] * 60)
    few = fill(connections, ["192.0.2.3"] * 10)
    assert connections.are_full
    assert fill(connections, ["192.0.2.4"])
    assert [client.is_aborted for client in many] == [True] * 10 + [False] * 80  # the oldest
    assert not any(client.is_aborted for client in some + few)
    fill(connections, [f"192.0.3.{n}" for n in range(9)])
    assert connections.are_full and not any(client.is_aborted for client in some + few)
    assert connections.enter("192.0.2.1", 1) is None  # it has more than its share
    assert connections.enter("192.0.2.2", 2) is None
    assert connections.closed == {"room": 10, "full": 2}


def test_connections_that_are_being_answered_are_not_closed_for_others() -> None:
    connections = Connections(most=10, most_of_address=10)
    busy = fill(connections, ["192.0.2.1"] * 9, is_waiting=False)
    (idle,) = fill(connections, ["192.0.2.2"])
    assert fill(connections, ["192.0.2.3"]) and idle.is_aborted
    connections.enter("192.0.2.4", 1)  # this one takes the place of the last idle one
    assert connections.enter("192.0.2.5", 2) is None
    assert not any(client.is_aborted for client in busy)


def test_a_trusted_proxy_may_hold_as_many_as_there_are() -> None:
    connections = Connections(most=32, most_of_address=4, proxies=Proxies.parse(["192.0.2.0/28"]))
    proxied = fill(connections, ["192.0.2.1"] * 28)
    others = fill(connections, ["198.51.100.1"] * 4)
    assert len(connections) == 32
    assert fill(connections, ["192.0.2.1"])  # its clients are not fewer than others
    assert [client.is_aborted for client in others].count(True) == 2 and not any(one.is_aborted for one in proxied)


def test_a_socket_is_counted_until_it_is_closed() -> None:
    connections = Connections(most=10, most_of_address=10)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = listening.getsockname()
        with Listener(listening, connections) as listener:
            with pytest.raises(BlockingIOError):
                listener.accept()
            with socket.create_connection(address), socket.create_connection(address):
                until(lambda: accepts(listener, kept))
                until(lambda: accepts(listener, kept))
                assert len(connections) == 2
                for one in kept:
                    one.close()
                    one.close()
                assert len(connections) == 0


kept: list[socket.socket] = []


def accepts(listener: Listener, into: list[socket.socket]) -> bool:
    try:
        into.append(listener.accept()[0])
    except BlockingIOError:
        return False
    return True


def test_without_a_file_to_open_connections_are_turned_away_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The only descriptor left is the one that the listener holds back: it accepts with it, and hangs up."""
    resource = pytest.importorskip("resource")
    connections = Connections(most=1_000, most_of_address=1_000)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = listening.getsockname()
        with Listener(listening, connections) as listener, socket.socket() as client, socket.socket() as probe:
            client.settimeout(PATIENCE)
            client.connect(address)
            free = probe.fileno() + 1
            resource.setrlimit(resource.RLIMIT_NOFILE, (free, before[1]))
            try:
                with pytest.raises(BlockingIOError):
                    listener.accept()
                with pytest.raises(BlockingIOError):  # and it has its reserve again
                    listener.accept()
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, before)
            assert client.recv(1) == b""
    assert connections.closed == {"files": 1} and len(connections) == 0


def test_the_limit_of_open_files_bounds_the_connections() -> None:
    limits = Limits(connections=4_096, address_connections=1_000)
    assert (Connections.within(limits, 20_000).most, Connections.within(limits, 20_000).most_of_address) == (
        4_096,
        1_000,
    )
    assert (Connections.within(limits, 1_024).most, Connections.within(limits, 1_024).most_of_address) == (896, 448)
    with pytest.raises(UserError, match="the limit of open files is 64, too few for a server; raise it"):
        Connections.within(limits, 64)


def test_headers_have_a_time_from_their_first_byte() -> None:
    slow = SlowClient(now=100, header_seconds=10, send_seconds=30)
    assert not slow.is_late(110) and slow.is_late(110.1)  # nothing has come since the connection was made
    slow.note_head(True, 105)
    assert slow.is_late(111)  # a byte now and then does not help
    slow.note_head(False, 106)
    assert not slow.is_late(1_000)  # between requests another limit applies
    slow.note_head(True, 1_000)
    slow.note_head(True, 1_009)
    assert not slow.is_late(1_010) and slow.is_late(1_011)


def test_an_answer_must_be_read_not_all_of_it_but_some() -> None:
    slow = SlowClient(now=0, header_seconds=10, send_seconds=30)
    assert not slow.is_stalled(0, 100)
    assert not slow.is_stalled(500_000, 101)
    assert not slow.is_stalled(499_999, 131)
    assert slow.is_stalled(499_998, 131.5)  # a few bytes are no progress
    assert not slow.is_stalled(450_000, 132) and not slow.is_stalled(450_000, 162)
    slow.note_progress(162)
    assert not slow.is_stalled(450_000, 190) and slow.is_stalled(450_000, 193)
    assert not slow.is_stalled(0, 194)


def test_lines_of_a_kind_are_limited_and_the_rest_counted() -> None:
    now = 5.0
    rate = RateLimit(clock=lambda: now)
    assert [rate.admits("request", 2) for _ in range(5)] == [True, True, False, False, False]
    assert rate.admits("failure", 2)
    assert rate.left_out == Counter({"request": 3})
    now = 6.1
    assert rate.admits("request", 2)


def test_an_error_does_not_end_the_watch_over_slow_clients() -> None:
    swept = asyncio.Event()

    class Failing(Connections):
        def sweep(self, now: float) -> None:
            if self.closed["sweep"]:
                swept.set()
            self.closed["sweep"] += 1
            raise OSError(errno.EMFILE, "too many open files")

    async def watch() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda loop, context: None)
        loop.call_soon(keep_watch, Failing(2, 1), Admission(Limits(header_seconds=0.02)), Metrics())
        await asyncio.wait_for(swept.wait(), 60)

    asyncio.run(watch())


def test_half_a_request_is_answered_with_408_and_none_with_nothing() -> None:
    with running("--limit", "header_seconds=2") as server:
        with server.connect() as silent, server.connect() as half, server.connect() as later:
            half.sendall(HALF)
            later.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert read_answer(later)[0] == b"HTTP/1.1 200 OK\r\n"
            later.sendall(HALF)  # the second request of a connection
            for connection, expected in ((silent, b""), (half, b"HTTP/1.1 408 "), (later, b"HTTP/1.1 408 ")):
                answer = b"".join(iter(lambda c=connection: c.recv(10_000), b""))  # type: ignore[misc]
                assert answer[:13] == expected
                if expected:
                    body = answer.partition(b"\r\n\r\n")[2]
                    assert json.loads(body) == {"error": "the headers of a request must arrive within 2 s"}
        assert server.get("/health").status_code == 200
        until(lambda: 'regard_connections_closed_total{reason="late"} 3.0' in server.get("/metrics").text)
        lines = [json.loads(line) for line in server.stop()]
    assert lines[0]["event"] == "listening" and lines[0]["open_files"] > lines[0]["connections"] >= 16


def test_a_client_that_does_not_read_is_disconnected() -> None:
    with running("--limit", "send_seconds=0.5") as server:
        with server.connect() as deaf:
            deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            # More answers than the buffers of both sides hold, in one connection.
            deaf.sendall(b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n" * 400)
            until(lambda: 'regard_connections_closed_total{reason="stalled"} 1.0' in server.get("/metrics").text)
        server.stop()


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs Linux's /proc")
def test_half_open_connections_up_to_the_limit_of_files_keep_nobody_out_and_the_log_short() -> None:
    code = "import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))"
    with running(code=code) as server:
        assert json.loads(server.lines[0])["open_files"] == 256

        def connect(address: str) -> socket.socket:
            return socket.create_connection(("127.0.0.1", server.port), PATIENCE, source_address=(address, 0))

        held = [connect(f"127.0.0.{2 + n % 20}") for n in range(400)]
        for connection in held:
            try:
                connection.sendall(HALF)
            except OSError:  # it was one too many
                continue
        for _ in range(20):
            with connect("127.0.1.1") as other:
                other.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                assert other.recv(100).startswith(b"HTTP/1.1 200")
        files = len(list(Path(f"/proc/{server.process.pid}/fd").iterdir()))
        for connection in held:
            connection.close()
        lines = server.stop()
    assert files < 256
    assert len(lines) < 60 and not any("failure" in line for line in lines)


def test_a_body_that_stops_in_the_middle_makes_room_like_a_head(tmp_path: Path) -> None:
    arguments = ["--limit", "connections=16"]
    with running(*arguments) as server:
        held = [server.connect() for _ in range(8)]
        for connection in held:
            connection.sendall(HALF + b"\r\nContent-Length: 100\r\n\r\n{")
        until(lambda: answers(server))  # from the same address, which may have eight
        lost = [is_closed(connection) for connection in held]
        for connection in held:
            connection.close()
    assert lost.count(True) >= 1


def answers(server: Running) -> bool:
    """Connections that have only just been accepted cannot make room yet."""
    try:
        return server.get("/health").status_code == 200
    except httpx.TransportError:
        return False


def is_closed(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return connection.recv(1) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True
