"""Multi-head attention (section 3.2.2 of the paper): MultiHead(Q, K, V) = Concat(head_1, ..., head_h) W_O.

Here are the projections around the attention itself, which is in `kernels/` for packed sequences and in `cache.py` and
`slot_cache.py` for decoding. Tensors are (tokens, d_model) in and out, and (tokens, heads, d_head) in between.
"""

from __future__ import annotations

from collections import defaultdict
from functools import partial

import torch
from torch import Tensor, nn

from regard.layout import Layout
from regard.nn.cache import CrossCache, SelfCache
from regard.nn.embedding import rotate
from regard.nn.kernels import Kernel, attend_cross, attend_self, attention
from regard.nn.kernels.reference import WeightsHook
from regard.nn.linear import Linear
from regard.nn.slot_cache import SlotCrossCache, SlotSelfCache
from regard.settings import StackConfig


class Recorder:
    """Collects attention weights: `weights["decoder.3.cross"][n]` of sequence n is (num_heads, q_len, k_len)."""

    def __init__(self) -> None:
        self.weights: dict[str, dict[int, Tensor]] = defaultdict(dict)

    def hook(self, name: str) -> WeightsHook:
        """The function that one attention calls with its weights."""
        return partial(self._record, name)

    def _record(self, name: str, sequence: int, weights: Tensor) -> None:
        self.weights[name][sequence] = weights.detach()


class SelfAttention(nn.Module):
    """Queries, keys and values all come from one sequence; `causal` hides later tokens from each token."""

    kernel: Kernel = "auto"

    def __init__(self, config: StackConfig, causal: bool) -> None:
        super().__init__()
        self.num_heads, self.kv_heads, self.d_head = config.num_heads, config.kv_heads, config.d_head
        self.causal = causal
        self.rotary = config.positions == "rotary"
        self.qkv = Linear(config.d_model, (self.num_heads + 2 * self.kv_heads) * self.d_head)
        self.out = Linear(config.d_model, config.d_model)

    def heads(self, x: Tensor) -> Tensor:
        """(tokens, d_model) -> queries, keys and values side by side, (tokens, num_heads + 2 kv_heads, d_head)."""
        # (tokens, (num_heads + 2 kv_heads) * d_head) -> (tokens, num_heads + 2 kv_heads, d_head)
        heads: Tensor = self.qkv(x).view(x.shape[0], -1, self.d_head)
        return heads

    def project(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(tokens, d_model) -> q (tokens, num_heads, d_head), k and v (tokens, kv_heads, d_head), rotated if configured."""
        q, k, v = self.heads(x).split((self.num_heads, self.kv_heads, self.kv_heads), dim=1)
        if self.rotary:
            q, k = rotate(q, positions), rotate(k, positions)
        return q, k, v

    def forward(self, x: Tensor, layout: Layout, hook: WeightsHook | None = None, add_bias: bool = True) -> Tensor:
        """(tokens, d_model) -> (tokens, d_model). Without `add_bias` the output bias is left to a fused kernel."""
        if self.rotary:
            q, k, v = self.project(x, layout.positions)
            heads = attention(q, k, v, layout, layout, self.causal, self.kernel, hook)
        else:
            heads = attend_self(self.heads(x), layout, self.kv_heads, self.causal, self.kernel, hook)
        # (tokens, num_heads, d_head) -> (tokens, d_model)
        output: Tensor = self.out(heads.flatten(1), add_bias)
        return output

    def step(self, x: Tensor, position: Tensor, cache: SelfCache | SlotSelfCache, add_bias: bool = True) -> Tensor:
        """One new token per row, (rows, d_model) -> (rows, d_model); the cache holds the tokens before it."""
        q, k, v = self.project(x, position)
        # (rows, num_heads, d_head) -> (rows, d_model)
        output: Tensor = self.out(cache.extend(q, k, v).flatten(1), add_bias)
        return output


class CrossAttention(nn.Module):
    """Queries come from the target, keys and values from the encoder's output, the memory."""

    kernel: Kernel = "auto"

    def __init__(self, config: StackConfig) -> None:
        super().__init__()
        self.num_heads, self.kv_heads, self.d_head = config.num_heads, config.kv_heads, config.d_head
        self.q = Linear(config.d_model, config.d_model)
        self.kv = Linear(config.d_model, 2 * self.kv_heads * self.d_head)
        self.out = Linear(config.d_model, config.d_model)

    def keys_values(self, memory: Tensor) -> Tensor:
        """(src_tokens, d_model) -> keys and values side by side, (src_tokens, 2 kv_heads, d_head)."""
        # (src_tokens, 2 kv_heads * d_head) -> (src_tokens, 2 kv_heads, d_head)
        heads: Tensor = self.kv(memory).view(memory.shape[0], -1, self.d_head)
        return heads

    def queries(self, x: Tensor) -> Tensor:
        """(tgt_tokens, d_model) -> (tgt_tokens, num_heads, d_head)."""
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
        """(tgt_tokens, d_model) -> (tgt_tokens, d_model), attending to memory (src_tokens, d_model)."""
        kv = self.keys_values(memory)
        heads = attend_cross(self.queries(x), kv, layout, memory_layout, self.kernel, hook)
        # (tgt_tokens, num_heads, d_head) -> (tgt_tokens, d_model)
        output: Tensor = self.out(heads.flatten(1), add_bias)
        return output

    def step(self, x: Tensor, cache: CrossCache | SlotCrossCache, add_bias: bool = True) -> Tensor:
        """One new token per row, (rows, d_model) -> (rows, d_model); the cache holds the memory's keys and values."""
        # (rows, num_heads, d_head) -> (rows, d_model)
        output: Tensor = self.out(cache.attend(self.queries(x)).flatten(1), add_bias)
        return output


def set_kernel(model: nn.Module, kernel: Kernel) -> None:
    """Make every attention of the model use this kernel."""
    for module in model.modules():
        if isinstance(module, (SelfAttention, CrossAttention)):
            module.kernel = kernel


def init_attention(module: SelfAttention | CrossAttention) -> None:
    """Glorot-uniform for each projection on its own, since the stored matrices hold several; queries, keys and values at half
    the variance, which keeps post-norm stacks trainable from the start."""
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
