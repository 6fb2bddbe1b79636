"""Extends a trained vocabulary with pieces for text of another domain or language.

BPE is trained on the new text, and those of its pieces that the old vocabulary lacks are appended: first characters, then
merges in the order they were learnt, so that each can be built from pieces before it. They rank below all old merges, so no
old id changes and no old merge loses to a new one.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterable

import sentencepiece

from regard.data.tokenizer import MAX_TRAINING_LINES, Tokenizer, check_joint, learn, sample_lines

_NUM_OTHER = 400  # about as many pieces as a vocabulary holds besides those that BPE learns
_TRIES = 4


def extend_tokenizer(
    tokenizer: Tokenizer, lines: Iterable[str], count: int, character_coverage: float, seed: int
) -> Tokenizer:
    """The tokenizer with up to `count` more pieces, learnt from these lines; their ids follow the old ones."""
    check_joint(tokenizer, "tokenizer.extend")
    sample = sample_lines(lines, MAX_TRAINING_LINES, seed)
    pieces: list[str] = []
    size = _NUM_OTHER + 2 * count
    for _ in range(_TRIES):
        learnt = sentencepiece.SentencePieceProcessor(model_proto=learn(sample, size, character_coverage))
        before, pieces = len(pieces), new_pieces(tokenizer, learnt)
        if len(pieces) >= count or len(pieces) == before:
            break
        size = 2 * size
    return append_pieces(tokenizer, pieces[:count])


def new_pieces(tokenizer: Tokenizer, learnt: sentencepiece.SentencePieceProcessor) -> list[str]:
    """Text pieces that only the learnt vocabulary has: characters first, then merges in the order they were learnt."""
    ids = [
        i
        for i in range(learnt.get_piece_size())
        if not (learnt.is_control(i) or learnt.is_byte(i) or learnt.is_unknown(i))
    ]
    pieces = [piece for piece in map(learnt.id_to_piece, ids) if not tokenizer.has_piece(piece)]
    return [piece for piece in pieces if len(piece) == 1] + [piece for piece in pieces if len(piece) > 1]


def append_pieces(tokenizer: Tokenizer, pieces: list[str]) -> Tokenizer:
    """The tokenizer with these pieces at its end. Appending bytes to a protocol buffer appends to its repeated fields."""
    lowest = min(tokenizer.scores(), default=0.0)
    entries = []
    for number, piece in enumerate(pieces, 1):
        text = piece.encode()
        # SentencePiece { string piece = 1; float score = 2; }, in the repeated field 1 of ModelProto. Merges with a higher
        # score are tried first.
        body = b"\x0a" + _varint(len(text)) + text + b"\x15" + struct.pack("<f", lowest - number)
        entries.append(b"\x0a" + _varint(len(body)) + body)
    models = [tokenizer.models[0] + b"".join(entries)]
    return Tokenizer(models, protects=tokenizer.protects, targets=tokenizer.targets)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def unknown_characters(tokenizer: Tokenizer, lines: Iterable[str], seed: int) -> Counter[str]:
    """Characters of the lines that the vocabulary can only spell in bytes, with their counts."""
    counts: Counter[str] = Counter()
    for line in sample_lines(lines, MAX_TRAINING_LINES, seed):
        counts.update(line)
    return Counter({c: n for c, n in counts.items() if not c.isspace() and not tokenizer.has_piece(c)})
