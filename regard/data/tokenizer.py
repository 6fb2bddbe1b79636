"""Text to token ids and back without loss: one sentencepiece BPE model for both sides, bytes for what it lacks.

    id       0      1    2     3      4        5 ..       37 ..     69 ..         325 ..
    piece    <unk>  <s>  </s>  <pad>  <u2581>  <span0>..  <tag0>..  <0x00>..      what BPE learnt

The pieces before the bytes are control symbols: no text encodes to them, whatever it says. `<u2581>` stands for a literal
U+2581, which sentencepiece uses for the space. In a model for several directions `<tag0>`, `<tag1>`, ... stand for its target
languages. Imported models bring their own: two sentencepiece models, one per side, perhaps
with a vocabulary that gives the ids (`sentencepieces.py`), or a tokenizer.json of Hugging Face (`huggingface.py`).
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import random
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import sentencepiece

from regard.bounds import MOST_TARGETS, check_label
from regard.data.chat_template import CHAT_FILE, ChatTemplate
from regard.data.huggingface import JSON_FILE, Controls, JsonPieces, NumberPieces
from regard.data.sentencepieces import SPACE, SPACE_PIECE, JointPieces, PairedPieces, read_file, read_model
from regard.data.vocabulary import SOURCE_FILE, TARGET_FILE, Side, Vocabulary, read_vocabulary
from regard.errors import RegardError, UserError, naming
from regard.escaping import shorten
from regard.files import read_json, write_atomic

# The highest that can be read. 5 is written for tagged target languages, 4 for tokenizers of Hugging Face, 3 for protected spans,
# 2 for a vocabulary, else 1.
FORMAT_VERSION = 5
NUM_SPANS = 32
NUM_TAGS = MOST_TARGETS + 1  # the last tag is the mask of masked language models
# A random sample. With twice as many, 24,000 pieces segment Europarl into the same number of tokens to within 1 in 10,000.
MAX_TRAINING_LINES = 500_000

Kind = Literal["joint", "pair", "huggingface", "ids"]

_DESCRIPTION = "tokenizer.json"
_FILE_NAMES: dict[str, tuple[str, ...]] = {
    "joint": ("joint.model",),
    "pair": ("source.model", "target.model"),
    "huggingface": (JSON_FILE,),
    "ids": (),
}
_SPANS = [f"<span{i}>" for i in range(NUM_SPANS)]
_TAGS = [f"<tag{i}>" for i in range(NUM_TAGS)]
NUM_FIXED = 4 + 1 + NUM_SPANS + NUM_TAGS + 256  # what every vocabulary holds before BPE learns anything
_MIN_CHARACTERS = 256  # a smaller vocab_size is raised to hold this many characters, where the corpus has them
_MAX_LINE = 2000  # characters of a training line that BPE sees; more would teach it nothing new
_SURROGATES = re.compile("[\ud800-\udfff]")


class Tokenizer:
    """A tokenizer. Regard's own loses nothing: `decode(encode(text)) == text` for every text, except that lone surrogates become
    U+FFFD."""

    # Ids that are not text; -1 where a tokenizer has none of a kind.
    unk_id: int
    bos_id: int
    eos_id: int
    pad_id: int
    mask_id: int
    span_ids: tuple[int, ...]
    tag_ids: tuple[int, ...]
    stop_ids: tuple[int, ...]  # each ends what is generated
    # What stands before an input, between the two texts of a pair, and after an input.
    opening: tuple[int, ...]
    between: tuple[int, ...]
    closing: tuple[int, ...]

    def __init__(
        self,
        models: Sequence[bytes],
        vocabulary: Vocabulary | None = None,
        protects: bool = False,
        controls: Controls | None = None,
        chat: ChatTemplate | None = None,
        targets: Sequence[str] = (),
    ) -> None:
        """`models` are serialized sentencepiece models: one joint model, or an imported source and target model. With `controls`,
        which only imports have, it is one tokenizer.json of Hugging Face, or nothing for a model without a tokenizer.

        `protects`: the model was trained with reserved pieces in place of spans such as addresses. `chat` is how an imported model
        reads a conversation. `targets` are the target languages of a model for several directions, in the order of their tags.
        """
        self.models, self.vocabulary, self.protects, self.controls = tuple(models), vocabulary, protects, controls
        self.chat, self.targets = chat, tuple(targets)
        self.kind: Kind
        self._codec: JointPieces | PairedPieces | JsonPieces | NumberPieces
        if controls is not None:
            self.kind = "huggingface" if self.models else "ids"
            self._codec = JsonPieces(self.models[0], controls) if self.models else NumberPieces(controls)
        elif len(self.models) == 1:
            self.kind, self._codec = "joint", JointPieces(self.models[0])
        else:
            self.kind, self._codec = "pair", PairedPieces(self.models, vocabulary)
        self.vocab_size = self._codec.vocab_size
        self._read_special_ids()
        self._reserved = frozenset(self.span_ids + self.tag_ids)
        self._tags = frozenset(self.tag_ids)
        self._check_targets()

    def _read_special_ids(self) -> None:
        self.span_ids, self.tag_ids, self.mask_id = (), (), -1
        if self.controls is not None:
            given = self.controls
            self.unk_id, self.bos_id, self.eos_id, self.pad_id = given.unk, given.start, given.end, given.pad
            self.opening, self.between, self.closing = given.opening, given.between, given.closing
            self.mask_id, self.stop_ids = given.mask, given.stops
            return
        processor = self._processor
        self.unk_id, self.bos_id = processor.unk_id(), processor.bos_id()
        self.eos_id, self.pad_id = processor.eos_id(), processor.pad_id()
        if self.vocabulary is not None:
            special = self.vocabulary.special
            self.unk_id, self.bos_id, self.eos_id, self.pad_id = special.unk, special.start, special.end, special.pad
        self.span_ids = self._ids_of(_SPANS)
        self.tag_ids = self._ids_of(_TAGS)
        self.mask_id = self.tag_ids[-1] if self.tag_ids else -1
        self.opening, self.between, self.closing = (), (self.eos_id,), (self.eos_id,)
        self.stop_ids = (self.eos_id,)

    def __repr__(self) -> str:
        return f"<regard.Tokenizer {self.kind}, {self.vocab_size:,} pieces>"

    @property
    def _processor(self) -> Any:
        """Sentencepiece's model of the source."""
        assert isinstance(self._codec, (JointPieces, PairedPieces)), "an imported tokenizer.json has none"
        return self._codec.processor

    def _ids_of(self, pieces: Sequence[str]) -> tuple[int, ...]:
        ids = (self._processor.piece_to_id(piece) for piece in pieces)
        return tuple(i for i in ids if self._processor.is_control(i))

    def __reduce__(self) -> tuple[Any, ...]:
        return Tokenizer, (self.models, self.vocabulary, self.protects, self.controls, self.chat, self.targets)

    # --- target languages ---

    def _check_targets(self) -> None:
        if self.targets and self.kind != "joint":
            raise UserError("an imported vocabulary has no tags for target languages; train one for several directions")
        if len(self.targets) > MOST_TARGETS or len(set(self.targets)) < len(self.targets):
            raise UserError(
                f"the target languages must be at most {MOST_TARGETS}, all different, but are {', '.join(self.targets)}"
            )

    def with_targets(self, targets: Iterable[str]) -> Tokenizer:
        """The same pieces with tags for these target languages, besides those that it has."""
        every = tuple(dict.fromkeys((*self.targets, *targets)))
        return Tokenizer(self.models, self.vocabulary, self.protects, self.controls, self.chat, every)

    def target_tag(self, target: str) -> tuple[int, ...]:
        """What a source begins with: the tag of its target language, or nothing in a model for one direction."""
        if not self.targets:
            return ()
        if target not in self.targets:
            raise UserError(f"the target language must be one of {', '.join(self.targets)}, but is {target!r}")
        return (self.tag_ids[self.targets.index(target)],)

    def to_message(self) -> tuple[Any, list[bytes]]:
        """The tokenizer for another process: JSON, and blocks of bytes."""
        vocabulary = None if self.vocabulary is None else json.loads(self.vocabulary.to_bytes())
        controls = None if self.controls is None else self.controls.to_json()
        chat = None if self.chat is None else self.chat.to_json()
        content = {"vocabulary": vocabulary, "protects": self.protects, "controls": controls, "chat": chat}
        return {**content, "targets": self.targets}, list(self.models)

    @classmethod
    def from_message(cls, content: Any, models: Sequence[bytes]) -> Tokenizer:
        """The inverse of `to_message`."""
        vocabulary = None if content["vocabulary"] is None else Vocabulary.from_json(content["vocabulary"])
        controls = None if content["controls"] is None else Controls.from_json(content["controls"])
        chat = None if content["chat"] is None else ChatTemplate.from_json(content["chat"])
        return cls(models, vocabulary, content["protects"], controls, chat, content["targets"])

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the models: equal fingerprints give equal ids."""
        vocabulary = b"" if self.vocabulary is None else self.vocabulary.to_bytes()
        protects = b"protects" if self.protects else b""
        controls = b"" if self.controls is None else json.dumps(self.controls.to_json()).encode()
        chat = b"" if self.chat is None else json.dumps(self.chat.to_json()).encode()
        targets = json.dumps(self.targets).encode() if self.targets else b""
        return hashlib.sha256(b"".join(self.models) + vocabulary + protects + controls + chat + targets).hexdigest()

    # --- text to ids ---

    def encode(self, text: str, side: Side = "source", at_start: bool = True) -> list[int]:
        """The ids of a text, without `<s>` and `</s>`. The side only matters to imported models. Without `at_start` the text goes
        on from another: Regard's own vocabulary then puts no space before it."""
        return self._codec.encode(_SURROGATES.sub("\ufffd", text), side, at_start) if text else []

    def encode_batch(self, texts: Sequence[str], side: Side = "source") -> list[list[int]]:
        """As `encode` for each text, a little faster."""
        ids = self._codec.encode_batch(texts, side)
        return [self.encode(text, side) for text in texts] if ids is None else ids

    def encode_parts(self, parts: Sequence[str | int]) -> list[int]:
        """The ids of text with reserved pieces in it, such as `["see ", tokenizer.span_ids[0], " for more"]`."""
        ids: list[int] = []
        at_start = True  # as long as only tags have come: a tag stands before a sentence, a span inside it
        for part in parts:
            if isinstance(part, str):
                ids += self.encode(part, "source", at_start)
                at_start = at_start and not part
            elif part in self._reserved:
                ids.append(part)
                at_start = at_start and part in self._tags
            else:
                raise ValueError(f"a part must be text or a reserved id (span_ids, tag_ids), but is {part!r}")
        return ids

    def encode_controls(self, parts: Sequence[str | int]) -> list[int]:
        """The ids of text with control tokens in it, given by their ids, as an imported tokenizer's own program reads it: a control
        token may take the spaces around it. Nothing is put before or after."""
        if not isinstance(self._codec, JsonPieces):
            raise UserError("a conversation needs an imported model with a tokenizer.json, but this model has none")
        return self._codec.encode_controls([_SURROGATES.sub("\ufffd", p) if isinstance(p, str) else p for p in parts])

    @property
    def document_start(self) -> int:
        """The token before each document that a language model is trained on; -1 if there is none."""
        return self.bos_id if self.bos_id >= 0 else self.eos_id

    @property
    def prompt_opening(self) -> tuple[int, ...]:
        """What stands before a prompt: the start of a document, but of imported models what their own program puts there."""
        return (self.document_start,) if self.controls is None else self.opening

    def frame(self, ids: Sequence[int], second: Sequence[int] | None = None) -> tuple[list[int], list[int]]:
        """An input as the model was trained to read it, with what opens and closes it, and its token types. `second` is the second
        text of a pair."""
        first = [*self.opening, *ids, *(self.closing if second is None else self.between)]
        rest = [] if second is None else [*second, *self.closing]
        return first + rest, [0] * len(first) + [1] * len(rest)

    def split_code(self, text: str) -> tuple[str, str]:
        """Split off the code that a text begins with, such as `>>deu<<`; only imported models have codes."""
        return ("", text) if self.vocabulary is None else self.vocabulary.split_code(text)

    def has_piece(self, piece: str) -> bool:
        """Whether the joint model has exactly this piece, as text."""
        number = self._processor.piece_to_id(piece)
        return bool(number != self._processor.unk_id() and not self._processor.is_control(number))

    def has_text(self, number: int) -> bool:
        """Whether this id of the joint model is a piece of text: neither a byte nor a control symbol."""
        source = self._processor
        return not (source.is_control(number) or source.is_unknown(number) or source.is_byte(number))

    def is_byte(self, number: int) -> bool:
        return bool(self._processor.is_byte(number))

    def scores(self) -> list[float]:
        """The score of each piece of the joint model; a merge with a higher score comes first."""
        return [self._processor.get_score(i) for i in range(self._processor.get_piece_size())]

    def spell(self, piece: str) -> list[int]:
        """The ids that spell a piece of another vocabulary in this one."""
        return self.encode(piece.replace(SPACE, " "), "source", at_start=False)

    # --- ids to text ---

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids, without control symbols. Never raises: an incomplete character becomes U+FFFD, an unknown id
        nothing."""
        return self._codec.decode(ids, at_start=True)

    def decode_parts(self, ids: Iterable[int]) -> list[str | int]:
        """The text of ids, with reserved pieces kept as ints; the inverse of `encode_parts`."""
        parts: list[str | int] = []
        run: list[int] = []

        def end_run() -> None:
            at_start = all(part in self._tags for part in parts)
            if text := self._codec.decode(run, at_start):
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
        return self._codec.pieces(ids, side)

    @property
    def control_names(self) -> Mapping[str, int]:
        """The ids of an imported tokenizer's control tokens by their names, such as `<|im_start|>`."""
        names = self._codec.names if isinstance(self._codec, JsonPieces) else {}
        return {name: i for i, name in names.items()}

    def raw_pieces(self, side: Side = "target") -> dict[int, str]:
        """The piece of every id as the tokenizer's own file has it, for other programs."""
        if isinstance(self._codec, JsonPieces):
            return self._codec.raw_pieces
        return dict(enumerate(self.pieces(range(self.vocab_size), side)))

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
        return self._codec.piece_texts()

    # --- files ---

    def save(self, folder: Path) -> None:
        """Write the models and tokenizer.json into `folder`."""
        folder.mkdir(parents=True, exist_ok=True)
        for name, model in zip(_FILE_NAMES[self.kind], self.models, strict=True):
            write_atomic(folder / name, model)
        description: dict[str, Any] = {"format": 1, "kind": self.kind, "vocab_size": self.vocab_size}
        if self.vocabulary is not None:
            self.vocabulary.save(folder)
            description |= {"format": 2, "special": asdict(self.vocabulary.special)}
        if self.protects:
            description |= {"format": 3, "protects": True}
        if self.controls is not None:
            description |= {"format": 4, "controls": self.controls.to_json()}
        if self.targets:
            description |= {"format": 5, "targets": list(self.targets)}
        write_atomic(folder / _DESCRIPTION, json.dumps(description, indent=2) + "\n")
        if self.chat is not None:
            write_atomic(folder / CHAT_FILE, json.dumps(self.chat.to_json(), indent=2) + "\n")

    @classmethod
    def load(cls, folder: Path) -> Tokenizer:
        """Read what `save` wrote, or a folder with `source.model` and `target.model`."""
        description = _read_description(folder)
        kind = description["kind"]
        read = read_file if kind == "huggingface" else read_model
        models = [read(folder / name) for name in _FILE_NAMES[kind]]
        vocabulary, controls = None, None
        if kind in ("huggingface", "ids"):
            with naming(folder / _DESCRIPTION):
                controls = Controls.from_json(description.get("controls"))
        elif "special" in description:
            vocabulary = read_vocabulary(folder, description, folder / _DESCRIPTION)
        chat = None
        if (folder / CHAT_FILE).exists():
            with naming(folder / CHAT_FILE):
                chat = ChatTemplate.from_json(read_json(folder / CHAT_FILE))
        with naming(folder):
            targets = _read_targets(description)
            tokenizer = cls(models, vocabulary, description.get("protects") is True, controls, chat, targets)
        tokenizer.check(folder)
        return tokenizer

    def check(self, folder: Path, file: str = JSON_FILE) -> None:
        """Refuse a tokenizer that would fail at some text, or lose a part of it. `file` is what an error calls a tokenizer.json."""
        if self.kind == "joint" and len(self._reserved) != NUM_SPANS + NUM_TAGS:
            raise UserError(f"{folder / 'joint.model'}: must hold Regard's reserved pieces, but lacks them")
        for name in ("unk_id", "bos_id", "eos_id") if self.controls is None else ():
            if not 0 <= getattr(self, name) < self.vocab_size:
                raise UserError(f"{folder}: a tokenizer must have an id for {name[:3]}, but this one has none")
        self._codec.check(folder, file)

    @classmethod
    def train(
        cls,
        lines: Iterable[str],
        vocab_size: int,
        folder: Path,
        *,
        character_coverage: float = 0.9999,
        split_digits: bool = False,
        characters: bool = False,
        protects: bool = False,
        seed: int = 0,
        num_threads: int = 16,
        max_lines: int = MAX_TRAINING_LINES,
    ) -> Tokenizer:
        """Train a joint BPE vocabulary on lines of both sides and save it into `folder`. With `characters` every piece is a single
        character, and `vocab_size` says nothing.

        The result's `vocab_size` may differ: a small corpus gives fewer pieces; one with many different characters gives
        more, or leaves the rarest characters to bytes.
        """
        if vocab_size < 1:
            raise UserError(f"tokenizer.vocab_size must be at least 1, but is {vocab_size}")
        sample = sample_lines(lines, max_lines, seed)
        if characters:
            model = learn_characters(sample, character_coverage, num_threads)
        else:
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


def learn_characters(lines: list[str], character_coverage: float, num_threads: int = 16) -> bytes:
    """A model without any merge: its pieces are the characters of these lines."""
    _check_lines(lines)
    settings = {"character_coverage": character_coverage, "num_threads": num_threads}
    try:
        return _train(lines, NUM_FIXED, settings)  # has no room for characters, and the refusal says how many there are
    except RuntimeError as error:
        needed = _needed_size(error)
        if needed is None:
            raise
    return _train(lines, needed, settings)


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
    return line.replace(SPACE, " ").replace("\0", " ").strip()


def _check_lines(lines: list[str]) -> None:
    if not lines:
        raise UserError("the tokenizer's training text must hold at least one line with words, but is empty")


def _train_fitted(lines: list[str], vocab_size: int, settings: dict[str, Any]) -> bytes:
    """Train; if the characters do not fit into `vocab_size`, raise it or drop the rarest, and train again."""
    _check_lines(lines)
    try:
        return _train(lines, vocab_size, settings)
    except RuntimeError as error:
        needed = _needed_size(error)
        if needed is None:
            raise
    room = vocab_size - NUM_FIXED
    num_characters = max(room // 2, _MIN_CHARACTERS)  # half of the vocabulary is reserved for merges
    if needed - NUM_FIXED > num_characters:
        vocab_size = max(vocab_size, NUM_FIXED + num_characters)
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
            control_symbols=[SPACE_PIECE, *_SPANS, *_TAGS],
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
    names = (_DESCRIPTION, *(name for names in _FILE_NAMES.values() for name in names), SOURCE_FILE, TARGET_FILE)
    return [name for name in names if os.path.lexists(folder / name)]


def _read_targets(description: Mapping[str, Any]) -> list[str]:
    targets = description.get("targets", [])
    if not isinstance(targets, list):
        raise UserError(f"{_DESCRIPTION}: targets must be a list of languages, but is {shorten(targets)}")
    for number, target in enumerate(targets):
        check_label(f"{_DESCRIPTION}: targets[{number}]", target)
    return targets


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
    if not isinstance(kind, str) or kind not in _FILE_NAMES:
        raise UserError(f"{path}: `kind` must be one of {', '.join(_FILE_NAMES)}, but is {shorten(kind)}")
    return description
