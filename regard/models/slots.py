"""A model with a cache of fixed shape: an empty one, and sentences that are put into its slots."""

from __future__ import annotations

from torch import Tensor

from regard.layout import Layout
from regard.models.transformer import Transformer
from regard.nn.slot_cache import SlotAssignment, SlotCache


def start_slots(model: Transformer, slots: int, beam: int, capacity: int) -> SlotCache:
    """An empty cache for sentences and outputs of up to `capacity` tokens each; without an encoder, for prompts together with what
    follows them."""
    stack = model.decoder.config
    src_capacity = capacity if stack.cross else 0
    return SlotCache(
        stack.layers, slots, beam, src_capacity, capacity, stack.kv_heads, stack.d_head, like=model.output_matrix
    )


def admit(model: Transformer, cache: SlotCache, assignment: SlotAssignment, ids: Tensor, layout: Layout) -> None:
    """Read ids (tokens,) into their slots: sources are encoded; without an encoder, prompts are read."""
    layers = model.decoder.sequence
    if model.config.encoder_layers:
        memory = model.encode(ids, layout)
        cache.admit(assignment, layout, [layer.cross_attention.keys_values(memory) for layer in layers])
        return
    x = model.decoder.enter(model.embed_target(ids), layout.positions, layout.max_length)
    reading = cache.admit_prompts(assignment, layout, layers[0].self_attention.kernel)
    for layer, layer_cache in zip(layers, reading, strict=True):
        x = layer.step(x, layout.positions, layer_cache, model.decoder.relative)


def read_parts(model: Transformer, cache: SlotCache, ids: Tensor, rows: Tensor, positions: Tensor) -> None:
    """Read ids (tokens,) of prompts into their rows of the cache, at these positions; what comes before them is read already."""
    x = model.decoder.enter(model.embed_target(ids), positions, cache.tgt_capacity)
    for layer, reading in zip(model.decoder.sequence, cache.begin_parts(rows, positions), strict=True):
        x = layer.step(x, positions, reading, model.decoder.relative)
