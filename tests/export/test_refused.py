"""An exporter or engine knows exactly the settings that it was tested with, and refuses every other by name."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from regard.errors import UserError
from regard.export import onnx
from regard.generate.engines import ctranslate2_model
from tests.build import LATER, ONE_STACK, tiny_config


@pytest.mark.parametrize("name", [*LATER, *ONE_STACK])
def test_a_setting_that_is_not_known_is_refused_by_name(name: str) -> None:
    bundle: Any = SimpleNamespace(config=tiny_config(**(LATER | ONE_STACK)[name]))
    said = (
        "CTranslate2 runs models with an encoder and a decoder here"
        if name in ONE_STACK
        else "CTranslate2 does not support model."
    )
    assert str(ctranslate2_model.refusal(bundle)).startswith(said)
    if bundle.config.decoder_layers:  # graphs of encoders have every setting
        with pytest.raises(UserError, match=r"^model\.[\w.]+ = .* cannot be exported to ONNX yet"):
            onnx.write(bundle, Path("unused"), "fp32", bundle)
