"""Damage to files, always the same: what a disk, a transfer, an editor or an attacker does to them."""

from __future__ import annotations

import random
from collections.abc import Iterator

_VALUES = (b"1e999", b"-1", b"0", b"null", b'"x"', b"[]", b"{}", b"true", b"NaN", b"1e-320", b"10" * 40, b"1" * 5000)
_TEXTS = (
    b"\0",
    b"\xff",
    b"\r\n",
    b'"',
    b"\\u0000",
    b"\\ud800",
    b"[" * 100_000,
    b'{"a":' * 100_000,
    b"\xed\xa0\x80",
    b"=",
)


def mutations(content: bytes, count: int, seed: str) -> Iterator[bytes]:
    """`count` damaged versions of a file's content; the same for the same seed."""
    draw = random.Random(seed)
    kinds = [_flip, _cut, _delete, _repeat, _insert, _exchange, _number, _overwrite, _swap_lines]
    yield b""
    for number in range(count - 1):
        yield kinds[number % len(kinds)](content, draw)


def _place(content: bytes, draw: random.Random) -> int:
    return draw.randrange(len(content))


def _range(content: bytes, draw: random.Random) -> tuple[int, int]:
    start = _place(content, draw)
    return start, start + draw.randint(1, 40)


def _flip(content: bytes, draw: random.Random) -> bytes:
    place = _place(content, draw)
    return content[:place] + bytes([content[place] ^ 1 << draw.randrange(8)]) + content[place + 1 :]


def _cut(content: bytes, draw: random.Random) -> bytes:
    return content[: _place(content, draw)]


def _delete(content: bytes, draw: random.Random) -> bytes:
    start, stop = _range(content, draw)
    return content[:start] + content[stop:]


def _repeat(content: bytes, draw: random.Random) -> bytes:
    start, stop = _range(content, draw)
    return content[:stop] + content[start:stop] + content[stop:]


def _insert(content: bytes, draw: random.Random) -> bytes:
    place = _place(content, draw)
    return content[:place] + draw.choice(_TEXTS) + content[place:]


def _exchange(content: bytes, draw: random.Random) -> bytes:
    one, other = sorted((_place(content, draw), _place(content, draw)))
    size = min(8, other - one)
    return (
        content[:one] + content[other : other + size] + content[one + size : other] + content[one : one + size]
        + content[other + size :]
    )  # fmt: skip


def _number(content: bytes, draw: random.Random) -> bytes:
    """Another value in place of a number: the structure stays."""
    places = [i for i in range(1, len(content)) if content[i : i + 1].isdigit() and content[i - 1] in b" :=[,"]
    if not places:
        return _flip(content, draw)
    start = stop = draw.choice(places)
    while content[stop : stop + 1] and content[stop] in b"0123456789.eE+-_":
        stop += 1
    return content[:start] + draw.choice(_VALUES) + content[stop:]


def _overwrite(content: bytes, draw: random.Random) -> bytes:
    start, stop = _range(content, draw)
    return content[:start] + draw.randbytes(stop - start) + content[stop:]


def _swap_lines(content: bytes, draw: random.Random) -> bytes:
    lines = content.splitlines(keepends=True)
    one, other = draw.randrange(len(lines)), draw.randrange(len(lines))
    lines[one], lines[other] = lines[other], lines[one]
    return b"".join(lines)
