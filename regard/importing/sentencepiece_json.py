"""Sentencepiece's BPE with bytes as a tokenizer.json: for GGUF files, which hold its pieces and scores, and for Regard's own
vocabularies, which other programs read as such a file."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

SPACE = "\u2581"


def bpe_json(
    pieces: Sequence[str], scores: Sequence[float], not_text: Collection[int], unknown: int, prefix: bool
) -> dict[str, Any]:
    """The parts `normalizer`, `decoder` and `model`. The score of a piece says when it is merged; `not_text` are control tokens,
    bytes and the `unknown`. `prefix`: a space is put before a text."""
    vocabulary = {piece: i for i, piece in enumerate(pieces)}
    merges = []
    for i, (piece, score) in enumerate(zip(pieces, scores, strict=True)):
        if i not in not_text:
            parts = ((piece[:cut], piece[cut:]) for cut in range(1, len(piece)))
            merges += [(score, left, right) for left, right in parts if left in vocabulary and right in vocabulary]
    merges.sort(key=lambda merge: -merge[0])
    before: list[dict[str, Any]] = [{"type": "Prepend", "prepend": SPACE}] if prefix else []
    after: list[dict[str, Any]] = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if prefix else []
    spaces = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
    back = {"type": "Replace", "pattern": {"String": SPACE}, "content": " "}
    return {
        "normalizer": {"type": "Sequence", "normalizers": [*before, spaces]},
        "decoder": {"type": "Sequence", "decoders": [back, {"type": "ByteFallback"}, {"type": "Fuse"}, *after]},
        "model": {
            "type": "BPE",
            "vocab": vocabulary,
            "merges": [[left, right] for _, left, right in merges],
            "unk_token": pieces[unknown] if unknown >= 0 else None,
            "byte_fallback": True,
            "fuse_unk": True,
        },
    }


def added_token(i: int, content: str, special: bool) -> dict[str, Any]:
    """An entry of a tokenizer.json's `added_tokens`."""
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": i, "content": content, **plain, "special": special}
