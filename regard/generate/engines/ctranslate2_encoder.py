"""The engine for encoders on CPUs: CTranslate2, without torch once a model is converted. It runs the stack; pooling and heads are
computed here, in fp32.

It computes in int8 with bundles stored so, else in fp32. Heads of tokens (`regard fill`) are left to torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.bundle import Bundle
from regard.generate.encoding import Answer, Answers, EncoderInput, no_answers, put_answers, token_batches
from regard.generate.engines import ctranslate2_specs
from regard.generate.engines.ctranslate2_cache import converted
from regard.generate.engines.ctranslate2_common import import_ctranslate2, open_model
from regard.generate.engines.ctranslate2_model import WeightFormat, positions, read_weights
from regard.generate.options import OnFinished
from regard.parallel.processes import own_threads

_BATCH = 32  # sequences of a batch
_BATCH_TOKENS = 1_024
_THREADS = 1  # of a worker: several workers use the cores better than several threads of one


def encoder_refusal(bundle: Bundle) -> str | None:
    """Why CTranslate2 cannot run this model; None if it can."""
    if (kind := bundle.config.head_settings.kind) not in ("vector", "classes", "tags"):
        return f"CTranslate2 does not compute model.head.kind = {kind!r} here"
    return ctranslate2_specs.refusal(bundle)


class CTranslate2Encoder:
    """Runs one converted encoder."""

    def __init__(self, bundle: Bundle, weights: WeightFormat | None = None, batch: int = 0) -> None:
        """The bundle is converted unless the cache has it. `weights`: by default as the bundle stores them."""
        import_ctranslate2()  # fails before anything is converted
        self.bundle, self.head = bundle, bundle.config.head_settings
        self.batch, self.max_length = batch or _BATCH, min(bundle.max_length, positions(bundle))
        self.parallel = max(1, own_threads() // _THREADS)
        weights = weights or ("int8" if bundle.stored == "int8" else "fp32")
        with converted(bundle, weights) as folder:
            self._encoder = open_model("Encoder", folder, weights, self.parallel, _THREADS)

    def answers(self, inputs: Sequence[EncoderInput], on_finished: OnFinished | None = None) -> Answers:
        """As `EncoderEngine.answers`."""
        found = no_answers(len(inputs), self.head.kind, len(self.head.labels) or self.bundle.config.d_model)
        batches = list(token_batches([len(one.ids) for one in inputs], self.batch, _BATCH_TOKENS))

        def run(numbers: list[int]) -> None:
            put_answers(found, numbers, self._run([inputs[number] for number in numbers]))

        with ThreadPoolExecutor(self.parallel) as threads:  # they are begun only as batches need them
            for numbers, _ in zip(batches, threads.map(run, batches), strict=True):
                if on_finished is not None:
                    on_finished(numbers)
        return found

    def _run(self, inputs: Sequence[EncoderInput]) -> Answers:
        types = None
        if any(one.types for one in inputs):
            types = [list(one.types) or [0] * len(one.ids) for one in inputs]
        output = self._encoder.forward_batch([list(one.ids) for one in inputs], token_type_ids=types)
        states = np.asarray(output.last_hidden_state)  # (sequences, longest, d_model)
        lengths = np.array([len(one.ids) for one in inputs])
        if self.head.kind == "tags":
            return [self._output(own[:length]) for own, length in zip(states, lengths, strict=True)]
        pooled = self._pooled(states, lengths)
        return self._output(pooled) if self.head.kind == "classes" else pooled

    def _pooled(self, states: NDArray[Any], lengths: NDArray[Any]) -> Answer:
        """(sequences, longest, d_model) -> (sequences, d_model), as `regard.models.heads.pool`."""
        if self.head.pooling == "mean":
            share = (np.arange(states.shape[1]) < lengths[:, None]).astype(np.float32) / np.maximum(lengths, 1)[:, None]
            means: Answer = np.matmul(share[:, None].astype(np.float32), states)[:, 0]
            return means
        first = np.array(states[:, 0])
        if self.head.pooling == "first":
            return first
        pooled: Answer = np.tanh(first @ self._weights["head.pooler.weight"].T + self._weights["head.pooler.bias"])
        return pooled

    def _output(self, states: NDArray[Any]) -> Answer:
        logits: Answer = states @ self._weights["head.output.weight"].T + self._weights["head.output.bias"]
        return logits

    @cached_property
    def _weights(self) -> dict[str, NDArray[Any]]:
        """The weights of the head."""
        return read_weights(self.bundle, "head.")
