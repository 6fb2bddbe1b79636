"""A loaded encoder with a head for labels: inputs in, what the head says out. `running.py` has the batches; another engine may take
the place of this one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from regard.bundle import Bundle
from regard.errors import UserError
from regard.understanding.answers import FloatArray

Input = tuple[Sequence[int], Sequence[int]]  # ids with their frame, and their types


class LabelEncoder:
    """Runs the model of a bundle. One call at a time: threads wait for each other."""

    def __init__(self, bundle: Bundle, device: str = "auto", batch: int = 0, engine: str = "auto") -> None:
        """`batch` is the number of texts of about 100 tokens in a batch; 0: about 4,000 tokens."""
        if engine not in ("auto", "torch"):
            raise UserError(f"engine must be auto or torch for the task {bundle.task}, but is {engine!r}")
        # Here, since `regard.api` is imported without torch.
        from regard.device import pick_device
        from regard.generate.engines.torch_engine import load_model
        from regard.understanding.running import BATCH_TOKENS, run_encoder

        self.bundle, self.device = bundle, pick_device(device)
        self._model, self._run = load_model(bundle).to(self.device), run_encoder
        self._batch_tokens = 100 * batch or BATCH_TOKENS
        self._lock = threading.Lock()

    @property
    def max_length(self) -> int:
        """Tokens of an input, its frame included."""
        return min(self.bundle.max_length, self.bundle.config.longest or self.bundle.max_length)

    def run(self, inputs: Sequence[Input], on_progress: Callable[[int], None] | None = None) -> list[FloatArray]:
        """What the head says of each input: (classes,), or (tokens, tags)."""
        with self._lock:
            return self._run(self._model, inputs, self.device, None, on_progress, self._batch_tokens)
