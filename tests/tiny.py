"""Small corpora, recipes and bundles that several tests start from."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from regard.bundle import Bundle, load_bundle, save_bundle, task_of
from regard.config import ModelConfig
from regard.data.tokenizer import Tokenizer
from regard.models.transformer import Transformer
from regard.recipe import DecodeRecipe

GOLDEN = Path(__file__).parent / "golden" / "bundle-1"
LETTERS = "abcdefghijklmnop"


def reversal_pairs(count: int, seed: int, longest: int = 8) -> list[tuple[str, str]]:
    """ "b d a" -> "a d b": a task that needs attention over the whole source, and has one right answer."""
    draw = random.Random(seed)
    pairs = []
    for _ in range(count):
        words = draw.choices(LETTERS, k=draw.randint(1, longest))
        pairs.append((" ".join(words), " ".join(reversed(words))))
    return pairs


def write_pairs(folder: Path, name: str, pairs: list[tuple[str, str]]) -> tuple[Path, Path]:
    folder.mkdir(parents=True, exist_ok=True)
    source, target = folder / f"{name}.src", folder / f"{name}.tgt"
    source.write_text("".join(f"{src}\n" for src, _ in pairs), encoding="utf-8")
    target.write_text("".join(f"{tgt}\n" for _, tgt in pairs), encoding="utf-8")
    return source, target


def write_recipe(folder: Path, **train: Any) -> Path:
    """A recipe for a very small reversal run, with its text beside it; `train` are fields of its [train] section."""
    write_pairs(folder, "train", reversal_pairs(400, 1))
    write_pairs(folder, "valid", reversal_pairs(20, 2))
    fields: dict[str, Any] = {
        "steps": 40,
        "batch_tokens": 200,
        "save_every": 5,
        "validate_every": 10,
        "log_every": 5,
        "warmup": 10,
        "device": "cpu",
        "precision": "fp32",
        **train,
    }
    lines = [
        f'{key} = "{value}"' if isinstance(value, str) else f"{key} = {str(value).lower()}"
        for key, value in fields.items()
    ]
    path = folder / "recipe.toml"
    path.write_text(
        "[data]\n"
        'source = "src"\ntarget = "tgt"\n'
        'train = "train.{src,tgt}"\nvalid = "valid.{src,tgt}"\n'
        "[tokenizer]\nvocab_size = 400\n"
        '[model]\npreset = "tiny"\nd_model = 32\nd_ff = 64\nnum_heads = 2\nencoder_layers = 1\ndecoder_layers = 1\n'
        "[train]\n" + "\n".join(lines) + "\n",
        encoding="utf-8",
    )
    return path


def make_bundle(
    folder: Path, max_length: int = 24, change: Callable[[Transformer], None] | None = None, decoder_layers: int = 1
) -> Bundle:
    """A bundle with random weights: it translates into nonsense, but always into the same."""
    lines = [side for pair in reversal_pairs(200, 3) for side in pair]
    lines += ["The cat sat on the mat; the dog did not.", "Die Katze saß auf der Matte, der Hund nicht."]
    tokenizer = Tokenizer.train(lines, 420, folder.parent / f"{folder.name}-tokenizer")
    shape = {"d_model": 32, "d_ff": 64, "num_heads": 2, "encoder_layers": 1, "decoder_layers": decoder_layers}
    config = ModelConfig(tokenizer.vocab_size, **shape)
    torch.manual_seed(7)
    model = Transformer(config)
    with torch.no_grad():
        model.embedding.weight[tokenizer.eos_id] *= 1.5  # so that translations end
    if change is not None:
        change(model)
    facts = {"regard": "0.1.0", "parameters": model.num_parameters()}
    return save_model(folder, model, tokenizer, max_length, facts)


def save_model(
    folder: Path,
    model: Transformer,
    tokenizer: Tokenizer,
    max_length: int = 24,
    facts: dict[str, Any] | None = None,
    decode: DecodeRecipe | None = None,
) -> Bundle:
    """A bundle of any model."""
    return save_bundle(
        folder,
        model.state_dict(),
        model.config,
        tokenizer,
        "[data]\n",
        source="en",
        target="de",
        decode=decode or DecodeRecipe(max_extra=10),
        max_length=max_length,
        facts=facts or {},
    )


def save_encoder(folder: Path, model: Transformer) -> Bundle:
    """A bundle of an encoder with the vocabulary of a golden, of 345 pieces."""
    return save_bundle(
        folder, model.state_dict(), model.config, load_bundle(GOLDEN).tokenizer, "", source="", target="",
        decode=DecodeRecipe(), max_length=24, facts={}, task=task_of(model.config),
    )  # fmt: skip
