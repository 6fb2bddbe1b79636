"""A toy language in three ways of writing, for models of several directions: small letters, capitals, Greek letters."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

PAIRS = (("low", "up"), ("low", "gre"), ("up", "low"))
_GREEK = str.maketrans("abcdefghijklmnop", "αβγδεζηθικλμνξοπ")
_WRITTEN = {"low": str.lower, "up": str.upper, "gre": lambda text: text.translate(_GREEK)}


def made(count: int, seed: int, source: str, target: str) -> list[tuple[str, str]]:
    draw = random.Random(f"{seed} {source}")
    texts = [" ".join(draw.choices("abcdefghijklmnop", k=draw.randint(1, 5))) for _ in range(count)]
    return [(_WRITTEN[source](text), _WRITTEN[target](text)) for text in texts]


def write_corpora(folder: Path, name: str, count: int, seed: int) -> list[dict[str, Any]]:
    """A corpus for each direction, and how a recipe names it."""
    entries = []
    for pair in PAIRS:
        rows = made(count, seed, *pair)
        for side, language in enumerate(pair):
            path = folder / f"{name}.{'-'.join(pair)}.{language}"
            path.write_text("".join(f"{row[side]}\n" for row in rows), encoding="utf-8")
        named = f"{name}.{'-'.join(pair)}.{{source,target}}"
        entries.append({"path": named, "source": pair[0], "target": pair[1]})
    return entries


def values(folder: Path, **train: Any) -> dict[str, Any]:
    """A recipe as plain values, with its text beside it."""
    data: dict[str, Any] = {"root": str(folder), "max_length": 16}
    data |= {name: write_corpora(folder, name, *some) for name, some in {"train": (600, 1), "valid": (12, 2)}.items()}
    shape = {"d_model": 64, "d_ff": 128, "num_heads": 4, "encoder_layers": 1, "decoder_layers": 1, "dropout": 0.0}
    given = {
        "steps": 400, "batch_tokens": 300, "lr": 4e-3, "warmup": 10, "schedule": "linear", "label_smoothing": 0.0, "average": 1,
        "device": "cpu", "precision": "fp32", "validate_every": 1000, "validate_sentences": 30, **train,
    }  # fmt: skip
    return {"data": data, "tokenizer": {"vocab_size": 420}, "model": {"preset": "base", **shape}, "train": given}
