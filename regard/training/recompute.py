"""Activation checkpointing (`train.recompute`): layers keep only their inputs, and the backward pass recomputes the rest."""

from __future__ import annotations

from functools import partial

from torch.utils.checkpoint import checkpoint

from regard.models.transformer import Transformer


def recompute_layers(model: Transformer) -> None:
    """Recompute every layer in the backward pass, with the same dropout."""
    for stack in model.stacks:
        for layer in stack.layers:
            layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)
