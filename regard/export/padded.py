"""The model on padded tensors, (batch, length), for formats without packed sentences.

Only the attention formula is reimplemented. The flattened positions of the padded tensor pass through the model's own layers as
decoding steps do, and the caches here know which rows belong to which sentence: projections, residuals, norms, feed-forward
networks, positions and weights are those of the `Transformer` itself.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from regard.models.transformer import Transformer
from regard.nn.cache import CrossCache, LayerCache, SelfCache
from regard.nn.embedding import SinusoidalPositions, sinusoids
from regard.nn.kernels.scores import PositionBias
from regard.nn.linear import set_row_tile

KeysValues = tuple[Tensor, Tensor]  # each (batch, kv_heads, length, d_head)


def to_grid(rows: Tensor, batch: int) -> Tensor:
    """(batch * length, heads, d_head) -> (batch, heads, length, d_head)"""
    grid: Tensor = rows.unflatten(0, (batch, -1)).transpose(1, 2)
    return grid


def attend(q: Tensor, keys: Tensor, values: Tensor, bias: Tensor, scale: float) -> Tensor:
    """softmax(scale Q K^T + bias) V for q (batch * q_len, num_heads, d_head) over keys and values (batch, kv_heads,
    k_len, d_head) -> the shape of q. `bias` broadcasts to (batch, 1, q_len, k_len) and is 0 where a query may attend."""
    batch, kv_heads = keys.shape[:2]
    queries, grouped = to_grid(q, batch), q.shape[1] != kv_heads
    if grouped:
        # (batch, num_heads, ...) -> (batch, kv_heads, group, ...): the query heads of a group share keys and values
        queries = queries.unflatten(1, (kv_heads, q.shape[1] // kv_heads))
        keys, values, bias = keys.unsqueeze(2), values.unsqueeze(2), bias.unsqueeze(2)
    scores = torch.matmul(queries * scale, keys.transpose(-2, -1))
    mixed = torch.matmul(torch.softmax(scores + bias, dim=-1), values)
    if grouped:
        mixed = mixed.flatten(1, 2)
    # (batch, num_heads, q_len, d_head) -> (batch * q_len, num_heads, d_head)
    return mixed.transpose(1, 2).flatten(0, 1)


def to_bias(visible: Tensor) -> Tensor:
    """0 where something is visible, else the lowest number. Not -inf, which gives NaN for a sentence of only padding."""
    return torch.where(visible, 0.0, torch.finfo(torch.float32).min)


def source_bias(attention_mask: Tensor) -> Tensor:
    """(batch, src_len), nonzero where there is a token -> (batch, 1, 1, src_len)"""
    return to_bias(attention_mask != 0)[:, None, None, :]


class GridSelf(SelfCache):
    """Keys and values of a padded batch, after those of earlier tokens."""

    def __init__(self, batch: int, bias: Tensor, past: KeysValues | None = None) -> None:
        self.batch, self.bias, self.past = batch, bias, past

    def extend(self, q: Tensor, k: Tensor, v: Tensor, scale: float, bias: PositionBias | None = None) -> Tensor:
        """q, k and v are (batch * length, heads, d_head)."""
        assert bias is None  # exporters refuse relative positions
        self.keys, self.values = to_grid(k, self.batch), to_grid(v, self.batch)
        if self.past is not None:
            self.keys = torch.cat((self.past[0], self.keys), dim=2)
            self.values = torch.cat((self.past[1], self.values), dim=2)
        return attend(q, self.keys, self.values, self.bias, scale)


class GridCross(CrossCache):
    """Keys and values of padded source sentences."""

    def __init__(self, keys_values: KeysValues, bias: Tensor) -> None:
        (self.keys, self.values), self.bias = keys_values, bias

    def attend(self, q: Tensor, scale: float) -> Tensor:
        return attend(q, self.keys, self.values, self.bias, scale)


def prepare_for_tracing(model: Transformer, longest: int) -> None:
    """Make a model ready to be traced: no row tiles, and a table of sinusoids of its final length."""
    set_row_tile(model, 0)
    for module in model.modules():
        if isinstance(module, SinusoidalPositions):
            module.table = sinusoids(longest, module.table.shape[1])


class PaddedEncoder(nn.Module):
    """(batch, src_len) ids and mask -> memory, (batch, src_len, d_model), and for each decoder layer the keys and values of its
    cross-attention. Padding is on the right; its outputs mean nothing."""

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, ...]:
        model, (batch, length) = self.model, input_ids.shape
        bias = source_bias(attention_mask)
        positions = torch.arange(length, device=input_ids.device).repeat(batch)
        # Here and below `enter` gets no length: position tables must not grow while they are traced.
        x = model.encoder.enter(model.embed_source(input_ids.flatten()), positions, 0)
        for layer in model.encoder.sequence:
            x = layer.step(x, positions, LayerCache(GridSelf(batch, bias), None))
        memory: Tensor = model.encoder.final_norm(x)
        return memory.unflatten(0, (batch, length)), *flattened(cross_keys_values(model, memory, batch))


class PaddedDecoder(nn.Module):
    """(batch, tgt_len) ids, memory and the source's mask -> logits, (batch, tgt_len, vocab_size), of all positions at once."""

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, memory: Tensor, attention_mask: Tensor) -> Tensor:
        cross = cross_keys_values(self.model, memory.flatten(0, 1), memory.shape[0])
        return decode(self.model, input_ids, attention_mask, cross)[0]


class PaddedStep(nn.Module):
    """(batch, new_len) ids, the source's mask, its keys and values and those of the target so far -> logits, (batch, new_len,
    vocab_size), and keys and values including the new tokens. Lists alternate keys and values, layer by layer."""

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, cross: Sequence[Tensor], past: Sequence[Tensor]
    ) -> tuple[Tensor, ...]:
        logits, present = decode(self.model, input_ids, attention_mask, by_layer(cross), by_layer(past))
        return logits, *flattened(present)


def decode(
    model: Transformer,
    input_ids: Tensor,
    attention_mask: Tensor,
    cross: Sequence[KeysValues],
    past: Sequence[KeysValues] | None = None,
) -> tuple[Tensor, list[KeysValues]]:
    """Logits, and the keys and values of every layer's self-attention."""
    batch, length = input_ids.shape
    start = 0 if past is None else past[0][0].shape[2]
    places = torch.arange(start + length, device=input_ids.device)
    # (length, start + length): a token sees itself and those before it
    causal, sources = to_bias(places[None, :] <= places[start:, None])[None, None], source_bias(attention_mask)
    positions = places[start:].repeat(batch)
    x = model.decoder.enter(model.embed_target(input_ids.flatten()), positions, 0)
    present = []
    for number, (layer, keys_values) in enumerate(zip(model.decoder.sequence, cross, strict=True)):
        own = GridSelf(batch, causal, None if past is None else past[number])
        x = layer.step(x, positions, LayerCache(own, GridCross(keys_values, sources)))
        present.append((own.keys, own.values))
    logits = model.logits(model.decoder.final_norm(x))
    return logits.unflatten(0, (batch, length)), present


def cross_keys_values(model: Transformer, memory: Tensor, batch: int) -> list[KeysValues]:
    """The keys and values that each decoder layer computes from the memory, (batch * src_len, d_model)."""
    keys_values = []
    for layer in model.decoder.sequence:
        k, v = layer.cross_attention.keys_values(memory).chunk(2, dim=1)
        keys_values.append((to_grid(k, batch), to_grid(v, batch)))
    return keys_values


def flattened(layers: Sequence[KeysValues]) -> list[Tensor]:
    """Keys and values in turn, layer by layer."""
    return [tensor for keys_values in layers for tensor in keys_values]


def by_layer(tensors: Sequence[Tensor]) -> list[KeysValues]:
    """The inverse of `flattened`."""
    return list(zip(tensors[::2], tensors[1::2], strict=True))
