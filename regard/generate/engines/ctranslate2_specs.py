"""Every stack that CTranslate2 can run, in its own `specs`: decoders such as GPT-2 and LLaMA, encoders such as BERT, and encoders
with decoders such as BART and T5. What it cannot run is refused by name.

Needs torch, which CTranslate2's `specs` import; the paper's models take the shorter way of `ctranslate2_model.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.builtin import shown_name
from regard.bundle import Bundle
from regard.config import ModelConfig
from regard.errors import UserError
from regard.generate.engines.ctranslate2_model import WeightFormat, positions, read_weights, sinusoids, vocabularies
from regard.settings import Side, StackConfig

_Array = NDArray[Any]
_ACTIVATIONS = {
    "relu": "RELU", "gelu": "GELU", "geglu": "GELU", "silu": "SWISH", "swiglu": "SWISH",
    "gelu_tanh": "GELUTanh", "geglu_tanh": "GELUTanh",
}  # fmt: skip


def refusal(bundle: Bundle) -> str | None:
    """Why CTranslate2 cannot run this model; None if it can."""
    config = bundle.config
    if named := next((name for name, is_so in _refused(config) if is_so), None):
        return f"CTranslate2 does not support {named}"
    for side, stack in config.stacks.items():
        if named := next((name for name, is_so in _refused_of_stack(stack) if is_so), None):
            return f"CTranslate2 does not support {named} in the {side}"
    both = vocabularies(bundle.tokenizer, config.vocab_size)
    ends = {pieces[bundle.tokenizer.eos_id] for pieces in both if bundle.tokenizer.eos_id >= 0}
    if len(ends) > 1:
        return f"CTranslate2 has only one end token, but source and target have {' and '.join(map(repr, sorted(ends)))}"
    for pieces in both:
        [(piece, times)] = Counter(pieces).most_common(1)
        if times > 1:
            return f"CTranslate2 identifies ids by their pieces, and two ids have the piece {piece!r}"
    return None


def _refused(config: ModelConfig) -> Iterator[tuple[str, bool]]:
    front, head, decoder = config.front_settings, config.head_settings, config.decoder_stack
    yield f"model.front.d_embedding = {front.d_embedding}", front.d_embedding != config.d_model
    yield f"model.front.token_types = {front.token_types} with a decoder", bool(front.token_types and decoder)
    yield f"model.head.kind = {head.kind!r} of a decoder", decoder is not None and head.kind != "tokens"
    yield "model.head.transform = True of a decoder", decoder is not None and head.transform
    scaled = decoder is not None and head.logit_scale != 1.0 and config.output_bias
    yield "model.head.logit_scale with model.output_bias", scaled
    yield "another model.norm_eps in each stack", len({stack.norm_eps for stack in config.stacks.values()}) > 1


def _refused_of_stack(stack: StackConfig) -> Iterator[tuple[str, bool]]:
    yield "model.positions = 'none'", stack.positions == "none"
    yield "model.final_norm with post-norm", stack.final_norm and stack.norm_position == "post"
    yield "model.parallel with RMSNorm", stack.parallel and stack.norm == "rms"
    yield "model.parallel", stack.parallel and (stack.cross or not stack.causal or stack.norm_position == "post")


def convert(bundle: Bundle, folder: Path, weights: WeightFormat, levels: int) -> None:
    """Write the model into an existing folder; `levels` is the largest integer of int8 weights."""
    if reason := refusal(bundle):
        raise UserError(f"{shown_name(bundle.folder)}: {reason}; use --engine torch, or export to another format")
    spec = make_spec(bundle, read_weights(bundle))
    if weights == "int8":
        _to_int8(spec, levels)
    spec.validate()
    spec.optimize("float16" if weights == "fp16" else None)
    spec.save(str(folder))


def make_spec(bundle: Bundle, weights: Mapping[str, _Array]) -> Any:
    """The spec of a whole model: `TransformerSpec`, or that of an encoder or decoder alone."""
    specs, config = import_module("ctranslate2.specs").transformer_spec, bundle.config
    parts = {side: _Stack(config, stack, side, weights, bundle).spec for side, stack in config.stacks.items()}
    pieces, tokenizer = vocabularies(bundle.tokenizer, config.vocab_size), bundle.tokenizer
    if len(parts) == 2:
        spec = specs.TransformerSpec(parts["encoder"], parts["decoder"])
        spec.register_source_vocabulary(pieces[0])
        spec.register_target_vocabulary(pieces[1])
        spec.config.decoder_start_token = pieces[1][tokenizer.bos_id]
        spec.config.add_source_eos = True
    elif "decoder" in parts:
        spec = specs.TransformerDecoderModelSpec(parts["decoder"])
        spec.register_vocabulary(pieces[1])
    else:
        has_pooler = config.head_settings.pooling == "tanh-first" and config.head_settings.kind in ("vector", "classes")
        spec = specs.TransformerEncoderModelSpec(parts["encoder"], pooling_layer=has_pooler)
        spec.register_vocabulary(pieces[0])
        if has_pooler:
            _set_linear(spec.pooler_dense, weights, "head.pooler")
    for name in ("bos", "eos", "unk"):
        if (number := getattr(tokenizer, f"{name}_id")) >= 0:
            setattr(spec.config, f"{name}_token", pieces[1][number])
    spec.config.layer_norm_epsilon = next(iter(config.stacks.values())).norm_eps
    return spec


class _Stack:
    """One stack as `TransformerEncoderSpec` or `TransformerDecoderSpec`, its tensors set."""

    def __init__(
        self, config: ModelConfig, stack: StackConfig, side: Side, weights: Mapping[str, _Array], bundle: Bundle
    ) -> None:
        self.config, self.stack, self.side, self.weights = config, stack, side, weights
        specs = import_module("ctranslate2.specs")
        self.spec: Any = self._make(specs)
        self.spec.scale_embeddings = stack.embedding_scale
        self._set_embeddings()
        if stack.positions in ("learned", "sinusoidal"):
            self.spec.position_encodings.encodings = self._table(positions(bundle))
        if stack.embedding_norm:
            self._set_norm(self.spec.layernorm_embedding, f"{side}.embedding_norm")
        if stack.final_norm:
            self._set_norm(self.spec.layer_norm, f"{side}.final_norm")
        for number, layer in enumerate(self.spec.layer):
            self._set_layer(layer, f"{side}.layers.{0 if stack.share_layers else number}")

    def _make(self, specs: Any) -> Any:
        stack = self.stack
        common = {
            "pre_norm": stack.norm_position == "pre",
            "no_final_norm": not stack.final_norm,
            "activation": getattr(specs.common_spec.Activation, _ACTIVATIONS[stack.activation]),
            "ffn_glu": stack.gated,
            "rms_norm": stack.norm == "rms",
            "layernorm_embedding": stack.embedding_norm,
            "relative_attention_bias": stack.positions == "relative",
            "num_heads_kv": stack.num_kv_heads if stack.num_kv_heads != stack.num_heads else None,
            "head_dim": stack.d_head if stack.d_head * stack.num_heads != stack.d_model else None,
        }
        if stack.positions == "rotary":
            common["rotary_dim"] = stack.rotary_dim
            common["rotary_interleave"] = stack.rotary_pairing == "pairs"
            common["rotary_base"] = stack.rotary_base
        if self.side == "encoder":
            add = specs.common_spec.EmbeddingsMerge.ADD
            count = 2 if self.config.front_settings.token_types else 1
            make: Callable[..., Any] = specs.transformer_spec.TransformerEncoderSpec
            return make(stack.layers, stack.num_heads, num_source_embeddings=count, embeddings_merge=add, **common)
        make = specs.transformer_spec.TransformerDecoderSpec
        return make(
            stack.layers, stack.num_heads, with_encoder_attention=stack.cross, parallel_residual=stack.parallel,
            shared_layer_norm=stack.parallel, **common,
        )  # fmt: skip

    def _set_embeddings(self) -> None:
        own = {"encoder": "src_embedding.weight", "decoder": "tgt_embedding.weight"}[self.side]
        embedding = self.weights[own if own in self.weights else "embedding.weight"]
        if self.side == "encoder":
            self.spec.embeddings[0].weight = embedding
            if self.config.front_settings.token_types:
                self.spec.embeddings[1].weight = self.weights["front.token_types.weight"]
            return
        self.spec.embeddings.weight = embedding
        self.spec.projection.weight = embedding if self.config.tie_embeddings else self.weights["output.weight"]
        if self.config.output_bias:
            self.spec.projection.bias = self.weights["output_bias"]
        if (scale := self.config.head_settings.logit_scale) != 1.0:
            self.spec.scale_outputs = np.float32(scale)

    def _table(self, rows: int) -> _Array:
        if self.stack.positions == "sinusoidal":
            return sinusoids(rows, self.stack.d_model)
        return self.weights[f"{self.side}.positions.weight"][self.stack.position_offset :]

    def _set_norm(self, spec: Any, ours: str) -> None:
        spec.gamma = self.weights[f"{ours}.weight"]
        if self.stack.norm == "layer":  # without a bias CTranslate2 would compute RMSNorm
            spec.beta = self.weights[f"{ours}.bias"] if self.stack.norm_bias else np.zeros_like(spec.gamma)

    def _set_layer(self, spec: Any, ours: str) -> None:
        self._set_attention(spec.self_attention, f"{ours}.self_attention", ("qkv", "out"))
        self._set_rotary_scaling(spec.self_attention)
        if self.stack.positions == "relative":
            spec.self_attention.relative_attention_bias = self.weights[f"{self.side}.relative.weight"]
            spec.self_attention.relative_attention_max_distance = np.int32(self.stack.relative_max_distance)
        if self.stack.cross:
            self._set_attention(spec.attention, f"{ours}.cross_attention", ("q", "kv", "out"))
            self._set_norm(spec.attention.layer_norm, f"{ours}.cross_residual.norm")
        if self.stack.parallel:
            self._set_norm(spec.shared_layer_norm, f"{ours}.self_residual.norm")
        else:
            self._set_norm(spec.self_attention.layer_norm, f"{ours}.self_residual.norm")
            self._set_norm(spec.ffn.layer_norm, f"{ours}.feed_forward_residual.norm")
        self._set_feed_forward(spec.ffn, f"{ours}.feed_forward")

    def _set_attention(self, spec: Any, ours: str, names: tuple[str, ...]) -> None:
        if self.stack.score_scale:
            spec.queries_scale = np.float32(self.stack.score_scale)
        for linear, name in zip(spec.linear, names, strict=True):
            _set_linear(linear, self.weights, f"{ours}.{name}")
            if self.stack.attention_bias == "no_key" and "k" in name:
                linear.bias = self._with_key_bias(linear)

    def _set_rotary_scaling(self, spec: Any) -> None:
        """CTranslate2 reads more of LLaMA 3's scaling than its specs have attributes for."""
        scaling = dict(self.stack.rotary_scaling)
        if not scaling or self.stack.positions != "rotary":
            return
        kinds = import_module("ctranslate2.specs").attention_spec.RotaryScalingType
        kind = {"linear": kinds.Linear, "llama3": kinds.Llama3}[scaling.pop("kind")]
        values: dict[str, Any] = {
            "rotary_scaling_type": np.int8(kind),
            "rotary_scaling_factor": np.float32(scaling["factor"]),
        }
        if kind == kinds.Llama3:
            values["rotary_low_freq_factor"] = np.float32(scaling["low_freq_factor"])
            values["rotary_high_freq_factor"] = np.float32(scaling["high_freq_factor"])
            values["original_max_position_embeddings"] = np.int32(scaling["original_max_positions"])
        vars(spec).update(values)

    def _with_key_bias(self, linear: Any) -> _Array:
        """The biases of a matrix whose keys have none, with zeros for them."""
        width = self.stack.num_kv_heads * self.stack.d_head
        before = len(linear.weight) - 2 * width
        first, last = linear.bias[:before], linear.bias[before:]
        return np.concatenate((first, np.zeros(width, np.float32), last))

    def _set_feed_forward(self, spec: Any, ours: str) -> None:
        _set_linear(spec.linear_1, self.weights, f"{ours}.outer")
        if not self.stack.gated:
            _set_linear(spec.linear_0, self.weights, f"{ours}.inner")
            return
        # (2 * d_ff, d_model) -> the gate, (d_ff, d_model), and what it multiplies
        for part in ("weight", "bias") if self.stack.feed_forward_bias else ("weight",):
            gate, value = np.split(self.weights[f"{ours}.inner.{part}"], 2)
            setattr(spec.linear_0, part, gate)
            setattr(spec.linear_0_noact, part, value)


def _set_linear(spec: Any, weights: Mapping[str, _Array], ours: str) -> None:
    spec.weight = weights[f"{ours}.weight"]
    if f"{ours}.bias" in weights:
        spec.bias = weights[f"{ours}.bias"]


def _to_int8(spec: Any, levels: int) -> None:
    """Matrices as integers up to `levels` with one scale per row; CTranslate2's own converter knows only 127."""
    model_spec = import_module("ctranslate2.specs").model_spec

    def quantise(layer: Any, name: str, value: Any) -> None:
        if not (name.endswith("/weight") and hasattr(layer, "weight_scale")):
            return
        largest = np.abs(value).max(axis=1)
        largest[largest == 0] = levels
        scale = np.float32(levels) / np.maximum(largest, np.float32(levels) / np.finfo(np.float32).max)
        layer.weight, layer.weight_scale = np.rint(value * scale[:, None]).astype(np.int8), scale

    model_spec.visit_spec(spec, quantise)
