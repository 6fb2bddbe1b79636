"""Documents that take long, and whose clients do not wait: others are answered meanwhile, and the place of such a document is taken
until its thread has ended. A document is held still with a file."""

from __future__ import annotations

import asyncio
import gc
import json
import threading
import weakref
from pathlib import Path

import httpx
import pytest

from regard.serve.thread_pool import ThreadPool
from tests.serve.server import Running, running, started, until
from tests.serve.test_gate import inside

FORM = {"source": "src", "target": "tgt"}
LONG = "a b c\n" * 100  # so long that it is prepared in a thread of the common pool
POOL = 32  # threads that the common pool has at most, on any machine


def slow_at(step: str, file: Path) -> str:
    """Code that makes a document wait where it is read or saved as long as there is this file, and say so with another."""
    return f"""
import dataclasses, pathlib, time
import regard.serve.service as service
open_document = service.open_document
def hold():
    pathlib.Path({str(started(file))!r}).touch()
    while pathlib.Path({str(file)!r}).exists():
        time.sleep(0.01)
def opened(*arguments):
    if {step!r} == "read":
        hold()
    document = open_document(*arguments)
    def save(translations):
        if {step!r} == "save":
            hold()
        return document.save(translations)
    return dataclasses.replace(document, save=save)
service.open_document = opened
"""


@pytest.fixture
def hold(tmp_path: Path) -> Path:
    file = tmp_path / "hold"
    file.touch()
    return file


def upload(server: Running, path: str = "/translate_file") -> httpx.Response:
    data = {"target_lang": "tgt"} if path.startswith("/v2/") else FORM
    return server.post(path, files={"file": ("x.txt", b"a b")}, data=data)


def raw_upload(server: Running, *headers: str) -> bytes:
    """A request for a document as bytes, for clients that hang up."""
    request = httpx.Request("POST", f"{server.url}/translate_file", files={"file": ("x.txt", b"a b")}, data=FORM)
    lines = [
        "POST /translate_file HTTP/1.1",
        "Host: 127.0.0.1",
        *headers,
        f"Content-Type: {request.headers['content-type']}",
    ]
    body = request.read()
    return "\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""]).encode() + body


@pytest.mark.parametrize("header", ["Accept: */*", "Accept: text/event-stream"])
@pytest.mark.parametrize("step", ["read", "save"])
def test_an_abandoned_document_keeps_its_place_until_its_thread_ends(hold: Path, step: str, header: str) -> None:
    with running("--limit", "file_places=1", code=slow_at(step, hold)) as server:
        with server.connect() as client:
            client.sendall(raw_upload(server, header))
            until(started(hold).exists)
        until(lambda: inside(server) == 0)  # the request has ended
        for path in ("/translate_file", "/v2/document"):
            assert upload(server, path).status_code == 429
        assert server.post("/translate", json={**FORM, "q": LONG}).json() == {"translatedText": "c b a\n" * 100}
        hold.unlink()
        until(lambda: upload(server).status_code == 200)
        assert not [line for line in server.stop() if "failure" in line]


def test_a_document_whose_time_is_over_keeps_its_place_until_its_thread_ends(hold: Path) -> None:
    code = slow_at("read", hold)
    with running("--limit", "file_places=1", "--limit", "file_seconds=0.2", code=code) as server:
        assert upload(server).status_code == 503
        until(lambda: upload(server).status_code == 429)  # unless its time was over before its thread began
        hold.unlink()
        until(lambda: upload(server, "/v2/document").status_code == 200)


@pytest.mark.parametrize("step", ["read", "save"])
def test_however_many_documents_are_abandoned_texts_are_translated(hold: Path, step: str) -> None:
    count = POOL + 1
    with running("--limit", f"file_places={count}", code=slow_at(step, hold)) as server:
        for number in range(count):
            with server.connect() as client:
                client.sendall(raw_upload(server))
                until(lambda: inside(server) == 1)
                if number == 0:
                    until(started(hold).exists)
            until(lambda: inside(server) == 0)
        assert server.post("/translate", json={**FORM, "q": LONG}).status_code == 200
        hold.unlink()
        until(lambda: upload(server).status_code == 200)


def test_a_document_that_does_not_end_does_not_keep_the_server(hold: Path) -> None:
    with running("--limit", "drain_seconds=0.5", code=slow_at("read", hold)) as server:
        with server.connect() as client:
            client.sendall(raw_upload(server))
            until(started(hold).exists)
        until(lambda: inside(server) == 0)
        events = [json.loads(line)["event"] for line in server.stop()]
        assert events[-1] == "stopped" and hold.exists()


# --- the threads themselves ---


class Data:
    """What can be seen to be gone."""


def test_what_is_abandoned_is_counted_until_it_ends_and_what_never_began_is_dropped() -> None:
    async def test() -> None:
        threads = ThreadPool("documents", 1)
        begun, free = threading.Event(), threading.Event()

        def work(_: Data) -> None:
            begun.set()
            free.wait()

        first = asyncio.create_task(threads.run(work, Data()))
        await asyncio.to_thread(begun.wait)
        data = Data()
        gone = weakref.ref(data)
        second = asyncio.create_task(threads.run(work, data))
        del data
        await asyncio.sleep(0)
        assert threads.abandoned == 0
        for task in (first, second):
            task.cancel()
        await asyncio.wait([first, second])
        del task, second
        gc.collect()
        assert gone() is None  # though its turn has not come yet
        assert threads.abandoned == 1
        free.set()
        assert await threads.run(lambda: "next") == "next"
        assert threads.abandoned == 0
        threads.close()

    asyncio.run(test())


def test_a_thread_does_not_hold_on_to_what_it_found() -> None:
    async def test() -> None:
        threads = ThreadPool("documents", 1)
        found = await threads.run(Data)
        gone = weakref.ref(found)
        del found
        await asyncio.to_thread(until, lambda: gone() is None)
        threads.close()

    asyncio.run(test())
