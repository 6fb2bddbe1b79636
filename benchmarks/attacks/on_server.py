"""Requests, documents and texts that are made to harm a server, sent to a real one."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx

from benchmarks.attacks.on_files import mutated
from benchmarks.attacks.outcome import Tally, Verdict
from tests.serve.server import Running, running
from tests.serve.test_hostile import BOMBS
from tests.translation.documents.test_documents import TRAVERSAL, docx

FIELDS = {"source": "src", "target": "tgt"}
BODY = {"q": "a b c", **FIELDS}
ANSWERS = {100, 200, 304, 400, 403, 404, 405, 408, 411, 413, 415, 417, 421, 422, 426, 429, 431, 501}
SECONDS = 60.0
# A server for tests is patient; this one is as users start it, but for half a request, which need not take so long.
LIMITS = [f"--limit={name}={value:g}" for name, value in (("seconds", 60), ("header_seconds", 3), ("body_seconds", 3))]


def attack_server(scratch: Path, count: int) -> Iterator[Tally]:
    """All attacks on one server, which must answer, keep its memory and log no failure."""
    with running(*LIMITS) as server:
        server.post("/translate_file", files={"file": ("a.docx", docx("<w:p/>"))}, data=FIELDS)
        server.post("/translate", json={**BODY, "no_repeat": 2})  # loads torch, which stays
        before = memory(server)
        yield malformed_requests(server, count)
        yield hostile_documents(server, count // 4)
        yield superlinear_texts(server)
        yield unkept_promises(server)
        yield strangers(server)
        tally = Tally("the server afterwards")
        answer = server.post("/translate", json=BODY)
        tally.add("translates", "survived" if answer.json() == {"translatedText": "c b a"} else "silent", answer.text)
        end = time.monotonic() + 30
        while memory(server) > before + 150 and time.monotonic() < end:
            time.sleep(0.5)  # it gives memory back when it has been idle for some seconds
        after = memory(server)
        tally.note = f"the server held {before} MB before these attacks, with torch loaded, and {after} MB after them"
        tally.add("memory", "survived" if after < before + 150 else "memory", f"{before} -> {after} MB")
        lines = server.stop()
        failures = [line for line in lines if '"failure' in line or not line.startswith("{")]
        tally.add("its log", "traceback" if failures else "survived", "\n".join(failures))
    yield tally
    yield documents_on_disk(scratch)


def memory(server: Running) -> int:
    """MB that the server holds."""
    return int(Path(f"/proc/{server.process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") >> 20


def judge(status: int | None) -> Verdict:
    """A status that the API has; 500 is a fault, and 503 means that the time ran out."""
    if status is None or status == 503:
        return "hang"
    return "survived" if status in ANSWERS else "traceback"


def malformed_requests(server: Running, count: int) -> Tally:
    """Bytes that are no HTTP, or not quite. No answer is an answer if the connection is closed."""
    tally = Tally("malformed requests")
    cases = _requests(count)
    with ThreadPoolExecutor(32) as pool:
        for data, status in zip(cases, pool.map(lambda data: raw_status(server, data), cases), strict=True):
            tally.add(repr(data[:60]), "survived" if status == 0 else judge(status), repr(data))
    return tally


def raw_status(server: Running, data: bytes) -> int | None:
    """The status of the answer to these bytes; 0: the connection was closed without one; None: nothing within a minute."""
    try:
        with socket.create_connection(("127.0.0.1", server.port), SECONDS) as connection:
            connection.sendall(data)
            answer = connection.recv(100)
    except TimeoutError:
        return None
    except OSError:
        return 0
    return int(answer[9:12]) if answer.startswith(b"HTTP/1.1 ") else 0


def _requests(count: int) -> list[bytes]:
    body = json.dumps(BODY).encode()
    head = b"POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    plain = head + b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
    bodies = [
        b"", b"{", b"[]", b"null", b"1", b'"x"', b"[" * 100_000, b'{"a":' * 100_000, b"\xff\xfe", b'{"q": "\\ud800"}',
        b'{"q": 1e999, "source": "src", "target": "tgt"}', b'{"q": NaN}', b'{"q": null, "source": [], "target": {}}',
        json.dumps({**BODY, "beam": 10**9}).encode(), json.dumps({**BODY, "alpha": 1e308}).encode(),
        json.dumps({**BODY, "q": "a\0b"}).encode(), json.dumps({**BODY, "q": ["a"] * 10_000}).encode(),
        json.dumps({**BODY, "glossary": {"a": "b" * 30_000}}).encode(), json.dumps({**BODY, "q": "a" * 60_000}).encode(),
        json.dumps({**BODY, "seed": 10**400}).encode(), json.dumps({**BODY, "format": "../../x"}).encode(),
        json.dumps({**BODY, "temperature": -1, "sample": True}).encode(), json.dumps({**BODY, "glossary": "x"}).encode(),
    ]  # fmt: skip
    found = [head + b"Content-Length: %d\r\n\r\n%s" % (len(one), one) for one in bodies]
    found += [
        b"", b"\r\n\r\n", b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc", b"\0" * 1_000,
        b"GET / HTTP/1.1\r\n\r\n", b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", b"A" * 100_000,
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"X: y\r\n" * 20_000 + b"\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"y" * 100_000 + b"\r\n\r\n",
        b"GET /%00%ff%2e%2e/ HTTP/1.1\r\nHost: localhost\r\n\r\n", b"GET http://evil/ HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /download_file/../../etc/passwd HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"CONNECT evil:80 HTTP/1.1\r\nHost: localhost\r\n\r\n", b"TRACE / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"OPTIONS * HTTP/1.1\r\nHost: localhost\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        head + b"Content-Length: -1\r\n\r\n", head + b"Content-Length: 99999999999999999999\r\n\r\n",
        head + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nabcdef", head + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
        head + b"Transfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n", head + b"Transfer-Encoding: gzip\r\n\r\n",
        head + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
        head + b"Expect: 100-continue\r\nContent-Length: 5\r\n\r\n", head + b"Content-Length: 100\r\n\r\n{",
        head + b"Upgrade: websocket\r\nConnection: upgrade\r\nContent-Length: 2\r\n\r\n{}",
        head + b"Content-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}", head.replace(b"json", b"\xff") + b"\r\n",
    ]  # fmt: skip
    draw = random.Random(4)
    while len(found) < count:
        found.append(mutated(plain, draw))
    return found


def hostile_documents(server: Running, count: int) -> Tally:
    """Archives that unpack to gigabytes, names that lead out, entities, and documents with random changes."""
    tally = Tally("hostile documents")
    cases: list[tuple[str, str, Callable[[], bytes]]] = [(name, "x.docx", make) for name, make in BOMBS.items()]
    cases += [(name, "x.docx", lambda name=name: docx("", **{name: b"x"})) for name in TRAVERSAL]  # type: ignore[misc]
    draw, word = random.Random(5), docx("<w:p><w:r><w:t>a b c</w:t></w:r></w:p>")
    for number in range(count):
        name = draw.choice(["x.docx", "x.pptx", "x.html", "x.srt", "x.po", "x.csv", "x.md", "x.exe", "x"])
        cases.append((f"{number} {name}", name, lambda: mutated(word, draw)))
    for case, name, make in cases:
        status, text = _post(server, "/translate_file", files={"file": (name, make())}, data=FIELDS)
        verdict = judge(status)
        if "root:" in text:
            verdict = "silent"
        tally.add(case, verdict, text)
    return tally


def _post(server: Running, path: str, **settings: Any) -> tuple[int | None, str]:
    try:
        with httpx.Client(base_url=server.url, timeout=SECONDS, trust_env=False) as client:
            answer = client.post(path, **settings)
    except httpx.TimeoutException:
        return None, ""
    return answer.status_code, answer.text


SIZE = 48_000
TEXTS: dict[str, tuple[str, dict[str, Any]]] = {
    "no space": ("x" * SIZE, {}),
    "no space, as HTML": ("x" * SIZE, {"format": "html"}),
    "attributes": ("<p " + "a=1 " * (SIZE // 4) + ">a</p>", {"format": "html"}),
    "one attribute": ('<p a="' + "x" * SIZE + '">a</p>', {"format": "html"}),
    "open tags": ("<b>" * (SIZE // 3), {"format": "html"}),
    "tags that do not end": ("<a " * (SIZE // 3), {"format": "html"}),
    "ampersands": ("&" * SIZE, {"format": "html"}),
    "entities": ("&amp;" * (SIZE // 5), {"format": "html"}),
    "comments": ("<!--" * (SIZE // 4), {"format": "html"}),
    "stars": ("*a" * (SIZE // 2), {}),
    "brackets": ("[" * SIZE, {}),
    "links": ("[a](" * (SIZE // 4), {}),
    "backticks": ("`" * SIZE, {}),
    "digits": ("1" * SIZE, {}),
    "numbers": ("1.1," * (SIZE // 4), {}),
    "dots": ("." * SIZE, {}),
    "ends of sentences": ("a. " * (SIZE // 3), {}),
    "quotes": ('"' * SIZE, {}),
    "spaces": (" " * SIZE, {}),
    "line breaks": ("\n" * SIZE, {}),
    "combining marks": ("a" + "\u0301" * SIZE, {}),
    "word joiners": ("a\u2060" * (SIZE // 2), {}),
    "addresses": ("a@b." * (SIZE // 4), {}),
    "URLs": ("http://a." * (SIZE // 9), {}),
    "a glossary in each word": ("a " * (SIZE // 2), {"glossary": {"a": "b"}}),
    "kept words": ("ab" * (SIZE // 2), {"keep": ["ab", "ba"]}),
}


def superlinear_texts(server: Running) -> Tally:
    """Texts that some pattern may take too long for, within the limits; none may take more than the minute that a request has. Each
    is sent as a text and as a document."""
    tally = Tally("texts for slow patterns")
    for name, (text, fields) in TEXTS.items():
        status, said = _post(server, "/translate", json={**BODY, "q": text, **fields})
        tally.add(name, judge(status), said)
        kind = "html" if fields.get("format") == "html" else "md"
        upload = {"file": (f"x.{kind}", text.encode())}
        status, said = _post(server, "/translate_file", files=upload, data=FIELDS)
        tally.add(f"{name}, .{kind}", judge(status), said)
    return tally


def unkept_promises(server: Running) -> Tally:
    """What is asked for and cannot be done must be refused, or the reply must say so."""
    tally = Tally("constraints that cannot be met")
    cases: list[dict[str, Any]] = [
        {"phrases": ["x" * 90]},
        {"phrases": ["\u2047"]},
        {"phrases": ["</s>"]},
        {"phrases": ["日本語"]},
        {"phrases": ["a"] * 16},
        {"prefix": "日本語"},
        {"glossary": {"a": "</s>"}},
        {"glossary": {"a": "日本語"}},
        {"glossary": {"a": "\u2581"}},
        {"glossary": {"a": " "}},
        {"keep": ["日本語"], "q": "a 日本語 c"},
    ]
    for fields in cases:
        body = {**BODY, **fields}
        status, text = _post(server, "/translate", json=body)
        verdict = judge(status)
        if status == 200 and not is_kept(body, json.loads(text)):
            verdict = "silent"
        tally.add(json.dumps(fields, ensure_ascii=False), verdict, text)
    return tally


def is_kept(body: dict[str, Any], reply: dict[str, Any]) -> bool:
    """Whether the translation has what was asked for, or the reply has a field that says what it lacks."""
    if set(reply) - {"translatedText"}:
        return True
    wanted = [
        *body.get("phrases", []),
        *body.get("glossary", {}).values(),
        *body.get("keep", []),
        body.get("prefix", ""),
    ]
    return all(one.strip() in reply["translatedText"] for one in wanted)


def strangers(server: Running) -> Tally:
    """Requests by other names and from other pages."""
    tally = Tally("other names and other pages")
    for header, value in [
        ("host", "evil.example"),
        ("host", f"evil.example:{server.port}"),
        ("host", "127.0.0.1.evil.example"),
        ("host", "localhost@evil.example"),
        ("origin", "http://evil.example"),
        ("origin", "null"),
        ("origin", "http://localhost.evil.example"),
    ]:
        with server.client(headers={header: value}) as client:
            for answer in (client.get("/training"), client.post("/translate", data=BODY)):
                tally.add(
                    f"{header}: {value}", "survived" if answer.status_code in (403, 421) else "silent", answer.text
                )
    return tally


def documents_on_disk(scratch: Path) -> Tally:
    """A tiny disk, and a server that is killed with documents on it."""
    tally = Tally("documents on a full disk, and after kill -9")
    disk = Path(tempfile.mkdtemp(dir=scratch))
    is_mounted = _mount(disk, "128k")
    limit = "" if is_mounted else "import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000))\n"
    code = f"""
import os
os.environ["TMPDIR"] = {str(disk)!r}
from regard.serve.web import server
keep = server.keep_memory
def fill():
    keep()
    {limit.replace(chr(10), "; ").strip("; ") or "pass"}
server.keep_memory = fill
"""
    try:
        with running(code=code) as server:
            for size in (5, 500_000, 3_000_000):
                upload = {"file": ("a.txt", (b"a b c\n" * (size // 6 + 1))[:size])}
                start = time.monotonic()
                for path, fields in (("/translate_file", FIELDS), ("/v2/document", {"target_lang": "tgt"})):
                    status, text = _post(server, path, files=upload, data=fields)
                    is_said = status in (200, 413) or (status == 503 and "no room" in text)
                    late = time.monotonic() - start > 30
                    tally.add(f"{size} bytes, {path}", "hang" if late else "survived" if is_said else "traceback", text)
            server.process.send_signal(signal.SIGKILL)
            server.process.wait()
        with running(code=code) as server:
            left = [path for path in disk.iterdir() if path.is_dir()]
            tally.add("what a killed server left", "survived" if len(left) == 1 else "silent", str(left))
            server.stop()
        tally.add("what a stopped server left", "survived" if not list(disk.iterdir()) else "silent")
    finally:
        if is_mounted:
            subprocess.run(["umount", str(disk)], check=True)
    return tally


def _mount(folder: Path, size: str) -> bool:
    """A file system of this size, if this user may mount one."""
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "regard-attack", str(folder)]
    try:
        return subprocess.run(command, capture_output=True).returncode == 0
    except OSError:
        return False
