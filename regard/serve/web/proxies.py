"""Proxies in front of the server: whose word is taken for the client's address and scheme."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from regard.errors import UserError

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True)
class Proxies:
    """The networks of `--trusted-proxy`."""

    networks: Sequence[Network] = ()

    @classmethod
    def parse(cls, texts: Sequence[str]) -> Proxies:
        """From addresses or networks, such as 10.0.0.5 or 10.0.0.0/8.

        >>> Proxies.parse(["10.0.0.0/8"]).trusts("10.1.2.3")
        True
        """
        networks = []
        for text in texts:
            try:
                networks.append(ipaddress.ip_network(text, strict=False))
            except ValueError:
                raise UserError(
                    f"--trusted-proxy must be an address or a network such as 10.0.0.0/8, but is {text!r}"
                ) from None
        return cls(networks)

    def trusts(self, host: str) -> bool:
        """Whether this is the address of a proxy."""
        address = _address(host) if self.networks else None
        return address is not None and any(address in network for network in self.networks)

    def client_of(self, host: str, forwarded: Iterable[bytes]) -> str:
        """The client's address, from the peer's and the values of `X-Forwarded-For`. Each proxy appends whom it heard from, so the
        last address that is not a trusted proxy's is the client's; what stands before it anyone may have written.

        >>> Proxies.parse(["10.0.0.1"]).client_of("10.0.0.1", [b"192.0.2.9, 198.51.100.7"])
        '198.51.100.7'
        >>> Proxies().client_of("10.0.0.1", [b"198.51.100.7"])
        '10.0.0.1'
        """
        if not self.trusts(host):
            return host
        said = b",".join(forwarded).decode("latin-1").split(",")
        for part in reversed(said):
            name = part.strip()
            if _address(name) is None:  # nothing sensible beyond this
                return host
            if not self.trusts(name):
                return name
            host = name
        return host


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


def is_loopback(host: str) -> bool:
    """Whether this is an address of the same machine.

    >>> is_loopback("127.0.0.9"), is_loopback("::1"), is_loopback("192.0.2.1")
    (True, True, False)
    """
    address = _address(host)
    return address is not None and address.is_loopback
