"""The model once more, in plain torch: one sequence at a time, matrices as the papers write them, no code of `regard.nn` or
`regard.models`. What each setting means is said here a second time, so that a mistake in the modules shows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from regard.config import ModelConfig
from regard.settings import StackConfig

Weights = Mapping[str, Tensor]


def answer(
    weights: Weights, config: ModelConfig, ids: Tensor, tgt: Tensor | None = None, types: Tensor | None = None
) -> Tensor:
    """What a model of these weights says of one sequence, or of one pair."""
    states = last_states(weights, config, ids, tgt, types)
    head = config.head_settings
    if head.kind == "tokens":
        if head.transform:
            inner = activated(linear(weights, "head.transform", states), config.stacks["encoder"].activation)
            states = norm(weights, "head.transform_norm", inner, config.stacks["encoder"])
        matrix = weights["embedding.weight" if config.tie_embeddings else "output.weight"]
        logits = head.logit_scale * (states @ matrix.T)
        return logits + weights["output_bias"] if config.output_bias else logits
    if head.kind == "tags":
        return linear(weights, "head.output", states)
    if head.kind == "none":
        return states
    pooled = states.mean(dim=0, keepdim=True) if head.pooling == "mean" else states[:1]
    if head.pooling == "tanh-first":
        pooled = torch.tanh(linear(weights, "head.pooler", pooled))
    if head.kind == "classes":
        return linear(weights, "head.output", pooled)
    return pooled / pooled.norm(dim=-1, keepdim=True) if head.normalize else pooled


def last_states(weights: Weights, config: ModelConfig, ids: Tensor, tgt: Tensor | None, types: Tensor | None) -> Tensor:
    stacks = config.stacks
    three = len(stacks) == 2 and not config.tie_embeddings
    if "encoder" not in stacks:
        return run_stack(weights, "decoder", stacks["decoder"], weights["embedding.weight"][ids])
    embedded = weights["src_embedding.weight" if three else "embedding.weight"][ids]
    if config.front_settings.token_types:
        embedded = embedded + weights["front.token_types.weight"][torch.zeros_like(ids) if types is None else types]
    memory = run_stack(weights, "encoder", stacks["encoder"], embedded)
    if tgt is None:
        return memory
    embedded = weights["tgt_embedding.weight" if three else "embedding.weight"][tgt]
    return run_stack(weights, "decoder", stacks["decoder"], embedded, memory)


def run_stack(weights: Weights, side: str, stack: StackConfig, x: Tensor, memory: Tensor | None = None) -> Tensor:
    length, width = x.shape
    if stack.embedding_scale:
        x = x * math.sqrt(width)
    if stack.positions == "sinusoidal":
        angles = torch.tensor([[p / 10_000 ** (2 * i / width) for i in range(width // 2)] for p in range(length)])
        table = torch.zeros(length, width)
        table[:, 0::2], table[:, 1::2] = angles.double().sin(), angles.double().cos()
        x = x + table.double()
    elif stack.positions == "learned":
        x = x + weights[f"{side}.positions.weight"][stack.position_offset : stack.position_offset + length]
    if stack.embedding_norm:
        x = norm(weights, f"{side}.embedding_norm", x, stack)
    if width != stack.d_model:
        x = linear(weights, "front.projection", x)
    for number in range(stack.layers):
        x = run_layer(weights, f"{side}.layers.{0 if stack.share_layers else number}", side, stack, x, memory)
    return norm(weights, f"{side}.final_norm", x, stack) if stack.final_norm else x


def run_layer(weights: Weights, name: str, side: str, stack: StackConfig, x: Tensor, memory: Tensor | None) -> Tensor:
    def attend(y: Tensor) -> Tensor:
        return self_attention(weights, f"{name}.self_attention", side, stack, y)

    def ask(y: Tensor) -> Tensor:
        assert memory is not None
        return cross_attention(weights, f"{name}.cross_attention", stack, y, memory)

    def feed(y: Tensor) -> Tensor:
        inner = activated(linear(weights, f"{name}.feed_forward.inner", y), stack.activation)
        return linear(weights, f"{name}.feed_forward.outer", inner)

    if stack.parallel:
        y = norm(weights, f"{name}.self_residual.norm", x, stack)
        return x + attend(y) + feed(y)
    parts = [
        ("self_residual", attend),
        *([("cross_residual", ask)] if stack.cross else []),
        ("feed_forward_residual", feed),
    ]
    for part, function in parts:
        if stack.norm_position == "pre":
            x = x + function(norm(weights, f"{name}.{part}.norm", x, stack))
        else:
            x = norm(weights, f"{name}.{part}.norm", x + function(x), stack)
    return x


def self_attention(weights: Weights, name: str, side: str, stack: StackConfig, x: Tensor) -> Tensor:
    width, kv_width = stack.num_heads * stack.d_head, stack.num_kv_heads * stack.d_head
    q, k, v = (x @ part.T for part in weights[f"{name}.qkv.weight"].split([width, kv_width, kv_width]))
    if f"{name}.qkv.bias" in weights:
        q, k, v = with_biases(weights[f"{name}.qkv.bias"], (q, k, v), stack)
    length = len(x)
    added = torch.zeros(stack.num_heads, length, length).double()
    if stack.positions == "rotary":
        q, k = (rotated(heads, stack) for heads in (q, k))
    if stack.positions == "relative":
        table = weights[f"{side}.relative.weight"]
        for query in range(length):
            for key in range(length):
                added[:, query, key] = table[relative_bucket(key - query, stack)]
    if stack.causal:
        added = added.masked_fill(torch.ones(length, length).triu(1).bool(), -math.inf)
    return linear(weights, f"{name}.out", softmax_attention(q, k, v, added, stack))


def cross_attention(weights: Weights, name: str, stack: StackConfig, x: Tensor, memory: Tensor) -> Tensor:
    kv_width = stack.num_kv_heads * stack.d_head
    q = linear(weights, f"{name}.q", x)
    k, v = (memory @ part.T for part in weights[f"{name}.kv.weight"].split([kv_width, kv_width]))
    if f"{name}.kv.bias" in weights:
        k, v = with_biases(weights[f"{name}.kv.bias"], (k, v), stack)
    added = torch.zeros(stack.num_heads, len(x), len(memory)).double()
    return linear(weights, f"{name}.out", softmax_attention(q, k, v, added, stack))


def with_biases(bias: Tensor, parts: tuple[Tensor, ...], stack: StackConfig) -> list[Tensor]:
    """Queries (if any), keys and values plus their parts of the bias; `no_key` has none for the keys."""
    key = len(parts) - 2
    has_bias = [stack.attention_bias != "no_key" or number != key for number in range(len(parts))]
    sizes = [part.shape[1] for part, has in zip(parts, has_bias, strict=True) if has]
    biases = iter(bias.split(sizes))
    return [part + next(biases) if has else part for part, has in zip(parts, has_bias, strict=True)]


def softmax_attention(q: Tensor, k: Tensor, v: Tensor, added: Tensor, stack: StackConfig) -> Tensor:
    """q (q_len, num_heads * d_head), k and v (k_len, kv_heads * d_head) -> (q_len, num_heads * d_head)."""
    scale = stack.score_scale if stack.score_scale else 1 / math.sqrt(stack.d_head)
    heads = []
    for head in range(stack.num_heads):
        kv_head = head * stack.num_kv_heads // stack.num_heads
        own, theirs = (slice(h * stack.d_head, (h + 1) * stack.d_head) for h in (head, kv_head))
        scores = scale * q[:, own] @ k[:, theirs].T + added[head]
        heads.append(torch.softmax(scores, dim=-1) @ v[:, theirs])
    return torch.cat(heads, dim=1)


def rotated(heads: Tensor, stack: StackConfig) -> Tensor:
    """(length, heads * d_head) with each two dimensions of each head turned, dimension by dimension."""
    result, dim = heads.clone(), stack.rotary_dim
    for place in range(len(heads)):
        for start in range(0, heads.shape[1], stack.d_head):
            for i in range(dim // 2):
                angle = place * frequency(i, stack)
                one, two = start + 2 * i, start + 2 * i + 1
                if stack.rotary_pairing == "halves":
                    one, two = start + i, start + i + dim // 2
                a, b = heads[place, one], heads[place, two]
                result[place, one] = a * math.cos(angle) - b * math.sin(angle)
                result[place, two] = a * math.sin(angle) + b * math.cos(angle)
    return result


def frequency(i: int, stack: StackConfig) -> float:
    plain: float = stack.rotary_base ** (-2 * i / stack.rotary_dim)
    scaling: Mapping[str, Any] = stack.rotary_scaling
    if not scaling:
        return plain
    if scaling["kind"] == "linear":
        return float(plain / scaling["factor"])
    wave = 2 * math.pi / plain
    first = scaling["original_max_positions"]
    if wave > first / scaling["low_freq_factor"]:
        return float(plain / scaling["factor"])
    if wave < first / scaling["high_freq_factor"]:
        return plain
    smooth = (first / wave - scaling["low_freq_factor"]) / (scaling["high_freq_factor"] - scaling["low_freq_factor"])
    return float((1 - smooth) * plain / scaling["factor"] + smooth * plain)


def relative_bucket(distance: int, stack: StackConfig) -> int:
    """T5's bucket of key place minus query place."""
    buckets, first = stack.relative_buckets, 0
    if not stack.causal:
        buckets //= 2
        first = buckets if distance > 0 else 0
        far = abs(distance)
    else:
        far = max(-distance, 0)
    exact = buckets // 2
    if far < exact:
        return first + far
    grown = math.log(far / exact) / math.log(stack.relative_max_distance / exact)
    return first + min(exact + int(grown * (buckets - exact)), buckets - 1)


def activated(x: Tensor, activation: str) -> Tensor:
    if activation in ("swiglu", "geglu", "geglu_tanh"):
        gate, value = x.chunk(2, dim=-1)
        return activated(gate, {"swiglu": "silu", "geglu": "gelu", "geglu_tanh": "gelu_tanh"}[activation]) * value
    if activation == "relu":
        return torch.where(x > 0, x, torch.zeros_like(x))
    if activation == "silu":
        return x / (1 + torch.exp(-x))
    if activation == "gelu":
        return x * 0.5 * (1 + torch.erf(x / math.sqrt(2)))
    assert activation == "gelu_tanh"
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def linear(weights: Weights, name: str, x: Tensor) -> Tensor:
    product = x @ weights[f"{name}.weight"].T
    return product + weights[f"{name}.bias"] if f"{name}.bias" in weights else product


def norm(weights: Weights, name: str, x: Tensor, stack: StackConfig) -> Tensor:
    gain = weights[f"{name}.weight"]
    if stack.norm == "rms":
        return x / torch.sqrt((x**2).mean(dim=-1, keepdim=True) + stack.norm_eps) * gain
    centred = x - x.mean(dim=-1, keepdim=True)
    scaled = centred / torch.sqrt((centred**2).mean(dim=-1, keepdim=True) + stack.norm_eps) * gain
    return scaled + weights[f"{name}.bias"] if f"{name}.bias" in weights else scaled
