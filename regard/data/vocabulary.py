"""The ids that an imported model gives to pieces: its own, not those of its sentencepiece models."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from regard.bounds import check_whole
from regard.errors import UserError
from regard.escaping import shorten
from regard.files import read_json, write_atomic

Side = Literal["source", "target"]

SOURCE_FILE, TARGET_FILE = "vocab.json", "target_vocab.json"


@dataclass(frozen=True)
class Special:
    """Ids that are not text."""

    unk: int
    start: int  # the decoder's first input; many imported models use the padding for it
    end: int
    pad: int
    forbidden: tuple[int, ...]  # ids that must never be generated


class Vocabulary:
    """The pieces of both sides and their ids."""

    def __init__(self, source: dict[str, int], target: dict[str, int], special: Special, vocab_size: int) -> None:
        """`target` equals `source` where both sides share one vocabulary."""
        self.source, self.target, self.special, self.vocab_size = source, target, special, vocab_size

    def __reduce__(self) -> tuple[Any, ...]:
        return Vocabulary, (self.source, self.target, self.special, self.vocab_size)

    @cached_property
    def _target_pieces(self) -> dict[int, str]:
        return {i: piece for piece, i in self.target.items()}

    @cached_property
    def _source_pieces(self) -> dict[int, str]:
        return {i: piece for piece, i in self.source.items()}

    def split_code(self, text: str) -> tuple[str, str]:
        """Split off the code that a text begins with, such as `>>deu<<` for multilingual models; ("", text) without one."""
        end = text.find("<<") + 2 if text.startswith(">>") else 0
        return (text[:end], text[end:]) if end > 2 else ("", text)

    def ids(self, pieces: Sequence[str], of_source: bool) -> list[int]:
        """The ids of pieces; `unk` for those that the side's vocabulary lacks."""
        known = self.source if of_source else self.target
        return [known.get(piece, self.special.unk) for piece in pieces]

    def pieces(self, ids: Iterable[int], of_source: bool = False) -> list[str]:
        """The pieces of target ids, or of source ids, for display."""
        known = self._source_pieces if of_source else self._target_pieces
        return [known.get(int(i), f"<{i}>") for i in ids]

    def text_pieces(self, ids: Iterable[int]) -> list[str]:
        """The pieces of target ids, without those that are not text."""
        special = (self.special.unk, self.special.start, self.special.end, self.special.pad)
        return [self._target_pieces[int(i)] for i in ids if i not in special and int(i) in self._target_pieces]

    def to_bytes(self) -> bytes:
        """Everything that determines ids, for a fingerprint."""
        return json.dumps([self.source, self.target, asdict(self.special), self.vocab_size]).encode()

    @classmethod
    def from_json(cls, content: Any) -> Vocabulary:
        """The inverse of `to_bytes`, after json.loads."""
        source, target, special, vocab_size = content
        return cls(source, target, Special(**{**special, "forbidden": tuple(special["forbidden"])}), vocab_size)

    def save(self, folder: Path) -> None:
        """Write the pieces; the special ids go into tokenizer.json."""
        for name, pieces in self.files().items():
            write_atomic(folder / name, json.dumps(pieces, ensure_ascii=False, indent=0) + "\n")

    def files(self) -> dict[str, dict[str, int]]:
        """File names and their pieces: two files, or one where both sides share it."""
        both = {SOURCE_FILE: self.source, TARGET_FILE: self.target}
        return both if self.target != self.source else {SOURCE_FILE: self.source}


def read_vocabulary(folder: Path, description: dict[str, Any], where: Path) -> Vocabulary:
    """Read what `save` wrote; `description` is the content of tokenizer.json, which lies at `where`."""
    try:
        special = Special(**{**description["special"], "forbidden": tuple(description["special"]["forbidden"])})
        vocab_size = description["vocab_size"]
        check_whole("vocab_size", vocab_size, 1)
        for i in (special.unk, special.start, special.end, special.pad, *special.forbidden):
            check_whole("an id", i, 0, vocab_size - 1)
    except (KeyError, TypeError, UserError):
        raise UserError(
            f"{where}: `special` must give the ids unk, start, end, pad and forbidden, all below `vocab_size`, but does not"
        ) from None
    source = read_pieces(folder / SOURCE_FILE)
    target = read_pieces(folder / TARGET_FILE) if (folder / TARGET_FILE).exists() else source
    if (largest := max(*source.values(), *target.values(), 0)) >= vocab_size:
        raise UserError(
            f"{where}: vocab_size must be above every id of a piece, but {vocab_size} is not above {largest}"
        )
    return Vocabulary(source, target, special, vocab_size)


def read_pieces(path: Path) -> dict[str, int]:
    """Read a JSON object from pieces to ids, each id once."""
    pieces = read_json(path)
    seen: dict[int, str] = {}
    for piece, i in pieces.items():
        if isinstance(i, bool) or not isinstance(i, int) or i < 0:
            raise UserError(
                f"{path}: the id of piece {shorten(piece)} must be an integer of at least 0, but is {shorten(i)}"
            )
        if i in seen:
            raise UserError(
                f"{path}: pieces {shorten(seen[i])} and {shorten(piece)} must have different ids, but both have {i}"
            )
        seen[i] = piece
    return pieces
