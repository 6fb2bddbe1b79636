"""Writes an encoder and its head as an ONNX graph of ONNX's own operators, in fp32. Sequences are padded on the right; batch and
length are free. Needs neither ONNX Runtime nor, but for relative positions, torch.

    input_ids, attention_mask (batch, length); token_type_ids of the same shape, if the model has more than one kind of token
        -> vector    sentence_embedding (batch, d_model), last_hidden_state (batch, length, d_model)
           classes   logits (batch, classes)
           tags      logits (batch, length, tags)
           tokens    logits (batch, length, vocab_size)

The graph of an engine (`is_engine`) answers as `EncoderEngine` does: a vector that is not yet scaled, as `pooled` alone; of
tokens only `logits` (N, vocab_size) at the places `rows` (N,), counted in the flattened batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.bundle import Bundle
from regard.generate.engines.ctranslate2_model import read_weights, sinusoids
from regard.generate.engines.onnx_builder import GraphBuilder, frequencies
from regard.settings import GATED, Activation

_Array = NDArray[Any]

CONVERTER = 1  # increased when the same bundle would give other files; cache entries are named after it
MODEL, DATA = "model.onnx", "model.onnx_data"
OPSET, IR_VERSION = 17, 8  # from 2022; the first opset with LayerNormalization
_MIN_POSITIONS = 512  # rows of the table of sinusoids, at least
_MAX_BYTES = 1 << 31  # of one file in ONNX's format
_UNGATED: dict[str, Activation] = {"swiglu": "silu", "geglu": "gelu", "geglu_tanh": "gelu_tanh"}


def longest_input(bundle: Bundle) -> int | None:
    """Tokens of the longest sequence that the graph takes; None: no limit."""
    [stack] = bundle.config.stacks.values()
    if stack.positions == "sinusoidal":
        return max(_MIN_POSITIONS, bundle.max_length)
    return stack.max_positions if stack.positions == "learned" else None


def convert(bundle: Bundle, folder: Path, is_engine: bool = False) -> None:
    """Write the graph into an existing folder: `MODEL`, with its weights in `DATA` only if they are too many for one file."""
    graph = _EncoderGraph(bundle, read_weights(bundle), is_engine)
    onnx = graph.onnx
    model = onnx.helper.make_model(
        graph.finish(),
        opset_imports=[onnx.helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
        producer_name="regard",
    )
    apart = sum(len(array.raw_data) for array in graph.arrays.values()) > _MAX_BYTES * 0.95
    onnx.save_model(
        model, str(folder / MODEL), save_as_external_data=apart, all_tensors_to_one_file=True, location=DATA, size_threshold=1024
    )  # fmt: skip


class _EncoderGraph(GraphBuilder):
    """Shapes in comments: B sequences of L tokens, H query heads and K key/value heads of width D."""

    def __init__(self, bundle: Bundle, weights: Mapping[str, _Array], is_engine: bool) -> None:
        super().__init__()
        self.bundle, self.config, self.weights, self.is_engine = bundle, bundle.config, weights, is_engine
        [self.stack] = bundle.config.stacks.values()
        self.head = bundle.config.head_settings
        self.has_types = bundle.config.front_settings.token_types > 1

    # --- parts ---

    def weight(self, ours: str) -> str:
        """A tensor of the bundle as it is."""
        return self.array(ours, self.weights[ours])

    def number(self, value: float) -> str:
        return self.array(f"number.{value!r}", np.array(value, np.float32))

    def whole(self, *values: int) -> str:
        """A list of whole numbers: a shape, sizes or axes."""
        return self.array(f"whole.{'.'.join(map(str, values))}", np.array(values, np.int64))

    def linear(self, x: str, ours: str, name: str) -> str:
        """A matrix of the bundle times vectors, with its bias if it has one."""
        # (d_out, d_in) -> (d_in, d_out)
        matrix = self.array(f"{ours}.weight", self.weights[f"{ours}.weight"].T)
        bias = self.weights.get(f"{ours}.bias")
        if bias is None:
            return self.node("MatMul", [x, matrix], name)
        product = self.node("MatMul", [x, matrix], f"{name}.product")
        return self.node("Add", [product, self.array(f"{ours}.bias", self._spread(bias, ours))], name)

    def _spread(self, bias: _Array, ours: str) -> _Array:
        """A bias as wide as its matrix: that of queries, keys and values may have none for the keys."""
        missing = len(self.weights[f"{ours}.weight"]) - len(bias)
        values = self.stack.kv_heads * self.stack.d_head
        return np.insert(bias, [len(bias) - values] * missing, 0.0) if missing else bias

    def norm(self, x: str, ours: str, name: str) -> str:
        if self.stack.norm == "layer":
            biases = [self.weight(f"{ours}.bias")] if self.stack.norm_bias else []
            inputs = [x, self.weight(f"{ours}.weight"), *biases]
            return self.node("LayerNormalization", inputs, name, axis=-1, epsilon=self.stack.norm_eps)
        squares = self.node("Mul", [x, x], f"{name}.squares")
        mean = self.node("ReduceMean", [squares], f"{name}.mean", axes=[-1], keepdims=1)
        added = self.node("Add", [mean, self.number(self.stack.norm_eps)], f"{name}.added")
        scaled = self.node("Div", [x, self.node("Sqrt", [added], f"{name}.root")], f"{name}.scaled")
        return self.node("Mul", [scaled, self.weight(f"{ours}.weight")], name)

    def activate(self, x: str, activation: Activation, name: str) -> str:
        if activation == "relu":
            return self.node("Relu", [x], name)
        if activation == "silu":
            return self.node("Mul", [x, self.node("Sigmoid", [x], f"{name}.sigmoid")], name)
        if activation == "gelu":
            share = self.node(
                "Erf", [self.node("Div", [x, self.number(math.sqrt(2.0))], f"{name}.scaled")], f"{name}.erf"
            )
        else:
            squares = self.node("Mul", [x, x], f"{name}.squares")
            cubes = self.node("Mul", [squares, x], f"{name}.cubes")
            small = self.node("Mul", [cubes, self.number(0.044715)], f"{name}.small")
            inner = self.node("Add", [x, small], f"{name}.inner")
            factor = self.number(math.sqrt(2.0 / math.pi))
            share = self.node("Tanh", [self.node("Mul", [inner, factor], f"{name}.scaled")], f"{name}.tanh")
        whole = self.node("Add", [share, self.number(1.0)], f"{name}.share")
        product = self.node("Mul", [x, whole], f"{name}.product")
        return self.node("Mul", [product, self.number(0.5)], name)

    # --- what enters ---

    def enter(self) -> str:
        """The input of the first layer, (B, L, d_model)."""
        x = self.node("Gather", [self.weight("embedding.weight"), "input_ids"], "embedded")
        if self.config.front_settings.token_types:
            table = self.weight("front.token_types.weight")
            chosen = "token_type_ids" if self.has_types else self.whole(0)
            x = self.node("Add", [x, self.node("Gather", [table, chosen], "types")], "typed")
        if self.stack.embedding_scale:
            x = self.node("Mul", [x, self.number(math.sqrt(self.stack.d_model))], "scaled")
        if self.stack.positions in ("learned", "sinusoidal"):
            rows = self.node("Gather", [self.array("positions.table", self._table()), self.places()], "positions")
            x = self.node("Add", [x, rows], "placed")
        if self.stack.embedding_norm:
            x = self.norm(x, "encoder.embedding_norm", "entered")
        if self.stack.d_embedding != self.stack.d_model:
            x = self.linear(x, "front.projection", "projected")
        return x

    def _table(self) -> _Array:
        if self.stack.positions == "learned":
            return self.weights["encoder.positions.weight"][self.stack.position_offset :]
        rows = longest_input(self.bundle)
        assert rows is not None
        return sinusoids(rows, self.stack.d_embedding)

    def places(self) -> str:
        """0, 1, ... (L,)"""
        shape = self.node("Shape", ["input_ids"], "shape")
        length = self.node("Gather", [shape, self.array("one", np.array(1, np.int64))], "length")
        step, first = self.array("one", np.array(1, np.int64)), self.array("zero", np.array(0, np.int64))
        return self.node("Range", [first, length, step], "places")

    # --- attention ---

    def score_bias(self, places: str) -> str:
        """What is added to the scores, (B, 1, 1, L), or (B, H, L, L) with relative positions: padding is hidden. Not by -inf, which
        gives NaN for a sequence of nothing but padding."""
        is_token = self.node("Cast", ["attention_mask"], "is_token", to=self.onnx.TensorProto.BOOL)
        lowest = self.number(float(np.finfo(np.float32).min))
        hidden = self.node("Where", [is_token, self.number(0.0), lowest], "hidden")
        bias = self.node("Unsqueeze", [hidden, self.whole(1, 2)], "padding")
        if self.stack.positions != "relative":
            return bias
        # (L,) -> (L, L): key minus query
        queries = self.node("Unsqueeze", [places, self.whole(1)], "queries")
        distances = self.node("Sub", [places, queries], "distances")
        far = self.stack.relative_max_distance
        ends = [self.array(f"farthest.{end}", np.array(end, np.int64)) for end in (-far, far)]
        near = self.node("Clip", [distances, *ends], "near")
        steps = self.node("Add", [near, ends[1]], "steps")
        # (2 * far + 1, H), (L, L) -> (L, L, H) -> (H, L, L)
        found = self.node("Gather", [self.array("relative", self._relative(far)), steps], "relative.found")
        heads = self.node("Transpose", [found], "relative.heads", perm=[2, 0, 1])
        return self.node("Add", [bias, heads], "bias")

    def _relative(self, far: int) -> _Array:
        """The number for each distance from -far to far, (2 * far + 1, H)."""
        import torch

        from regard.nn.relative import bucket

        buckets = bucket(torch.arange(-far, far + 1), False, self.stack.relative_buckets, far)
        table: _Array = self.weights["encoder.relative.weight"][buckets.numpy()]
        return table

    def angles(self, places: str) -> tuple[str, str]:
        """Cosines and sines of rotary positions, (L, 1, rotary_dim / 2)."""
        floats = self.node("Cast", [places], "places.float", to=self.onnx.TensorProto.FLOAT)
        column = self.node("Unsqueeze", [floats, self.whole(1, 2)], "places.column")
        angles = self.node("Mul", [column, self.array("frequencies", frequencies(self.stack))], "angles")
        return self.node("Cos", [angles], "cosines"), self.node("Sin", [angles], "sines")

    def rotate(self, x: str, heads: int, angles: tuple[str, str], name: str) -> str:
        """(B, L, heads, D) with its first `rotary_dim` dimensions rotated, two at a time."""
        stack, (cosines, sines) = self.stack, angles
        rest = stack.d_head - stack.rotary_dim
        if rest:
            x = self.node("Split", [x, self.whole(stack.rotary_dim, rest)], f"{name}.part", outputs=2, axis=-1)
        half = stack.rotary_dim // 2
        # (B, L, heads, dim) -> halves: (B, L, heads, 2, dim / 2); pairs: (B, L, heads, dim / 2, 2)
        sizes, axis = ((2, half), 3) if stack.rotary_pairing == "halves" else ((half, 2), 4)
        both = self.node("Reshape", [x, self.whole(0, 0, heads, *sizes)], f"{name}.both")
        self.node("Split", [both, self.whole(1, 1)], f"{name}.split", outputs=2, axis=axis)
        first, second = (
            self.node("Squeeze", [value, self.whole(axis)], f"{name}.{n}")
            for n, value in (("first", f"{name}.split"), ("second", f"{name}.split.1"))
        )

        def product(a: str, b: str, label: str) -> str:
            return self.node("Mul", [a, b], f"{name}.{label}")

        turned = [
            self.node("Sub", [product(first, cosines, "fc"), product(second, sines, "ss")], f"{name}.left"),
            self.node("Add", [product(first, sines, "fs"), product(second, cosines, "sc")], f"{name}.right"),
        ]
        parts = [self.node("Unsqueeze", [one, self.whole(axis)], f"{one}.apart") for one in turned]
        joined = self.node("Concat", parts, f"{name}.joined", axis=axis)
        flat = self.node("Reshape", [joined, self.whole(0, 0, heads, stack.rotary_dim)], f"{name}.flat")
        return self.node("Concat", [flat, f"{name}.part.1"], name, axis=-1) if rest else flat

    def attention(self, x: str, ours: str, name: str, bias: str, angles: tuple[str, str] | None) -> str:
        """(B, L, d_model) -> (B, L, d_model)"""
        stack = self.stack
        widths = [heads * stack.d_head for heads in (stack.num_heads, stack.kv_heads, stack.kv_heads)]
        qkv = self.linear(x, f"{ours}.qkv", f"{name}.qkv")
        self.node("Split", [qkv, self.whole(*widths)], f"{name}.split", outputs=3, axis=-1)
        parts = []
        for part, value, heads in zip(
            "qkv", ("", ".1", ".2"), (stack.num_heads, stack.kv_heads, stack.kv_heads), strict=True
        ):
            # (B, L, heads * D) -> (B, L, heads, D)
            shape = self.whole(0, 0, heads, stack.d_head)
            found = self.node("Reshape", [f"{name}.split{value}", shape], f"{name}.{part}")
            if angles is not None and part != "v":
                found = self.rotate(found, heads, angles, f"{name}.{part}.rotated")
            # queries and values (B, heads, L, D), keys (B, heads, D, L)
            order = [0, 2, 3, 1] if part == "k" else [0, 2, 1, 3]
            found = self.node("Transpose", [found], f"{name}.{part}.heads", perm=order)
            if heads != stack.num_heads:  # each key/value head for its query heads
                repeated = [head * heads // stack.num_heads for head in range(stack.num_heads)]
                found = self.node("Gather", [found, self.whole(*repeated)], f"{name}.{part}.repeated", axis=1)
            parts.append(found)
        q, k, v = parts
        scale = stack.score_scale or stack.d_head**-0.5
        scores = self.node(
            "MatMul", [self.node("Mul", [q, self.number(scale)], f"{name}.q.scaled"), k], f"{name}.scores"
        )
        weights = self.node("Softmax", [self.node("Add", [scores, bias], f"{name}.biased")], f"{name}.weights", axis=-1)
        mixed = self.node("MatMul", [weights, v], f"{name}.mixed")
        # (B, H, L, D) -> (B, L, H, D) -> (B, L, H * D)
        mixed = self.node("Transpose", [mixed], f"{name}.tokens", perm=[0, 2, 1, 3])
        mixed = self.node("Reshape", [mixed, self.whole(0, 0, widths[0])], f"{name}.joined")
        return self.linear(mixed, f"{ours}.out", f"{name}.out")

    # --- layers ---

    def feed_forward(self, x: str, ours: str, name: str) -> str:
        stack = self.stack
        inner = self.linear(x, f"{ours}.inner", f"{name}.inner")
        if stack.activation not in GATED:
            return self.linear(
                self.activate(inner, stack.activation, f"{name}.active"), f"{ours}.outer", f"{name}.outer"
            )
        # (B, L, 2 * d_ff) -> the gate, (B, L, d_ff), and what it multiplies
        gate = self.node("Split", [inner, self.whole(stack.d_ff, stack.d_ff)], f"{name}.gate", outputs=2, axis=-1)
        active = self.activate(gate, _UNGATED[stack.activation], f"{name}.active")
        return self.linear(self.node("Mul", [active, f"{gate}.1"], f"{name}.gated"), f"{ours}.outer", f"{name}.outer")

    def layer(self, x: str, number: int, attend: Callable[[str, str, str], str]) -> str:
        """A layer: post-norm, pre-norm or parallel, as `regard.nn.block` has them."""
        ours, name = f"encoder.layers.{0 if self.stack.share_layers else number}", f"layer.{number}"
        first, second = f"{ours}.self_residual.norm", f"{ours}.feed_forward_residual.norm"

        def add(x: str, y: str, label: str) -> str:
            return self.node("Add", [x, y], f"{name}.{label}")

        def feed(x: str) -> str:
            return self.feed_forward(x, f"{ours}.feed_forward", f"{name}.feed_forward")

        own = (f"{ours}.self_attention", f"{name}.attention")
        if self.stack.norm_position == "post":
            x = self.norm(add(x, attend(x, *own), "attended"), first, f"{name}.attended.normed")
            return self.norm(add(x, feed(x), "fed"), second, f"{name}.fed.normed")
        normed = self.norm(x, first, f"{name}.normed")
        attended = add(x, attend(normed, *own), "attended")
        if self.stack.parallel:
            return add(attended, feed(normed), "fed")
        return add(attended, feed(self.norm(attended, second, f"{name}.attended.normed")), "fed")

    def states(self) -> str:
        """The output of the last layer, (B, L, d_model)."""
        x, places = self.enter(), "places"
        if self.stack.positions in ("rotary", "relative"):
            self.places()
        bias = self.score_bias(places)
        angles = self.angles(places) if self.stack.positions == "rotary" else None

        def attend(y: str, ours: str, name: str) -> str:
            return self.attention(y, ours, name, bias, angles)

        for number in range(self.stack.layers):
            x = self.layer(x, number, attend)
        return self.norm(x, "encoder.final_norm", "normed") if self.stack.final_norm else x

    # --- heads ---

    def pooled(self, states: str) -> str:
        """One vector for each sequence, (B, d_model)."""
        if self.head.pooling == "mean":
            mask = self.node("Cast", ["attention_mask"], "mask.float", to=self.onnx.TensorProto.FLOAT)
            count = self.node("ReduceSum", [mask, self.whole(1)], "count", keepdims=1)
            share = self.node("Div", [mask, self.node("Max", [count, self.number(1.0)], "count.some")], "share")
            # (B, 1, L) (B, L, d_model) -> (B, 1, d_model) -> (B, d_model)
            row = self.node("Unsqueeze", [share, self.whole(1)], "share.row")
            mean = self.node("MatMul", [row, states], "mean.row")
            return self.node("Squeeze", [mean, self.whole(1)], "mean")
        first = self.node("Gather", [states, self.array("zero", np.array(0, np.int64))], "first", axis=1)
        if self.head.pooling == "first":
            return first
        return self.node("Tanh", [self.linear(first, "head.pooler", "pooler")], "pooled.tanh")

    def token_logits(self, states: str) -> str:
        """Of all tokens, (B, L, vocab_size); an engine's of some, (N, vocab_size)."""
        x = self.node("Reshape", [states, self.whole(-1, self.stack.d_model)], "flat")
        if self.is_engine:
            x = self.node("Gather", [x, "rows"], "flat.rows")
        if self.head.transform:
            x = self.activate(self.linear(x, "head.transform", "transform"), self.stack.activation, "transform.active")
            x = self.norm(x, "head.transform_norm", "transform.normed")
        matrix = self.weight("embedding.weight" if self.config.tie_embeddings else "output.weight")
        bias = [self.weight("output_bias")] if self.config.output_bias else []
        logits = self.node("Gemm", [x, matrix, *bias], "flat.logits", transB=1, alpha=self.head.logit_scale)
        if self.is_engine:
            return logits
        shape = self.node("Concat", [self.node("Shape", ["input_ids"], "grid"), self.whole(self.config.vocab_size)],
                          "grid.logits", axis=0)  # fmt: skip
        return self.node("Reshape", [logits, shape], "grid.of.logits")

    def answer(self, states: str) -> dict[str, tuple[str, list[Any]]]:
        """The outputs: the value that each one is, and its shape."""
        width = self.stack.d_model
        if self.head.kind == "tokens":
            sizes: list[Any] = ["rows"] if self.is_engine else ["batch", "length"]
            return {"logits": (self.token_logits(states), [*sizes, self.config.vocab_size])}
        if self.head.kind == "tags":
            tags = self.linear(states, "head.output", "tags")
            return {"logits": (tags, ["batch", "length", len(self.head.labels)])}
        pooled = self.pooled(states)
        if self.head.kind == "classes":
            return {"logits": (self.linear(pooled, "head.output", "classes"), ["batch", len(self.head.labels)])}
        if self.is_engine:
            return {"pooled": (pooled, ["batch", width])}
        if self.head.normalize:
            size = self.node("ReduceL2", [pooled], "size", axes=[-1], keepdims=1)
            pooled = self.node(
                "Div", [pooled, self.node("Max", [size, self.number(1e-12)], "size.some")], "scaled.pooled"
            )
        return {
            "sentence_embedding": (pooled, ["batch", width]),
            "last_hidden_state": (states, ["batch", "length", width]),
        }

    def finish(self) -> Any:
        """The whole graph."""
        helper, kinds = self.onnx.helper, self.onnx.TensorProto
        names = ["input_ids", "attention_mask", *(["token_type_ids"] if self.has_types else [])]
        inputs = [helper.make_tensor_value_info(name, kinds.INT64, ["batch", "length"]) for name in names]
        if self.is_engine and self.head.kind == "tokens":
            inputs.append(helper.make_tensor_value_info("rows", kinds.INT64, ["rows"]))
        outputs = []
        for name, (value, shape) in self.answer(self.states()).items():
            self.node("Identity", [value], name)
            outputs.append(helper.make_tensor_value_info(name, kinds.FLOAT, shape))
        return helper.make_graph(self.nodes, "encoder", inputs, outputs, list(self.arrays.values()))
