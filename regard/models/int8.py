"""A model whose linear layers compute in int8, for decoding on CPUs."""

from __future__ import annotations

from torch import nn

from regard.models.transformer import Transformer
from regard.nn.int8 import Int8Weight
from regard.nn.linear import Linear


def to_int8(model: Transformer) -> None:
    """Compute all linear layers of a model in int8, its output matrix included. Their own weights are dropped; embeddings stay."""
    for module in model.modules():
        if isinstance(module, Linear):
            module.int8 = Int8Weight(module.weight)
            module.weight = nn.Parameter(module.weight.new_empty(0), requires_grad=False)
    model.output_int8 = Int8Weight(model.output_matrix)
