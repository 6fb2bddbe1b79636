"""The numbers that an imported translator gives to pieces: its own, not those of its sentencepiece models."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from regard.errors import UserError
from regard.files import read_json, write_atomic

SOURCE_FILE, TARGET_FILE = "vocab.json", "target_vocab.json"


@dataclass(frozen=True)
class Special:
    """Ids that are no text."""

    unk: int
    start: int  # what a translation begins with; many imported models take the padding for it
    end: int
    pad: int
    forbidden: tuple[int, ...]  # ids that no translation may contain


class Vocabulary:
    """Pieces of both languages and their ids, and what is said in front of a sentence: `>>deu<<`."""

    def __init__(self, source: dict[str, int], target: dict[str, int], special: Special, vocab_size: int) -> None:
        """`target` is equal to `source` where the languages share one vocabulary."""
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
        """The language code that a text begins with, for models of many languages, and the rest; mostly there is none."""
        end = text.find("<<") + 2 if text.startswith(">>") else 0
        return (text[:end], text[end:]) if end > 2 else ("", text)

    def ids(self, pieces: Sequence[str], of_source: bool) -> list[int]:
        known = self.source if of_source else self.target
        return [known.get(piece, self.special.unk) for piece in pieces]

    def pieces(self, ids: Iterable[int], of_source: bool = False) -> list[str]:
        """The pieces behind the ids of a translation, or of a source, to be shown to people."""
        known = self._source_pieces if of_source else self._target_pieces
        return [known.get(int(i), f"<{i}>") for i in ids]

    def text_pieces(self, ids: Iterable[int]) -> list[str]:
        """Those among the pieces of a translation that are text."""
        special = (self.special.unk, self.special.start, self.special.end, self.special.pad)
        return [self._target_pieces[int(i)] for i in ids if i not in special and int(i) in self._target_pieces]

    def to_bytes(self) -> bytes:
        """All that decides about ids, for a fingerprint."""
        return json.dumps([self.source, self.target, asdict(self.special), self.vocab_size]).encode()

    @classmethod
    def from_json(cls, content: Any) -> Vocabulary:
        """What `to_bytes` wrote."""
        source, target, special, vocab_size = content
        return cls(source, target, Special(**{**special, "forbidden": tuple(special["forbidden"])}), vocab_size)

    def save(self, folder: Path) -> None:
        """Write the pieces; the special ids are for tokenizer.json."""
        for name, pieces in self.files().items():
            write_atomic(folder / name, json.dumps(pieces, ensure_ascii=False, indent=0) + "\n")

    def files(self) -> dict[str, dict[str, int]]:
        both = {SOURCE_FILE: self.source, TARGET_FILE: self.target}
        return both if self.target != self.source else {SOURCE_FILE: self.source}


def read_vocabulary(folder: Path, description: dict[str, Any], where: Path) -> Vocabulary:
    """Read what `save` wrote; `description` is the content of tokenizer.json, which lies at `where`."""
    try:
        special = Special(**{**description["special"], "forbidden": tuple(description["special"]["forbidden"])})
        vocab_size = description["vocab_size"]
    except (KeyError, TypeError):
        raise UserError(
            f"{where}: `special` must name the ids unk, start, end, pad and forbidden, but does not"
        ) from None
    source = read_pieces(folder / SOURCE_FILE)
    target = read_pieces(folder / TARGET_FILE) if (folder / TARGET_FILE).exists() else source
    return Vocabulary(source, target, special, vocab_size)


def read_pieces(path: Path) -> dict[str, int]:
    """A JSON object from pieces to ids, each id once."""
    pieces = read_json(path)
    seen: dict[int, str] = {}
    for piece, i in pieces.items():
        if not isinstance(i, int) or i < 0:
            raise UserError(f"{path}: the id of piece {piece!r} must be a whole number from 0 on, but is {i!r}")
        if i in seen:
            raise UserError(f"{path}: pieces {seen[i]!r} and {piece!r} must not have one id, but both have {i}")
        seen[i] = piece
    return pieces
