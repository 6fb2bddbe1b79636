"""Initial weights. A model with both stacks starts as the paper's: Glorot-uniform matrices, embeddings of deviation d_model^-0.5.
A model of one stack starts as BERT and GPT-2 do: everything normal with a deviation of 0.02; with pre-norm, what is added to the
residual stream is smaller the more layers add to it. Biases start at zero, norms at one."""

from __future__ import annotations

import math

import torch
from torch import nn

from regard.config import ModelConfig
from regard.nn.attention import Attention, init_attention
from regard.nn.block import FeedForward, Layer
from regard.nn.embedding import LearnedPositions
from regard.nn.linear import Linear
from regard.nn.relative import RelativePositions

ONE_STACK_DEVIATION = 0.02


def draw_weights(model: nn.Module, config: ModelConfig) -> None:
    """Draw the weights of a model of this config from torch's generator; on the meta device there is nothing to draw."""
    if next(model.parameters()).is_meta:
        return
    if len(config.stacks) == 2:
        _draw_both(model, config)
    else:
        _draw_one(model, config)


def _draw_both(model: nn.Module, config: ModelConfig) -> None:
    for module in model.modules():
        if isinstance(module, Attention):
            init_attention(module)
        elif isinstance(module, FeedForward):
            # A gated layer stores two matrices in one: Glorot for each on its own.
            for block in (*torch.split(module.inner.weight, module.d_ff), module.outer.weight):
                nn.init.xavier_uniform_(block)
            for projection in (module.inner, module.outer):
                if projection.bias is not None:
                    nn.init.zeros_(projection.bias)
        elif isinstance(module, (nn.Embedding, LearnedPositions, RelativePositions)):
            nn.init.normal_(module.weight, std=config.d_model**-0.5)


def _draw_one(model: nn.Module, config: ModelConfig) -> None:
    for module in model.modules():
        if isinstance(module, (Linear, nn.Embedding, LearnedPositions, RelativePositions)):
            nn.init.normal_(module.weight, std=ONE_STACK_DEVIATION)
        if isinstance(module, Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)
    [stack] = config.stacks.values()
    if stack.norm_position == "pre":
        for layer in (module for module in model.modules() if isinstance(module, Layer)):
            for added in (layer.self_attention.out, layer.feed_forward.outer):
                with torch.no_grad():
                    added.weight /= math.sqrt(2 * stack.layers)
