"""The layers of encoder and decoder. Each sub-layer is wrapped in a residual connection and a norm:

post-norm (the paper):  x -> [sub-layer] -> dropout -> (+ x) -> norm -> out
pre-norm:               x -> norm -> [sub-layer] -> dropout -> (+ x) -> out

Either way a norm follows the sum (with pre-norm, the next sub-layer's), so that dropout, sum and norm can be one kernel.
Every tensor here is (tokens, d_model), or (rows, d_model) in a decoding step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.layout import Layout
from regard.nn.attention import CrossAttention, Recorder, SelfAttention
from regard.nn.cache import LayerCache
from regard.nn.dropout import Dropout
from regard.nn.linear import Linear
from regard.nn.slot_cache import SlotLayerCache
from regard.settings import StackConfig


def make_norm(config: StackConfig) -> nn.Module:
    """The norm that the config asks for, over d_model."""
    if config.norm == "rms":
        return nn.RMSNorm(config.d_model, eps=config.norm_eps)
    return nn.LayerNorm(config.d_model, eps=config.norm_eps)


def silu(x: Tensor) -> Tensor:
    """x / (1 + e^-x). On CPUs torch's own rounds differently at the end of a vector or of a thread's share, so that a row would
    depend on its place in the batch; at inference it is therefore written out."""
    if x.requires_grad or x.device.type != "cpu":
        return F.silu(x)
    return x / (1.0 + torch.exp(-x))


class FeedForward(nn.Module):
    """FFN(x) = max(0, x W_1 + b_1) W_2 + b_2. The max may be GELU or SiLU instead, or gated: in SwiGLU the hidden layer is
    silu(x W_g + b_g) * (x W_1 + b_1)."""

    fused = False  # whether the ReLU is part of the matrix product, with a Triton kernel for the backward pass

    def __init__(self, config: StackConfig) -> None:
        super().__init__()
        self.activation = config.activation
        gated = config.activation == "swiglu"
        self.inner = Linear(config.d_model, config.d_ff * (2 if gated else 1))  # gated: gate, then value
        self.outer = Linear(config.d_ff, config.d_model)

    def forward(self, x: Tensor, add_bias: bool = True) -> Tensor:
        """(tokens, d_model) -> (tokens, d_model). Without `add_bias` the output bias is left to a fused kernel."""
        if self.activation == "relu":
            hidden = self._fused_relu(x) if self.fused else torch.relu_(self.inner(x))
        elif self.activation == "gelu":
            hidden = F.gelu(self.inner(x))
        elif self.activation == "silu":
            hidden = silu(self.inner(x))
        else:
            # (tokens, 2 d_ff) -> twice (tokens, d_ff)
            gate, value = self.inner(x).chunk(2, dim=-1)
            hidden = silu(gate) * value
        output: Tensor = self.outer(hidden, add_bias)
        return output

    def _fused_relu(self, x: Tensor) -> Tensor:
        from regard.nn.kernels.triton_relu import linear_relu_op

        hidden: Tensor = linear_relu_op(x, self.inner.weight.to(x.dtype), self.inner.bias.to(x.dtype))
        return hidden


class Residual(nn.Module):
    """The modules around one sub-layer: dropout on its output, and the norm before it or after the sum."""

    def __init__(self, config: StackConfig) -> None:
        super().__init__()
        self.pre = config.norm_position == "pre"
        self.norm = make_norm(config)
        self.dropout = Dropout(config.dropout)


@dataclass(frozen=True)
class Sublayer:
    """A sub-layer with the modules around it."""

    residual: Residual
    last: Linear  # its last projection, whose bias the fused kernel adds
    run: Callable[[Tensor, bool], Tensor]  # (x, add_bias) -> output


def run_sublayers(x: Tensor, sublayers: Sequence[Sublayer], fused: bool = False) -> Tensor:
    """Send the residual stream x through the sub-layers of one layer. `fused` uses `triton_residual`, in the type of x."""
    seeds = draw_seeds(len(sublayers), x.device, sublayers[0].residual.training) if fused else None
    if not sublayers[0].residual.pre:
        for number, sublayer in enumerate(sublayers):
            _, x = add_norm(x, x, sublayer, sublayer.residual.norm, number, seeds, keep_sum=False)
        return x
    normed: Tensor = sublayers[0].residual.norm(x)
    for number, sublayer in enumerate(sublayers[:-1]):
        x, normed = add_norm(x, normed, sublayer, sublayers[number + 1].residual.norm, number, seeds, keep_sum=True)
    added: Tensor = x + sublayers[-1].residual.dropout(sublayers[-1].run(normed, True))
    return added


def draw_seeds(count: int, device: torch.device, training: bool) -> Tensor:
    """Seeds for a layer's dropouts, (count,) int64, in one draw from torch's generator of the device. Nothing reads them outside
    of training."""
    if not training:
        return torch.empty(count, dtype=torch.int64, device=device)
    return torch.randint(-(2**63), 2**63 - 1, (count,), device=device)


def add_norm(
    x: Tensor, entering: Tensor, sublayer: Sublayer, norm: nn.Module, number: int, seeds: Tensor | None, keep_sum: bool
) -> tuple[Tensor, Tensor]:
    """x + dropout(sub-layer(entering)), and the norm of that sum. With seeds both come from one kernel, which returns the sum
    only if `keep_sum`."""
    if seeds is None:
        added = x + sublayer.residual.dropout(sublayer.run(entering, True))
        return added, norm(added)
    from regard.nn.kernels import triton_residual

    assert isinstance(norm, (nn.LayerNorm, nn.RMSNorm)) and norm.eps is not None
    probability = sublayer.residual.dropout.probability if sublayer.residual.training else 0.0
    bias = norm.bias if isinstance(norm, nn.LayerNorm) else None
    return triton_residual.add_norm(
        x,
        sublayer.run(entering, False),
        sublayer.last.bias,
        norm.weight,
        bias,
        seeds[number],
        probability,
        norm.eps,
        keep_sum,
    )


class EncoderLayer(nn.Module):
    """Self-attention and a feed-forward network."""

    fused = False

    def __init__(self, config: StackConfig) -> None:
        super().__init__()
        self.self_attention = SelfAttention(config, causal=False)
        self.self_residual = Residual(config)
        self.feed_forward = FeedForward(config)
        self.feed_forward_residual = Residual(config)

    def forward(self, x: Tensor, layout: Layout, name: str = "", recorder: Recorder | None = None) -> Tensor:
        hook = recorder.hook(f"{name}.self") if recorder else None
        attention, feed_forward = self.self_attention, self.feed_forward
        sublayers = [
            Sublayer(self.self_residual, attention.out, lambda y, bias: attention(y, layout, hook, bias)),
            Sublayer(self.feed_forward_residual, feed_forward.outer, feed_forward),
        ]
        return run_sublayers(x, sublayers, self.fused)


class DecoderLayer(nn.Module):
    """Causal self-attention, cross-attention to the memory, and a feed-forward network."""

    fused = False

    def __init__(self, config: StackConfig) -> None:
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
        layout: Layout,
        memory: Tensor,
        memory_layout: Layout,
        name: str = "",
        recorder: Recorder | None = None,
    ) -> Tensor:
        self_hook = recorder.hook(f"{name}.self") if recorder else None
        cross_hook = recorder.hook(f"{name}.cross") if recorder else None
        attention, cross, feed_forward = self.self_attention, self.cross_attention, self.feed_forward
        sublayers = [
            Sublayer(self.self_residual, attention.out, lambda y, bias: attention(y, layout, self_hook, bias)),
            Sublayer(
                self.cross_residual,
                cross.out,
                lambda y, bias: cross(y, layout, memory, memory_layout, cross_hook, bias),
            ),
            Sublayer(self.feed_forward_residual, feed_forward.outer, feed_forward),
        ]
        return run_sublayers(x, sublayers, self.fused)

    def step(self, x: Tensor, position: Tensor, cache: LayerCache | SlotLayerCache) -> Tensor:
        """One new token per row, (rows, d_model) -> (rows, d_model)."""
        attention, cross, feed_forward = self.self_attention, self.cross_attention, self.feed_forward
        sublayers = [
            Sublayer(
                self.self_residual,
                attention.out,
                lambda y, bias: attention.step(y, position, cache.self_attention, bias),
            ),
            Sublayer(self.cross_residual, cross.out, lambda y, bias: cross.step(y, cache.cross_attention, bias)),
            Sublayer(self.feed_forward_residual, feed_forward.outer, feed_forward),
        ]
        return run_sublayers(x, sublayers, self.fused)


def set_fused(model: nn.Module, residual: bool, feed_forward: bool) -> None:
    """Choose whether dropout, sum and norm are one Triton kernel, and whether the ReLU is part of the matrix product."""
    for module in model.modules():
        if isinstance(module, (EncoderLayer, DecoderLayer)):
            module.fused = residual
        elif isinstance(module, FeedForward):
            module.fused = feed_forward
