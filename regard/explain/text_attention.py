"""The attention of a language model within a text: every layer and head, from one pass with the reference kernel."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from threading import Lock
from typing import Any

import torch

from regard.bundle import Bundle
from regard.data.pieces import TokenizedSide, group_words
from regard.errors import InputError
from regard.explain.explainer import head_facts, rounded
from regard.explain.explanation import CAUTION
from regard.generate.engines.torch_engine import TorchEngine
from regard.layout import SequenceLayout
from regard.models.recording import reference_copy
from regard.nn.attention import Recorder

MAX_PIECES = 128  # that are shown: nobody reads a larger drawing
_MAX_NUMBERS = 1_500_000  # of all layers and heads together
_DIGITS = 3


class TextAttention:
    """Looks into texts with one language model, in fp32 on the CPU."""

    def __init__(self, bundle: Bundle, engine: TorchEngine) -> None:
        """Shares the weights of `engine` if it has them in fp32 on the CPU; otherwise loads them."""
        self.tokenizer, self.bundle = bundle.tokenizer, bundle
        is_usable = engine.device.type == "cpu" and engine.slots is None
        model = engine.model if is_usable else TorchEngine.from_bundle(bundle, "cpu").model
        self._model = reference_copy(model, row_tile=0)
        self._lock = Lock()  # a recorded pass puts hooks on the model

    @torch.inference_mode()
    def of(self, ids: Sequence[int]) -> dict[str, Any]:
        """What the page draws, as JSON: attention as [layer][head][query][key], of the last pieces if the text has too many."""
        if not ids:
            raise InputError("text must not be empty; write something first")
        if len(ids) > self.bundle.max_length:
            raise InputError(
                f"text must have at most {self.bundle.max_length} tokens, the context of this model, but has {len(ids)}; "
                "shorten it"
            )
        recorder = Recorder()
        with self._lock:
            self._model.decode(torch.tensor(list(ids)), SequenceLayout.from_lengths([len(ids)]), None, None, recorder)
        layers = [recorder.weights[f"decoder.{n}.self"][0] for n in range(self.bundle.config.decoder_layers)]
        heads = layers[0].shape[0]
        shown = drawn_pieces(len(ids), len(layers) * heads)
        side = self._side(ids[-shown:])
        return {
            "model": {"num_heads": heads, "layers": len(layers)},
            "pieces": {"shown": shown, "of": len(ids)},
            "decoder_input": dataclasses.asdict(side),
            "attention": {"decoder": [rounded(layer[:, -shown:, -shown:], _DIGITS) for layer in layers]},
            "heads": {
                "decoder": [[dataclasses.asdict(one) for one in head_facts(layer, "decoder")] for layer in layers]
            },
            "caution": CAUTION,
        }

    def _side(self, ids: Sequence[int]) -> TokenizedSide:
        special = [i for i in (self.tokenizer.bos_id, self.tokenizer.eos_id) if i >= 0]
        return group_words(ids, self.tokenizer.pieces(ids), special)


def drawn_pieces(pieces: int, heads: int) -> int:
    """How many pieces of a text are drawn, by the heads of all layers together."""
    return min(pieces, MAX_PIECES, math.isqrt(_MAX_NUMBERS // heads))
