"""Runs a converted language model (`onnx_graph.py`) in ONNX Runtime: prompts are read and tokens added, each row at its own place
in caches that are written in place."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file

from regard.errors import UserError
from regard.generate.engines.onnx_graph import FILES, cache_names, from_blocks

_Array = NDArray[Any]

MIN_VERSION = (1, 24)  # the earliest that was tested
PART = 256  # tokens of a prompt that are read at once


def import_onnxruntime() -> Any:
    """The onnxruntime package, which is an optional dependency."""
    try:
        package = import_module("onnxruntime")
        version = tuple(int(number) for number in re.findall(r"\d+", package.__version__)[:2])
    except (ImportError, AttributeError) as error:
        raise UserError(
            f"ONNX Runtime is not installed ({error}); install it with pip install 'regard[export]', or use --engine torch"
        ) from None
    if version < MIN_VERSION:
        raise UserError(
            f"ONNX Runtime must be {'.'.join(map(str, MIN_VERSION))} or later, but is {package.__version__}; "
            f"update it with pip install --upgrade onnxruntime, or use --engine torch"
        )
    return package


def open_session(path: Path, threads: int) -> Any:
    """A graph that is ready to run on the CPU. Threads may share it."""
    package = import_onnxruntime()
    settings = package.SessionOptions()
    settings.intra_op_num_threads = threads
    settings.log_severity_level = 3
    # Threads that wait for work sleep: spinning takes the cores from whatever else runs, and then each step waits for them.
    settings.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return package.InferenceSession(str(path), settings, providers=["CPUExecutionProvider"])


class OnnxDecoder:
    """A converted model. Threads may share it."""

    def __init__(self, folder: Path, threads: int) -> None:
        self.session = open_session(folder / FILES[0], threads)
        front = load_file(folder / FILES[2])
        self._integers, self._scales, self._factor = front["integers"], front["scales"], front["factor"]
        self._positions = front.get("positions")
        shapes = {one.name: one.shape for one in (*self.session.get_inputs(), *self.session.get_outputs())}
        self.vocab_size: int = shapes["logits"][2]
        self._d_model: int = shapes["x"][2]
        self.cache_shape: tuple[int, int] = (shapes["keys.0"][1], shapes["keys.0"][3])
        self.cache_names = cache_names(sum(name.startswith("keys.") for name in shapes))

    def vectors(self, ids: _Array, positions: _Array) -> _Array:
        """Ids and their positions (B, S) -> (B, S, d_model)."""
        found: _Array = from_blocks(self._integers[ids], self._scales[ids], self._d_model) * self._factor
        if self._positions is not None:
            found += self._positions[positions]
        return found


class Rows:
    """Texts that are written side by side, each with its own length."""

    def __init__(self, decoder: OnnxDecoder, rows: int, capacity: int) -> None:
        """At most `capacity` tokens each. Memory that no token has reached is not used yet."""
        self._decoder = decoder
        heads, width = decoder.cache_shape
        self._caches = [np.zeros((rows, heads, capacity, width), np.float32) for _ in decoder.cache_names]
        self.lengths = [0] * rows
        self._binding = self._bind(self._caches)

    def _bind(self, caches: Sequence[_Array]) -> Any:
        """A binding whose new caches are the old ones."""
        binding = self._decoder.session.io_binding()
        for name, cache in zip(self._decoder.cache_names, caches, strict=True):
            where = ("cpu", 0, np.float32, list(cache.shape), cache.ctypes.data)
            binding.bind_input(name, *where)
            binding.bind_output(f"new_{name}", *where)
        return binding

    def _run(self, binding: Any, ids: _Array, before: _Array, wanted: Sequence[int]) -> _Array:
        """Read ids (B, S); `before` (B,) is the number of tokens that each row has read already. Returns the logits of the wanted
        places, (B, N, vocab_size)."""
        rows, count = ids.shape
        x = self._decoder.vectors(ids, before[:, None] + np.arange(count))
        given = {
            "x": x,
            "lengths": (before + count - 1).astype(np.int32),
            "total": np.asarray(before.max() + count, np.int32),
            "rows": np.asarray(wanted, np.int64),
        }
        for name, value in given.items():
            binding.bind_cpu_input(name, value)
        logits = np.empty((rows, len(wanted), self._decoder.vocab_size), np.float32)
        binding.bind_output("logits", "cpu", 0, np.float32, list(logits.shape), logits.ctypes.data)
        self._decoder.session.run_with_iobinding(binding)
        return logits

    def read(self, row: int, ids: Sequence[int]) -> _Array:
        """Add tokens to one row; the logits after the last of them, (vocab_size,)."""
        [last] = [part for part in self.read_parts(row, ids, 1) if len(part)]
        found: _Array = last[0]
        return found

    def read_parts(self, row: int, ids: Sequence[int], wanted: int) -> Iterator[_Array]:
        """Add tokens to one row; the logits after each of the last `wanted` of them, as (places, vocab_size) for each part that is
        read. What a row reads is computed alone and in parts of a fixed size, so that it does not depend on other rows."""
        binding = self._bind([cache[row : row + 1] for cache in self._caches])
        for begin in range(0, len(ids), PART):
            part = np.asarray(ids[begin : begin + PART], dtype=np.int64)[None]
            places = range(max(0, len(ids) - wanted - begin), part.shape[1])
            before = np.array([self.lengths[row]])
            # The last place of a part is always computed: ONNX Runtime takes no empty product.
            logits = self._run(binding, part, before, [*places] or [part.shape[1] - 1])
            self.lengths[row] += part.shape[1]
            yield logits[0, : len(places)]

    def copy(self, row: int, target: int) -> None:
        """Make a row equal to another one."""
        for cache in self._caches:
            cache[target, :, : self.lengths[row]] = cache[row, :, : self.lengths[row]]
        self.lengths[target] = self.lengths[row]

    def step(self, tokens: Sequence[int]) -> _Array:
        """Add a token to every row; the logits after it, (rows, vocab_size)."""
        logits = self._run(self._binding, np.asarray(tokens, np.int64)[:, None], np.array(self.lengths), [0])
        self.lengths = [length + 1 for length in self.lengths]
        return logits[:, 0]

    def keep(self, rows: Sequence[int]) -> None:
        """Drop all other rows."""
        longest = max((self.lengths[row] for row in rows), default=0)
        for place, row in enumerate(rows):  # in order, so that no row is overwritten before it is moved
            if place != row:
                for cache in self._caches:
                    cache[place, :, :longest] = cache[row, :, :longest]
        self._caches = [cache[: len(rows)] for cache in self._caches]
        self.lengths = [self.lengths[row] for row in rows]
        self._binding = self._bind(self._caches)
