"""The heads of a decoder whose cross-attention aligns words, and whether it is read one step later.

Attention is recorded while the decoder computes: step t reads target token t - 1 and predicts token t. In the last layers the
decoder has settled on the token to come, so step t tells where token t comes from. In earlier layers it still looks at what
stands for the token that it has just read, so token t is told by step t + 1: shifted attention (Chen et al., 2020). Which layer
and which heads align words differs from model to model; `regard/tasks/alignment.py` measures it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from regard.bounds import check_flag, check_whole
from regard.config import ModelConfig
from regard.errors import UserError
from regard.escaping import shorten
from regard.settings import StackConfig

_SHALLOW = 3  # decoder layers


@dataclass(frozen=True)
class AlignmentHeads:
    """The mean of some cross-attention heads of one decoder layer, all counted from 0."""

    layer: int
    heads: tuple[int, ...]
    shift: bool  # whether the step that reads a token aligns it, instead of the one that predicts it

    @classmethod
    def default(cls, config: ModelConfig) -> AlignmentHeads:
        """For a model in which nothing was measured: all heads of the last layer but one, which aligns best in decoders of six
        layers (Garg et al., 2019); in shallow ones only the last has settled on the token to come."""
        decoder = _decoder(config)
        layer = decoder.layers - (2 if decoder.layers > _SHALLOW else 1)
        return cls(layer, tuple(range(decoder.num_heads)), shift=False)

    @classmethod
    def from_json(cls, found: Any, config: ModelConfig) -> AlignmentHeads:
        """Read and check the `alignment` of a bundle's config.json; the message of a `UserError` starts with the field."""
        if not isinstance(found, Mapping) or set(found) != {"layer", "heads", "shift"}:
            raise UserError(f"alignment must hold layer, heads and shift, but is {shorten(found)}")
        layer, heads, shift = found["layer"], found["heads"], found["shift"]
        decoder = _decoder(config)
        check_whole("alignment.layer", layer, 0, decoder.layers - 1)
        check_flag("alignment.shift", shift)
        is_list = isinstance(heads, list) and bool(heads) and all(_is_index(head, decoder.num_heads) for head in heads)
        if not is_list or len(set(heads)) < len(heads):
            raise UserError(
                f"alignment.heads must be different heads from 0 to {decoder.num_heads - 1}, but is {shorten(heads)}"
            )
        chosen = cls(layer, tuple(heads), shift)
        if chosen.head_order(config) is None:
            raise UserError(
                f"alignment.heads must be one head or all where heads share keys and values, but is {shorten(heads)}"
            )
        return chosen

    def to_json(self) -> dict[str, Any]:
        """As in a bundle's config.json."""
        return {"layer": self.layer, "heads": list(self.heads), "shift": self.shift}

    def head_order(self, config: ModelConfig) -> list[int] | None:
        """All heads of the layer with the chosen ones first, and heads that share keys and values still side by side; None if
        no order is both.

        >>> config = ModelConfig(vocab_size=8, d_model=64, num_heads=4, num_kv_heads=2)
        >>> AlignmentHeads(0, (3,), True).head_order(config)
        [3, 2, 0, 1]
        >>> AlignmentHeads(0, (0, 3), True).head_order(config)
        """
        decoder = _decoder(config)
        size = decoder.num_heads // decoder.kv_heads
        groups = [range(first, first + size) for first in range(0, decoder.num_heads, size)]
        chosen = set(self.heads)
        # Whole groups first, then one that is chosen in part.
        groups.sort(key=lambda group: -len(chosen.intersection(group)))
        order = [head for group in groups for head in sorted(group, key=lambda head: head not in chosen)]
        return order if set(order[: len(chosen)]) == chosen else None


def _decoder(config: ModelConfig) -> StackConfig:
    if config.decoder_stack is None or not config.decoder_stack.cross:
        raise UserError("alignment needs a decoder that attends to an encoder, but this model has none")
    return config.decoder_stack


def _is_index(value: Any, count: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < count
