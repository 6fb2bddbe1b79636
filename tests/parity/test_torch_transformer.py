"""The same weights in torch.nn.Transformer give the same outputs and the same gradients of every parameter and input.

torch pads and masks where Regard packs. It puts a norm after each stack, which the paper does not have: with post-norm
those two are taken out, with pre-norm they are Regard's final norms.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from regard.models.transformer import Transformer
from regard.nn.block import Layer
from regard.nn.embedding import sinusoids
from tests.build import build, pack, pad, random_sentences, tiny_config

SRC_LENGTHS, TGT_LENGTHS = [5, 1, 9, 3], [4, 7, 2, 6]


@dataclass
class Pairs:
    """(name, Regard's parameters, torch's parameter): one of torch's may hold several of Regard's, side by side."""

    items: list[tuple[str, list[Tensor], Tensor]] = field(default_factory=list)

    def add(self, name: str, ours: nn.Module | list[nn.Module], theirs: Any, prefix: str = "") -> None:
        modules = ours if isinstance(ours, list) else [ours]
        for kind in ("weight", "bias"):
            parameter = getattr(theirs, f"{prefix}{kind}")
            self.items.append((f"{name}.{kind}", [getattr(module, kind) for module in modules], parameter))

    def add_attention(self, name: str, inputs: list[nn.Module], out: nn.Module, theirs: Any) -> None:
        self.add(f"{name}.in", inputs, theirs, prefix="in_proj_")
        self.add(f"{name}.out", out, theirs.out_proj)


def pair_up(ours: Transformer, theirs: nn.Transformer) -> Pairs:
    pairs = Pairs()
    for number, (layer, other) in enumerate(zip(ours.encoder.layers, theirs.encoder.layers, strict=True)):
        assert isinstance(layer, Layer)
        name = f"encoder.{number}"
        pairs.add_attention(f"{name}.self", [layer.self_attention.qkv], layer.self_attention.out, other.self_attn)
        pairs.add(f"{name}.inner", layer.feed_forward.inner, other.linear1)
        pairs.add(f"{name}.outer", layer.feed_forward.outer, other.linear2)
        pairs.add(f"{name}.norm1", layer.self_residual.norm, other.norm1)
        pairs.add(f"{name}.norm2", layer.feed_forward_residual.norm, other.norm2)
    for number, (layer, other) in enumerate(zip(ours.decoder.layers, theirs.decoder.layers, strict=True)):
        assert isinstance(layer, Layer)
        name = f"decoder.{number}"
        cross = layer.cross_attention
        pairs.add_attention(f"{name}.self", [layer.self_attention.qkv], layer.self_attention.out, other.self_attn)
        pairs.add_attention(f"{name}.cross", [cross.q, cross.kv], cross.out, other.multihead_attn)
        pairs.add(f"{name}.inner", layer.feed_forward.inner, other.linear1)
        pairs.add(f"{name}.outer", layer.feed_forward.outer, other.linear2)
        pairs.add(f"{name}.norm1", layer.self_residual.norm, other.norm1)
        pairs.add(f"{name}.norm2", layer.cross_residual.norm, other.norm2)
        pairs.add(f"{name}.norm3", layer.feed_forward_residual.norm, other.norm3)
    if ours.config.norm_position == "pre":
        pairs.add("encoder.final", ours.encoder.final_norm, theirs.encoder.norm)
        pairs.add("decoder.final", ours.decoder.final_norm, theirs.decoder.norm)
    return pairs


def torch_transformer(ours: Transformer) -> tuple[nn.Transformer, Pairs]:
    config = ours.config
    pre = config.norm_position == "pre"
    shape: dict[str, Any] = {
        "d_model": config.d_model,
        "nhead": config.num_heads,
        "dim_feedforward": config.d_ff,
        "dropout": 0.0,
        "activation": config.activation,
        "batch_first": True,
        "norm_first": pre,
    }

    def final_norm() -> Any:
        return nn.LayerNorm(config.d_model) if pre else nn.Identity()

    encoder_layer, decoder_layer = nn.TransformerEncoderLayer(**shape), nn.TransformerDecoderLayer(**shape)
    encoder = nn.TransformerEncoder(encoder_layer, config.encoder_layers, final_norm(), enable_nested_tensor=False)
    decoder = nn.TransformerDecoder(decoder_layer, config.decoder_layers, final_norm())
    theirs = nn.Transformer(config.d_model, config.num_heads, custom_encoder=encoder, custom_decoder=decoder)
    theirs.batch_first = True
    pairs = pair_up(ours, theirs)
    with torch.no_grad():
        for name, parts, parameter in pairs.items:
            assert torch.cat(parts).shape == parameter.shape, name
            parameter.copy_(torch.cat(parts))
    return theirs, pairs


def test_every_parameter_has_its_counterpart() -> None:
    for norm_position in ("post", "pre"):
        ours = build(tiny_config(norm_position=norm_position))
        theirs, pairs = torch_transformer(ours)
        paired = {id(part) for _, parts, _ in pairs.items for part in parts}
        assert paired == {id(p) for name, p in ours.named_parameters() if name != "embedding.weight"}
        assert {id(parameter) for _, _, parameter in pairs.items} == {id(p) for p in theirs.parameters()}


@dataclass
class Run:
    logits: Tensor
    gradients: dict[str, Tensor]


def gradient(tensor: Tensor) -> Tensor:
    assert tensor.grad is not None
    return tensor.grad


def run_ours(model: Transformer, pairs: Pairs, sources: list[Tensor], targets: list[Tensor], weights: Tensor) -> Run:
    entered: list[Tensor] = []

    def remember(_: nn.Module, inputs: tuple[Any, ...]) -> None:
        inputs[0].retain_grad()
        entered.append(inputs[0])

    hooks = [stack.layers[0].register_forward_pre_hook(remember) for stack in (model.encoder, model.decoder)]
    logits = model(*pack(sources), *pack(targets))
    (logits * weights).sum().backward()
    for hook in hooks:
        hook.remove()
    gradients = {name: torch.cat([gradient(part) for part in parts]) for name, parts, _ in pairs.items}
    gradients |= {"src": gradient(entered[0]), "tgt": gradient(entered[1])}
    return Run(logits.detach(), {"embedding": gradient(model.embedding.weight), **gradients})


def run_theirs(
    theirs: nn.Transformer,
    pairs: Pairs,
    embedding: Tensor,
    sources: list[Tensor],
    targets: list[Tensor],
    weights: Tensor,
) -> Run:
    embedding = embedding.detach().clone().requires_grad_()
    (src, src_valid), (tgt, tgt_valid) = pad(sources), pad(targets)

    def embed(ids: Tensor) -> Tensor:
        d_model = embedding.shape[1]
        embedded = embedding[ids] * math.sqrt(d_model) + sinusoids(ids.shape[1], d_model).to(embedding)
        embedded.retain_grad()
        return embedded

    src_embedded, tgt_embedded = embed(src), embed(tgt)
    hidden = theirs(
        src_embedded,
        tgt_embedded,
        tgt_mask=torch.ones(tgt.shape[1], tgt.shape[1], dtype=torch.bool).triu(1),
        src_key_padding_mask=~src_valid,
        tgt_key_padding_mask=~tgt_valid,
        memory_key_padding_mask=~src_valid,
    )
    logits = hidden[tgt_valid] @ embedding.T
    (logits * weights).sum().backward()
    gradients = {name: gradient(parameter) for name, _, parameter in pairs.items}
    gradients |= {"embedding": gradient(embedding)}
    gradients |= {"src": gradient(src_embedded)[src_valid], "tgt": gradient(tgt_embedded)[tgt_valid]}
    return Run(logits.detach(), gradients)


@pytest.mark.parametrize("shape", [{}, {"encoder_layers": 3, "decoder_layers": 1}], ids=["2+2", "3+1"])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("norm_position", ["post", "pre"])
def test_outputs_and_gradients_equal_those_of_torch(norm_position: Any, activation: Any, shape: dict[str, Any]) -> None:
    ours = build(tiny_config(norm_position=norm_position, activation=activation, **shape)).train()
    theirs, pairs = torch_transformer(ours)
    sources, targets = random_sentences(SRC_LENGTHS, seed=1), random_sentences(TGT_LENGTHS, seed=2)
    weights = torch.randn(sum(TGT_LENGTHS), 53, generator=torch.Generator().manual_seed(3)) / 53
    mine = run_ours(ours, pairs, sources, targets, weights)
    other = run_theirs(theirs, pairs, ours.embedding.weight, sources, targets, weights)
    torch.testing.assert_close(mine.logits, other.logits, atol=1e-5, rtol=1e-5)
    assert mine.gradients.keys() == other.gradients.keys()
    for name, own in mine.gradients.items():
        assert own.abs().max() > 1e-3, f"{name} has a gradient worth comparing"
        torch.testing.assert_close(own, other.gradients[name], atol=1e-5, rtol=1e-5, msg=partial("{}: {}".format, name))
