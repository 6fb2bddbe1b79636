"""Text to ids and back with a tokenizer.json of Hugging Face's package `tokenizers`, for imported models. The package is an extra,
imported when such a tokenizer is first used.

No text becomes a control token: their names are changed to ones that no text has before the package reads the file, since some
of its models would take a typed "</s>" for the end of a sentence even if told not to look for special tokens.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any

from regard.bounds import MAX_VOCABULARY, check_whole
from regard.data.vocabulary import Side
from regard.errors import RegardError, UserError
from regard.escaping import shorten

JSON_FILE = "huggingface.json"  # in a bundle's tokenizer folder, where tokenizer.json is Regard's own description
# Before the name of each control token: a code point that Unicode keeps out of all text.
_MARK = "\ufdd0"
_SPACE = "\u2581"
# Text that shows whether a tokenizer can encode anything at all.
_TRIALS = ("a", " ", "Ab 12, c!\n", "é漢\U0001f600\u0301", "\x00\ufffd")


@dataclass(frozen=True)
class Controls:
    """Ids that stand for no text; -1 where a model has none of a kind."""

    vocab_size: int
    unk: int = -1
    start: int = -1  # the decoder's first input, or what opens a text
    end: int = -1
    pad: int = -1
    mask: int = -1
    source_opening: tuple[int, ...] = ()  # before every source of an encoder-decoder; `encode` adds it
    opening: tuple[int, ...] = ()  # before an input of other models
    between: tuple[int, ...] = ()  # between the two texts of a pair
    closing: tuple[int, ...] = ()  # after an input
    stops: tuple[int, ...] = ()  # each ends what is generated
    forbidden: tuple[int, ...] = ()  # must never be generated

    def __post_init__(self) -> None:
        check_whole("controls.vocab_size", self.vocab_size, 1, MAX_VOCABULARY)
        for field in fields(self)[1:]:
            value = getattr(self, field.name)
            ids = value if isinstance(value, tuple) else (value,)
            for i in ids:
                check_whole(f"controls.{field.name}", i, 0 if isinstance(value, tuple) else -1, self.vocab_size - 1)

    @property
    def ids(self) -> frozenset[int]:
        """All of them."""
        single = (self.unk, self.start, self.end, self.pad, self.mask)
        several = (*self.source_opening, *self.opening, *self.between, *self.closing, *self.stops)
        return frozenset(i for i in (*single, *several) if i >= 0)

    def to_json(self) -> dict[str, Any]:
        """As a tokenizer's description has it."""
        return asdict(self)

    @classmethod
    def from_json(cls, content: Any) -> Controls:
        """The inverse of `to_json`."""
        known = {field.name for field in fields(cls)}
        if not isinstance(content, dict) or not known.issuperset(content):
            raise UserError("controls must give the ids that stand for no text, but does not")
        values: dict[str, Any] = {"vocab_size": None, **content}
        values = {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
        return cls(**values)


class JsonPieces:
    """A tokenizer.json."""

    def __init__(self, content: bytes, controls: Controls, name: str = JSON_FILE) -> None:
        """`content` is the file as others wrote it."""
        self.controls, self.vocab_size = controls, controls.vocab_size
        self._settings = _parse(content, name)
        self.names = _names_of_controls(self._settings, controls.ids)  # id -> "</s>", of all control tokens
        self._tokenizer = _build(_without_controls(self._settings, self.names), name)
        self._special = frozenset(self.names)
        only_unknown = {controls.unk} - replace(controls, unk=-1).ids
        self._never = self._special - only_unknown  # no text becomes one of these

    def encode(self, text: str, side: Side, at_start: bool) -> list[int]:
        return self._checked(text, self._tokenizer.encode(text, add_special_tokens=False).ids, side)

    def encode_batch(self, texts: Sequence[str], side: Side) -> list[list[int]] | None:
        try:
            found = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        except TypeError:  # a lone surrogate
            return None
        return [self._checked(text, one.ids, side) for text, one in zip(texts, found, strict=True)]

    def encode_controls(self, parts: Sequence[str | int]) -> list[int]:
        """The ids of text with control tokens in it, given by their ids."""
        hidden = [
            part.replace(_MARK, "\ufffd") if isinstance(part, str) else _MARK + self.names[part] for part in parts
        ]
        ids: list[int] = self._with_controls.encode("".join(hidden), add_special_tokens=False).ids
        return ids

    @cached_property
    def _with_controls(self) -> Any:
        """The tokenizer once more, which takes the hidden names of control tokens for these tokens."""
        tokenizer = _build(_without_controls(self._settings, self.names), JSON_FILE)
        tokenizer.encode_special_tokens = False
        return tokenizer

    def _checked(self, text: str, ids: list[int], side: Side) -> list[int]:
        if not self._never.isdisjoint(ids):  # the text spells the hidden name of a control token
            ids = self._tokenizer.encode(text.replace(_MARK, "\ufffd"), add_special_tokens=False).ids
        return [*self.controls.source_opening, *ids] if text and side == "source" else ids

    def decode(self, ids: Iterable[int], at_start: bool) -> str:
        known = [int(i) for i in ids if 0 <= i < self.vocab_size and i not in self._special]
        return str(self._tokenizer.decode(self._with_whole_characters(known), skip_special_tokens=False))

    def _with_whole_characters(self, ids: list[int]) -> list[int]:
        """Ids in which tokens of single bytes make up whole characters, U+FFFD in place of incomplete ones. The package tokenizers
        shows a run of such tokens that is not complete as U+FFFD alone."""
        if self._bytes.keys().isdisjoint(ids):
            return ids
        whole: list[int] = []
        for is_byte, run in groupby(ids, self._bytes.__contains__):
            if is_byte:
                text = bytes(self._bytes[i] for i in run).decode("utf-8", "replace")
                whole += [self._byte_ids[value] for value in text.encode("utf-8")]
            else:
                whole += run
        return whole

    @cached_property
    def _bytes(self) -> dict[int, int]:
        """The tokens that stand for single bytes, such as <0x0A>, if the file decodes them so; all 256 or none."""
        if "ByteFallback" not in json.dumps(self._settings.get("decoder")):
            return {}
        ids = {piece: i for i, piece in self.raw_pieces.items()}
        found = {ids[name]: value for value in range(256) if (name := f"<0x{value:02X}>") in ids}
        return found if len(found) == 256 else {}

    @cached_property
    def _byte_ids(self) -> dict[int, int]:
        return {value: i for i, value in self._bytes.items()}

    def pieces(self, ids: Iterable[int], side: Side) -> list[str]:
        """As sentencepiece writes them, whatever the file does: a word begins with U+2581."""
        return [self._shown.get(int(i), f"<{int(i)}>") for i in ids]

    def piece_texts(self) -> list[str]:
        return [piece.replace(_SPACE, "") for i, piece in self._shown.items() if i not in self._special]

    @cached_property
    def _shown(self) -> dict[int, str]:
        spell = _spelling(self._settings)
        return {i: self.names[i] if i in self._special else spell(piece) for i, piece in self.raw_pieces.items()}

    @cached_property
    def raw_pieces(self) -> dict[int, str]:
        """The piece of each id as the file has it."""
        vocabulary: dict[str, int] = self._tokenizer.get_vocab(with_added_tokens=True)
        return {i: piece.removeprefix(_MARK) for piece, i in sorted(vocabulary.items(), key=lambda entry: entry[1])}

    def check(self, folder: Path, file: str = JSON_FILE) -> None:
        """Refuse a file with ids that the model does not have, or that fails at some text."""
        with refusing(folder / file):
            largest = max(self.raw_pieces, default=0)
            for text in _TRIALS:
                self.decode(self.encode(text, "source", True), True)
        if largest >= self.vocab_size:
            raise UserError(f"{folder / file}: ids must be below {self.vocab_size:,}, but one is {largest:,}")


class NumberPieces:
    """For a model that came without a tokenizer: its text is the ids themselves, as numbers with spaces between them."""

    names: Mapping[int, str] = {}

    def __init__(self, controls: Controls) -> None:
        self.controls, self.vocab_size = controls, controls.vocab_size

    def encode(self, text: str, side: Side, at_start: bool) -> list[int]:
        ids = []
        for word in text.split():
            if not (word.isascii() and word.isdigit() and len(word) < 10 and int(word) < self.vocab_size):
                raise UserError(
                    f"this model has no tokenizer: text must be token ids below {self.vocab_size:,} with spaces between them, "
                    f"but has {shorten(word)}; import the model again with its tokenizer.json"
                )
            ids.append(int(word))
        return [*self.controls.source_opening, *ids] if ids and side == "source" else ids

    def encode_batch(self, texts: Sequence[str], side: Side) -> list[list[int]] | None:
        return None

    def decode(self, ids: Iterable[int], at_start: bool) -> str:
        return " ".join(self.pieces((i for i in ids if 0 <= i < self.vocab_size), "target")).replace(_SPACE, "")

    def pieces(self, ids: Iterable[int], side: Side) -> list[str]:
        return [f"{_SPACE}{int(i)}" for i in ids]

    def piece_texts(self) -> list[str]:
        return list("0123456789")

    def check(self, folder: Path, file: str = "") -> None:
        pass


# --- the file ---


def _parse(content: bytes, name: str) -> dict[str, Any]:
    try:
        settings = json.loads(content)
    except (ValueError, RecursionError):
        settings = None
    if not isinstance(settings, dict) or not isinstance(settings.get("model"), dict):
        raise UserError(f"{name}: must be a tokenizer.json of the package tokenizers, but cannot be read as one")
    return settings


def _pieces_of(settings: Mapping[str, Any]) -> dict[int, str]:
    """The piece of each id of the model, without added tokens."""
    vocabulary = settings["model"].get("vocab")
    if isinstance(vocabulary, dict):
        return {i: piece for piece, i in vocabulary.items() if isinstance(i, int)}
    entries = vocabulary if isinstance(vocabulary, list) else []
    return {i: entry[0] for i, entry in enumerate(entries) if isinstance(entry, list) and entry}


def _added(settings: Mapping[str, Any]) -> list[dict[str, Any]]:
    tokens = settings.get("added_tokens") or []
    return [token for token in tokens if isinstance(token, dict)] if isinstance(tokens, list) else []


def _names_of_controls(settings: Mapping[str, Any], known: frozenset[int]) -> dict[int, str]:
    """The names of all control tokens: the added tokens that the file calls special, and the `known` ones."""
    pieces = _pieces_of(settings)
    names = {i: pieces[i] for i in known if isinstance(pieces.get(i), str)}
    for token in _added(settings):
        i, content = token.get("id"), token.get("content")
        if isinstance(i, int) and isinstance(content, str) and (token.get("special") is True or i in known):
            names[i] = content
    return names


def _without_controls(settings: Mapping[str, Any], names: Mapping[int, str]) -> dict[str, Any]:
    """The file with hidden names for control tokens, and without what would cut, pad, frame or change a text at random."""
    hidden = set(names.values())

    def rename(piece: Any) -> Any:
        return _MARK + piece if isinstance(piece, str) and piece in hidden else piece

    model = {**settings["model"], "dropout": None} if "dropout" in settings["model"] else dict(settings["model"])
    if isinstance(vocabulary := model.get("vocab"), dict):
        model["vocab"] = {rename(piece): i for piece, i in vocabulary.items()}
    elif isinstance(vocabulary, list):
        model["vocab"] = [
            [*map(rename, entry[:1]), *entry[1:]] if isinstance(entry, list) else entry for entry in vocabulary
        ]
    if isinstance(merges := model.get("merges"), list):
        model["merges"] = [merge for merge in merges if hidden.isdisjoint(_parts(merge))]
    if "unk_token" in model:
        model["unk_token"] = rename(model["unk_token"])
    tokens = [{**token, "content": rename(token.get("content"))} for token in _added(settings)]
    off = {"truncation": None, "padding": None, "post_processor": None}
    return {**settings, **off, "added_tokens": tokens, "model": model}


def _parts(merge: Any) -> tuple[str, ...]:
    """The two pieces of a merge, and what they become."""
    pair = merge.split(" ") if isinstance(merge, str) else merge
    if not isinstance(pair, list) or not all(isinstance(part, str) for part in pair):
        return ()
    return (*pair, "".join(pair))


def import_tokenizers() -> Any:
    """The package tokenizers, or a UserError that says how to get it."""
    try:
        import tokenizers
    except ModuleNotFoundError:
        raise UserError(
            "this model's tokenizer needs the package tokenizers, which is not installed; pip install 'regard[tokenizers]'"
        ) from None
    return tokenizers


def _build(settings: Mapping[str, Any], name: str) -> Any:
    tokenizers = import_tokenizers()
    with refusing(name):
        tokenizer = tokenizers.Tokenizer.from_str(json.dumps(settings))
    tokenizer.encode_special_tokens = True  # typed names of control tokens are text, even the hidden ones
    return tokenizer


@contextmanager
def refusing(where: Path | str) -> Iterator[None]:
    """Around work on a file of unknown origin. The package is written in Rust: what it cannot take is an exception of any type, or
    a panic, which is no Exception."""
    try:
        yield
    except RegardError:
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        reason = str(error).split("\n")[0]
        raise UserError(
            f"{where}: must be a tokenizer.json that the installed package tokenizers can use, but is not ({reason})"
        ) from None


# --- pieces as text ---


def _types(part: Any) -> set[str]:
    """The types in a part of the file, such as a sequence of pre-tokenizers."""
    if isinstance(part, list):
        return set().union(*map(_types, part)) if part else set()
    if not isinstance(part, dict):
        return set()
    own = {part["type"]} if isinstance(part.get("type"), str) else set()
    return own.union(*map(_types, part.values()))


def _spelling(settings: Mapping[str, Any]) -> Any:
    """A function from a piece of the file to one as sentencepiece writes it."""
    model = settings["model"]
    if "ByteLevel" in _types(settings.get("decoder")) | _types(settings.get("pre_tokenizer")):
        return _spell_bytes
    if model.get("type") == "WordPiece":
        prefix = str(model.get("continuing_subword_prefix", "##"))
        return lambda piece: piece[len(prefix) :] if prefix and piece.startswith(prefix) else _SPACE + piece
    return lambda piece: piece


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's letters for bytes: printable characters stand for themselves, the others for code points from 256 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}


_BYTES = _byte_alphabet()


def _spell_bytes(piece: str) -> str:
    """Bytes that are no complete character become <0xE2>, where they stand alone, or U+FFFD."""
    if not all(letter in _BYTES for letter in piece):
        return piece
    raw = bytes(_BYTES[letter] for letter in piece)
    if len(raw) == 1 and raw[0] > 0x7F:
        return f"<0x{raw[0]:02X}>"
    return raw.decode("utf-8", "replace").replace(" ", _SPACE)
