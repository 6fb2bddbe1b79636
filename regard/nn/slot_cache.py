"""The key/value cache for continuous batching: a fixed number of slots, each taken over by a new sentence when its sentence
is finished.

A slot has room for one source sentence and for `beam` hypotheses, its rows. Keys and values never move: what row r wrote
for position t stays there, and each row keeps a list of its ancestors, the rows that wrote the positions of its prefix. So
reordering the beam copies a few integers instead of keys and values, and every step runs on the same memory, as a CUDA
graph demands. Without an encoder a sentence is a prompt: the first row of its slot holds it for all of them.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from regard.layout import Layout
from regard.nn.kernels import Kernel, on_triton
from regard.nn.kernels.scores import PositionBias
from regard.nn.step_cache import PromptCache, PromptLayerCache


def gathered_attention(
    q: Tensor, keys: Tensor, values: Tensor, lengths: Tensor, ancestors: Tensor | None, beam: int, scale: float
) -> Tensor:
    """`triton_decode.decode_attention` in plain torch: gather every row's keys and values, then attend."""
    rows, num_heads, d_head = q.shape
    _, capacity, kv_heads, _ = keys.shape
    positions = torch.arange(capacity, device=q.device)
    slots = torch.arange(rows, device=q.device) // beam
    entries = slots[:, None].expand(-1, capacity) if ancestors is None else ancestors.long()
    # (rows, capacity, kv_heads, d_head) -> (rows, kv_heads, capacity, d_head)
    k, v = keys[entries, positions].transpose(1, 2), values[entries, positions].transpose(1, 2)
    # (rows, num_heads, d_head) -> (rows, kv_heads, group, d_head)
    grouped = q.view(rows, kv_heads, num_heads // kv_heads, d_head)
    scores = torch.matmul(grouped, k.transpose(-2, -1)) * scale
    visible = (positions < lengths[slots][:, None])[:, None, None, :]
    weights = torch.softmax(scores.float().masked_fill(~visible, torch.finfo(torch.float32).min), dim=-1)
    # (rows, kv_heads, group, d_head) -> (rows, num_heads, d_head)
    return torch.matmul(weights.to(v.dtype), v).reshape(rows, num_heads, d_head)


@dataclass(frozen=True)
class SlotPrefixes:
    """How long the prefix of each slot is, and which rows hold its keys and values; shared by all layers."""

    beam: int
    positions: Tensor  # (slots,) int64, the position of the token that the next step computes
    ancestors: Tensor  # (slots * beam, capacity) int32, the row that holds each position of a row's prefix

    @property
    def row_positions(self) -> Tensor:
        """(rows,) int64, `positions` for every row."""
        return self.positions[:, None].expand(-1, self.beam).flatten()


def put(kv: Tensor, keys: Tensor, values: Tensor, at: tuple[Tensor, Tensor]) -> None:
    """Write packed keys and values, side by side as (tokens, 2 kv_heads, d_head), to these entries and positions of a cache."""
    if on_triton(kv.device):
        from regard.nn.kernels import triton_decode

        triton_decode.put(kv, keys, values, *at)
        return
    k, v = kv.chunk(2, dim=1)
    keys.index_put_(at, k)
    values.index_put_(at, v)


class SlotSelfCache:
    """Keys and values of the tokens decoded so far, (rows, capacity, kv_heads, d_head). With prompts there is one more entry,
    which takes the tokens of no prompt."""

    def __init__(self, prefixes: SlotPrefixes, kv_heads: int, d_head: int, like: Tensor, with_prompts: bool) -> None:
        self.prefixes = prefixes
        rows, capacity = prefixes.ancestors.shape
        shape = (rows + with_prompts, capacity, kv_heads, d_head)
        self.keys, self.values = like.new_zeros(shape), like.new_zeros(shape)
        self._rows = torch.arange(rows, device=like.device)

    def extend(self, q: Tensor, k: Tensor, v: Tensor, scale: float, bias: PositionBias | None = None) -> Tensor:
        """Write one token's keys and values, each (rows, kv_heads, d_head), and let its queries (rows, num_heads, d_head) attend
        to the whole prefix: (rows, num_heads, d_head)."""
        refuse_bias(bias)
        prefixes = self.prefixes
        if on_triton(q.device):
            from regard.nn.kernels.triton_decode import extend_attention

            return extend_attention(
                q, k, v, self.keys, self.values, prefixes.positions, prefixes.ancestors, prefixes.beam, scale
            )
        at = (self._rows, prefixes.row_positions)
        self.keys.index_put_(at, k)
        self.values.index_put_(at, v)
        lengths = prefixes.positions + 1
        return gathered_attention(q, self.keys, self.values, lengths, prefixes.ancestors, prefixes.beam, scale)

    def put(self, at: tuple[Tensor, Tensor], k: Tensor, v: Tensor) -> None:
        """Write packed keys and values, each (tokens, kv_heads, d_head), to these rows and positions."""
        put(torch.cat((k, v), dim=1), self.keys, self.values, at)

    def narrowed(self, prefixes: SlotPrefixes) -> SlotSelfCache:
        """The first rows alone, on the same memory."""
        narrow = copy.copy(self)
        narrow.prefixes, narrow._rows = prefixes, self._rows[: len(prefixes.ancestors)]
        return narrow


class SlotReading:
    """In the place of a layer's self-attention while parts of prompts are read, several tokens of a row at a time: each attends to
    all that its row has read before it. Only caches with one row in a slot have it."""

    def __init__(self, cache: SlotSelfCache, rows: Tensor, positions: Tensor, entries: Tensor) -> None:
        """Token t is at `positions[t]` of `rows[t]`, both (tokens,) int64; `entries` repeat the rows, (tokens, capacity) int32."""
        self._cache, self._at, self._entries, self._lengths = cache, (rows, positions), entries, positions + 1

    def extend(self, q: Tensor, k: Tensor, v: Tensor, scale: float, bias: PositionBias | None = None) -> Tensor:
        """q (tokens, num_heads, d_head), k and v (tokens, kv_heads, d_head) -> (tokens, num_heads, d_head)."""
        refuse_bias(bias)
        keys, values = self._cache.keys, self._cache.values
        self._cache.put(self._at, k, v)
        if on_triton(q.device):
            from regard.nn.kernels.triton_decode import decode_attention

            return decode_attention(q, keys, values, self._lengths, self._entries, 1, scale)
        return gathered_attention(q, keys, values, self._lengths, self._entries, 1, scale)


@dataclass(frozen=True)
class SlotReadingLayer:
    """The caches of one decoder layer while parts of prompts are read."""

    self_attention: SlotReading
    cross_attention: None = None  # there is no encoder


def refuse_bias(bias: PositionBias | None) -> None:
    """Relative positions are not for slots."""
    if bias is not None:
        raise ValueError(
            "the slot cache takes no bias on the scores (model.positions = 'relative'); use another engine"
        )


class SlotCrossCache:
    """Keys and values of the source sentences, (slots + 1, capacity, kv_heads, d_head), shared by a sentence's hypotheses."""

    def __init__(self, beam: int, lengths: Tensor, capacity: int, kv_heads: int, d_head: int, like: Tensor) -> None:
        self.beam, self.lengths = beam, lengths
        shape = (lengths.shape[0] + 1, capacity, kv_heads, d_head)  # the last takes the rows of no sentence
        self.keys, self.values = like.new_zeros(shape), like.new_zeros(shape)

    def attend(self, q: Tensor, scale: float) -> Tensor:
        """Queries (rows, num_heads, d_head) -> the same shape."""
        if on_triton(q.device):
            from regard.nn.kernels.triton_decode import decode_attention

            return decode_attention(q, self.keys, self.values, self.lengths, None, self.beam, scale)
        return gathered_attention(q, self.keys, self.values, self.lengths, None, self.beam, scale)


@dataclass(frozen=True)
class SlotAssignment:
    """Which slots new sentences take. Unused entries repeat the first sentence."""

    slots: Tensor  # (sentences,) int64
    lengths: Tensor  # (sentences,) int64, tokens of each source or prompt
    token_slots: Tensor  # (tokens,) int64, the slot of each token's sentence; the number of slots for empty rows


@dataclass(frozen=True)
class SlotLayerCache:
    """The caches of one decoder layer."""

    self_attention: SlotSelfCache
    cross_attention: SlotCrossCache | None  # None: there is no encoder


class SlotCache:
    """The caches of all decoder layers, for `slots` sentences of `beam` hypotheses each."""

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
        """`src_capacity` is 0 without an encoder; then prompts and what follows them share the `tgt_capacity`."""
        device = like.device
        self.tgt_capacity = tgt_capacity
        self.prefixes = SlotPrefixes(
            beam,
            torch.zeros(slots, dtype=torch.int64, device=device),
            torch.zeros((slots * beam, tgt_capacity), dtype=torch.int32, device=device),
        )
        self.src_lengths = torch.ones(
            slots, dtype=torch.int64, device=device
        )  # an empty slot reads one position of zeros
        self._rows = torch.arange(slots * beam, dtype=torch.int32, device=device)
        self.layers = [
            SlotLayerCache(
                SlotSelfCache(self.prefixes, kv_heads, d_head, like, with_prompts=not src_capacity),
                SlotCrossCache(beam, self.src_lengths, src_capacity, kv_heads, d_head, like) if src_capacity else None,
            )
            for _ in range(num_layers)
        ]

    def begin_step(self, counts: Sequence[int] | None = None) -> tuple[Tensor, int]:
        """Positions (rows,) of the next tokens, and an upper bound on them. Each row becomes the holder of its own position."""
        if counts is not None:
            raise ValueError("slots take one token of each row in a step; use the other cache for several")
        positions = self.prefixes.row_positions
        self.prefixes.ancestors.scatter_(1, positions[:, None], self._rows[:, None])
        return positions, self.tgt_capacity

    def reorder(self, rows: Tensor, is_done: Tensor) -> None:
        """Row n continues the prefix of `rows[n]`, one position further. Finished slots return to position 0, where a step costs
        least."""
        self.prefixes.ancestors.copy_(self.prefixes.ancestors[rows])
        self.prefixes.positions.add_(1).masked_fill_(is_done, 0)

    def admit(self, assignment: SlotAssignment, layout: Layout, keys_values: list[Tensor]) -> None:
        """Put new sentences into their slots: for each layer packed keys and values, (src_tokens, 2 kv_heads, d_head)."""
        self.prefixes.positions.index_fill_(0, assignment.slots, 0)
        self.src_lengths.index_copy_(0, assignment.slots, assignment.lengths)
        at = (assignment.token_slots, layout.positions.long())
        for layer, kv in zip(self.layers, keys_values, strict=True):
            assert layer.cross_attention is not None
            put(kv, layer.cross_attention.keys, layer.cross_attention.values, at)

    def admit_prompts(self, assignment: SlotAssignment, layout: Layout, kernel: Kernel) -> list[PromptLayerCache]:
        """Begin new prompts in their slots, all rows at the token after the prompt; returns what reads them, layer by layer, into
        the first row of each slot."""
        beam, slots = self.prefixes.beam, assignment.slots
        self.prefixes.positions.index_copy_(0, slots, assignment.lengths)
        # (rows, capacity) -> (slots, beam * capacity): all rows of a slot read the prompt from its first row
        ancestors = self.prefixes.ancestors.view(self.prefixes.positions.shape[0], -1)
        ancestors.index_copy_(0, slots, (slots * beam).int()[:, None].expand(-1, ancestors.shape[1]))
        at = (assignment.token_slots * beam, layout.positions.long())
        return [
            PromptLayerCache(PromptCache(layout, kernel, partial(layer.self_attention.put, at)))
            for layer in self.layers
        ]

    def begin_parts(self, rows: Tensor, positions: Tensor) -> list[SlotReadingLayer]:
        """What reads parts of prompts, layer by layer: token t at `positions[t]` of `rows[t]`, both (tokens,) int64. The row after
        the last takes what belongs to no prompt."""
        entries = rows.int()[:, None].expand(-1, self.tgt_capacity).contiguous()
        return [SlotReadingLayer(SlotReading(layer.self_attention, rows, positions, entries)) for layer in self.layers]

    def narrowed(self, slots: int) -> SlotCache:
        """The first slots alone, on the same memory; there is no source."""
        beam, narrow = self.prefixes.beam, copy.copy(self)
        narrow.prefixes = SlotPrefixes(beam, self.prefixes.positions[:slots], self.prefixes.ancestors[: slots * beam])
        narrow._rows = self._rows[: slots * beam]
        narrow.layers = [SlotLayerCache(layer.self_attention.narrowed(narrow.prefixes), None) for layer in self.layers]
        return narrow
