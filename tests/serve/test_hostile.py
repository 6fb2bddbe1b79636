"""Uploads that are made to do harm, sent to a real server: refused soon, without taking much memory, and without a word of them
in its answers or its log."""

from __future__ import annotations

import http.client
import io
import os
import struct
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.serve.server import Running, running, until
from tests.translation.documents.test_documents import TRAVERSAL, WORD, docx, packed

FIELDS = {"source": "src", "target": "tgt"}
MB = 1_000_000
pytestmark = pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux's /proc")


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running() as one:
        send(one, "x.docx", docx("<w:p/>"))  # so that what documents need is loaded
        yield one


def send(server: Running, name: str, content: bytes) -> tuple[int, str]:
    answer = server.post("/translate_file", files={"file": (name, content)}, data=FIELDS)
    return answer.status_code, answer.text


def zeros(size: int) -> bytes:
    """So many zero bytes as a deflate stream, without making them: one piece of it, again and again."""
    compressor = zlib.compressobj(9, zlib.DEFLATED, -15)
    piece = compressor.compress(bytes(MB)) + compressor.flush(zlib.Z_FULL_FLUSH)
    return piece * (size // MB) + compressor.flush()


def bomb(size: int, said: int) -> bytes:
    """A .docx with a member that unpacks to `size` bytes and says that it has `said`."""
    stream = zeros(size)
    archive = docx("<w:p/>", **{"word/bomb.xml": b""})
    with zipfile.ZipFile(io.BytesIO(archive)) as file:
        members = [(info.filename, file.read(info)) for info in file.infolist()]
    out, directory = io.BytesIO(), b""
    for name, content in members:
        offset, raw = out.tell(), name.encode()
        is_bomb = name == "word/bomb.xml"
        data = stream if is_bomb else zlib.compress(content, 9, -15)
        sizes = struct.pack("<III", zlib.crc32(content), len(data), said if is_bomb else len(content))
        out.write(b"PK\x03\x04" + struct.pack("<HHHHH", 20, 0, 8, 0, 33) + sizes + struct.pack("<HH", len(raw), 0))
        out.write(raw + data)
        directory += b"PK\x01\x02" + struct.pack("<HHHHHH", 20, 20, 0, 8, 0, 33) + sizes
        directory += struct.pack("<HHHHHII", len(raw), 0, 0, 0, 0, 0, offset) + raw
    start = out.tell()
    out.write(
        directory + b"PK\x05\x06" + struct.pack("<HHHHIIH", 0, 0, len(members), len(members), len(directory), start, 0)
    )
    return out.getvalue()


def xml(content: str) -> bytes:
    return docx("", **{"word/document.xml": content.encode()})


LAUGHS = "".join(f'<!ENTITY l{n} "{f"&l{n - 1};" * 10}">' for n in range(1, 10))
BODY = f'<w:document xmlns:w="{WORD}"><w:body>'

BOMBS = {
    "zip, said": lambda: bomb(4_000 * MB, 4_000 * MB),
    "zip, not said": lambda: bomb(4_000 * MB, 1_000),
    "zip, just within the limit": lambda: bomb(67 * MB, 67 * MB),
    "zip in a zip": lambda: packed({"word/document.xml": bomb(4_000 * MB, 1_000), "[Content_Types].xml": b""}),
    "many members": lambda: packed({f"word/{n}.xml": b"" for n in range(20_000)}),
    "a billion laughs": lambda: xml(f'<!DOCTYPE x [<!ENTITY l0 "ha">{LAUGHS}]>{BODY}<w:p>&l9;</w:p>'),
    "one long entity, often": lambda: xml(f'<!DOCTYPE x [<!ENTITY a "{"a" * 100_000}">]>{BODY}{"&a;" * 100_000}'),
    "an entity from outside": lambda: xml(f'<!DOCTYPE x [<!ENTITY a SYSTEM "file:///etc/passwd">]>{BODY}&a;'),
    "deep": lambda: xml(BODY + "<w:p>" * 400_000),
    "many short tags": lambda: xml(BODY + "<w:p/>" * 600_000),
    "long attributes": lambda: xml(BODY + f'<w:p a="{"x" * 9 * MB}"/>'),
}


def memory(server: Running, name: str) -> float:
    """MB, as the system says of the process."""
    lines = Path(f"/proc/{server.process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:")) / 1000


def seconds(server: Running) -> float:
    """That it has computed so far: what others do on this machine does not count."""
    user, system = Path(f"/proc/{server.process.pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


@pytest.mark.parametrize("name", BOMBS)
def test_bombs_are_refused_within_two_seconds_and_300_mb(server: Running, name: str) -> None:
    content = BOMBS[name]()
    assert len(content) < 10 * MB  # else its length alone would refuse it
    idle = memory(server, "VmRSS")
    Path(f"/proc/{server.process.pid}/clear_refs").write_text("5")  # forget the peak
    start = seconds(server)
    status, text = send(server, "x.docx", content)
    assert status in (400, 413), text
    assert seconds(server) - start < 2
    assert memory(server, "VmHWM") - idle < 300


def status_of(server: Running, path: str) -> int:
    """Of a path as it stands: httpx would take ".." away before it asks."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    finally:
        connection.close()


def test_thirty_names_that_lead_out_are_refused_and_write_nothing(server: Running) -> None:
    assert len(set(TRAVERSAL)) == 30
    start = seconds(server)
    for name in TRAVERSAL:
        status, text = send(server, "x.docx", docx("", **{name: b"x"}))
        assert (status, text) == (400, '{"error":"file must not have member names that lead outside the archive"}')
        status, text = send(server, f"{name}.txt", b"a b")  # the file's own name is only looked at for its ending
        assert status in (200, 400), text
        assert status_of(server, f"/download_file/{quote(name, safe='')}") == 404
    assert seconds(server) - start < 2 * len(TRAVERSAL)


def test_neither_answers_nor_logs_hold_names_or_texts_of_documents() -> None:
    with running() as server:
        answers = [
            send(server, "SECRET.txt", b"SECRET a b"),
            send(server, "SECRET.exe", b"SECRET"),
            send(server, "SECRET.docx", b"SECRET"),
            send(server, "SECRET.docx", xml("<SECRET>")),
            send(server, "SECRET.docx", docx("", **{"../SECRET": b"x"})),
            send(server, "SECRET.csv", b'SECRET,"'),
            send(server, "SECRET.po", b'msgid "SECRET'),
            send(server, "SECRET.txt", b"SECRET \xff"),
        ]
        assert [status for status, _ in answers] == [200, *[400] * 7]
        assert not [text for _, text in answers if "SECRET" in text]
        upload = {"file": ("SECRET.docx", b"SECRET")}
        sent = server.post("/v2/document", files=upload, data={"target_lang": "tgt"}).json()
        path, key = f"/v2/document/{sent['document_id']}", {"document_key": sent["document_key"]}
        until(lambda: server.post(path, json=key).json()["status"] != "translating")
        told = server.post(path, json=key).text
        assert "error_message" in told and "SECRET" not in told
        lines = server.stop()
    assert not [line for line in lines if "SECRET" in line]
