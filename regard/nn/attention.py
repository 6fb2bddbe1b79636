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
from regard.nn.kernels import Kernel, attend_cross, attend_self, attention, on_triton
from regard.nn.kernels.reference import WeightsHook
from regard.nn.kernels.scores import PositionBias, paper_scale
from regard.nn.linear import KeylessLinear, Linear
from regard.nn.rotary import Rotary
from regard.nn.step_cache import CrossAttentionCache, SelfAttentionCache
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


class Attention(nn.Module):
    """What self-attention and cross-attention share."""

    kernel: Kernel = "auto"

    def __init__(self, config: StackConfig) -> None:
        super().__init__()
        self.num_heads, self.kv_heads, self.d_head = config.num_heads, config.kv_heads, config.d_head
        self.d_query, self.d_key = self.num_heads * self.d_head, self.kv_heads * self.d_head
        self.scale = config.score_scale or paper_scale(config.d_head)
        self.weight_dropout = config.attention_dropout
        self.input_bias, self.output_bias = config.attention_bias != "none", config.attention_bias in ("all", "no_key")
        self.key_bias = config.attention_bias != "no_key"

    @property
    def dropout(self) -> float:
        """The probability with which a weight is dropped now."""
        return self.weight_dropout if self.training else 0.0

    def keyed(self, d_in: int, d_before: int) -> Linear:
        """The projection to keys and values, with `d_before` more columns before them."""
        if not self.key_bias:
            return KeylessLinear(d_in, d_before, self.d_key, self.d_key)
        return Linear(d_in, d_before + 2 * self.d_key, bias=self.input_bias)


class SelfAttention(Attention):
    """Queries, keys and values all come from one sequence; in a decoder, later tokens are hidden from each token."""

    joined = False  # whether a Triton kernel joins the gradients of queries, keys and values

    def __init__(self, config: StackConfig) -> None:
        super().__init__(config)
        self.causal = config.causal
        self.rotary = Rotary(config) if config.positions == "rotary" else None
        self.qkv = self.keyed(config.d_model, self.d_query)
        self.out = Linear(self.d_query, config.d_model, bias=self.output_bias)

    def heads(self, x: Tensor) -> Tensor:
        """(tokens, d_model) -> queries, keys and values side by side, (tokens, num_heads + 2 kv_heads, d_head)."""
        # (tokens, (num_heads + 2 kv_heads) * d_head) -> (tokens, num_heads + 2 kv_heads, d_head)
        heads: Tensor = self.qkv(x).view(x.shape[0], -1, self.d_head)
        return heads

    def project(self, x: Tensor, positions: Tensor, in_place: bool = False) -> tuple[Tensor, Tensor, Tensor]:
        """(tokens, d_model) -> q (tokens, num_heads, d_head), k and v (tokens, kv_heads, d_head), rotated if configured; `in_place`
        by a Triton kernel, which has no gradients."""
        heads = self.heads(x)
        if self.rotary is not None and in_place:
            heads = self.rotary.rotate_heads(heads, self.num_heads + self.kv_heads, positions)
        q, k, v = heads.split((self.num_heads, self.kv_heads, self.kv_heads), dim=1)
        if self.rotary is not None and not in_place:
            q, k = self.rotary(q, positions), self.rotary(k, positions)
        return q, k, v

    def _apart(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """`project` without rotation, whose backward pass joins the gradients in one kernel."""
        from regard.nn.kernels.triton_projection import projection

        parts = projection(x, self.qkv.weight.to(x.dtype), self.qkv.bias.to(x.dtype), self.d_query)
        # (tokens, heads * d_head) -> (tokens, heads, d_head)
        q, k, v = (part.unflatten(1, (-1, self.d_head)) for part in parts)
        return q, k, v

    def forward(
        self, x: Tensor, layout: Layout, hook: WeightsHook | None = None, add_bias: bool = True,
        bias: PositionBias | None = None,
    ) -> Tensor:  # fmt: skip
        """(tokens, d_model) -> (tokens, d_model). Without `add_bias` the output bias is left to a fused kernel; `bias` is added to
        the scores."""
        if self.rotary is not None or self.joined:
            q, k, v = self._apart(x) if self.joined else self.project(x, layout.positions)
            heads = attention(
                q, k, v, layout, layout, self.causal, self.kernel, hook, self.scale, bias, dropout=self.dropout
            )
        else:
            heads = attend_self(
                self.heads(x), layout, self.kv_heads, self.causal, self.kernel, hook, self.scale, bias, self.dropout
            )
        # (tokens, num_heads, d_head) -> (tokens, num_heads * d_head) -> (tokens, d_model)
        output: Tensor = self.out(heads.flatten(1), add_bias)
        return output

    def step(
        self, x: Tensor, position: Tensor, cache: SelfAttentionCache, add_bias: bool = True,
        bias: PositionBias | None = None,
    ) -> Tensor:  # fmt: skip
        """New tokens of the rows, (tokens, d_model) -> (tokens, d_model); the cache holds those before them."""
        q, k, v = self.project(x, position, in_place=on_triton(x.device) and not torch.is_grad_enabled())
        # (tokens, num_heads, d_head) -> (tokens, num_heads * d_head) -> (tokens, d_model)
        output: Tensor = self.out(cache.extend(q, k, v, self.scale, bias).flatten(1), add_bias)
        return output


class CrossAttention(Attention):
    """Queries come from the target, keys and values from the encoder's output, the memory."""

    def __init__(self, config: StackConfig) -> None:
        super().__init__(config)
        self.q = Linear(config.d_model, self.d_query, bias=self.input_bias)
        self.kv = self.keyed(config.d_model, 0)
        self.out = Linear(self.d_query, config.d_model, bias=self.output_bias)

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
        self, x: Tensor, layout: Layout, memory: Tensor, memory_layout: Layout, hook: WeightsHook | None = None,
        add_bias: bool = True,
    ) -> Tensor:  # fmt: skip
        """(tgt_tokens, d_model) -> (tgt_tokens, d_model), attending to memory (src_tokens, d_model)."""
        kv = self.keys_values(memory)
        q = self.queries(x)
        heads = attend_cross(q, kv, layout, memory_layout, self.kernel, hook, self.scale, self.dropout)
        # (tgt_tokens, num_heads, d_head) -> (tgt_tokens, num_heads * d_head) -> (tgt_tokens, d_model)
        output: Tensor = self.out(heads.flatten(1), add_bias)
        return output

    def step(self, x: Tensor, cache: CrossAttentionCache, add_bias: bool = True) -> Tensor:
        """New tokens of the rows, (tokens, d_model) -> (tokens, d_model); the cache holds the memory's keys and values."""
        # (tokens, num_heads, d_head) -> (tokens, num_heads * d_head) -> (tokens, d_model)
        output: Tensor = self.out(cache.attend(self.queries(x), self.scale).flatten(1), add_bias)
        return output


def set_kernel(model: nn.Module, kernel: Kernel) -> None:
    """Make every attention of the model use this kernel."""
    for module in model.modules():
        if isinstance(module, Attention):
            module.kernel = kernel


def set_joined(model: nn.Module, joined: bool) -> None:
    """Choose whether one Triton kernel joins the gradients of queries, keys and values and sums them for the bias. The `triton`
    kernel for attention writes them side by side itself; where positions rotate, or keys have no bias, autograd joins them."""
    for module in model.modules():
        if isinstance(module, SelfAttention):
            is_plain = module.rotary is None and module.input_bias and module.key_bias
            module.joined = joined and is_plain and module.kernel != "triton"


def init_attention(module: Attention) -> None:
    """Glorot-uniform for each projection on its own, since the stored matrices hold several; queries, keys and values at half
    the variance, which keeps post-norm stacks trainable from the start."""
    assert isinstance(module, (SelfAttention, CrossAttention))
    if isinstance(module, SelfAttention):
        inputs = {module.qkv: [module.d_query, module.d_key, module.d_key]}
    else:
        inputs = {module.q: [module.d_query], module.kv: [module.d_key, module.d_key]}
    for projection, rows in inputs.items():
        for block in torch.split(projection.weight, rows):
            nn.init.xavier_uniform_(block, gain=2.0**-0.5)
    nn.init.xavier_uniform_(module.out.weight)
    for projection in (*inputs, module.out):
        if projection.bias is not None:
            nn.init.zeros_(projection.bias)
