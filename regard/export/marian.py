"""The weights of Marian models, under the names of Hugging Face's transformers, and Regard's: one table for both directions.

Marian's sinusoids are all sines and then all cosines, where the paper interleaves them. The dimensions of the residual stream
may have any order as long as everything that reads or writes it agrees, so the weights are copied with those dimensions
permuted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.config import ModelConfig

SHARED = "model.shared.weight"
SRC_EMBEDDING, TGT_EMBEDDING = "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight"
OUTPUT, OUTPUT_BIAS = "lm_head.weight", "final_logits_bias"

# One layer: our name -> theirs. Readers of the residual stream have one column for each of its dimensions, writers one row;
# Regard stacks projections with the same input.
_READERS = {
    "self_attention.qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "cross_attention.q": ("encoder_attn.q_proj",),
    "cross_attention.kv": ("encoder_attn.k_proj", "encoder_attn.v_proj"),
    "feed_forward.inner": ("fc1",),
}
_WRITERS = {
    "self_attention.out": "self_attn.out_proj",
    "cross_attention.out": "encoder_attn.out_proj",
    "feed_forward.outer": "fc2",
}
_NORMS = {
    "self_residual.norm": "self_attn_layer_norm",
    "cross_residual.norm": "encoder_attn_layer_norm",
    "feed_forward_residual.norm": "final_layer_norm",
}


@dataclass(frozen=True)
class Entry:
    """A tensor of Regard, and Marian's tensors that it stacks."""

    ours: str
    theirs: tuple[str, ...]
    axis: int | None  # the axis that indexes the residual stream, if any


def entries(config: ModelConfig) -> Iterator[Entry]:
    """All tensors of a model except the output bias, whose shape differs."""
    if config.tie_embeddings:
        yield Entry("embedding.weight", (SHARED,), 1)
    else:
        yield Entry("src_embedding.weight", (SRC_EMBEDDING,), 1)
        yield Entry("tgt_embedding.weight", (TGT_EMBEDDING,), 1)
        yield Entry("output.weight", (OUTPUT,), 1)
    for stack, num_layers in (("encoder", config.encoder_layers), ("decoder", config.decoder_layers)):
        for number in range(num_layers):
            place = f"{stack}.layers.{number}"
            for entry in _layer_entries(with_cross=stack == "decoder"):
                theirs = tuple(f"model.{place}.{name}" for name in entry.theirs)
                yield Entry(f"{place}.{entry.ours}", theirs, entry.axis)


def _layer_entries(with_cross: bool) -> Iterator[Entry]:
    for ours, parts in _READERS.items():
        if with_cross or not ours.startswith("cross"):
            yield Entry(f"{ours}.weight", tuple(f"{part}.weight" for part in parts), 1)
            yield Entry(f"{ours}.bias", tuple(f"{part}.bias" for part in parts), None)
    for ours, theirs in {**_WRITERS, **_NORMS}.items():
        if with_cross or not ours.startswith("cross"):
            yield Entry(f"{ours}.weight", (f"{theirs}.weight",), 0)
            yield Entry(f"{ours}.bias", (f"{theirs}.bias",), 0)


def _order(d_model: int) -> Tensor:
    """The dimension of Regard's residual stream behind each of Marian's: (d_model,)."""
    return torch.cat((torch.arange(0, d_model, 2), torch.arange(1, d_model, 2)))


def to_marian(weights: Mapping[str, Tensor], config: ModelConfig) -> dict[str, Tensor]:
    """Regard's weights under Marian's names, for a configuration that Marian supports."""
    order = _order(config.d_model)
    tensors: dict[str, Tensor] = {}
    for entry in entries(config):
        weight = weights[entry.ours]
        if entry.axis is not None:
            weight = weight.index_select(entry.axis, order)
        parts = weight.chunk(len(entry.theirs))
        tensors |= {name: part.contiguous() for name, part in zip(entry.theirs, parts, strict=True)}
    bias = weights["output_bias"] if config.output_bias else torch.zeros(config.vocab_size)
    tensors[OUTPUT_BIAS] = bias[None].contiguous()
    return tensors


def from_marian(tensors: Mapping[str, Tensor], config: ModelConfig) -> dict[str, Tensor]:
    """The inverse of `to_marian`."""
    places = _order(config.d_model).argsort()
    weights: dict[str, Tensor] = {}
    for entry in entries(config):
        weight = torch.cat([tensors[name].float() for name in entry.theirs])
        weights[entry.ours] = weight if entry.axis is None else weight.index_select(entry.axis, places)
    if config.output_bias:
        weights["output_bias"] = tensors[OUTPUT_BIAS].float().flatten()
    return weights
