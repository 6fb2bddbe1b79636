"""New pieces for an old vocabulary: what text of another kind or language has and it lacks.

BPE is learnt anew from the new text; those of its pieces that the old vocabulary does not have are appended to it, the
characters first, then merges in the order in which they were learnt, so that each can be put together from what is before it.
They come after all old merges: no old id changes, and an old merge is never given up for a new one. Knows nothing of models.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterable

import sentencepiece

from regard.data.tokenizer import MAX_TRAINING_LINES, Tokenizer, learn, sample_lines
from regard.errors import UserError

_ROOM = 400  # pieces that every vocabulary has besides those that BPE learns
_TRIES = 4


def extend(tokenizer: Tokenizer, lines: Iterable[str], count: int, character_coverage: float, seed: int) -> Tokenizer:
    """The tokenizer with up to `count` more pieces, learnt from these lines; their ids follow the old ones."""
    check_extensible(tokenizer)
    sample = sample_lines(lines, MAX_TRAINING_LINES, seed)
    pieces: list[str] = []
    size = _ROOM + 2 * count
    for _ in range(_TRIES):
        learnt = sentencepiece.SentencePieceProcessor(model_proto=learn(sample, size, character_coverage))
        found = new_pieces(tokenizer, learnt)
        if len(found) >= count or len(found) == len(pieces):
            pieces = found
            break
        pieces, size = found, 2 * size
    return appended(tokenizer, pieces[:count])


def check_extensible(tokenizer: Tokenizer) -> None:
    if tokenizer.kind != "joint":
        raise UserError(
            "tokenizer.extend: the vocabulary of an imported model, which is two, cannot be extended; leave it at 0"
        )


def new_pieces(tokenizer: Tokenizer, learnt: sentencepiece.SentencePieceProcessor) -> list[str]:
    """Pieces of text that are only in the learnt vocabulary; characters first, then merges as they were learnt."""
    ids = [
        i
        for i in range(learnt.get_piece_size())
        if not (learnt.is_control(i) or learnt.is_byte(i) or learnt.is_unknown(i))
    ]
    pieces = [piece for piece in map(learnt.id_to_piece, ids) if not tokenizer.has_piece(piece)]
    return [piece for piece in pieces if len(piece) == 1] + [piece for piece in pieces if len(piece) > 1]


def appended(tokenizer: Tokenizer, pieces: list[str]) -> Tokenizer:
    """The tokenizer with these pieces at its end. A protocol buffer's list grows by what is written behind it."""
    lowest = min(tokenizer.scores(), default=0.0)
    entries = []
    for number, piece in enumerate(pieces, 1):
        text = piece.encode()
        # SentencePiece { string piece = 1; float score = 2; } as an entry of ModelProto's list number 1; merges are tried from the
        # highest score down.
        body = b"\x0a" + _varint(len(text)) + text + b"\x15" + struct.pack("<f", lowest - number)
        entries.append(b"\x0a" + _varint(len(body)) + body)
    return Tokenizer([tokenizer.models[0] + b"".join(entries)], protects=tokenizer.protects)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def unknown_characters(tokenizer: Tokenizer, lines: Iterable[str], seed: int) -> Counter[str]:
    """Characters of the lines that the vocabulary spells in bytes, with how often they come."""
    counts: Counter[str] = Counter()
    for line in sample_lines(lines, MAX_TRAINING_LINES, seed):
        counts.update(line)
    return Counter({c: n for c, n in counts.items() if not c.isspace() and not tokenizer.has_piece(c)})
