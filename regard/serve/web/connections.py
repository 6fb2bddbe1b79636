"""Open connections: how many there may be, in all and for each address, which are closed because they are slow, and which make room
when there are too many.

A connection is *waiting* unless a complete request on it is being answered: it is idle, or its request is still arriving. When
the server is full, waiting connections are closed, first those of the addresses that have the most. So a client with a connection
or two gets in, however many another one holds.
"""

from __future__ import annotations

import heapq
import ipaddress
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from regard.errors import UserError
from regard.serve.limits import Limits
from regard.serve.web.proxies import Proxies

_FEWEST = 16  # connections that a server must be able to hold


class Conversation(Protocol):
    """The protocol of a connection, as far as it matters here."""

    @property
    def is_waiting(self) -> bool:
        """Whether no complete request is being answered."""
        ...

    def abort(self) -> None:
        """Close the connection at once."""
        ...

    def close_if_slow(self, now: float) -> str | None:
        """Close the connection if its client is too slow; the reason, or None."""
        ...


@dataclass(eq=False)
class Place:
    """One connection, from `accept` until its socket is closed."""

    address: str
    number: int  # of the socket; unique while it is open
    is_proxy: bool = False  # its connections belong to many clients
    conversation: Conversation | None = None  # None until the event loop has set it up
    is_open: bool = True


def address_key(host: str) -> str:
    """The address that connections are counted by. With IPv6 it is the network, of which a single client may use any address.

    >>> address_key("192.0.2.7"), address_key("::ffff:192.0.2.7"), address_key("2001:db8::1")
    ('192.0.2.7', '192.0.2.7', '2001:db8::/64')
    """
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((address, 64), strict=False))


def most_connections(limits: Limits, open_files: int) -> int:
    """How many connections there may be if this many files may be open; the rest is kept back for models, documents and logs."""
    most = min(limits.connections, open_files - 64 - open_files // 16)
    if most < _FEWEST:
        raise UserError(f"the limit of open files is {open_files}, too few for a server; raise it with: ulimit -n 1024")
    return most


@dataclass
class Connections:
    """All open connections. Used by the event loop only."""

    most: int
    most_of_address: int
    proxies: Proxies = field(default_factory=Proxies)
    closed: Counter[str] = field(default_factory=Counter)  # since they were last reported, by reason
    on_close: Callable[[str], None] = lambda reason: None
    _by_number: dict[int, Place] = field(default_factory=dict)
    _by_address: dict[str, dict[Place, None]] = field(default_factory=dict)  # oldest first

    @classmethod
    def within(cls, limits: Limits, open_files: int, proxies: Proxies | None = None) -> Connections:
        """As the limits say, if the operating system allows it; one address gets at most half of them."""
        most = most_connections(limits, open_files)
        return cls(most, min(limits.address_connections, most // 2), proxies or Proxies())

    def __len__(self) -> int:
        return len(self._by_number)

    @property
    def are_full(self) -> bool:
        """Whether there is no room for another connection."""
        return len(self) >= self.most

    def enter(self, host: str, number: int) -> Place | None:
        """Count a new connection, for which others may be closed; None if there is no room for it."""
        address, is_proxy = address_key(host), self.proxies.trusts(host)
        own = self._by_address.get(address, {})
        if len(own) >= self.most_of_address and not is_proxy:
            oldest = next((place for place in own if _is_waiting(place)), None)
            if oldest is None:
                self.count("address")
                return None
            self._evict(oldest, "address")
        elif self.are_full:
            share = self.most // len(self._by_address)
            if (own and len(own) >= share and not is_proxy) or not self.make_room():
                self.count("full")
                return None
        place = Place(address, number, is_proxy)
        self._by_address.setdefault(address, {})[place] = None
        self._by_number[number] = place
        return place

    def attach(self, number: int, conversation: Conversation) -> None:
        """Name the protocol of a connection, which can now be closed for others."""
        if number in self._by_number:
            self._by_number[number].conversation = conversation

    def leave(self, place: Place) -> None:
        """Forget a connection whose socket is closed; more than once does no harm."""
        if not place.is_open:
            return
        place.is_open = False
        del self._by_number[place.number]
        own = self._by_address[place.address]
        del own[place]
        if not own:
            del self._by_address[place.address]

    def make_room(self) -> int:
        """Close some waiting connections, those of the addresses with the most first, and of these the oldest; returns how many."""
        candidates: list[tuple[int, int, Place]] = []
        for places in self._by_address.values():
            for rank, place in enumerate(reversed(places)):  # newest first
                if _is_waiting(place):
                    candidates.append((0 if place.is_proxy else rank, rank, place))
        # Many at once: the choice takes longer than the closing.
        chosen = heapq.nlargest(max(1, self.most // 16), candidates, key=lambda found: found[:2])
        for _, _, place in chosen:
            self._evict(place, "room")
        return len(chosen)

    def sweep(self, now: float) -> None:
        """Close connections whose clients are too slow. `now` is the event loop's time."""
        for place in list(self._by_number.values()):
            if place.conversation is not None and (reason := place.conversation.close_if_slow(now)):
                self.count(reason)

    def count(self, reason: str) -> None:
        """Count a connection that was closed or refused for this reason."""
        self.closed[reason] += 1
        self.on_close(reason)

    def _evict(self, place: Place, reason: str) -> None:
        assert place.conversation is not None
        self.leave(place)  # now: its socket is closed only when the event loop gets to it
        self.count(reason)
        place.conversation.abort()


def _is_waiting(place: Place) -> bool:
    return place.conversation is not None and place.conversation.is_waiting
