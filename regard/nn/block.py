"""The layers of the two stacks. Each sub-layer is wrapped in a residual connection and a norm:

post-norm (the paper):  x -> [sub-layer] -> dropout -> (+ x) -> norm -> out
pre-norm:               x -> norm -> [sub-layer] -> dropout -> (+ x) -> out

Either way the sum of one sub-layer is followed by a norm (with pre-norm, by that of the next sub-layer), so that dropout,
sum and norm can be one kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.config import ModelConfig
from regard.layout import Layout
from regard.nn.attention import CrossAttention, Recorder, SelfAttention
from regard.nn.cache import LayerCache
from regard.nn.dropout import Dropout
from regard.nn.linear import Linear
from regard.nn.slot_cache import SlotLayerCache


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
    """FFN(x) = max(0, x W_1 + b_1) W_2 + b_2, or with GELU or SiLU, or gated (SwiGLU: silu(x W_g + b_g) * (x W_1 + b_1))."""

    fused = False  # the ReLU inside the product, with Triton for the backward pass

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.activation = config.activation
        gated = config.activation == "swiglu"
        self.inner = Linear(config.d_model, config.d_ff * (2 if gated else 1))  # gated: gate and value side by side
        self.outer = Linear(config.d_ff, config.d_model)

    def forward(self, x: Tensor, add_bias: bool = True) -> Tensor:
        if self.activation == "relu":
            hidden = self._fused_relu(x) if self.fused else torch.relu_(self.inner(x))
        elif self.activation == "gelu":
            hidden = F.gelu(self.inner(x))
        elif self.activation == "silu":
            hidden = silu(self.inner(x))
        else:
            gate, value = self.inner(x).chunk(2, dim=-1)
            hidden = silu(gate) * value
        output: Tensor = self.outer(hidden, add_bias)
        return output

    def _fused_relu(self, x: Tensor) -> Tensor:
        from regard.nn.kernels.triton_relu import linear_relu_op

        hidden: Tensor = linear_relu_op(x, self.inner.weight.to(x.dtype), self.inner.bias.to(x.dtype))
        return hidden


class Residual(nn.Module):
    """What is around one sub-layer: dropout on its output, and the norm on the configured side."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.pre = config.norm_position == "pre"
        self.norm = make_norm(config)
        self.dropout = Dropout(config.dropout)


@dataclass(frozen=True)
class Sublayer:
    """A sub-layer and what is around it. `run(x, add_bias)`; `last` is its last product, whose bias can be left to the sum."""

    residual: Residual
    last: Linear
    run: Callable[[Tensor, bool], Tensor]


def run_sublayers(x: Tensor, steps: Sequence[Sublayer], fused: bool = False) -> Tensor:
    """The residual stream through the sub-layers of one layer. `fused`: with `triton_residual`, in the type of x."""
    seeds = draw_seeds(len(steps), x.device, steps[0].residual.training) if fused else None
    if not steps[0].residual.pre:
        for number, step in enumerate(steps):
            _, x = add_norm(x, x, step, step.residual.norm, number, seeds, keep_sum=False)
        return x
    normed: Tensor = steps[0].residual.norm(x)
    for number, step in enumerate(steps[:-1]):
        x, normed = add_norm(x, normed, step, steps[number + 1].residual.norm, number, seeds, keep_sum=True)
    added: Tensor = x + steps[-1].residual.dropout(steps[-1].run(normed, True))
    return added


def draw_seeds(count: int, device: torch.device, training: bool) -> Tensor:
    """Seeds of a layer's dropouts, from torch's generator of the device: one draw for the layer. Out of training nobody
    reads them."""
    if not training:
        return torch.empty(count, dtype=torch.int64, device=device)
    return torch.randint(-(2**63), 2**63 - 1, (count,), device=device)


def add_norm(
    x: Tensor, entering: Tensor, step: Sublayer, norm: nn.Module, number: int, seeds: Tensor | None, keep_sum: bool
) -> tuple[Tensor, Tensor]:
    """x + dropout(sub-layer), and the norm of that; fused where there are seeds, and the sum then only if it is kept."""
    if seeds is None:
        added = x + step.residual.dropout(step.run(entering, True))
        return added, norm(added)
    from regard.nn.kernels import triton_residual

    assert isinstance(norm, (nn.LayerNorm, nn.RMSNorm)) and norm.eps is not None
    probability = step.residual.dropout.probability if step.residual.training else 0.0
    bias = norm.bias if isinstance(norm, nn.LayerNorm) else None
    return triton_residual.add_norm(
        x, step.run(entering, False), step.last.bias, norm.weight, bias, seeds[number], probability, norm.eps, keep_sum
    )


class EncoderLayer(nn.Module):
    fused = False

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.self_attention = SelfAttention(config, causal=False)
        self.self_residual = Residual(config)
        self.feed_forward = FeedForward(config)
        self.feed_forward_residual = Residual(config)

    def forward(self, x: Tensor, layout: Layout, name: str = "", recorder: Recorder | None = None) -> Tensor:
        hook = recorder.hook(f"{name}.self") if recorder else None
        attention, feed_forward = self.self_attention, self.feed_forward
        steps = [
            Sublayer(self.self_residual, attention.out, lambda y, bias: attention(y, layout, hook, bias)),
            Sublayer(self.feed_forward_residual, feed_forward.outer, feed_forward),
        ]
        return run_sublayers(x, steps, self.fused)


class DecoderLayer(nn.Module):
    fused = False

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
        layout: Layout,
        memory: Tensor,
        memory_layout: Layout,
        name: str = "",
        recorder: Recorder | None = None,
    ) -> Tensor:
        self_hook = recorder.hook(f"{name}.self") if recorder else None
        cross_hook = recorder.hook(f"{name}.cross") if recorder else None
        attention, cross, feed_forward = self.self_attention, self.cross_attention, self.feed_forward
        steps = [
            Sublayer(self.self_residual, attention.out, lambda y, bias: attention(y, layout, self_hook, bias)),
            Sublayer(
                self.cross_residual,
                cross.out,
                lambda y, bias: cross(y, layout, memory, memory_layout, cross_hook, bias),
            ),
            Sublayer(self.feed_forward_residual, feed_forward.outer, feed_forward),
        ]
        return run_sublayers(x, steps, self.fused)

    def step(self, x: Tensor, position: Tensor, cache: LayerCache | SlotLayerCache) -> Tensor:
        """One new token a row, (rows, d_model)."""
        attention, cross, feed_forward = self.self_attention, self.cross_attention, self.feed_forward
        steps = [
            Sublayer(
                self.self_residual,
                attention.out,
                lambda y, bias: attention.step(y, position, cache.self_attention, bias),
            ),
            Sublayer(self.cross_residual, cross.out, lambda y, bias: cross.step(y, cache.cross_attention, bias)),
            Sublayer(self.feed_forward_residual, feed_forward.outer, feed_forward),
        ]
        return run_sublayers(x, steps, self.fused)


def set_fused(model: nn.Module, residual: bool, feed_forward: bool) -> None:
    """Whether dropout, sum and norm of every layer are one Triton kernel, and whether its ReLU is in the product."""
    for module in model.modules():
        if isinstance(module, (EncoderLayer, DecoderLayer)):
            module.fused = residual
        elif isinstance(module, FeedForward):
            module.fused = feed_forward
