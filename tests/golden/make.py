"""Writes the golden bundle of the current format, once, when a format is new: a very small model that reverses letters.

    python -m tests.golden.make

Golden bundles are never written again: a later Regard must read them as they are.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path

from regard.api import load
from regard.bundle import FORMAT, load_bundle
from regard.errors import UserError
from regard.export import export
from regard.recipe import load_recipe
from regard.training.run import train
from tests.tiny import reversal_pairs, write_pairs, write_recipe

GOLDEN = Path(__file__).parent
SENTENCES = ["a b c", "p o n m", "k", "", "h e l"]


def main() -> None:
    target = GOLDEN / f"bundle-{FORMAT}"
    if target.exists():
        raise UserError(f"{target}: exists already, and a golden bundle is never written again")
    {1: train_bundle, 2: quantise_bundle}[FORMAT](target)
    translations = load(target, device="cpu").translate(SENTENCES)
    expected = [
        {"source": source, "translation": translation}
        for source, translation in zip(SENTENCES, translations, strict=True)
    ]
    target.with_suffix(".json").write_text(json.dumps(expected, indent=2) + "\n", encoding="utf-8")


def quantise_bundle(target: Path) -> None:
    """Format 2 is format 1 with its weights stored small."""
    export(load_bundle(GOLDEN / "bundle-1"), "bundle", target, "int8")


def train_bundle(target: Path) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        recipe = write_recipe(folder, steps=2500, batch_tokens=800, save_every=2500, validate_every=500, warmup=100)
        write_pairs(folder, "train", reversal_pairs(20_000, 1, longest=4))
        write_pairs(folder, "valid", reversal_pairs(100, 2, longest=4))
        sets = [
            "train.lr=4e-3",
            "train.schedule=linear",
            "train.ema=0.99",
            "model.dropout=0.0",
            "model.norm_position=pre",
        ]
        train(load_recipe(recipe, [*sets, "tokenizer.vocab_size=345"]), folder / "run")
        shutil.copytree(folder / "run" / "model", target)


if __name__ == "__main__":
    main()
