"""Writes the golden bundle of the current format, once, when a format is new: a very small model.

    python -m tests.golden.make

Golden bundles are never written again: a later Regard must read them as they are.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch

from regard.api import load
from regard.bundle import FORMAT, Bundle, load_bundle
from regard.errors import UserError
from regard.export import export
from regard.generate.engines.torch_engine import load_model
from regard.importing.transformers import import_model
from regard.layout import SequenceLayout
from regard.recipe import load_recipe, recipe_from_dict
from regard.training.run import train
from tests import json_tokenizers
from tests.families.checkpoints import make_original
from tests.tiny import reversal_pairs, write_pairs, write_recipe
from tests.toy_directions import values

GOLDEN = Path(__file__).parent
SENTENCES = ["a b c", "p o n m", "k", "", "h e l"]
TEXTS = ["The dog", " is here.", "Wo ist 漢?", "</s><|endoftext|>"]


def main() -> None:
    target = GOLDEN / f"bundle-{FORMAT}"
    if target.exists():
        raise UserError(f"{target}: exists already, and a golden bundle is never written again")
    {1: train_bundle, 2: quantise_bundle, 3: import_bundle, 4: train_directions}[FORMAT](target)
    expected = likeliest(load_bundle(target)) if FORMAT == 3 else translations(target)
    target.with_suffix(".json").write_text(json.dumps(expected, indent=2) + "\n", encoding="utf-8")


def translations(target: Path) -> list[dict[str, Any]]:
    model = load(target, device="cpu")
    if model.bundle.directions:
        return [
            {"source": source, "target": to, "translation": model.translate(source, target=to)}
            for to in model.bundle.tokenizer.targets
            for source in (SENTENCES if to != "low" else [sentence.upper() for sentence in SENTENCES])
        ]
    found = model.translate(SENTENCES)
    return [{"source": source, "translation": one} for source, one in zip(SENTENCES, found, strict=True)]


@torch.no_grad()
def likeliest(bundle: Bundle) -> list[dict[str, Any]]:
    """For a language model: the ids of each text, and the likeliest token after each of them with its log-probability."""
    model = load_model(bundle)
    expected = []
    for text in TEXTS:
        ids = bundle.tokenizer.encode(text)
        log_probs = model(torch.tensor(ids), SequenceLayout.from_lengths([len(ids)])).log_softmax(-1)
        best, tokens = log_probs.max(-1)
        expected.append({"text": text, "ids": ids, "next": tokens.tolist(), "log_probs": best.tolist()})
    return expected


def import_bundle(target: Path) -> None:
    """Format 3 holds models for other tasks than translation: here a language model with a tokenizer of Hugging Face."""
    with tempfile.TemporaryDirectory() as name:
        shape = {"n_embd": 16, "n_head": 2, "n_layer": 2, "n_positions": 32, "vocab_size": 401}
        folder = Path(name) / "tiny-gpt2"
        make_original("gpt2", eos_token_id=400, bos_token_id=400, **shape).save_pretrained(folder)
        json_tokenizers.write(folder, "gpt2")
        import_model(folder, target)


def quantise_bundle(target: Path) -> None:
    """Format 2 is format 1 with its weights stored small."""
    export(load_bundle(GOLDEN / "bundle-1"), "bundle", target, "int8")


def train_directions(target: Path) -> None:
    """Format 4 holds models for several directions; its weights are stored small."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        train(recipe_from_dict(values(folder)), folder / "run")
        export(load_bundle(folder / "run" / "model"), "bundle", target, "int8")


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
