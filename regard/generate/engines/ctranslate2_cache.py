"""Models converted for CTranslate2, from the cache."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from regard.bundle import Bundle
from regard.generate.engines.ctranslate2_convert import convert
from regard.generate.engines.ctranslate2_model import CONVERTER, WeightFormat, int8_levels
from regard.generate.engines.model_cache import cached_folder


@contextmanager
def converted(bundle: Bundle, weights: WeightFormat) -> Iterator[Path]:
    """A folder with the converted bundle, to be loaded inside the block."""
    # Machines of both kinds may share a home folder.
    kind = "int7" if weights == "int8" and int8_levels() < 127 else weights
    files = ("model.bin", "config.json")

    def write(folder: Path) -> None:
        convert(bundle, folder, weights, int8_levels())

    with cached_folder(bundle, "ctranslate2", f"{kind}-{CONVERTER}", files, write) as folder:
        yield folder
