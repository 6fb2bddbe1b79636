"""Memory for time: the layers keep only what goes into them, and the backward pass computes the rest again (`train.recompute`)."""

from __future__ import annotations

from functools import partial

from torch.utils.checkpoint import checkpoint

from regard.models.transformer import Transformer


def recompute_layers(model: Transformer) -> None:
    """Have every layer of the model compute twice, the second time with the same dropout."""
    for stack in (model.encoder, model.decoder):
        for layer in stack.layers:
            layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)
