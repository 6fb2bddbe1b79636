"""Text to ids and back with sentencepiece: Regard's joint model, or the two models of an import, one per side."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import sentencepiece

from regard.data.vocabulary import Side, Vocabulary
from regard.errors import UserError

SPACE = "\u2581"
SPACE_PIECE = "<u2581>"  # stands for a literal U+2581, which sentencepiece uses for the space


class JointPieces:
    """One model for both sides, with a byte for what it lacks: nothing of a text is lost."""

    def __init__(self, model: bytes) -> None:
        self.processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        # The space before the first word is added by hand, so that text after a reserved piece can do without.
        self.processor.override_normalizer_spec(add_dummy_prefix=False)
        self.vocab_size: int = self.processor.get_piece_size()
        self._space_id = int(self.processor.piece_to_id(SPACE_PIECE))

    def encode(self, text: str, side: Side, at_start: bool) -> list[int]:
        if at_start:
            text = " " + text
        if SPACE not in text:
            return list(self.processor.encode(text))
        first, *rest = text.split(SPACE)
        ids = list(self.processor.encode(first))
        for between in rest:
            ids.append(self._space_id)
            ids += self.processor.encode(between)
        return ids

    def encode_batch(self, texts: Sequence[str], side: Side) -> list[list[int]] | None:
        # Sentencepiece sleeps for two milliseconds over a list of very few texts.
        if len(texts) < 16 or any(SPACE in text or not text for text in texts):
            return None
        try:
            ids: list[list[int]] = self.processor.encode([" " + text for text in texts], num_threads=1)
        except (RuntimeError, TypeError, ValueError):  # a lone surrogate; the type of error depends on the version
            return None
        return ids

    def decode(self, ids: Iterable[int], at_start: bool) -> str:
        table = self._bytes_of_ids
        text = b"".join([table[i] for i in ids if 0 <= i < len(table)]).decode("utf-8", "replace")
        return text.removeprefix(" ") if at_start else text

    @cached_property
    def _bytes_of_ids(self) -> list[bytes]:
        """The bytes of each id. A table rather than sentencepiece's decoder, which cannot write a literal U+2581."""
        table = []
        for i in range(self.vocab_size):
            piece = self.processor.id_to_piece(i)
            if self.processor.is_byte(i):
                table.append(bytes([int(piece[3:5], 16)]))  # <0x0A>
            elif self.processor.is_control(i) or self.processor.is_unknown(i):
                table.append(SPACE.encode() if piece == SPACE_PIECE else b"")
            else:
                table.append(piece.replace(SPACE, " ").encode())
        return table

    def pieces(self, ids: Iterable[int], side: Side) -> list[str]:
        return _pieces(self.processor, ids)

    def piece_texts(self) -> list[str]:
        return _piece_texts(self.processor)

    def check(self, folder: Path, file: str = "") -> None:
        if not self.processor.is_control(self._space_id):
            raise UserError(f"{folder / 'joint.model'}: must hold Regard's reserved pieces, but lacks them")
        with _naming_pieces(folder):
            _ = self._bytes_of_ids


class PairedPieces:
    """A model for each side, which may have a vocabulary of their own that gives the ids."""

    def __init__(self, models: Sequence[bytes], vocabulary: Vocabulary | None) -> None:
        self.processors = [sentencepiece.SentencePieceProcessor(model_proto=model) for model in models]
        self.processor, self._target = self.processors[0], self.processors[-1]
        self.vocabulary = vocabulary
        sizes = (processor.get_piece_size() for processor in self.processors)
        self.vocab_size: int = max(sizes) if vocabulary is None else vocabulary.vocab_size

    def encode(self, text: str, side: Side, at_start: bool) -> list[int]:
        processor = self.processor if side == "source" else self._target
        if self.vocabulary is None:
            return list(processor.encode(text))
        code, text = self.vocabulary.split_code(text)
        pieces = processor.encode(text, out_type=str)
        return self.vocabulary.ids([code, *pieces] if code else pieces, side == "source")

    def encode_batch(self, texts: Sequence[str], side: Side) -> list[list[int]] | None:
        return None

    def decode(self, ids: Iterable[int], at_start: bool) -> str:
        if self.vocabulary is not None:
            text = self._target.decode_pieces(self.vocabulary.text_pieces(ids))
            return str(text).replace(SPACE, " ").strip()  # sentencepiece keeps it in pieces that it does not know
        size = self._target.get_piece_size()
        return str(self._target.decode([int(i) for i in ids if 0 <= i < size and not self._target.is_control(int(i))]))

    def pieces(self, ids: Iterable[int], side: Side) -> list[str]:
        if self.vocabulary is not None:
            return self.vocabulary.pieces(ids, side == "source")
        return _pieces(self.processor if side == "source" else self._target, ids)

    def piece_texts(self) -> list[str]:
        return [text for processor in self.processors for text in _piece_texts(processor)]

    def check(self, folder: Path, file: str = "") -> None:
        with _naming_pieces(folder):
            self.piece_texts()


def _pieces(processor: Any, ids: Iterable[int]) -> list[str]:
    size = processor.get_piece_size()
    return [processor.id_to_piece(int(i)) if 0 <= i < size else f"<{i}>" for i in ids]


def _piece_texts(processor: Any) -> list[str]:
    return [
        processor.id_to_piece(i).replace(SPACE, "")
        for i in range(processor.get_piece_size())
        if not (processor.is_byte(i) or processor.is_control(i) or processor.is_unknown(i))
    ]


@contextmanager
def _naming_pieces(folder: Path) -> Iterator[None]:
    """Around looking at all pieces: those that are no text are refused."""
    try:
        yield
    except ValueError:
        raise UserError(
            f"{folder}: must hold sentencepiece models with pieces in UTF-8, but does not; download or train them again"
        ) from None


def read_model(path: Path) -> bytes:
    """Read a serialized sentencepiece model, and check that it is one."""
    model = read_file(path)
    try:
        # sentencepiece accepts an empty model, and fails when it is first used.
        if model and sentencepiece.SentencePieceProcessor(model_proto=model).get_piece_size() > 0:
            return model
    except (RuntimeError, ValueError):  # ValueError: it quotes bytes of the file that are no UTF-8
        pass
    raise UserError(f"{path}: must be a sentencepiece model, but is damaged; download or train it again")


def read_file(path: Path) -> bytes:
    """The content of a file of a tokenizer."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise UserError(f"{path}: there is no such file; a tokenizer's folder must contain it") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
