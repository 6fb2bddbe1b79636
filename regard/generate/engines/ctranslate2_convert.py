"""One conversion to CTranslate2 for engines and exports: the paper's models are written without torch (`ctranslate2_model.py`), all
others with CTranslate2's own `specs` (`ctranslate2_specs.py`)."""

from __future__ import annotations

from pathlib import Path

from regard.bundle import Bundle
from regard.generate.engines import ctranslate2_model, ctranslate2_specs
from regard.generate.engines.ctranslate2_model import WeightFormat


def is_paper_model(bundle: Bundle) -> bool:
    """Whether the short way takes it."""
    return bundle.task == "translate" and ctranslate2_model.refusal(bundle) is None


def convert(bundle: Bundle, folder: Path, weights: WeightFormat, levels: int = 127) -> None:
    """Write the converted bundle into an existing folder; `levels` is the largest integer of int8 weights."""
    (ctranslate2_model if is_paper_model(bundle) else ctranslate2_specs).convert(bundle, folder, weights, levels)
