"""The names that the server answers to, and the pages whose requests it accepts.

A page on the web can make its own name resolve to this machine (DNS rebinding), and then read answers as if they came from its own
server; but the browser still sends that name as `Host`. It also names the page in `Origin` with each request that can change
something. Programs that are not browsers send no `Origin`.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from regard.errors import UserError
from regard.serve.web.status import HttpRefused

_NAME = re.compile(r"(\*|(\*?\.)?[a-z0-9_-]+(\.[a-z0-9_-]+)*|[0-9a-f:.]+)")
_AUTHORITY = re.compile(r"(\[[0-9a-fA-F:.%]+\]|[^:@/\\?#\s\[\]]+)(?::(\d{1,5}))?")
_EXTENSIONS = frozenset(
    {"chrome-extension", "moz-extension", "safari-web-extension"}
)  # not pages: a user installed them
# What anybody may see: the page itself, not what it shows.
_PUBLIC = frozenset({"/", "/docs", "/openapi.json", "/spec", "/health", "/ready", "/languages", "/v2/languages"})
_READING = frozenset({"GET", "HEAD"})


@dataclass(frozen=True)
class Hosts:
    """The names of `--host` and `--allow-host`; localhost and the loopback addresses are always among them.

    A server that listens on all addresses (`any_address`) answers to each, and to names without a dot, such as those of machines
    and containers in a local network: a page on the web has neither."""

    names: Sequence[str] = ()
    any_address: bool = False
    pages: Sequence[str] = ()  # of --allow-host: pages there are the server's own, even if a proxy changes `Host`

    @classmethod
    def of(cls, bound: str, allowed: Sequence[str]) -> Hosts:
        """For a server bound to this address or name, with the values of `--allow-host`."""
        names = []
        for text in allowed:
            name = text.strip().lower().rstrip(".")
            if name.startswith("[") and name.endswith("]"):
                name = name[1:-1]
            if not _NAME.fullmatch(name):
                raise UserError(
                    f"--allow-host must be a name such as translate.example.org, .example.org for all names in it, or * for "
                    f"any, but is {text!r}; leave out scheme and port"
                )
            names.append(name.removeprefix("*") if name.startswith("*.") else name)
        address = _address(bound)
        if address is None or not address.is_unspecified:
            return cls([*names, bound.lower()], pages=names)
        machine = socket.gethostname().lower()
        return cls([*names, machine, f"{machine.partition('.')[0]}.local"], any_address=True, pages=names)

    def allow(self, name: str) -> bool:
        """Whether the server answers to this name, without a port.

        >>> hosts = Hosts.of("192.0.2.5", [".example.org"])
        >>> [hosts.allow(name) for name in ("localhost", "192.0.2.5", "a.example.org", "evil.example", "192.0.2.6")]
        [True, True, True, False, False]
        """
        name = name.lower().rstrip(".")
        if name == "localhost" or name.endswith(".localhost") or "*" in self.names:
            return True
        if (address := _address(name)) is not None and (address.is_loopback or self.any_address):
            return True
        return (self.any_address and "." not in name) or _is_among(name, self.names)

    def check(self, method: str, path: str, headers: Sequence[tuple[bytes, bytes]]) -> None:
        """Raise `HttpRefused` for a name that is not this server's, or for a request that a page of another server makes."""
        host = _last(headers, b"host")
        name, port = split_host(host) if host else ("", None)  # HTTP/1.0 needs none; browsers always send one
        if host and (name is None or not self.allow(name)):
            raise HttpRefused(
                421,
                "this server does not answer to the name in the Host header; its operator can add it with --allow-host",
            )
        origin = _last(headers, b"origin")
        is_public = method in _READING and (path in _PUBLIC or path.startswith("/static/"))
        if origin and not is_public and not (_is_same(origin, name, port) or self._is_own(origin)):
            raise HttpRefused(403, "requests from pages of other servers are refused (the Origin header names one)")

    def _is_own(self, origin: str) -> bool:
        """Whether a page is at a name of `--allow-host`."""
        try:
            parts = urlsplit(origin)
            name = parts.hostname
        except ValueError:
            return False
        return parts.scheme in ("http", "https") and name is not None and _is_among(name.rstrip("."), self.pages)


def _is_among(name: str, names: Sequence[str]) -> bool:
    return any(name == one or (one.startswith(".") and (name.endswith(one) or name == one[1:])) for one in names)


def split_host(host: str) -> tuple[str | None, int | None]:
    """The name and the port in a Host header; None if it is malformed.

    >>> split_host("localhost:8000"), split_host("[::1]"), split_host("a@b")
    (('localhost', 8000), ('::1', None), (None, None))
    """
    found = _AUTHORITY.fullmatch(host.strip())
    if found is None:
        return None, None
    return found[1].strip("[]"), int(found[2]) if found[2] else None


def _is_same(origin: str, name: str | None, port: int | None) -> bool:
    """Whether a page came from this server. Its scheme may differ behind a proxy, and its port if the proxy does not pass it on."""
    try:
        parts = urlsplit(origin)
        own, own_port = parts.hostname, parts.port
    except ValueError:
        return False
    if parts.scheme in _EXTENSIONS:
        return True
    if parts.scheme not in ("http", "https") or own is None or name is None:
        return False
    default = 443 if parts.scheme == "https" else 80
    return own.lower() == name.lower() and (port is None or port == (own_port or default))


def _last(headers: Sequence[tuple[bytes, bytes]], wanted: bytes) -> str:
    return next((value.decode("latin-1") for name, value in reversed(headers) if name == wanted), "")


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        return None
