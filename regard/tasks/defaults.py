"""What most tasks do where only some have something to do: nothing. A module of a task imports these under their names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from regard.bundle import Bundle
from regard.config import ModelConfig
from regard.data.corpus import RecordSource, Texts
from regard.data.split import HeldOut
from regard.data.store import Store
from regard.data.tokenizer import Tokenizer
from regard.models.transformer import Transformer
from regard.recipe import Recipe
from regard.settings import HeadConfig
from regard.tasks.task import Baseline, LossFunction


def complete(recipe: Recipe, head: HeadConfig | None = None) -> Recipe:
    return recipe


def begin(model: Transformer, store: Store) -> None:
    return None


def fit_head(recipe: Recipe, model: Transformer, store: Store, tokenizer: Tokenizer, device: torch.device) -> None:
    return None


def anchored_loss(start: Transformer, side: int) -> LossFunction:
    raise NotImplementedError("recipes of this task have no train.anchor")


def about_store(recipe: Recipe, store: Store, tokenizer: Tokenizer, config: ModelConfig) -> list[str]:
    return []


def baseline(
    recipe: Recipe,
    corpora: Sequence[RecordSource],
    held_out: HeldOut | None,
    valid: Sequence[Texts],
    test: Sequence[Texts],
) -> Baseline | None:
    return None


def examine(recipe: Recipe, bundle: Bundle, records: Sequence[Texts]) -> dict[str, Any] | None:
    return None


def measure_weights(
    recipe: Recipe,
    weights: dict[str, Tensor],
    tokenizer: Tokenizer,
    records: Sequence[Texts],
    device: torch.device,
) -> dict[str, Any]:
    return {}
