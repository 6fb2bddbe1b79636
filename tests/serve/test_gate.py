"""Who gets in, how much and for how long. Where a test needs requests to be inside, it holds the engine still with a file."""

from __future__ import annotations

import json
import signal
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from regard.bundle import load_bundle
from regard.serve.web.protocol import path_of_whole_request
from tests.serve.server import GOLDEN, PATIENCE, Running, held_by, running, started, until

BODY = {"q": "a b c", "source": "src", "target": "tgt"}
TOKENS = len(load_bundle(GOLDEN).tokenizer.encode(BODY["q"])) + 1
ANSWER = {"translatedText": "c b a"}
HEAD = b"POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


@pytest.fixture
def hold(tmp_path: Path) -> Path:
    file = tmp_path / "hold"
    file.touch()
    return file


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(80) as threads:
        yield threads


def metric(server: Running, name: str) -> float:
    lines = [line for line in server.get("/metrics").text.splitlines() if line.startswith(name)]
    return sum(float(line.rpartition(" ")[2]) for line in lines)


def inside(server: Running) -> int:
    return int(metric(server, "regard_places_taken "))


def chunked(body: bytes) -> Iterator[bytes]:
    for start in range(0, len(body), 10_000):
        yield body[start : start + 10_000]


def test_a_body_one_byte_over_the_limit_is_refused_also_in_chunks() -> None:
    def body(size: int) -> bytes:
        empty = json.dumps({**BODY, "secret": ""}).encode()
        return json.dumps({**BODY, "secret": "x" * (size - len(empty))}).encode()

    with running("--limit", "body_bytes=200_000") as server:
        headers = {"content-type": "application/json"}
        for send in (bytes, chunked):
            fits = server.post("/translate", content=send(body(200_000)), headers=headers)
            assert fits.json() == ANSWER
            over = server.post("/translate", content=send(body(200_001)), headers=headers)
            assert over.status_code == 413
            assert over.json() == {"error": "the request may have at most 200000 bytes; send it in parts"}


def test_characters_and_texts_are_limited() -> None:
    with running("--limit", "characters=10", "--limit", "texts=2") as server:
        assert server.post("/translate", json={**BODY, "q": "a b c d e"}).status_code == 200
        assert server.post("/translate", json={**BODY, "q": ["a b c d", "e f g"]}).status_code == 413
        assert server.post("/translate", json={**BODY, "q": ["a", "b", "c"]}).status_code == 400
        assert server.post("/v2/translate", json={"text": ["a"] * 3, "target_lang": "tgt"}).status_code == 400


def test_when_all_places_are_taken_the_next_is_told_to_come_again(hold: Path, pool: ThreadPoolExecutor) -> None:
    with running("--limit", "places=3", code=held_by(hold)) as server:
        accepted = [pool.submit(server.post, "/translate", json=BODY) for _ in range(3)]
        until(lambda: inside(server) == 3)
        for path, fields in (("/translate", BODY), ("/v2/translate", {"text": "a", "target_lang": "tgt"})):
            refused = server.post(path, json=fields)
            assert refused.status_code == 429
            assert 1 <= int(refused.headers["retry-after"]) <= 60
            assert "too many requests are waiting" in refused.text
        assert server.get("/health").status_code == 200
        hold.unlink()
        assert [answer.result().json() for answer in accepted] == [ANSWER] * 3
        assert server.post("/translate", json=BODY).json() == ANSWER


def read_answer(connection: socket.socket) -> tuple[bytes, dict[str, str], bytes]:
    """The first line, the headers and the body of one response."""
    file = connection.makefile("rb")
    first = file.readline()
    headers = dict(line.decode().rstrip().split(": ", 1) for line in iter(file.readline, b"\r\n"))
    return first, headers, file.read(int(headers["content-length"]))


@pytest.mark.parametrize("path", ["/translate", "/v2/translate"])
def test_the_short_way_to_be_turned_away_says_what_the_long_one_says(
    hold: Path, pool: ThreadPoolExecutor, path: str
) -> None:
    content = json.dumps(BODY).encode()
    head = HEAD.replace(b"/translate", path.encode()) + f"Content-Length: {len(content)}\r\n\r\n".encode()
    with running("--limit", "places=1", code=held_by(hold)) as server:
        accepted = pool.submit(server.post, "/translate", json=BODY)
        until(lambda: inside(server) == 1)
        with server.connect() as connection:
            answers = []
            for parts in ([head + content], [head, content], [head + content]):  # in pieces it takes the long way
                for part in parts:
                    connection.sendall(part)
                    server.get("/health")  # before this is answered, all that was sent until now has been read
                answers.append(read_answer(connection))
            for first, headers, body in answers:
                assert first == b"HTTP/1.1 429 Too Many Requests\r\n"
                assert "too many requests are waiting" in json.loads(body)["message" if "v2" in path else "error"]
                assert len(headers.pop("x-request-id")) == 16
                headers.pop("date")
            assert answers[0] == answers[1] == answers[2]
            hold.unlink()
            assert accepted.result().json() == ANSWER
            until(lambda: inside(server) == 0)
            connection.sendall(HEAD + f"Content-Length: {len(content)}\r\n\r\n".encode() + content)
            assert json.loads(read_answer(connection)[2]) == ANSWER  # on the same connection, now that there is a place
        assert metric(server, f'regard_requests_total{{path="{path}",status="429"}}') == 3
        lines = [json.loads(line) for line in server.stop()]
    assert [line["status"] for line in lines if line["event"] == "request" and line["path"] == path].count(429) == 1
    assert sum(line["count"] for line in lines if line["event"] == "turned away") == 2


@pytest.mark.parametrize(
    "request_",
    [
        b"POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\n{}",
        b"POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n{}",
        b"POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Length : 2\r\n\r\n{}",
        b"POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Length: +2\r\n\r\n{}",
        b"POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n{}",
        b"POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}",
        b"POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}POST /translate HTTP/1.1\r\n",
        b"POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n\r\n{}",
        b"POST /translate HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"POST /translate HTTP/1.0\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}",
        b"POST /translate?q HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}",
        b"GET /translate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}",
    ],
)
def test_what_is_not_plain_does_not_take_the_short_way(request_: bytes) -> None:
    assert path_of_whole_request(request_) is None


def test_requests_that_gather_share_a_batch(hold: Path, pool: ThreadPoolExecutor) -> None:
    with running(code=held_by(hold)) as server:
        answers = [pool.submit(server.post, "/translate", json=BODY)]
        until(started(hold).exists)
        for count in range(1, 5):
            answers.append(pool.submit(server.post, "/translate", json=BODY))
            until(lambda count=count: metric(server, "regard_waiting_tokens{") == count * TOKENS)  # type: ignore[misc]
        hold.unlink()
        assert [answer.result().json() for answer in answers] == [ANSWER] * 5
        until(lambda: metric(server, "regard_sentences_total{") == 5)
        assert metric(server, "regard_batch_sentences_count{") == 2


def test_a_client_that_goes_away_frees_its_place(hold: Path) -> None:
    with running("--limit", "places=1", code=held_by(hold)) as server:
        content = json.dumps(BODY).encode()
        with server.connect() as first:
            first.sendall(HEAD + f"Content-Length: {len(content)}\r\n\r\n".encode() + content)
            until(lambda: inside(server) == 1)
            assert server.post("/translate", json=BODY).status_code == 429
        until(lambda: inside(server) == 0)
        hold.unlink()
        assert server.post("/translate", json=BODY).json() == ANSWER
        statuses = [json.loads(line).get("status") for line in server.stop()]
    assert 499 in statuses


def test_a_client_that_goes_away_in_the_middle_of_events_frees_its_place() -> None:
    code = """
import time
from regard.generate.engines.ctranslate2_engine import CTranslate2Engine as Engine
translate = Engine.translate
def slowly(self, *arguments):
    time.sleep(0.2)
    return translate(self, *arguments)
Engine.translate = slowly
"""
    with running("--limit", "places=1", "--batch", "1", code=code) as server:
        content = json.dumps({**BODY, "q": "a b\n" * 200}).encode()
        with server.connect() as client:
            client.sendall(
                HEAD + f"Accept: text/event-stream\r\nContent-Length: {len(content)}\r\n\r\n".encode() + content
            )
            assert b"event: sentence" in b"".join(iter(lambda: client.recv(1), b"}"))  # the first one came
        until(lambda: inside(server) == 0)
        assert metric(server, "regard_sentences_total{") < 200
        assert server.post("/translate", json=BODY).json() == ANSWER
        statuses = [json.loads(line).get("status") for line in server.stop()]
    assert statuses.count(499) == 1


def test_a_request_that_takes_too_long_is_given_up(hold: Path) -> None:
    with running("--limit", "seconds=0.2", code=held_by(hold)) as server:
        late = server.post("/translate", json=BODY)
        assert late.status_code == 503 and late.headers["retry-after"]
        assert late.json() == {"error": "the request took longer than 0.2 s; send less text"}
        assert inside(server) == 0
        hold.unlink()


def test_a_body_that_does_not_arrive_takes_no_place_and_is_given_up() -> None:
    with running("--limit", "body_seconds=0.2", "--limit", "places=1") as server:
        with server.connect() as slow:
            slow.sendall(HEAD + b'Content-Length: 1000\r\n\r\n{"q":')
            content = json.dumps(BODY).encode()
            with server.connect() as quick:  # in one piece, which cannot be late
                quick.sendall(HEAD + f"Content-Length: {len(content)}\r\n\r\n".encode() + content)
                assert json.loads(read_answer(quick)[2]) == ANSWER
            answer = b""
            while part := slow.recv(65536):
                answer += part
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert inside(server) == 0


def test_sigterm_finishes_what_was_accepted_and_refuses_the_rest(hold: Path, pool: ThreadPoolExecutor) -> None:
    with running(code=held_by(hold)) as server:
        accepted = [pool.submit(server.post, "/translate", json=BODY) for _ in range(20)]
        until(lambda: inside(server) == 20)
        server.process.send_signal(signal.SIGTERM)
        until(lambda: server.get("/ready").status_code == 503)
        refused = server.post("/translate", json=BODY)
        assert refused.status_code == 503 and refused.headers["retry-after"]
        assert refused.json() == {"error": "the server is shutting down; try another one"}
        hold.unlink()
        assert [answer.result().json() for answer in accepted] == [ANSWER] * 20
        events = [json.loads(line)["event"] for line in server.wait()]
    assert events[-1] == "stopped" and "stopping" in events


def test_a_second_signal_ends_the_server_at_once(hold: Path, pool: ThreadPoolExecutor) -> None:
    with running(code=held_by(hold)) as server:
        pool.submit(server.post, "/translate", json=BODY)
        until(lambda: inside(server) == 1)
        server.process.send_signal(signal.SIGTERM)
        until(lambda: server.get("/ready").status_code == 503)
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(timeout=PATIENCE) == -signal.SIGTERM
        assert hold.exists()
        server.reader.join()
    assert not any("Traceback" in line for line in server.lines), "\n".join(server.lines)


@pytest.mark.slow
def test_no_accepted_request_is_lost_when_servers_are_stopped_under_load(pool: ThreadPoolExecutor) -> None:
    def load(server: Running, stopped: threading.Event) -> list[int]:
        """Statuses of requests until the server is gone. One that was accepted and then lost shows as 0."""
        statuses = []
        with server.client() as client:
            while not stopped.is_set():
                try:
                    statuses.append(client.post("/translate", json=BODY).status_code)
                except httpx.ConnectError:
                    break
                except httpx.TransportError:
                    statuses.append(0)
                    break
        return statuses

    for _ in range(3):
        stopped = threading.Event()
        with running() as server:
            clients = [pool.submit(load, server, stopped) for _ in range(8)]
            until(lambda: metric(server, "regard_sentences_total{") > 50)
            entries = [json.loads(line) for line in server.stop()]
            stopped.set()
        statuses = [status for client in clients for status in client.result()]
        answered = [entry["status"] for entry in entries if entry.get("path") == "/translate"]
        assert set(answered) <= {200, 503}
        assert answered.count(200) == statuses.count(200) > 0


@pytest.mark.slow
def test_under_overload_there_is_only_200_and_429(hold: Path, pool: ThreadPoolExecutor) -> None:
    with running("--limit", "places=4", code=held_by(hold)) as server:

        def hurry() -> list[tuple[int, str]]:
            with server.client() as client:
                answers = [client.post("/translate", json=BODY) for _ in range(20)]
            return [(answer.status_code, answer.text) for answer in answers]

        clients = [pool.submit(hurry) for _ in range(40)]
        until(lambda: metric(server, 'regard_requests_total{path="/translate",status="429"}') > 0)
        hold.unlink()  # until here all places were taken
        answers = [answer for client in clients for answer in client.result()]
        assert {status for status, _ in answers} == {200, 429}
        assert {text for status, text in answers if status == 200} == {json.dumps(ANSWER, separators=(",", ":"))}
        assert server.post("/translate", json=BODY).json() == ANSWER
        assert inside(server) == 0


def test_one_text_may_come_with_a_prefix() -> None:
    fields = {"q": "a b c", "source": "src", "target": "tgt", "prefix": "c "}
    with running("--limit", "texts=1", "--limit", "characters=7") as server:
        for path in ("/sentences", "/alternatives"):
            assert server.post(path, json=fields).status_code == 200
            assert server.post(path, json={**fields, "prefix": "c b"}).status_code == 413
        assert metric(server, "regard_characters_total") == 7  # the prefix is computed with, too


def test_a_search_that_does_not_end_does_not_keep_the_server(hold: Path, pool: ThreadPoolExecutor) -> None:
    with running("--limit", "drain_seconds=0.5", code=held_by(hold)) as server:
        pool.submit(server.post, "/sentences", json={**BODY, "prefix": "c "})
        until(started(hold).exists)
        server.stop()
        assert hold.exists()
