"""API keys: who may use the server, and how much.

    {"keys": [{"name": "alice", "sha256": "...", "requests_per_minute": 60, "characters_per_minute": 20000}]}

Only the SHA-256 of a key is stored; a key has 256 random bits, so its hash needs no salt. The rates are optional.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import math
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from regard.errors import UserError
from regard.files import read_json, write_atomic
from regard.serve.refusal import Busy, Forbidden


@dataclass
class Bucket:
    """A token bucket that refills at `per_minute` units a minute and holds one minute's worth."""

    per_minute: float
    level: float = field(init=False)
    filled: float = field(init=False)
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self.level, self.filled = self.per_minute, self.clock()

    def take(self, amount: float, what: str) -> None:
        """Take this many units, or raise Busy with the seconds until there are enough."""
        now = self.clock()
        self.level = min(self.per_minute, self.level + (now - self.filled) / 60 * self.per_minute)
        self.filled = now
        # A request for more than a minute's worth passes when the bucket is full; the rest is paid off afterwards.
        needed = min(amount, self.per_minute)
        if self.level < needed:
            seconds = math.ceil((needed - self.level) * 60 / self.per_minute)
            raise Busy(f"this key may use {self.per_minute:g} {what} a minute; try again in {seconds} s", seconds)
        self.level -= amount


@dataclass
class Key:
    """One API key and its rates; None: unlimited."""

    name: str
    sha256: str
    requests: Bucket | None = None
    characters: Bucket | None = None

    def charge(self, requests: int, characters: int) -> None:
        """Charge for a request, or raise Busy."""
        if self.requests is not None:
            self.requests.take(requests, "requests")
        if self.characters is not None:
            self.characters.take(max(1, characters), "characters")

    def owe(self, characters: int) -> None:
        """Charge for work already done; later requests wait until it is paid off."""
        if self.characters is not None:
            self.characters.level -= characters


class Keys:
    """All keys; without any, everybody is admitted."""

    def __init__(self, keys: Sequence[Key] = ()) -> None:
        self._keys = list(keys)

    @property
    def are_needed(self) -> bool:
        """Whether clients must send a key."""
        return bool(self._keys)

    def find(self, given: str | None) -> Key | None:
        """The key that a client sent; None if none is needed. Raises Forbidden if it is missing or unknown."""
        if not self._keys:
            return None
        digest = hash_key(given or "")
        # Every key is compared, in constant time, so that timing reveals nothing.
        found = [key for key in self._keys if hmac.compare_digest(key.sha256, digest)]
        if not given or not found:
            raise Forbidden("api_key is missing or unknown; ask the operator of this server for one")
        return found[0]


def hash_key(key: str) -> str:
    """The SHA-256 of a key in hexadecimal."""
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()


def load_keys(path: Path) -> Keys:
    """Read a file of keys."""
    entries = read_json(path).get("keys")
    if not isinstance(entries, list) or not entries:
        raise UserError(
            f"{path}: field keys must be a list of keys; add one with: regard serve --keys {path} --new-key NAME"
        )
    return Keys([_read_key(path, number, entry) for number, entry in enumerate(entries)])


def _read_key(path: Path, number: int, entry: Any) -> Key:
    where = f"{path}: keys[{number}]"
    if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
        raise UserError(f"{where}.name must be a string")
    digest = entry.get("sha256")
    if not isinstance(digest, str) or len(digest) != 64 or set(digest) - set("0123456789abcdef"):
        raise UserError(f"{where}.sha256 must be 64 hexadecimal digits")
    if unknown := set(entry) - {"name", "sha256", "requests_per_minute", "characters_per_minute"}:
        raise UserError(f"{where}.{min(unknown)} is not known; remove it")
    buckets = []
    for name in ("requests_per_minute", "characters_per_minute"):
        rate = entry.get(name)
        if rate is not None and (isinstance(rate, bool) or not isinstance(rate, int | float) or rate <= 0):
            raise UserError(f"{where}.{name} must be a number above 0")
        buckets.append(None if rate is None else Bucket(float(rate)))
    return Key(entry["name"], digest, *buckets)


def add_key(path: Path, name: str) -> str:
    """Create a key, store its hash under this name and return it; it cannot be shown again."""
    content = read_json(path) if path.exists() else {"keys": []}
    if not isinstance(content.get("keys"), list):
        raise UserError(f"{path}: field keys must be a list of keys")
    if any(isinstance(entry, dict) and entry.get("name") == name for entry in content["keys"]):
        raise UserError(f"{path}: there is a key named {name} already; choose another name, or remove that entry")
    key = secrets.token_urlsafe(32)
    content["keys"].append({"name": name, "sha256": hash_key(key)})
    write_atomic(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n", is_private=True)
    return key
