"""What the engines for CTranslate2 share: the package, opening a converted model, and torch's engine for what it cannot do."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from regard.bundle import Bundle
from regard.errors import UserError
from regard.generate.engines.ctranslate2_model import WeightFormat

if TYPE_CHECKING:
    from regard.generate.engines.torch_engine import TorchEngine

_LOG = logging.getLogger("regard.engines")
MIN_VERSION = (4, 8)  # the earliest that was tested
_COMPUTE_TYPES = {"fp32": "float32", "fp16": "float32", "int8": "int8"}  # CPUs are not faster in 16-bit floats


def import_ctranslate2() -> Any:
    """The ctranslate2 package, which is an optional dependency."""
    try:
        package = import_module("ctranslate2")
        version = tuple(int(number) for number in re.findall(r"\d+", package.__version__)[:2])
    except (ImportError, AttributeError) as error:
        raise UserError(
            f"CTranslate2 is not installed ({error}); install it with pip install 'regard[export]', or use --engine torch"
        ) from None
    if version < MIN_VERSION:
        raise UserError(
            f"CTranslate2 must be {'.'.join(map(str, MIN_VERSION))} or later, but is {package.__version__}; "
            f"update it with pip install --upgrade ctranslate2, or use --engine torch"
        )
    return package


def open_model(
    kind: Literal["Translator", "Generator", "Encoder"],
    folder: Path,
    weights: WeightFormat,
    workers: int,
    threads: int,
    files: Mapping[str, bytes] | None = None,
) -> Any:
    """A converted model, with so many workers of so many threads each. It is read from its folder, or from `files`."""
    package = import_ctranslate2()
    compute = _COMPUTE_TYPES[weights]
    make = partial(
        getattr(package, kind),
        str(folder),
        device="cpu",
        compute_type=compute if compute in package.get_supported_compute_types("cpu") else "default",
        inter_threads=workers,
        intra_threads=threads,
        files=files,
    )
    # In another thread: the constructor sets the number of OpenMP threads of its thread, which torch shares.
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(make).result()


class WithTorch:
    """An engine that leaves what it cannot do to torch's, with a note, or with `strict` refuses it by name."""

    def __init__(self, bundle: Bundle, batch: int, strict: bool) -> None:
        self.bundle, self.batch, self.strict = bundle, batch, strict
        self.is_quiet = False  # whether to print no notes when torch takes over
        self._notes: set[str] = set()  # those already printed
        self._loading = threading.Lock()
        self._loaded: TorchEngine | None = None  # torch's engine, once it is needed

    def _fallback_for(self, what: str) -> TorchEngine:
        """Torch's engine, for what CTranslate2 cannot do; refuses if `strict`."""
        if self.strict:
            raise UserError(f"engine ctranslate2 cannot do {what}; use --engine torch, or auto")
        return self._fallback(f"{are_left(what)}: ctranslate2 cannot do it")

    def _fallback(self, note: str) -> TorchEngine:
        """Torch's engine, with a note in the log the first time; the command line prints that log."""
        if note not in self._notes and not self.is_quiet:
            self._notes.add(note)
            _LOG.info("%s", note)
        return self.torch_engine

    @property
    def torch_engine(self) -> TorchEngine:
        """Torch's engine with the same model, loaded when it is first needed."""
        with self._loading:  # several threads may search at once
            if self._loaded is None:
                from regard.generate.engines.torch_engine import TorchEngine

                self._loaded = TorchEngine.from_bundle(self.bundle, "cpu", self.batch)
            return self._loaded


def are_left(what: str) -> str:
    """ "phrases" -> "phrases is left to torch" """
    return f"{what} {'are' if ' and ' in what else 'is'} left to torch"
