"""The weights of Marian models, as Hugging Face's transformers names them, and Regard's: one table, read in both directions.

Marian's sinusoids are the sines of all pairs and then the cosines; the paper interleaves them. The residual stream may be
written in any order of its dimensions as long as all that read from it and write to it agree, so the weights are copied with
those dimensions permuted.
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

# Of one layer, ours and theirs. What reads from the residual stream has one column for each of its dimensions, what writes to it
# one row; Regard stacks projections that read the same.
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
    """A tensor of Regard's, and those of Marian's that it is stacked from."""

    ours: str
    theirs: tuple[str, ...]
    axis: int | None  # the one whose places are dimensions of the residual stream


def entries(config: ModelConfig) -> Iterator[Entry]:
    """All tensors of a model but the bias of the output, which has another shape there."""
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
    """Where each dimension of Marian's residual stream is in Regard's."""
    return torch.cat((torch.arange(0, d_model, 2), torch.arange(1, d_model, 2)))


def to_marian(weights: Mapping[str, Tensor], config: ModelConfig) -> dict[str, Tensor]:
    """Regard's weights under Marian's names; for a configuration that Marian has."""
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
