"""Multi-head attention: MultiHead(Q, K, V) = Concat(head_1, ..., head_h) W_O, over packed sequences and over caches.

Shapes: (tokens, d_model) in and out; heads are (tokens, num_heads, d_head).
"""

from __future__ import annotations

from collections import defaultdict
from functools import partial

import torch
from torch import Tensor, nn

from regard.config import ModelConfig
from regard.layout import Layout
from regard.nn.cache import CrossCache, SelfCache
from regard.nn.embedding import rotate
from regard.nn.kernels import Kernel, attend_cross, attend_self, attention
from regard.nn.kernels.reference import WeightsHook
from regard.nn.linear import Linear
from regard.nn.slot_cache import SlotCrossCache, SlotSelfCache


class Recorder:
    """Collects attention weights: `weights["decoder.3.cross"][n]` is (heads, q_len, k_len) of sequence n."""

    def __init__(self) -> None:
        self.weights: dict[str, dict[int, Tensor]] = defaultdict(dict)

    def hook(self, name: str) -> WeightsHook:
        return partial(self._record, name)

    def _record(self, name: str, sequence: int, weights: Tensor) -> None:
        self.weights[name][sequence] = weights.detach()


class SelfAttention(nn.Module):
    """Queries, keys and values from one sequence; `causal` keeps each token from seeing later ones."""

    kernel: Kernel = "auto"

    def __init__(self, config: ModelConfig, causal: bool) -> None:
        super().__init__()
        self.num_heads, self.kv_heads, self.d_head = config.num_heads, config.kv_heads, config.d_head
        self.causal = causal
        self.rotary = config.positions == "rotary"
        self.qkv = Linear(config.d_model, (self.num_heads + 2 * self.kv_heads) * self.d_head)
        self.out = Linear(config.d_model, config.d_model)

    def heads(self, x: Tensor) -> Tensor:
        """(tokens, d_model) -> queries, keys and values, (tokens, num_heads + 2 kv_heads, d_head)"""
        heads: Tensor = self.qkv(x).view(x.shape[0], -1, self.d_head)
        return heads

    def project(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = self.heads(x).split((self.num_heads, self.kv_heads, self.kv_heads), dim=1)
        if self.rotary:
            q, k = rotate(q, positions), rotate(k, positions)
        return q, k, v

    def forward(self, x: Tensor, layout: Layout, hook: WeightsHook | None = None, add_bias: bool = True) -> Tensor:
        if self.rotary:
            q, k, v = self.project(x, layout.positions)
            mixed = attention(q, k, v, layout, layout, self.causal, self.kernel, hook)
        else:
            mixed = attend_self(self.heads(x), layout, self.kv_heads, self.causal, self.kernel, hook)
        merged: Tensor = self.out(mixed.flatten(1), add_bias)
        return merged

    def step(self, x: Tensor, position: Tensor, cache: SelfCache | SlotSelfCache, add_bias: bool = True) -> Tensor:
        """One new token a row; what came before is in the cache."""
        q, k, v = self.project(x, position)
        merged: Tensor = self.out(cache.extend(q, k, v).flatten(1), add_bias)
        return merged


class CrossAttention(nn.Module):
    """Queries from the target, keys and values from the encoder's output."""

    kernel: Kernel = "auto"

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.num_heads, self.kv_heads, self.d_head = config.num_heads, config.kv_heads, config.d_head
        self.q = Linear(config.d_model, config.d_model)
        self.kv = Linear(config.d_model, 2 * self.kv_heads * self.d_head)
        self.out = Linear(config.d_model, config.d_model)

    def keys_values(self, memory: Tensor) -> Tensor:
        """(src_tokens, d_model) -> keys and values, (src_tokens, 2 kv_heads, d_head)"""
        heads: Tensor = self.kv(memory).view(memory.shape[0], -1, self.d_head)
        return heads

    def queries(self, x: Tensor) -> Tensor:
        q: Tensor = self.q(x).view(x.shape[0], self.num_heads, self.d_head)
        return q

    def forward(
        self,
        x: Tensor,
        layout: Layout,
        memory: Tensor,
        memory_layout: Layout,
        hook: WeightsHook | None = None,
        add_bias: bool = True,
    ) -> Tensor:
        kv = self.keys_values(memory)
        mixed = attend_cross(self.queries(x), kv, layout, memory_layout, self.kernel, hook)
        merged: Tensor = self.out(mixed.flatten(1), add_bias)
        return merged

    def step(self, x: Tensor, cache: CrossCache | SlotCrossCache, add_bias: bool = True) -> Tensor:
        merged: Tensor = self.out(cache.attend(self.queries(x)).flatten(1), add_bias)
        return merged


def set_kernel(model: nn.Module, kernel: Kernel) -> None:
    """Use this kernel in every attention of the model."""
    for module in model.modules():
        if isinstance(module, (SelfAttention, CrossAttention)):
            module.kernel = kernel


def init_attention(module: SelfAttention | CrossAttention) -> None:
    """Glorot for each projection on its own (the stored matrices are several side by side); queries, keys and values at
    half the variance, which keeps post-norm stacks trainable from the start."""
    d_query, d_key = module.num_heads * module.d_head, module.kv_heads * module.d_head
    if isinstance(module, SelfAttention):
        inputs = {module.qkv: [d_query, d_key, d_key]}
    else:
        inputs = {module.q: [d_query], module.kv: [d_key, d_key]}
    for projection, rows in inputs.items():
        for block in torch.split(projection.weight, rows):
            nn.init.xavier_uniform_(block, gain=2.0**-0.5)
    nn.init.xavier_uniform_(module.out.weight)
    for projection in (*inputs, module.out):
        nn.init.zeros_(projection.bias)
