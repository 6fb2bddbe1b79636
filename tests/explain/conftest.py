"""A small random model with two layers on each side, and its explainer."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from regard.bundle import Bundle
from regard.config import ModelConfig
from regard.explain.explainer import Explainer
from regard.explain.explanation import Explanation
from regard.generate.options import SearchOptions
from tests.build import build
from tests.explain.encoder_models import MAKERS
from tests.tiny import make_bundle, save_model


@pytest.fixture(scope="session")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    folder = tmp_path_factory.mktemp("explain")
    tokenizer = make_bundle(folder / "first").tokenizer
    config = ModelConfig(tokenizer.vocab_size, d_model=32, d_ff=48, num_heads=4, encoder_layers=2, decoder_layers=2)
    return save_model(folder / "bundle", build(config, seed=3), tokenizer, max_length=60)


@pytest.fixture(scope="session")
def explainer(bundle: Bundle) -> Explainer:
    return Explainer(bundle)


@pytest.fixture(scope="session")
def as_both_sides(explainer: Explainer) -> Callable[[str], Explanation]:
    """Explains a text as its own translation; each text once, however many tests look at it."""
    return cache(lambda text: explainer.explain(text, SearchOptions(beam=2, max_extra=2), target=text))


@pytest.fixture(scope="session")
def encoder_models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Bundle]]:
    """A model of each task in transformers' folder, and its bundle."""
    return {task: make(tmp_path_factory.mktemp(task)) for task, make in MAKERS.items()}
