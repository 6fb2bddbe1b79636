"""A bundle's weights file: what its header must say, and that its tensors are finite. The file may come from anywhere, so its
header is compared with the settings before a model is built from them. Imports no torch; engines read the tensors."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from safetensors import SafetensorError, safe_open

from regard.config import ModelConfig
from regard.errors import UserError
from regard.escaping import shorten
from regard.settings import Side

Stored = Literal["fp32", "fp16", "int8"]

_TYPES: dict[Stored, tuple[str, ...]] = {"fp32": ("F32",), "fp16": ("F16", "F32"), "int8": ("I8", "F32")}
_LAYER = re.compile(r"(encoder|decoder)\.layers\.(\d+)\.")

Header = dict[str, tuple[str, tuple[int, ...]]]  # data type and shape of every tensor


def scale_name(name: str) -> str:
    """The tensor with the factors by which the rows of an int8 matrix were multiplied before rounding."""
    return f"{name}_scale"


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Around reading a safetensors file: what is none is refused by name."""
    try:
        yield
    except SafetensorError as error:
        raise UserError(
            f"{path}: must be a safetensors file, but cannot be read as one ({error}); copy or make the model again"
        ) from None


def read_header(path: Path) -> Header:
    """Data types and shapes of the tensors, without reading them."""
    with readable(path), safe_open(str(path), framework="np") as file:
        slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
        return {name: (one.get_dtype(), tuple(one.get_shape())) for name, one in slices.items()}


def check_header(path: Path, config: ModelConfig, stored: Stored) -> None:
    """Refuse weights that cannot belong to these settings: their data types, the vocabulary, the width and the number of layers.
    Engines check the other shapes when they read the tensors."""
    header = read_header(path)
    for name, (kind, shape) in header.items():
        if kind not in _TYPES[stored]:
            raise _wrong(path, name, f"must be {' or '.join(_TYPES[stored])} in a bundle of {stored}, but is {kind}")
        if kind == "I8":
            rows = header.get(scale_name(name))
            if rows is None:
                raise _wrong(path, scale_name(name), "is missing")
            if len(shape) != 2 or rows != ("F32", shape[:1]):
                raise _wrong(path, scale_name(name), f"must have one F32 for each row of {shape}, but is {rows}")
    wanted = (config.vocab_size, config.front_settings.d_embedding)
    for name in (f"{matrix}.weight" for matrix in _matrices_of_pieces(config)):
        if name not in header:
            raise _wrong(path, name, "is missing")
        if header[name][1] != wanted:
            raise _wrong(path, name, f"must have shape {wanted}, but has {header[name][1]}")
    sides: tuple[tuple[Side, int], ...] = (("encoder", config.encoder_layers), ("decoder", config.decoder_layers))
    for side, layers in sides:
        stack = config.stacks.get(side)
        count = 1 if stack is not None and stack.share_layers else layers
        found = {match[2] for match in map(_LAYER.match, header) if match is not None and match[1] == side}
        if found != {str(number) for number in range(count)}:
            raise UserError(f"{path}: must have {count} {side} layers, but has {len(found)}")


def _matrices_of_pieces(config: ModelConfig) -> tuple[str, ...]:
    """The matrices with a row for each piece of the vocabulary."""
    if config.tie_embeddings:
        return ("embedding",)
    return ("src_embedding", "tgt_embedding", "output") if len(config.stacks) == 2 else ("embedding", "output")


def check_finite(path: Path, are_finite: Iterable[tuple[str, bool]]) -> None:
    """Refuse weights of which a tensor has NaN or infinity; some engines would translate with them by copying the source."""
    for name, is_finite in are_finite:
        if not is_finite:
            raise _wrong(
                path, name, "must hold finite numbers, but has NaN or infinity; use another checkpoint or copy"
            )


def _wrong(path: Path, name: str, what: Any) -> UserError:
    return UserError(f"{path}: tensor {shorten(name)[1:-1]} {what}")
