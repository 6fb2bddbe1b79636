"""Regard: train, use and examine translation models with the Transformer of "Attention Is All You Need".

    regard.load().translate("Good morning!")  # the built-in model
    regard.load("runs/en-de").translate(["Good morning!"])
    regard.train(regard.load_recipe("recipe.toml"), "runs/mine")
    regard.Transformer(regard.ModelConfig(vocab_size=37_000))  # a plain nn.Module

Names are imported on first use, so `import regard` is fast.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from regard.version import __version__

if TYPE_CHECKING:
    from regard.api import Model, load, load_index
    from regard.augment import Augmented, augment_corpus, noise_corpus
    from regard.bundle import Bundle, load_bundle
    from regard.config import ModelConfig
    from regard.data.tokenizer import Tokenizer
    from regard.errors import Interrupted, RegardError, UserError
    from regard.evaluate import compare, score
    from regard.explain.encoder_explanation import EncoderExplanation
    from regard.explain.explanation import Explanation
    from regard.generate.options import SearchOptions
    from regard.layout import SequenceLayout
    from regard.models.transformer import Transformer
    from regard.recipe import Recipe, load_recipe
    from regard.training.run import train
    from regard.translation.translation_options import TranslationOptions
    from regard.understanding.index import Index

_PLACES = {
    "Augmented": "regard.augment",
    "Bundle": "regard.bundle",
    "EncoderExplanation": "regard.explain.encoder_explanation",
    "Explanation": "regard.explain.explanation",
    "Index": "regard.understanding.index",
    "Interrupted": "regard.errors",
    "Model": "regard.api",
    "ModelConfig": "regard.config",
    "Recipe": "regard.recipe",
    "RegardError": "regard.errors",
    "SearchOptions": "regard.generate.options",
    "SequenceLayout": "regard.layout",
    "Tokenizer": "regard.data.tokenizer",
    "Transformer": "regard.models.transformer",
    "TranslationOptions": "regard.translation.translation_options",
    "UserError": "regard.errors",
    "augment_corpus": "regard.augment",
    "compare": "regard.evaluate",
    "load": "regard.api",
    "load_bundle": "regard.bundle",
    "load_index": "regard.api",
    "load_recipe": "regard.recipe",
    "noise_corpus": "regard.augment",
    "score": "regard.evaluate",
    "train": "regard.training.run",
}

__all__ = [
    "Augmented",
    "Bundle",
    "EncoderExplanation",
    "Explanation",
    "Index",
    "Interrupted",
    "Model",
    "ModelConfig",
    "Recipe",
    "RegardError",
    "SearchOptions",
    "SequenceLayout",
    "Tokenizer",
    "Transformer",
    "TranslationOptions",
    "UserError",
    "__version__",
    "augment_corpus",
    "compare",
    "load",
    "load_bundle",
    "load_index",
    "load_recipe",
    "noise_corpus",
    "score",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'regard' has no attribute {name!r}")
    value = getattr(import_module(_PLACES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
