"""Requests that are meant for another server, or come from another server's page."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from regard.errors import UserError
from regard.serve.web.hosts import Hosts, split_host
from regard.serve.web.proxies import Proxies
from regard.serve.web.status import HttpRefused
from tests.serve.server import Running, running

BODY = {"q": "a b c", "source": "src", "target": "tgt"}


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running("--allow-host", "translate.example.org", "--allow-host", ".example.net") as one:
        yield one


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8000", "translate.example.org.evil.example", "192.0.2.1", "a@b"]
)
def test_another_name_is_refused_whatever_is_asked_for(server: Running, host: str) -> None:
    for path in ("/", "/training", "/languages", "/health", "/download_file/x"):
        with server.client(headers={"host": host}) as client:
            answer = client.get(path)
        assert answer.status_code == 421 and "--allow-host" in answer.json()["error"]
        assert host not in answer.text
    with server.client(headers={"host": host}) as client:
        assert client.post("/v2/translate", json={"text": "a", "target_lang": "tgt"}).status_code == 421


@pytest.mark.parametrize(
    "host",
    ["localhost", "LOCALHOST:80", "a.localhost", "127.0.0.1:1", "[::1]:9", "translate.example.org", "x.example.net"],
)
def test_names_of_the_server_are_answered(server: Running, host: str) -> None:
    with server.client(headers={"host": host}) as client:
        assert client.post("/translate", json=BODY).json() == {"translatedText": "c b a"}


def test_a_page_of_another_server_can_neither_ask_nor_read(server: Running) -> None:
    own = server.url.removeprefix("http://")
    for origin in (
        "http://evil.example",
        "null",
        "file://",
        f"http://evil.example:{server.port}",
        "http://127.0.0.1:1",
    ):
        with server.client(headers={"origin": origin}) as client:
            for answer in (
                client.post("/translate", json=BODY),
                client.post("/translate", data=BODY),  # a form, which a page may send anywhere
                client.post("/v2/document", files={"file": ("a.txt", b"a b")}, data={"target_lang": "tgt"}),
                client.get("/training"),
                client.get("/download_file/x.txt"),
            ):
                assert answer.status_code == 403, origin
                assert "Origin" in answer.text
            assert client.get("/health").status_code == 200
    for origin in (f"http://{own}", f"http://{own}".upper(), "moz-extension://6b1f"):
        with server.client(headers={"origin": origin}) as client:
            assert client.post("/translate", json=BODY).status_code == 200
    with server.client(
        headers={"origin": "https://translate.example.org:8443", "host": "translate.example.org"}
    ) as client:
        assert client.post("/translate", json=BODY).status_code == 200  # the proxy kept the port to itself


def test_a_server_on_all_addresses_answers_to_each_and_to_names_that_no_page_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "Box.lan")
    for bound in ("0.0.0.0", "::"):
        hosts = Hosts.of(bound, [])
        assert hosts.allow("192.0.2.1") and hosts.allow("2001:db8::1") and not hosts.allow("evil.example")
        for name in ("box.lan", "BOX", "box.local", "regard"):  # the last is a service of docker compose
            assert hosts.allow(name)
        assert not hosts.allow("other.lan") and not hosts.allow("evil.box.lan")
    assert not Hosts.of("127.0.0.1", []).allow("box")
    assert not Hosts.of("127.0.0.1", []).allow("192.0.2.1")
    assert Hosts.of("myhost", []).allow("MyHost")
    assert Hosts.of("127.0.0.1", ["*"]).allow("evil.example")


def test_pages_of_an_allowed_name_are_the_servers_own_if_a_proxy_changes_the_host() -> None:
    hosts = Hosts.of("127.0.0.1", ["translate.example.org", "*"])
    host = (b"host", b"127.0.0.1:8000")
    hosts.check("POST", "/translate", [host, (b"origin", b"https://translate.example.org")])
    for origin in (b"https://evil.example", b"https://translate.example.org.evil.example", b"http://127.0.0.1:3000"):
        with pytest.raises(HttpRefused):
            hosts.check("POST", "/translate", [host, (b"origin", origin)])


@pytest.mark.parametrize("name", ["https://example.org", "example.org:8000", "", "a b"])
def test_what_is_no_name_is_refused(name: str) -> None:
    with pytest.raises(UserError, match="--allow-host must be a name"):
        Hosts.of("127.0.0.1", [name])


def test_a_request_without_a_host_is_answered() -> None:
    Hosts().check("GET", "/health", [])  # HTTP/1.0, as some health checks send it
    with pytest.raises(HttpRefused):
        Hosts().check("POST", "/translate", [(b"origin", b"http://evil.example")])


@pytest.mark.parametrize("host", ["", "a:b", "a:123456", "[::1", "::1", "a b", "http://a"])
def test_malformed_hosts_have_no_name(host: str) -> None:
    assert split_host(host) == (None, None)


def test_the_client_is_the_last_address_that_no_trusted_proxy_has() -> None:
    proxies = Proxies.parse(["10.0.0.0/8", "::1"])
    said = [b"1.1.1.1, 192.0.2.7", b"10.0.0.2"]
    assert proxies.client_of("10.0.0.1", said) == "192.0.2.7"
    assert proxies.client_of("192.0.2.1", said) == "192.0.2.1"  # not a proxy's word
    assert proxies.client_of("10.0.0.1", []) == "10.0.0.1"
    assert proxies.client_of("10.0.0.1", [b"nonsense"]) == "10.0.0.1"
    assert proxies.client_of("::1", [b"2001:db8::5"]) == "2001:db8::5"
    with pytest.raises(UserError, match="--trusted-proxy must be an address or a network"):
        Proxies.parse(["proxy.example.org"])


def test_behind_a_trusted_proxy_requests_are_limited_by_the_clients_address() -> None:
    """A request whose body does not end stays inside."""
    head = b"POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\nX-Forwarded-For: 1.2.3.4, %s\r\n\r\n{"
    with running("--trusted-proxy", "127.0.0.1", "--limit", "address_connections=2") as server:
        held = []
        for _ in range(2):
            held.append(server.connect())
            held[-1].sendall(head % b"192.0.2.1")
        server.get("/health")
        headers = {"x-forwarded-for": "9.9.9.9, 192.0.2.1"}
        with server.client(headers=headers) as client:
            refused = client.post("/translate", json=BODY)
        assert refused.status_code == 429 and refused.headers["retry-after"] == "1"
        with server.client(headers={"x-forwarded-for": "192.0.2.2"}) as client:
            assert client.post("/translate", json=BODY).status_code == 200
        for connection in held:
            connection.close()
