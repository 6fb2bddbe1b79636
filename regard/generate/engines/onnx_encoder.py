"""The engine that runs encoders in ONNX Runtime, in fp32, without torch once a model is converted: models that CTranslate2 does
not run, such as ALBERT, and heads of tokens (`regard fill`). Sequences of similar lengths are padded to one length.

`tests/generate/test_encoders.py` compares it with transformers.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.bundle import Bundle
from regard.generate.encoding import Answer, Answers, EncoderInput, no_answers, put_answers, token_batches
from regard.generate.engines.model_cache import cached_folder
from regard.generate.engines.onnx_decoder import import_onnxruntime, open_session
from regard.generate.engines.onnx_encoder_graph import CONVERTER, MODEL, convert, longest_input
from regard.generate.options import OnFinished
from regard.parallel.processes import own_threads

_BATCH = 32  # sequences of a batch
_BATCH_TOKENS = 1_024


class OnnxEncoder:
    """Runs one converted encoder. Threads may share it."""

    def __init__(self, bundle: Bundle, batch: int = 0) -> None:
        """The bundle is converted unless the cache has it."""
        import_onnxruntime()  # fails before anything is converted
        self.head = bundle.config.head_settings
        self.width = len(self.head.labels) or bundle.config.d_model
        self.has_types = bundle.config.front_settings.token_types > 1
        self.batch, self.parallel = batch or _BATCH, 1
        self.max_length = min(bundle.max_length, longest_input(bundle) or bundle.max_length)
        write = partial(convert, bundle, is_engine=True)
        with cached_folder(bundle, "onnxruntime", f"encoder-{CONVERTER}", (MODEL,), write) as folder:
            self._session = open_session(folder / MODEL, own_threads())

    def answers(self, inputs: Sequence[EncoderInput], on_finished: OnFinished | None = None) -> Answers:
        """As `EncoderEngine.answers`."""
        found = no_answers(len(inputs), self.head.kind, self.width)
        for numbers in token_batches([len(one.ids) for one in inputs], self.batch, _BATCH_TOKENS):
            put_answers(found, numbers, self._run([inputs[number] for number in numbers]))
            if on_finished is not None:
                on_finished(numbers)
        return found

    def _run(self, inputs: Sequence[EncoderInput]) -> Answers:
        lengths = [len(one.ids) for one in inputs]
        longest = max(1, *lengths)
        ids, mask, types = (np.zeros((len(inputs), longest), np.int64) for _ in range(3))
        for row, one in enumerate(inputs):
            ids[row, : lengths[row]], mask[row, : lengths[row]] = one.ids, 1
            types[row, : len(one.types)] = one.types
        given: dict[str, NDArray[Any]] = {"input_ids": ids, "attention_mask": mask}
        if self.has_types:
            given["token_type_ids"] = types
        if self.head.kind == "tokens":
            rows = [row * longest + place for row, one in enumerate(inputs) for place in one.places]
            given["rows"] = np.array(rows or [0], np.int64)  # ONNX Runtime takes no empty product
            answer = self._answer(given)[: len(rows)]
            return np.split(answer, np.cumsum([len(one.places) for one in inputs])[:-1])
        answer = self._answer(given)
        if self.head.kind == "tags":
            return [own[:length] for own, length in zip(answer, lengths, strict=True)]
        return answer

    def _answer(self, given: dict[str, NDArray[Any]]) -> Answer:
        [answer] = self._session.run(None, given)
        found: Answer = answer
        return found
