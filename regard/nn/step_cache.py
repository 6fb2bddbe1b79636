"""What a step of a decoder layer needs of its caches, and what stands in their place while prompts are read at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from regard.layout import Layout
from regard.nn.kernels import Kernel, attention
from regard.nn.kernels.scores import PositionBias


class SelfAttentionCache(Protocol):
    """What a step of self-attention needs."""

    def extend(self, q: Tensor, k: Tensor, v: Tensor, scale: float, bias: PositionBias | None = None) -> Tensor:
        """Take in new keys and values, and attend from the new queries to them and to all before them."""
        ...


class CrossAttentionCache(Protocol):
    """What a step of cross-attention needs."""

    def attend(self, q: Tensor, scale: float) -> Tensor:
        """Attend from the new queries to the sources."""
        ...


class StepCache(Protocol):
    """What a step of a decoder layer needs: those of `cache.py` and `slot_cache.py`, and `PromptLayerCache`."""

    @property
    def self_attention(self) -> SelfAttentionCache: ...

    @property
    def cross_attention(self) -> CrossAttentionCache | None: ...


class PromptCache:
    """Self-attention within prompts that are read at once, packed; `keep` takes their keys and values, (tokens, kv_heads, d_head),
    for the steps that follow."""

    def __init__(self, layout: Layout, kernel: Kernel, keep: Callable[[Tensor, Tensor], None]) -> None:
        self._layout, self._kernel, self._keep = layout, kernel, keep

    def extend(self, q: Tensor, k: Tensor, v: Tensor, scale: float, bias: PositionBias | None = None) -> Tensor:
        """q (tokens, num_heads, d_head), k and v (tokens, kv_heads, d_head) -> (tokens, num_heads, d_head)."""
        self._keep(k, v)
        return attention(q, k, v, self._layout, self._layout, True, self._kernel, scale=scale, bias=bias)


class PromptCrossCache:
    """Attention from prompts that are read at once to their sources, whose keys and values are packed, (src_tokens, kv_heads,
    d_head)."""

    def __init__(self, k: Tensor, v: Tensor, layout: Layout, memory_layout: Layout, kernel: Kernel) -> None:
        self._k, self._v, self._layout, self._memory_layout, self._kernel = k, v, layout, memory_layout, kernel

    def attend(self, q: Tensor, scale: float) -> Tensor:
        """Queries (tokens, num_heads, d_head) -> the same shape."""
        return attention(q, self._k, self._v, self._layout, self._memory_layout, False, self._kernel, scale=scale)


@dataclass
class PromptLayerCache:
    """In the place of a layer's caches while prompts are read."""

    self_attention: PromptCache
    cross_attention: PromptCrossCache | None = None
