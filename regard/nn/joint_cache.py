"""Several decoding caches as one: a step reads the newest tokens of all of them together, so that the weights are read once,
and each attends to its own. So sentences may join and leave between two steps, and nothing is copied."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.nn.cache import DecoderCache, LayerCache
from regard.nn.kernels.scores import PositionBias


class JointSelfCache:
    """Self-attention of several caches, whose rows lie one cache after the other."""

    def __init__(self, layers: Sequence[LayerCache], rows: Sequence[int]) -> None:
        self._layers, self._rows = layers, list(rows)

    def extend(self, q: Tensor, k: Tensor, v: Tensor, scale: float, bias: PositionBias | None = None) -> Tensor:
        """As `SelfCache.extend`, one token for each row."""
        parts = zip(*(x.split(self._rows) for x in (q, k, v)), self._layers, strict=True)
        return torch.cat([layer.self_attention.extend(*own, scale, bias) for *own, layer in parts])


@dataclass(frozen=True)
class JointLayerCache:
    """The caches of one decoder layer."""

    self_attention: JointSelfCache
    cross_attention: None = None  # there is no encoder


class JointCache:
    """Caches of models without an encoder, as one."""

    def __init__(self, caches: Sequence[DecoderCache]) -> None:
        self._caches = caches
        rows = [len(cache.places.read) * cache.places.beam for cache in caches]
        by_layer = zip(*(cache.layers for cache in caches), strict=True)
        self.layers = [JointLayerCache(JointSelfCache(layers, rows)) for layers in by_layer]

    def begin_step(self, counts: Sequence[int] | None = None) -> tuple[Tensor, int]:
        """As `DecoderCache.begin_step`, with one token for each row."""
        assert counts is None, "a step of several caches takes one token for each row"
        places = [cache.begin_step() for cache in self._caches]
        return torch.cat([positions for positions, _ in places]), max(longest for _, longest in places)
