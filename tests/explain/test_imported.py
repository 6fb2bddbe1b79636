"""Explanations of imported models, which have two tokenizers and a vocabulary of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest
import torch

from regard.bundle import load_bundle
from regard.explain.explainer import Explainer
from regard.generate.options import SearchOptions
from regard.importing.marian import import_marian
from tests.importing.opus import write_opus


@pytest.mark.slow
@pytest.mark.parametrize("separate", ["", "fewer source"])
def test_imported_models_are_explained_with_their_own_pieces(
    tmp_path: Path, separate: Literal["", "fewer source"]
) -> None:
    torch.manual_seed(0)
    write_opus(tmp_path / "marian", separate=separate)
    import_marian(tmp_path / "marian", tmp_path / "bundle")
    explainer = Explainer(load_bundle(tmp_path / "bundle"))
    options = SearchOptions(beam=2, max_extra=4)
    explained = explainer.explain("Tom is", options, target="Wo ist der Bahnhof?")
    assert explained.source.words == ["Tom", "is", "</s>"]
    assert explained.target.words == ["Wo", "ist", "der", "Bahnhof", "?", "</s>"]
    [scores] = explainer.engine.score(
        [explainer.tokenizer.encode("Tom is")],
        [explainer.tokenizer.encode("Wo ist der Bahnhof?", "target")],
    )
    assert [step.log_prob for step in explained.steps] == pytest.approx(scores, abs=1e-4)
    forced = explainer.explain("Tom is", options, force={1: "Wo", 2: "ist"})
    assert forced.target.words[:2] == ["Wo", "ist"]
