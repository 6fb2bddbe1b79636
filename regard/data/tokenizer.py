"""Text to token ids and back without loss: one sentencepiece BPE model for both sides, bytes for what it lacks.

    id       0      1    2     3      4        5 ..       37 ..     69 ..         325 ..
    piece    <unk>  <s>  </s>  <pad>  <u2581>  <span0>..  <tag0>..  <0x00>..      what BPE learnt

The pieces before the bytes are control symbols: no text encodes to them, whatever it says. `<u2581>` stands for a literal
U+2581, which sentencepiece uses for the space. Imported models may have two sentencepiece models, one per side, and a
vocabulary of their own that gives the ids.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import random
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import sentencepiece

from regard.data.vocabulary import SOURCE_FILE, TARGET_FILE, Vocabulary, read_vocabulary
from regard.errors import RegardError, UserError
from regard.escaping import shorten
from regard.files import read_json, write_atomic

FORMAT_VERSION = 3  # the highest that can be read; 3 is written for protected spans, 2 for a vocabulary, else 1
NUM_SPANS = 32
NUM_TAGS = 32
# A random sample. With twice as many, 24,000 pieces segment Europarl into the same number of tokens to within 1 in 10,000.
MAX_TRAINING_LINES = 500_000

Side = Literal["source", "target"]

_DESCRIPTION = "tokenizer.json"
_SPACE = "\u2581"
_SPACE_PIECE = "<u2581>"
_SPANS = [f"<span{i}>" for i in range(NUM_SPANS)]
_TAGS = [f"<tag{i}>" for i in range(NUM_TAGS)]
_NUM_FIXED = 4 + 1 + NUM_SPANS + NUM_TAGS + 256  # what every vocabulary holds before BPE learns anything
_MIN_CHARACTERS = 256  # a smaller vocab_size is raised to hold this many characters, where the corpus has them
_MAX_LINE = 2000  # characters of a training line that BPE sees; more would teach it nothing new
_SURROGATES = re.compile("[\ud800-\udfff]")


class Tokenizer:
    """A trained tokenizer: `decode(encode(text)) == text` for every text, except that lone surrogates become U+FFFD."""

    def __init__(self, models: Sequence[bytes], vocabulary: Vocabulary | None = None, protects: bool = False) -> None:
        """`models` are serialized sentencepiece models: one joint model, or an imported source and target model.

        `protects`: the model was trained with reserved pieces in place of spans such as addresses.
        """
        self.models, self.vocabulary, self.protects = tuple(models), vocabulary, protects
        self.kind: Literal["joint", "pair"] = "joint" if len(self.models) == 1 else "pair"
        processors = [sentencepiece.SentencePieceProcessor(model_proto=model) for model in self.models]
        self._source, self._target = processors[0], processors[-1]
        if self.kind == "joint":
            # The space before the first word is added by hand, so that text after a reserved piece can do without.
            self._source.override_normalizer_spec(add_dummy_prefix=False)
        self.vocab_size = max(processor.get_piece_size() for processor in processors)
        self.unk_id: int = self._source.unk_id()
        self.bos_id: int = self._source.bos_id()
        self.eos_id: int = self._source.eos_id()
        self.pad_id: int = self._source.pad_id()
        if vocabulary is not None:
            special, self.vocab_size = vocabulary.special, vocabulary.vocab_size
            self.unk_id, self.bos_id, self.eos_id, self.pad_id = special.unk, special.start, special.end, special.pad
        self.span_ids = self._ids_of(_SPANS)
        self.tag_ids = self._ids_of(_TAGS)
        self._reserved = frozenset(self.span_ids + self.tag_ids)
        self._tags = frozenset(self.tag_ids)

    def __repr__(self) -> str:
        return f"<regard.Tokenizer {self.kind}, {self.vocab_size:,} pieces>"

    def _ids_of(self, pieces: Sequence[str]) -> tuple[int, ...]:
        ids = (self._source.piece_to_id(piece) for piece in pieces)
        return tuple(i for i in ids if self._source.is_control(i))

    def __reduce__(self) -> tuple[Any, ...]:
        return Tokenizer, (self.models, self.vocabulary, self.protects)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the models: equal fingerprints give equal ids."""
        vocabulary = b"" if self.vocabulary is None else self.vocabulary.to_bytes()
        protects = b"protects" if self.protects else b""
        return hashlib.sha256(b"".join(self.models) + vocabulary + protects).hexdigest()

    # --- text to ids ---

    def encode(self, text: str, side: Side = "source") -> list[int]:
        """The ids of a text, without `<s>` and `</s>`. The side only matters to imported pairs of models."""
        return self._encode(text, side, at_start=True)

    def encode_batch(self, texts: Sequence[str], side: Side = "source") -> list[list[int]]:
        """As `encode` for each text, a little faster."""
        # Sentencepiece sleeps for two milliseconds over a list of very few texts.
        if self.kind == "pair" or len(texts) < 16 or any(_SPACE in text or not text for text in texts):
            return [self.encode(text, side) for text in texts]
        try:
            ids: list[list[int]] = self._source.encode([" " + text for text in texts], num_threads=1)
        except (RuntimeError, TypeError, ValueError):  # a lone surrogate; the type of error depends on the version
            return [self.encode(text, side) for text in texts]
        return ids

    def encode_parts(self, parts: Sequence[str | int]) -> list[int]:
        """The ids of text with reserved pieces in it, such as `["see ", tokenizer.span_ids[0], " for more"]`."""
        ids: list[int] = []
        at_start = True  # as long as only tags have come: a tag stands before a sentence, a span inside it
        for part in parts:
            if isinstance(part, str):
                ids += self._encode(part, "source", at_start)
                at_start = at_start and not part
            elif part in self._reserved:
                ids.append(part)
                at_start = at_start and part in self._tags
            else:
                raise ValueError(f"a part must be text or a reserved id (span_ids, tag_ids), but is {part!r}")
        return ids

    def _encode(self, text: str, side: Side, at_start: bool) -> list[int]:
        if not text:
            return []
        text = _SURROGATES.sub("\ufffd", text)
        if self.kind == "pair":
            return self._encode_imported(text, side)
        if at_start:
            text = " " + text
        if _SPACE not in text:
            return list(self._source.encode(text))
        first, *rest = text.split(_SPACE)
        ids = list(self._source.encode(first))
        for between in rest:
            ids.append(self._space_id)
            ids += self._source.encode(between)
        return ids

    def _encode_imported(self, text: str, side: Side) -> list[int]:
        processor = self._source if side == "source" else self._target
        if self.vocabulary is None:
            return list(processor.encode(text))
        code, text = self.vocabulary.split_code(text)
        pieces = processor.encode(text, out_type=str)
        return self.vocabulary.ids([code, *pieces] if code else pieces, side == "source")

    def split_code(self, text: str) -> tuple[str, str]:
        """Split off the code that a text begins with, such as `>>deu<<`; only imported models have codes."""
        return ("", text) if self.vocabulary is None else self.vocabulary.split_code(text)

    @cached_property
    def _space_id(self) -> int:
        return int(self._source.piece_to_id(_SPACE_PIECE))

    def has_piece(self, piece: str) -> bool:
        """Whether the joint model has exactly this piece, as text."""
        number = self._source.piece_to_id(piece)
        return bool(number != self._source.unk_id() and not self._source.is_control(number))

    def has_text(self, number: int) -> bool:
        """Whether this id of the joint model is a piece of text: neither a byte nor a control symbol."""
        source = self._source
        return not (source.is_control(number) or source.is_unknown(number) or source.is_byte(number))

    def is_byte(self, number: int) -> bool:
        return bool(self._source.is_byte(number))

    def scores(self) -> list[float]:
        """The score of each piece of the joint model; a merge with a higher score comes first."""
        return [self._source.get_score(i) for i in range(self._source.get_piece_size())]

    def spell(self, piece: str) -> list[int]:
        """The ids that spell a piece of another vocabulary in this one."""
        return self._encode(piece.replace(_SPACE, " "), "source", at_start=False)

    # --- ids to text ---

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids, without control symbols. Never raises: an incomplete character becomes U+FFFD, an unknown id
        nothing."""
        if self.kind == "pair":
            return self._decode_imported(ids)
        return self._text_of(ids).removeprefix(" ")

    def decode_parts(self, ids: Iterable[int]) -> list[str | int]:
        """The text of ids, with reserved pieces kept as ints; the inverse of `encode_parts`."""
        parts: list[str | int] = []
        run: list[int] = []

        def end_run() -> None:
            at_start = all(part in self._tags for part in parts)
            text = self.decode(run) if at_start or self.kind == "pair" else self._text_of(run)
            if text:
                parts.append(text)
            run.clear()

        for i in ids:
            if i in self._reserved:
                end_run()
                parts.append(int(i))
            else:
                run.append(i)
        end_run()
        return parts

    def pieces(self, ids: Iterable[int], side: Side = "target") -> list[str]:
        """The pieces of ids, for display. The side only matters to imported pairs of models."""
        if self.vocabulary is not None:
            return self.vocabulary.pieces(ids, side == "source")
        processor = self._source if side == "source" else self._target
        size = processor.get_piece_size()
        return [processor.id_to_piece(int(i)) if 0 <= i < size else f"<{i}>" for i in ids]

    @cached_property
    def characters(self) -> frozenset[str]:
        """All characters of the pieces; others are spelled in bytes."""
        return frozenset("".join(self._piece_texts)) | {" "}

    @cached_property
    def letters(self) -> frozenset[str]:
        """Characters that occur in pieces of several characters: those of the scripts that the vocabulary was trained for.
        All characters, if every piece is a single one."""
        parts = [text for text in self._piece_texts if len(text) > 1]
        return frozenset("".join(parts)) if parts else self.characters

    @cached_property
    def _piece_texts(self) -> list[str]:
        return [
            processor.id_to_piece(i).replace(_SPACE, "")
            for processor in {id(one): one for one in (self._source, self._target)}.values()
            for i in range(processor.get_piece_size())
            if not (processor.is_byte(i) or processor.is_control(i) or processor.is_unknown(i))
        ]

    def _text_of(self, ids: Iterable[int]) -> str:
        table = self._bytes_of_ids
        return b"".join([table[i] for i in ids if 0 <= i < len(table)]).decode("utf-8", "replace")

    @cached_property
    def _bytes_of_ids(self) -> list[bytes]:
        """The bytes of each id. A table rather than sentencepiece's decoder, which cannot write a literal U+2581."""
        table = []
        for i in range(self.vocab_size):
            piece = self._source.id_to_piece(i)
            if self._source.is_byte(i):
                table.append(bytes([int(piece[3:5], 16)]))  # <0x0A>
            elif self._source.is_control(i) or self._source.is_unknown(i):
                table.append(_SPACE.encode() if piece == _SPACE_PIECE else b"")
            else:
                table.append(piece.replace(_SPACE, " ").encode())
        return table

    def _decode_imported(self, ids: Iterable[int]) -> str:
        if self.vocabulary is not None:
            text = self._target.decode_pieces(self.vocabulary.text_pieces(ids))
            return str(text).replace(_SPACE, " ").strip()  # sentencepiece keeps it in pieces that it does not know
        size = self._target.get_piece_size()
        return str(self._target.decode([int(i) for i in ids if 0 <= i < size and not self._target.is_control(int(i))]))

    # --- files ---

    def save(self, folder: Path) -> None:
        """Write the models and tokenizer.json into `folder`."""
        folder.mkdir(parents=True, exist_ok=True)
        for name, model in zip(_file_names(self.kind), self.models, strict=True):
            write_atomic(folder / name, model)
        description: dict[str, Any] = {"format": 1, "kind": self.kind, "vocab_size": self.vocab_size}
        if self.vocabulary is not None:
            self.vocabulary.save(folder)
            description |= {"format": 2, "special": asdict(self.vocabulary.special)}
        if self.protects:
            description |= {"format": 3, "protects": True}
        write_atomic(folder / _DESCRIPTION, json.dumps(description, indent=2) + "\n")

    @classmethod
    def load(cls, folder: Path) -> Tokenizer:
        """Read what `save` wrote, or a folder with `source.model` and `target.model`."""
        description = _read_description(folder)
        kind = description["kind"]
        models = [read_model(folder / name) for name in _file_names(kind)]
        vocabulary = None
        if "special" in description:
            vocabulary = read_vocabulary(folder, description, folder / _DESCRIPTION)
        tokenizer = cls(models, vocabulary, description.get("protects") is True)
        tokenizer._check(folder)
        return tokenizer

    def _check(self, folder: Path) -> None:
        """Refuse a tokenizer that would fail at some text, or lose a part of it."""
        if self.kind == "joint":
            has_reserved = len(self._reserved) == NUM_SPANS + NUM_TAGS
            if not has_reserved or not self._source.is_control(self._space_id):
                raise UserError(f"{folder / 'joint.model'}: must hold Regard's reserved pieces, but lacks them")
        for name in ("unk_id", "bos_id", "eos_id"):
            if not 0 <= getattr(self, name) < self.vocab_size:
                raise UserError(f"{folder}: a tokenizer must have an id for {name[:3]}, but this one has none")
        try:
            _ = self._bytes_of_ids if self.kind == "joint" else self._piece_texts
        except ValueError:
            raise UserError(
                f"{folder}: must hold sentencepiece models with pieces in UTF-8, but does not; download or train them again"
            ) from None

    @classmethod
    def train(
        cls,
        lines: Iterable[str],
        vocab_size: int,
        folder: Path,
        *,
        character_coverage: float = 0.9999,
        split_digits: bool = False,
        protects: bool = False,
        seed: int = 0,
        num_threads: int = 16,
        max_lines: int = MAX_TRAINING_LINES,
    ) -> Tokenizer:
        """Train a joint BPE vocabulary on lines of both sides and save it into `folder`.

        The result's `vocab_size` may differ: a small corpus gives fewer pieces; one with many different characters gives
        more, or leaves the rarest characters to bytes.
        """
        if vocab_size < 1:
            raise UserError(f"tokenizer.vocab_size must be at least 1, but is {vocab_size}")
        sample = sample_lines(lines, max_lines, seed)
        model = learn(sample, vocab_size, character_coverage, split_digits, num_threads)
        tokenizer = cls([model], protects=protects)
        tokenizer.save(folder)
        return tokenizer


def check_joint(tokenizer: Tokenizer, setting: str) -> None:
    """Refuse `setting` for imported models, which have a vocabulary for each side."""
    if tokenizer.kind != "joint":
        raise UserError(f"{setting}: needs one joint vocabulary, but an imported model has two; leave it at 0")


# --- training ---


def sample_lines(lines: Iterable[str], size: int, seed: int) -> list[str]:
    """At most `size` lines that are not blank, as BPE sees them."""
    return [line for line in map(_training_line, _sample(lines, size, seed)) if line]


def learn(
    lines: list[str],
    vocab_size: int,
    character_coverage: float,
    split_digits: bool = False,
    num_threads: int = 16,
) -> bytes:
    """Train BPE on these lines: a serialized model, including the pieces that every vocabulary has."""
    settings = {
        "character_coverage": character_coverage,
        "split_digits": split_digits,
        # Not the number of cores: it is written into the model, whose hash must not depend on the machine.
        "num_threads": num_threads,
    }
    return _train_fitted(lines, vocab_size, settings)


def _sample(lines: Iterable[str], size: int, seed: int) -> list[str]:
    """At most `size` lines, each equally likely (reservoir sampling)."""
    lines = iter(lines)
    sample = list(islice(lines, size))
    generator = random.Random(seed)
    for count, line in enumerate(lines, size + 1):
        place = int(generator.random() * count)
        if place < size:
            sample[place] = line
    return sample


def _training_line(line: str) -> str:
    line = _SURROGATES.sub(" ", line[:_MAX_LINE])
    return line.replace(_SPACE, " ").replace("\0", " ").strip()


def _train_fitted(lines: list[str], vocab_size: int, settings: dict[str, Any]) -> bytes:
    """Train; if the characters do not fit into `vocab_size`, raise it or drop the rarest, and train again."""
    if not lines:
        raise UserError("the tokenizer's training text must hold at least one line with words, but is empty")
    try:
        return _train(lines, vocab_size, settings)
    except RuntimeError as error:
        needed = _needed_size(error)
        if needed is None:
            raise
    room = vocab_size - _NUM_FIXED
    num_characters = max(room // 2, _MIN_CHARACTERS)  # half of the vocabulary is reserved for merges
    if needed - _NUM_FIXED > num_characters:
        vocab_size = max(vocab_size, _NUM_FIXED + num_characters)
        # One less, since sentencepiece counts its own space character too.
        lines = _keep_most_common(lines, num_characters - 1)
        return _train(lines, vocab_size, {**settings, "character_coverage": 1.0})
    return _train(lines, needed, settings)


def _keep_most_common(lines: list[str], num_characters: int) -> list[str]:
    counts: Counter[str] = Counter()
    for line in lines:
        counts.update(line)
    # Ties in the order of the code points, so that the same lines give the same vocabulary.
    ranked = sorted(counts, key=lambda character: (-counts[character], character))
    table = {ord(character): " " for character in ranked[num_characters:]}
    return [line.translate(table) for line in lines]


def _needed_size(error: RuntimeError) -> int | None:
    match = re.search(r"smaller than required_chars\. \d+ vs (\d+)", str(error))
    return int(match[1]) if match else None


def _train(lines: list[str], vocab_size: int, settings: dict[str, Any]) -> bytes:
    writer = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines),
            model_writer=writer,
            model_type="bpe",
            vocab_size=vocab_size,
            hard_vocab_limit=False,  # a small corpus gives fewer pieces instead of an error
            byte_fallback=True,
            normalization_rule_name="identity",
            remove_extra_whitespaces=False,
            unk_id=0,
            bos_id=1,
            eos_id=2,
            pad_id=3,
            control_symbols=[_SPACE_PIECE, *_SPANS, *_TAGS],
            max_sentence_length=4 * _MAX_LINE + 1,  # in bytes
            minloglevel=2,
            **settings,
        )
    except RuntimeError as error:
        if _needed_size(error) is not None:
            raise
        raise RegardError(f"sentencepiece could not train a vocabulary of {vocab_size}: {error}") from error
    return writer.getvalue()


# --- files ---


def used_files(folder: Path) -> list[str]:
    """The names of the files in this folder that `Tokenizer.load` reads, or whose presence changes what it reads."""
    names = (_DESCRIPTION, *_file_names("joint"), *_file_names("pair"), SOURCE_FILE, TARGET_FILE)
    return [name for name in names if os.path.lexists(folder / name)]


def _file_names(kind: str) -> tuple[str, ...]:
    return ("joint.model",) if kind == "joint" else ("source.model", "target.model")


def _read_description(folder: Path) -> dict[str, Any]:
    path = folder / _DESCRIPTION
    if not path.exists():
        if not folder.is_dir():
            raise UserError(f"{folder}: must be a folder with a tokenizer, but is not a folder")
        return {"kind": "pair" if (folder / "source.model").exists() else "joint"}
    try:
        description = read_json(path)
        version, kind = description["format"], description["kind"]
    except (UserError, KeyError):
        raise UserError(f"{path}: must be a tokenizer's description in JSON, but cannot be read as one") from None
    if not isinstance(version, int) or version > FORMAT_VERSION:
        raise UserError(f"{path}: format must be at most {FORMAT_VERSION}, but is {shorten(version)}; update Regard")
    if kind not in ("joint", "pair"):
        raise UserError(f"{path}: `kind` must be 'joint' or 'pair', but is {shorten(kind)}")
    return description


def read_model(path: Path) -> bytes:
    """Read a serialized sentencepiece model, and check that it is one."""
    try:
        model = path.read_bytes()
    except FileNotFoundError:
        raise UserError(f"{path}: there is no such file; a tokenizer's folder must contain it") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    try:
        # sentencepiece accepts an empty model, and fails when it is first used.
        if model and sentencepiece.SentencePieceProcessor(model_proto=model).get_piece_size() > 0:
            return model
    except (RuntimeError, ValueError):  # ValueError: it quotes bytes of the file that are no UTF-8
        pass
    raise UserError(f"{path}: must be a sentencepiece model, but is damaged; download or train it again")
