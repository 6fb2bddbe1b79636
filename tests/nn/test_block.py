"""The layers against the paper's equations, computed here line by line."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.layout import SequenceLayout
from regard.nn.activations import gelu, silu
from regard.nn.attention import set_kernel
from regard.nn.block import FeedForward, Layer
from tests.build import build, tiny_config

LAYOUT = SequenceLayout.from_lengths([3, 5])
MEMORY_LAYOUT = SequenceLayout.from_lengths([4, 2])


def normalised(x: Tensor, norm: nn.Module) -> Tensor:
    assert isinstance(norm, (nn.LayerNorm, nn.RMSNorm)) and norm.weight is not None
    if isinstance(norm, nn.RMSNorm):
        return x / torch.sqrt((x**2).mean(dim=-1, keepdim=True) + 1e-5) * norm.weight
    mean = x.mean(dim=-1, keepdim=True)
    variance = ((x - mean) ** 2).mean(dim=-1, keepdim=True)
    return (x - mean) / torch.sqrt(variance + 1e-5) * norm.weight + norm.bias


def fed_forward(x: Tensor, layer: FeedForward, activation: str) -> Tensor:
    inner = x @ layer.inner.weight.T + layer.inner.bias
    if activation == "relu":
        inner = torch.where(inner > 0, inner, 0.0)
    elif activation == "gelu":
        inner = inner * 0.5 * (1 + torch.erf(inner / math.sqrt(2)))
    elif activation == "silu":
        inner = inner / (1 + torch.exp(-inner))
    else:
        gate, value = inner[:, :48], inner[:, 48:]
        inner = gate / (1 + torch.exp(-gate)) * value
    return inner @ layer.outer.weight.T + layer.outer.bias


@pytest.mark.parametrize("norm", ["layer", "rms"])
@pytest.mark.parametrize("activation", ["relu", "gelu", "silu", "swiglu"])
@pytest.mark.parametrize("norm_position", ["post", "pre"])
@torch.no_grad()
def test_an_encoder_layer_is_two_sublayers_with_residual_and_norm(
    norm: Any, activation: Any, norm_position: Any
) -> None:
    model = build(tiny_config(norm=norm, activation=activation, norm_position=norm_position)).double()
    layer = model.encoder.layers[0]
    assert isinstance(layer, Layer)
    x = torch.randn(8, 32, dtype=torch.float64)
    first, second = layer.self_residual.norm, layer.feed_forward_residual.norm
    if norm_position == "post":
        y = normalised(x + layer.self_attention(x, LAYOUT), first)
        expected = normalised(y + fed_forward(y, layer.feed_forward, activation), second)
    else:
        y = x + layer.self_attention(normalised(x, first), LAYOUT)
        expected = y + fed_forward(normalised(y, second), layer.feed_forward, activation)
    torch.testing.assert_close(layer(x, LAYOUT)[0], expected, atol=1e-12, rtol=0)


@pytest.mark.parametrize("norm_position", ["post", "pre"])
@torch.no_grad()
def test_a_decoder_layer_attends_to_itself_then_to_the_memory_then_feeds_forward(norm_position: Any) -> None:
    model = build(tiny_config(norm_position=norm_position)).double()
    set_kernel(model, "reference")
    layer = model.decoder.layers[1]
    assert isinstance(layer, Layer)
    x, memory = torch.randn(8, 32, dtype=torch.float64), torch.randn(6, 32, dtype=torch.float64)
    norms = [layer.self_residual.norm, layer.cross_residual.norm, layer.feed_forward_residual.norm]
    sublayers = [
        lambda y: layer.self_attention(y, LAYOUT),
        lambda y: layer.cross_attention(y, LAYOUT, memory, MEMORY_LAYOUT),
        lambda y: fed_forward(y, layer.feed_forward, "relu"),
    ]
    expected = x
    for norm, sublayer in zip(norms, sublayers, strict=True):
        if norm_position == "post":
            expected = normalised(expected + sublayer(expected), norm)
        else:
            expected = expected + sublayer(normalised(expected, norm))
    torch.testing.assert_close(layer(x, LAYOUT, memory, MEMORY_LAYOUT)[0], expected, atol=1e-12, rtol=0)


def test_silu_written_out_is_torchs() -> None:
    x = torch.cat([torch.randn(1000) * 5, torch.tensor([0.0, -200.0, 200.0, -1e30, 1e30])])
    torch.testing.assert_close(silu(x), F.silu(x), atol=1e-6, rtol=1e-5)
    learned = x.clone().requires_grad_()
    assert torch.equal(silu(learned), F.silu(x)), "training takes the fused one"


def test_gelu_by_tanh_written_out_is_torchs() -> None:
    x = torch.cat([torch.randn(1000) * 5, torch.tensor([0.0, -200.0, 200.0, -1e5, 1e5])])
    torch.testing.assert_close(gelu(x, by_tanh=True), F.gelu(x, approximate="tanh"), atol=1e-6, rtol=1e-5)
    learned = x.clone().requires_grad_()
    for by_tanh, approximate in ((True, "tanh"), (False, "none")):
        assert torch.equal(gelu(learned, by_tanh), F.gelu(x, approximate=approximate)), "training takes the fused one"


def gate(x: Tensor) -> Tensor:
    """The gate of a gated layer: a part of a wider tensor."""
    return gelu(x.chunk(2, dim=-1)[0], by_tanh=False)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("function", [silu, F.gelu, partial(gelu, by_tanh=True), gate, torch.relu])
def test_an_activation_rounds_a_row_alike_wherever_it_stands(function: Any, threads: int) -> None:
    """A vector's last elements, or a thread's, may be computed by other code: seen with torch's silu on AVX-512."""
    torch.set_num_threads(threads)
    for d_ff in (48, 100, 1024):
        x = torch.randn(100, d_ff)
        together = function(x)
        for begin, rows in [(0, 1), (1, 1), (99, 1), (3, 2), (7, 17), (2, 64), (0, 99)]:
            assert torch.equal(function(x[begin : begin + rows].clone()), together[begin : begin + rows]), (d_ff, rows)
