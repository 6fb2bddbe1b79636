"""A cache of fixed shape for decoding: sentences take a slot, leave it when they are done, and others take their place.

A slot has room for one source sentence and for `beam` hypotheses, its rows. Nothing is ever moved: a key that was written
for place t by row r stays there, and every row has a list of the rows that hold its places (its ancestors' when it took
over their prefix). So reordering the beam copies small numbers instead of keys and values, and a step always runs on the
same memory, as a captured graph demands.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.layout import Layout
from regard.nn.kernels import on_triton


def gathered_attention(
    q: Tensor, keys: Tensor, values: Tensor, lengths: Tensor, holders: Tensor | None, shared: int
) -> Tensor:
    """What `triton_decode.decode_attention` does, in plain torch: all places of a row are gathered first."""
    rows, num_heads, d_head = q.shape
    _, capacity, kv_heads, _ = keys.shape
    places = torch.arange(capacity, device=q.device)
    owners = torch.arange(rows, device=q.device) // shared
    slots = owners[:, None].expand(-1, capacity) if holders is None else holders.long()
    # (rows, capacity, kv_heads, d_head) -> (rows, kv_heads, capacity, d_head)
    k, v = keys[slots, places].transpose(1, 2), values[slots, places].transpose(1, 2)
    grouped = q.view(rows, kv_heads, num_heads // kv_heads, d_head)
    scores = torch.matmul(grouped, k.transpose(-2, -1)) / math.sqrt(d_head)
    seen = (places < lengths[owners][:, None])[:, None, None, :]
    weights = torch.softmax(scores.float().masked_fill(~seen, torch.finfo(torch.float32).min), dim=-1)
    return torch.matmul(weights.to(v.dtype), v).reshape(rows, num_heads, d_head)


@dataclass(frozen=True)
class Places:
    """Where the rows of all slots stand; the layers share it."""

    beam: int
    positions: Tensor  # (slots,) int64, the place of the token that a step computes
    holders: Tensor  # (slots * beam, capacity) int32, the row that holds each place of a row

    @property
    def row_positions(self) -> Tensor:
        return self.positions[:, None].expand(-1, self.beam).flatten()


class SlotSelfCache:
    """Keys and values of the tokens decoded so far, (rows, capacity, kv_heads, d_head)."""

    def __init__(self, places: Places, kv_heads: int, d_head: int, like: Tensor) -> None:
        self.places = places
        shape = (*places.holders.shape, kv_heads, d_head)
        self.keys, self.values = like.new_zeros(shape), like.new_zeros(shape)
        self._rows = torch.arange(shape[0], device=like.device)

    def extend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """One token's keys and values for every row, each (rows, kv_heads, d_head), to the row's place; q (rows, num_heads,
        d_head) attends to all places up to it."""
        places = self.places
        if on_triton(q.device):
            from regard.nn.kernels.triton_decode import extend_attention

            return extend_attention(q, k, v, self.keys, self.values, places.positions, places.holders, places.beam)
        at = (self._rows, places.row_positions)
        self.keys.index_put_(at, k)
        self.values.index_put_(at, v)
        return gathered_attention(q, self.keys, self.values, places.positions + 1, places.holders, places.beam)


class SlotCrossCache:
    """Keys and values of the source sentences, (slots + 1, capacity, kv_heads, d_head); hypotheses share their sentence's."""

    def __init__(self, beam: int, lengths: Tensor, capacity: int, kv_heads: int, d_head: int, like: Tensor) -> None:
        self.beam, self.lengths = beam, lengths
        shape = (lengths.shape[0] + 1, capacity, kv_heads, d_head)  # one more, for what belongs to no sentence
        self.keys, self.values = like.new_zeros(shape), like.new_zeros(shape)

    def put(self, kv: Tensor, at: tuple[Tensor, Tensor]) -> None:
        """Packed keys and values side by side, (src_tokens, 2 kv_heads, d_head), to their slots and places."""
        if on_triton(kv.device):
            from regard.nn.kernels import triton_decode

            triton_decode.put(kv, self.keys, self.values, *at)
            return
        k, v = kv.chunk(2, dim=1)
        self.keys.index_put_(at, k)
        self.values.index_put_(at, v)

    def attend(self, q: Tensor) -> Tensor:
        if on_triton(q.device):
            from regard.nn.kernels.triton_decode import decode_attention

            return decode_attention(q, self.keys, self.values, self.lengths, None, self.beam)
        return gathered_attention(q, self.keys, self.values, self.lengths, None, self.beam)


@dataclass(frozen=True)
class Entering:
    """Sentences on their way into slots; places for sentences that are not used repeat the first one."""

    slots: Tensor  # (sentences,) int64
    lengths: Tensor  # (sentences,) int64, tokens of each
    token_slots: (
        Tensor  # (src_tokens,) int64, the slot of each row's sentence; of a row without one, the number of slots
    )


@dataclass(frozen=True)
class SlotLayerCache:
    self_attention: SlotSelfCache
    cross_attention: SlotCrossCache


class SlotCache:
    """The caches of all decoder layers, `slots` sentences of `beam` hypotheses."""

    def __init__(
        self,
        num_layers: int,
        slots: int,
        beam: int,
        src_capacity: int,
        tgt_capacity: int,
        kv_heads: int,
        d_head: int,
        like: Tensor,
    ) -> None:
        device = like.device
        self.tgt_capacity = tgt_capacity
        self.places = Places(
            beam,
            torch.zeros(slots, dtype=torch.int64, device=device),
            torch.zeros((slots * beam, tgt_capacity), dtype=torch.int32, device=device),
        )
        self.src_lengths = torch.ones(slots, dtype=torch.int64, device=device)  # an empty slot reads one place of zeros
        self._rows = torch.arange(slots * beam, dtype=torch.int32, device=device)
        self.layers = [
            SlotLayerCache(
                SlotSelfCache(self.places, kv_heads, d_head, like),
                SlotCrossCache(beam, self.src_lengths, src_capacity, kv_heads, d_head, like),
            )
            for _ in range(num_layers)
        ]

    def begin_step(self) -> tuple[Tensor, int]:
        """The places of the tokens to come, a row each, and a bound for them; from now on each row holds its own."""
        positions = self.places.row_positions
        self.places.holders.scatter_(1, positions[:, None], self._rows[:, None])
        return positions, self.tgt_capacity

    def reorder(self, rows: Tensor, is_done: Tensor) -> None:
        """Row n goes on with the prefix of `rows[n]`, and every sentence stands one place further; those that are done are
        back at the start, where they cost the least."""
        self.places.holders.copy_(self.places.holders[rows])
        self.places.positions.add_(1).masked_fill_(is_done, 0)

    def enter(self, entering: Entering, layout: Layout, keys_values: list[Tensor]) -> None:
        """Give sentences their slots: the encoder's output, packed, projected for each layer."""
        self.places.positions.index_fill_(0, entering.slots, 0)
        self.src_lengths.index_copy_(0, entering.slots, entering.lengths)
        at = (entering.token_slots, layout.positions.long())
        for layer, kv in zip(self.layers, keys_values, strict=True):
            layer.cross_attention.put(kv, at)
