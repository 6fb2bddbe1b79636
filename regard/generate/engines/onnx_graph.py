"""Writes a language model as an ONNX graph of ONNX Runtime's own operators for decoders: matrices of 8 bits in blocks with a scale
each, attention over a cache that is written in place. One graph reads prompts and takes steps. What it cannot express is refused
by name. Imports neither torch nor ONNX Runtime.

    x (B, S, d_model), lengths (B,), total (), rows (N,), keys.L and values.L (B, kv_heads, capacity, d_head)
        -> logits (B, N, vocab_size) of these rows, and the caches
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from regard.builtin import shown_name
from regard.bundle import Bundle
from regard.errors import UserError
from regard.generate.engines.ctranslate2_model import read_weights, sinusoids
from regard.generate.engines.onnx_builder import GraphBuilder, frequencies, import_onnx
from regard.settings import StackConfig

_Array = NDArray[Any]

CONVERTER = 1  # increased when the same bundle would give different files; cache entries are named after it
FILES = ("model.onnx", "model.data", "front.safetensors")
BLOCK = 64  # weights that share a scale of 32 bits: 8.5 bits a weight, as in llama.cpp's Q8_0
ACCURACY = 4  # vectors are rounded to 8 bits, too, each block with a scale of its own; 1: they stay in fp32
_MAX_ROWS = 1 << 15  # of the tables of positions; longer texts are left to another engine
_ACTIVATIONS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "relu": ("Relu", "", {}),
    "gelu": ("Gelu", "com.microsoft", {}),
    "gelu_tanh": ("FastGelu", "com.microsoft", {}),
    "silu": ("QuickGelu", "com.microsoft", {"alpha": 1.0}),  # x * sigmoid(alpha * x)
}
_ACTIVATIONS |= {"swiglu": _ACTIVATIONS["silu"], "geglu": _ACTIVATIONS["gelu"], "geglu_tanh": _ACTIVATIONS["gelu_tanh"]}


def refusal(bundle: Bundle) -> str | None:
    """Why ONNX Runtime cannot run this model here; None if it can."""
    config, stack = bundle.config, bundle.config.decoder_stack
    if stack is None or len(config.stacks) > 1:
        return "ONNX Runtime runs models of one decoder here"
    if named := next((name for name, is_so in _refused(bundle, stack) if is_so), None):
        return f"ONNX Runtime does not run {named} here"
    return None


def _refused(bundle: Bundle, stack: StackConfig) -> Iterator[tuple[str, bool]]:
    config, head = bundle.config, bundle.config.head_settings
    yield f"model.front.d_embedding = {stack.d_embedding}", stack.d_embedding != stack.d_model
    yield "model.front.token_types", bool(config.front_settings.token_types)
    yield f"model.head.kind = {head.kind!r}", head.kind != "tokens"
    yield "model.head.transform = True", head.transform
    yield f"model.positions = {stack.positions!r}", stack.positions in ("relative", "none")
    if stack.positions == "rotary":
        yield f"model.d_head = {stack.d_head}, no multiple of 16, with rotary positions", bool(stack.d_head % 16)
        yield f"model.rotary_dim = {stack.rotary_dim}, no multiple of 16", bool(stack.rotary_dim % 16)
    yield "model.norm_position = 'post'", stack.norm_position == "post"
    yield "model.final_norm = False", not stack.final_norm
    yield "model.embedding_norm = True", stack.embedding_norm
    yield "model.parallel = True", stack.parallel
    yield "model.share_layers = True", stack.share_layers
    yield f"model.attention_bias = {stack.attention_bias!r}", stack.attention_bias == "no_key"


def positions(bundle: Bundle) -> int:
    """The longest text, a prompt and what follows, that the graph takes."""
    stack = bundle.config.decoder_stack
    assert stack is not None
    longest = min(bundle.max_length, _MAX_ROWS)
    return min(longest, stack.max_positions) if stack.positions == "learned" else longest


def convert(bundle: Bundle, folder: Path) -> None:
    """Write the graph, its weights, and the tables that turn ids into vectors, into an existing folder."""
    if reason := refusal(bundle):
        raise UserError(f"{shown_name(bundle.folder)}: {reason}; use --engine torch")
    onnx = import_onnx()
    weights = read_weights(bundle)
    graph = _Graph(bundle, weights)
    model = onnx.helper.make_model(
        graph.finish(),
        opset_imports=[onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid("com.microsoft", 1)],
        ir_version=9,
    )
    onnx.save_model(
        model, str(folder / FILES[0]), save_as_external_data=True, all_tensors_to_one_file=True, location=FILES[1],
        size_threshold=1024,
    )  # fmt: skip
    save_file(graph.front(), folder / FILES[2])


def to_blocks(matrix: _Array) -> tuple[_Array, _Array]:
    """(N, K) -> integers around 128, (N, blocks, BLOCK), and their scales, (N, blocks)."""
    rows, width = matrix.shape
    padded = np.pad(matrix, ((0, 0), (0, -width % BLOCK))) if width % BLOCK else matrix
    blocks = padded.reshape(rows, -1, BLOCK)
    scales = np.abs(blocks).max(axis=2) / np.float32(127)
    divisors = np.where(scales > 0, scales, np.float32(1))
    integers = np.rint(blocks / divisors[:, :, None]) + 128
    return integers.astype(np.uint8), scales.astype(np.float32)


def from_blocks(integers: _Array, scales: _Array, width: int) -> _Array:
    """The inverse of `to_blocks`, (..., blocks, BLOCK) and (..., blocks) -> (..., width)."""
    values = (integers.astype(np.float32) - np.float32(128)) * scales[..., None]
    return values.reshape(*values.shape[:-2], -1)[..., :width]


class _Graph(GraphBuilder):
    """The graph of one bundle."""

    def __init__(self, bundle: Bundle, weights: Mapping[str, _Array]) -> None:
        super().__init__()
        stack = bundle.config.decoder_stack
        assert stack is not None
        self.bundle, self.config, self.stack, self.weights = bundle, bundle.config, stack, weights

    # --- parts ---

    def linear(self, x: str, ours: str) -> str:
        """A matrix of the bundle times vectors, with its bias if it has one."""
        return self.product(x, ours, self.weights[f"{ours}.weight"], self.weights.get(f"{ours}.bias"))

    def product(self, x: str, name: str, matrix: _Array, bias: _Array | None = None) -> str:
        integers, scales = to_blocks(matrix)
        inputs = [x, self.array(f"{name}.integers", integers), self.array(f"{name}.scales", scales)]
        if bias is not None:
            inputs += ["", "", self.array(f"{name}.bias", bias.astype(np.float32))]
        return self.node(
            "MatMulNBits", inputs, name, "com.microsoft", K=matrix.shape[1], N=matrix.shape[0], bits=8, block_size=BLOCK,
            accuracy_level=ACCURACY,
        )  # fmt: skip

    def norm(self, x: str, ours: str, added: str = "") -> tuple[str, str]:
        """Normalised vectors, and what was normalised: `x`, or the sum if something is `added` to it."""
        is_rms, epsilon = self.stack.norm == "rms", self.stack.norm_eps
        inputs = [self.array(f"{ours}.weight", self.weights[f"{ours}.weight"])]
        if not is_rms:
            bias = self.weights.get(f"{ours}.bias", np.zeros(self.stack.d_model, np.float32))
            inputs.append(self.array(f"{ours}.bias", bias))
        kind = "SimplifiedLayerNormalization" if is_rms else "LayerNormalization"
        if not added:
            return self.node(kind, [x, *inputs], ours, epsilon=epsilon, axis=-1), x
        # Its outputs: the normalised vectors, two that are for training, and the sum.
        names = [ours, "", "", f"{ours}.sum"]
        self.nodes.append(
            self.onnx.helper.make_node(
                f"Skip{kind}", [x, added, *inputs], names, domain="com.microsoft", name=ours, epsilon=epsilon
            )
        )
        return ours, f"{ours}.sum"

    def attention(self, qkv: str, number: int) -> str:
        stack, rotary = self.stack, self.stack.positions == "rotary"
        caches = [f"keys.{number}", f"values.{number}"]
        name = f"attention.{number}"
        inputs = [qkv, "", "", *caches, "lengths", "total", *(("cosines", "sines") if rotary else ())]
        self.nodes.append(
            self.onnx.helper.make_node(
                "GroupQueryAttention", inputs, [name, *(f"new_{cache}" for cache in caches)], domain="com.microsoft", name=name,
                num_heads=stack.num_heads, kv_num_heads=stack.kv_heads, scale=stack.score_scale or stack.d_head**-0.5,
                do_rotary=int(rotary), rotary_interleaved=int(stack.rotary_pairing == "pairs"),
            )
        )  # fmt: skip
        return name

    def feed_forward(self, x: str, ours: str) -> str:
        inner = self.linear(x, f"{ours}.inner")
        kind, domain, settings = _ACTIVATIONS[self.stack.activation]
        if not self.stack.gated:
            active = self.node(kind, [inner], f"{ours}.active", domain, **settings)
            return self.linear(active, f"{ours}.outer")
        # (B, S, 2 * d_ff) -> the gate, (B, S, d_ff), and what it multiplies
        gate = self.node("Split", [inner], f"{ours}.gate", outputs=2, axis=-1)
        active = self.node(kind, [gate], f"{ours}.active", domain, **settings)
        return self.linear(self.node("Mul", [active, f"{gate}.1"], f"{ours}.gated"), f"{ours}.outer")

    # --- the whole ---

    def finish(self) -> Any:
        self._set_rotary()
        x, added = "x", ""
        for number in range(self.stack.layers):
            ours = f"decoder.layers.{number}"
            normed, x = self.norm(x, f"{ours}.self_residual.norm", added)
            attended = self.attention(self.linear(normed, f"{ours}.self_attention.qkv"), number)
            attended = self.linear(attended, f"{ours}.self_attention.out")
            normed, x = self.norm(x, f"{ours}.feed_forward_residual.norm", attended)
            added = self.feed_forward(normed, f"{ours}.feed_forward")
        last, _ = self.norm(x, "decoder.final_norm", added)
        last = self.node("Gather", [last, "rows"], "last", axis=1)
        bias = self.weights["output_bias"] if self.config.output_bias else None
        scale = np.float32(self.config.head_settings.logit_scale)
        logits = self.product(last, "scores", self._output_matrix() * scale, bias)
        self.node("Identity", [logits], "logits")
        return self._make()

    def _output_matrix(self) -> _Array:
        return self.weights["embedding.weight" if self.config.tie_embeddings else "output.weight"]

    def _make(self) -> Any:
        helper, kinds = self.onnx.helper, self.onnx.TensorProto
        cache = ["B", self.stack.kv_heads, "capacity", self.stack.d_head]
        inputs = {"x": (kinds.FLOAT, ["B", "S", self.stack.d_model]), "lengths": (kinds.INT32, ["B"])}
        inputs |= {"total": (kinds.INT32, []), "rows": (kinds.INT64, ["N"])}
        outputs = {"logits": (kinds.FLOAT, ["B", "N", self.config.vocab_size])}
        for name in cache_names(self.stack.layers):
            inputs[name] = outputs[f"new_{name}"] = (kinds.FLOAT, cache)
        infos = [[helper.make_tensor_value_info(n, *of) for n, of in some.items()] for some in (inputs, outputs)]
        return helper.make_graph(self.nodes, "decoder", *infos, list(self.arrays.values()))

    def _set_rotary(self) -> None:
        if self.stack.positions == "rotary":
            angles = np.arange(positions(self.bundle), dtype=np.float32)[:, None] * frequencies(self.stack)
            self.array("cosines", np.cos(angles))
            self.array("sines", np.sin(angles))

    def front(self) -> dict[str, _Array]:
        """What turns ids into vectors: the embedding in blocks, their factor, and the table of positions that is added."""
        own = "embedding.weight" if "embedding.weight" in self.weights else "tgt_embedding.weight"
        integers, scales = to_blocks(self.weights[own])
        factor = math.sqrt(self.stack.d_model) if self.stack.embedding_scale else 1.0
        tables = {"integers": integers, "scales": scales, "factor": np.array(factor, np.float32)}
        if self.stack.positions == "learned":
            table = self.weights["decoder.positions.weight"][self.stack.position_offset :]
            tables["positions"] = np.ascontiguousarray(table)
        elif self.stack.positions == "sinusoidal":
            tables["positions"] = sinusoids(positions(self.bundle), self.stack.d_model)
        return tables


def cache_names(layers: int) -> list[str]:
    """The caches of all layers, keys and values in turn."""
    return [f"{kind}.{number}" for number in range(layers) for kind in ("keys", "values")]
