"""What the graphs for ONNX Runtime are built with: nodes, and the arrays that they take. Imports neither torch nor ONNX Runtime."""

from __future__ import annotations

import math
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.errors import UserError
from regard.settings import StackConfig

_Array = NDArray[Any]


def import_onnx() -> Any:
    """The onnx package, which is an optional dependency."""
    try:
        return import_module("onnx")
    except ImportError as error:
        raise UserError(
            f"onnx is not installed ({error}); install it with pip install 'regard[export]', or use --engine torch"
        ) from None


class GraphBuilder:
    """A graph as it is built. Each method returns the name of the value that it adds."""

    def __init__(self) -> None:
        self.onnx = import_onnx()
        self.nodes: list[Any] = []
        self.arrays: dict[str, Any] = {}

    def array(self, name: str, value: _Array) -> str:
        """A constant. One that is there already is not added again: layers may share it."""
        if name not in self.arrays:
            self.arrays[name] = self.onnx.numpy_helper.from_array(np.asarray(value, order="C"), name)
        return name

    def node(
        self, kind: str, inputs: Sequence[str], name: str, domain: str = "", outputs: int = 1, **settings: Any
    ) -> str:
        """A node whose output, or first output, is called `name`; the others are `name.1`, `name.2`, ..."""
        names = [name, *(f"{name}.{n}" for n in range(1, outputs))]
        self.nodes.append(self.onnx.helper.make_node(kind, inputs, names, domain=domain, name=name, **settings))
        return name


def frequencies(stack: StackConfig) -> _Array:
    """`regard.nn.rotary.Rotary.frequencies` without torch."""
    exponents = np.arange(0, stack.rotary_dim, 2, dtype=np.float32) / np.float32(stack.rotary_dim)
    found: _Array = np.exp(np.float32(-math.log(stack.rotary_base)) * exponents)
    scaling = stack.rotary_scaling
    if not scaling:
        return found
    slow: _Array = found / np.float32(scaling["factor"])
    if scaling["kind"] == "linear":
        return slow
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    waves = np.float32(scaling["original_max_positions"]) * found / np.float32(2 * math.pi)
    share = np.clip((waves - np.float32(low)) / np.float32(high - low), 0.0, 1.0).astype(np.float32)
    mixed: _Array = (np.float32(1) - share) * slow + share * found
    return mixed
