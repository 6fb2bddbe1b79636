"""A layer of an encoder or decoder. Each sub-layer is wrapped in a residual connection and a norm:

post-norm (the paper):  x -> [sub-layer] -> dropout -> (+ x) -> norm -> out
pre-norm:               x -> norm -> [sub-layer] -> dropout -> (+ x) -> out
parallel:               x -> norm -> [attention], [feed-forward] -> dropout of each -> (+ x) -> out

With post-norm and pre-norm a norm follows the sum (with pre-norm, the next sub-layer's), so that dropout, sum and norm can be
one kernel. Every tensor here is (tokens, d_model), or (rows, d_model) in a decoding step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from regard.layout import Layout
from regard.nn.activations import activate
from regard.nn.attention import CrossAttention, Recorder, SelfAttention
from regard.nn.dropout import Dropout
from regard.nn.kernels.scores import PositionBias
from regard.nn.linear import Linear
from regard.nn.step_cache import StepCache
from regard.settings import StackConfig

FUSED_ACTIVATIONS = ("relu", "gelu", "gelu_tanh")  # of kernels/triton_activation.py


def make_norm(config: StackConfig, width: int = 0) -> nn.Module:
    """The norm that the config asks for, over d_model or another width."""
    if config.norm == "rms":
        return nn.RMSNorm(width or config.d_model, eps=config.norm_eps)
    return nn.LayerNorm(width or config.d_model, eps=config.norm_eps, bias=config.norm_bias)


class FeedForward(nn.Module):
    """FFN(x) = max(0, x W_1 + b_1) W_2 + b_2. The max may be GELU or SiLU instead, or gated: in SwiGLU the hidden layer is
    silu(x W_g + b_g) * (x W_1 + b_1)."""

    fused = False  # whether Triton kernels compute the activation's backward pass, and GELU itself

    def __init__(self, config: StackConfig) -> None:
        super().__init__()
        self.activation, self.d_ff = config.activation, config.d_ff
        d_inner = config.d_ff * (2 if config.gated else 1)  # gated: gate, then value
        self.inner = Linear(config.d_model, d_inner, bias=config.feed_forward_bias)
        self.outer = Linear(config.d_ff, config.d_model, bias=config.feed_forward_bias)

    def forward(self, x: Tensor, add_bias: bool = True) -> Tensor:
        """(tokens, d_model) -> (tokens, d_model). Without `add_bias` the output bias is left to a fused kernel."""
        hidden = self._fused(x) if self.fused else activate(self.inner(x), self.activation)
        output: Tensor = self.outer(hidden, add_bias)
        return output

    def _fused(self, x: Tensor) -> Tensor:
        from regard.nn.kernels.triton_activation import linear_activation

        return linear_activation(x, self.inner.weight.to(x.dtype), self.inner.bias.to(x.dtype), self.activation)


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


def run_sublayers(
    x: Tensor, sublayers: Sequence[Sublayer], fused: bool = False, normed: Tensor | None = None, following: nn.Module | None = None
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """Send the residual stream x through the sub-layers of one layer. `fused` uses `triton_residual`, in the type of x. With
    pre-norm `normed` is norm(x), if it is known; with the norm `following` the layer, its value is returned beside x."""
    seeds = draw_seeds(len(sublayers), x.device, sublayers[0].residual.training) if fused else None
    if not sublayers[0].residual.pre:
        for number, sublayer in enumerate(sublayers):
            _, x = add_norm(x, x, sublayer, sublayer.residual.norm, number, seeds, keep_sum=False)
        return x, None
    entering: Tensor = sublayers[0].residual.norm(x) if normed is None else normed
    norms = [*(sublayer.residual.norm for sublayer in sublayers[1:]), following]
    for number, (sublayer, norm) in enumerate(zip(sublayers, norms, strict=True)):
        if norm is None:
            return x + sublayer.residual.dropout(sublayer.run(entering, True)), None
        x, entering = add_norm(x, entering, sublayer, norm, number, seeds, keep_sum=True)
    return x, entering


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
    y = sublayer.run(entering, False)
    y_bias = sublayer.last.bias if sublayer.last.bias is not None else norm.weight.new_zeros(norm.weight.shape)
    bias = None  # to the kernel, a norm without a bias is RMSNorm
    if isinstance(norm, nn.LayerNorm):
        bias = norm.bias if norm.bias is not None else norm.weight.new_zeros(norm.weight.shape)
    return triton_residual.add_norm(
        x, y, y_bias, norm.weight, bias, seeds[number], probability, norm.eps, keep_sum
    )  # fmt: skip


class Layer(nn.Module):
    """Self-attention and a feed-forward network; in a decoder that has an encoder, cross-attention to the memory between them."""

    fused = False

    def __init__(self, config: StackConfig) -> None:
        super().__init__()
        self.parallel, self.has_cross = config.parallel, config.cross
        self.self_attention = SelfAttention(config)
        self.self_residual = Residual(config)
        if config.cross:
            self.cross_attention = CrossAttention(config)
            self.cross_residual = Residual(config)
        self.feed_forward = FeedForward(config)
        if not config.parallel:
            self.feed_forward_residual = Residual(config)

    def forward(
        self, x: Tensor, layout: Layout, memory: Tensor | None = None, memory_layout: Layout | None = None,
        bias: PositionBias | None = None, name: str = "", recorder: Recorder | None = None, normed: Tensor | None = None,
        following: nn.Module | None = None,
    ) -> tuple[Tensor, Tensor | None]:  # fmt: skip
        """(tokens, d_model) -> (tokens, d_model). `bias` is added to the scores of self-attention; the recorder gets the weights
        under the layer's name. Where `chains`, the norm of x can come in, and that by the norm `following` goes out."""
        self_hook = recorder.hook(f"{name}.self") if recorder else None
        attention = self.self_attention
        attend = [
            Sublayer(self.self_residual, attention.out, lambda y, add: attention(y, layout, self_hook, add, bias))
        ]
        if self.has_cross:
            assert memory is not None and memory_layout is not None
            cross_hook = recorder.hook(f"{name}.cross") if recorder else None
            cross, keys, places = self.cross_attention, memory, memory_layout
            attend.append(
                Sublayer(self.cross_residual, cross.out, lambda y, add: cross(y, layout, keys, places, cross_hook, add))
            )
        return self.run(x, attend, normed, following)

    def step(self, x: Tensor, position: Tensor, cache: StepCache, bias: PositionBias | None = None) -> Tensor:
        """New tokens of the rows, (tokens, d_model) -> (tokens, d_model)."""
        attention, own = self.self_attention, cache.self_attention
        attend = [
            Sublayer(self.self_residual, attention.out, lambda y, add: attention.step(y, position, own, add, bias))
        ]
        if self.has_cross:
            cross, source = self.cross_attention, cache.cross_attention
            assert source is not None
            attend.append(Sublayer(self.cross_residual, cross.out, lambda y, add: cross.step(y, source, add)))
        return self.run(x, attend)[0]

    @property
    def chains(self) -> bool:
        """Whether the last sum of this layer and the norm that follows it are one kernel."""
        return self.fused and not self.parallel and self.self_residual.pre

    def run(
        self, x: Tensor, attend: Sequence[Sublayer], normed: Tensor | None = None, following: nn.Module | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """The attention sub-layers, then the feed-forward network; or the two side by side."""
        feed_forward = self.feed_forward
        if self.parallel:
            [attention] = attend
            return run_parallel(x, attention, feed_forward), None
        last = Sublayer(self.feed_forward_residual, feed_forward.outer, feed_forward)
        return run_sublayers(x, [*attend, last], self.fused, normed, following)


def run_parallel(x: Tensor, attention: Sublayer, feed_forward: FeedForward) -> Tensor:
    """x + attention(norm(x)) + feed-forward(norm(x)), with dropout on each of the two."""
    residual = attention.residual
    normed = residual.norm(x)
    added: Tensor = x + residual.dropout(attention.run(normed, True)) + residual.dropout(feed_forward(normed))
    return added


def set_fused(model: nn.Module, residual: bool, feed_forward: bool) -> None:
    """Choose whether dropout, sum and norm are one Triton kernel, and whether the activation's backward pass is. A parallel layer
    has no such sum, a gated network no such activation, and a matrix without a bias no such product: they run as written."""
    for module in model.modules():
        if isinstance(module, Layer):
            module.fused = residual
        elif isinstance(module, FeedForward):
            module.fused = feed_forward and module.inner.bias is not None and module.activation in FUSED_ACTIVATIONS
