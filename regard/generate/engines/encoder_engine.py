"""The engine that runs encoders with torch: sequences packed without padding, sorted by length, in batches of tokens.

On a GPU it computes in fp16 with flash attention over the packed rows. Copies do not wait for the device: the host prepares the
next batches while it computes, and waits only for results that are two batches old.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.bundle import Bundle
from regard.device import pick_device, with_index
from regard.generate.encoding import Answers, EncoderInput, no_answers, put_answers, token_batches
from regard.generate.engines.torch_engine import load_model
from regard.generate.options import OnFinished
from regard.layout import SequenceLayout
from regard.models.heads import SequenceHead
from regard.models.transformer import Transformer
from regard.nn.attention import set_kernel
from regard.nn.kernels import varlen
from regard.nn.linear import set_row_tile

_BATCH = {"cpu": 64, "cuda": 4_096, "mps": 256}  # sequences of a batch
_BATCH_TOKENS = {"cpu": 4_096, "cuda": 65_536, "mps": 8_192}
_AHEAD = 2  # batches that the device may be behind


class TorchEncoder:
    """Runs one encoder, which must not be trained meanwhile."""

    def __init__(
        self,
        model: Transformer,
        *,
        device: torch.device | str = "cpu",
        batch: int = 0,
        max_length: int = 512,
        in_training: bool = False,
        autocast: torch.dtype | None = None,
        before_output: bool = False,
    ) -> None:
        """`in_training`: the model will be trained on, so its weights stay in fp32, and batches leave room on the device; the
        states are then computed in `autocast`. `before_output`: the answers are the vectors that the head's output layer gets. The
        model is left in evaluation mode."""
        self.device = with_index(torch.device(device))
        self.model = model.to(self.device).eval()
        set_kernel(self.model, "auto")
        set_row_tile(self.model, 0)
        self._autocast, self._before_output = autocast, before_output
        head = model.config.head_settings
        self.kind = head.kind
        self.width = model.config.d_model if before_output or not head.labels else len(head.labels)
        if not in_training and varlen.available(self.device, torch.float16):
            self.model.half()
            if self.kind != "tokens":
                self.model.head.float()  # means of many tokens, and what is computed from them
        self.batch = batch or _BATCH.get(self.device.type, 64)
        self.batch_tokens = _BATCH_TOKENS["cpu" if in_training else self.device.type]
        self.parallel, self.max_length = 1, max_length
        self._lock = threading.Lock()  # one call at a time: torch uses all cores, or the device, for each

    @classmethod
    def from_bundle(cls, bundle: Bundle, device: str = "auto", batch: int = 0) -> TorchEncoder:
        """The engine for a bundle's model."""
        return cls(load_model(bundle), device=pick_device(device), batch=batch, max_length=bundle.max_length)

    def answers(self, inputs: Sequence[EncoderInput], on_finished: OnFinished | None = None) -> Answers:
        """As `EncoderEngine.answers`."""
        found = no_answers(len(inputs), self.kind, self.width)
        waiting: deque[tuple[list[int], Tensor, Any]] = deque()

        def finish() -> None:
            numbers, answer, event = waiting.popleft()
            if event is not None:
                event.synchronize()
            answers: Answers = answer.numpy()
            if not isinstance(found, np.ndarray):
                answers = np.split(answers, np.cumsum(self._sizes([inputs[number] for number in numbers]))[:-1])
            put_answers(found, numbers, answers)
            if on_finished is not None:
                on_finished(numbers)

        with self._lock, torch.inference_mode():
            for numbers in token_batches([len(one.ids) for one in inputs], self.batch, self.batch_tokens):
                waiting.append((numbers, *self._run([inputs[number] for number in numbers])))
                if len(waiting) > _AHEAD:
                    finish()
            while waiting:
                finish()
        return found

    def _sizes(self, inputs: Sequence[EncoderInput]) -> list[int]:
        """Rows of each answer about tokens."""
        return [len(one.ids) if self.kind == "tags" else len(one.places) for one in inputs]

    def _run(self, inputs: Sequence[EncoderInput]) -> tuple[Tensor, Any]:
        """The answers of a batch in host memory, where they may arrive later: see the event."""
        layout = SequenceLayout.from_lengths([len(one.ids) for one in inputs])
        ids = self._moved(chain.from_iterable(one.ids for one in inputs), layout.num_tokens)
        types = None
        if any(one.types for one in inputs):
            given = (one.types or [0] * len(one.ids) for one in inputs)
            types = self._moved(chain.from_iterable(given), layout.num_tokens)
        rows = self._rows(inputs, layout) if self.kind == "tokens" else None
        if self.device.type == "cuda":
            layout = layout.pin_memory()
        layout = layout.to(self.device, non_blocking=True)
        with torch.autocast(self.device.type, self._autocast, enabled=self._autocast is not None):
            states = self.model.states(ids, layout, token_types=types)
        answer = self._head(states, layout, rows).float()
        if self.device.type != "cuda":
            return answer.cpu(), None
        host = torch.empty(answer.shape, dtype=answer.dtype, pin_memory=True)
        host.copy_(answer, non_blocking=True)
        event = torch.cuda.Event()
        event.record()
        return host, event

    def _rows(self, inputs: Sequence[EncoderInput], layout: SequenceLayout) -> Tensor:
        """The packed rows whose logits are wanted."""
        starts = layout.offsets.tolist()
        rows = [start + place for start, one in zip(starts, inputs, strict=False) for place in one.places]
        return self._moved(rows, len(rows))

    def _moved(self, numbers: Any, count: int) -> Tensor:
        moved = torch.from_numpy(np.fromiter(numbers, np.int64, count))
        return (
            moved.pin_memory().to(self.device, non_blocking=True)
            if self.device.type == "cuda"
            else moved.to(self.device)
        )

    def _head(self, states: Tensor, layout: SequenceLayout, rows: Tensor | None) -> Tensor:
        if rows is not None:
            return self.model.logits(states.index_select(0, rows))
        states = states.float()
        if self._before_output and self.kind == "tags":
            return states
        if self._before_output or self.kind == "vector":
            assert isinstance(self.model.head, SequenceHead)
            return self.model.head.pooled(states, layout)
        answer: Tensor = self.model.head(states, layout)
        return answer
