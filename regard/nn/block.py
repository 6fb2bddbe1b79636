"""The layers of the two stacks. Each sub-layer is wrapped in a residual connection and a norm:

post-norm (the paper):  x -> [sub-layer] -> dropout -> (+ x) -> norm -> out
pre-norm:               x -> norm -> [sub-layer] -> dropout -> (+ x) -> out
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.config import ModelConfig
from regard.layout import SequenceLayout
from regard.nn.attention import CrossAttention, Recorder, SelfAttention
from regard.nn.cache import LayerCache
from regard.nn.dropout import Dropout
from regard.nn.linear import Linear


def make_norm(config: ModelConfig) -> nn.Module:
    if config.norm == "rms":
        return nn.RMSNorm(config.d_model, eps=config.norm_eps)
    return nn.LayerNorm(config.d_model, eps=config.norm_eps)


def silu(x: Tensor) -> Tensor:
    """x / (1 + e^-x). On CPUs torch's own rounds an element differently at the end of a vector or a thread's share, so
    that a row would depend on its place in the batch; where nothing is learned, it is written out."""
    if x.requires_grad or x.device.type != "cpu":
        return F.silu(x)
    return x / (1.0 + torch.exp(-x))


class FeedForward(nn.Module):
    """FFN(x) = max(0, x W_1 + b_1) W_2 + b_2, or with GELU, or gated (SwiGLU: silu(x W_g + b_g) * (x W_1 + b_1))."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.activation = config.activation
        gated = config.activation == "swiglu"
        self.inner = Linear(config.d_model, config.d_ff * (2 if gated else 1))  # gated: gate and value side by side
        self.outer = Linear(config.d_ff, config.d_model)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.inner(x)
        if self.activation == "relu":
            hidden = torch.relu_(hidden)
        elif self.activation == "gelu":
            hidden = F.gelu(hidden)
        else:
            gate, value = hidden.chunk(2, dim=-1)
            hidden = silu(gate) * value
        output: Tensor = self.outer(hidden)
        return output


class Residual(nn.Module):
    """The connection around one sub-layer: dropout on its output, the sum, and the norm on the configured side."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.pre = config.norm_position == "pre"
        self.norm = make_norm(config)
        self.dropout = Dropout(config.dropout)

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        if self.pre:
            added: Tensor = x + self.dropout(sublayer(self.norm(x)))
            return added
        normed: Tensor = self.norm(x + self.dropout(sublayer(x)))
        return normed


class EncoderLayer(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.self_attention = SelfAttention(config, causal=False)
        self.self_residual = Residual(config)
        self.feed_forward = FeedForward(config)
        self.feed_forward_residual = Residual(config)

    def forward(self, x: Tensor, layout: SequenceLayout, name: str = "", recorder: Recorder | None = None) -> Tensor:
        hook = recorder.hook(f"{name}.self") if recorder else None
        x = self.self_residual(x, lambda y: self.self_attention(y, layout, hook))
        output: Tensor = self.feed_forward_residual(x, self.feed_forward)
        return output


class DecoderLayer(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.self_attention = SelfAttention(config, causal=True)
        self.self_residual = Residual(config)
        self.cross_attention = CrossAttention(config)
        self.cross_residual = Residual(config)
        self.feed_forward = FeedForward(config)
        self.feed_forward_residual = Residual(config)

    def forward(
        self,
        x: Tensor,
        layout: SequenceLayout,
        memory: Tensor,
        memory_layout: SequenceLayout,
        name: str = "",
        recorder: Recorder | None = None,
    ) -> Tensor:
        self_hook = recorder.hook(f"{name}.self") if recorder else None
        cross_hook = recorder.hook(f"{name}.cross") if recorder else None
        x = self.self_residual(x, lambda y: self.self_attention(y, layout, self_hook))
        x = self.cross_residual(x, lambda y: self.cross_attention(y, layout, memory, memory_layout, cross_hook))
        output: Tensor = self.feed_forward_residual(x, self.feed_forward)
        return output

    def step(self, x: Tensor, position: Tensor, cache: LayerCache) -> Tensor:
        """One new token a row, (rows, d_model)."""
        x = self.self_residual(x, lambda y: self.self_attention.step(y, position, cache.self_attention))
        x = self.cross_residual(x, lambda y: self.cross_attention.step(y, cache.cross_attention))
        output: Tensor = self.feed_forward_residual(x, self.feed_forward)
        return output
