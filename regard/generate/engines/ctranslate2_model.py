"""Converts a bundle to a CTranslate2 model folder: model.bin, config.json and the vocabularies.

CTranslate2's own `specs` import torch, which would add two seconds to a first translation. So the file is written here, and
`tests/generate/test_ctranslate2.py` compares the two byte by byte. Imports neither torch nor CTranslate2.
"""

from __future__ import annotations

import json
import struct
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import sentencepiece
from numpy.typing import NDArray
from safetensors import safe_open

from regard.aligning import AlignmentHeads
from regard.builtin import shown_name
from regard.bundle import Bundle
from regard.config import ModelConfig
from regard.cpu import adds_int8_exactly
from regard.data.tokenizer import Tokenizer
from regard.errors import UserError
from regard.weights import check_finite, readable, scale_name

WeightFormat = Literal["fp32", "fp16", "int8"]
_WeightArray = NDArray[Any]

# Increased when the same bundle would give a different folder, or would be refused; cache entries are named after it.
CONVERTER = 4
_POSITIONS = 1024  # minimum rows of the table of sinusoids
_MAX_CELLS = 1 << 23  # of that table beyond them: 16,384 rows of 512 numbers; longer sentences are left to torch

_BINARY_VERSION, _SPEC, _REVISION = 6, "TransformerSpec", 7  # CTranslate2 also reads older ones
_TYPES = ("float32", "int8", "int16", "int32", "float16")  # CTranslate2's type number is the index here
# CTranslate2's number for each value of a setting. A value that is missing here is refused by name.
_KNOWN: dict[str, dict[str, int]] = {
    "norm_position": {"post": 0, "pre": 1},
    "norm": {"layer": 0, "rms": 1},
    "activation": {"relu": 0, "silu": 2, "swiglu": 2, "gelu": 3},
    "positions": {"sinusoidal": 0, "learned": 0, "rotary": 0},
}


def refusal(bundle: Bundle) -> str | None:
    """Why CTranslate2 cannot run this model; None if it can."""
    if len(bundle.config.stacks) < 2:
        return "CTranslate2 runs models with an encoder and a decoder here, but this one has a single stack"
    if unknown := bundle.config.unsupported(("output_bias",), _KNOWN):
        return f"CTranslate2 does not support {unknown}"
    source, target = vocabularies(bundle.tokenizer, bundle.config.vocab_size)
    for pieces in (source, target):
        if len(set(pieces)) < len(pieces):
            [(duplicate, _)] = Counter(pieces).most_common(1)
            return f"CTranslate2 identifies ids by their pieces, and two ids have the piece {duplicate!r}"
    end = bundle.tokenizer.eos_id
    if source[end] != target[end]:
        return f"CTranslate2 has only one end token, but source and target have {source[end]!r} and {target[end]!r}"
    return None


def positions(bundle: Bundle) -> int:
    """Rows of the converted model's position table; CTranslate2 fails on a longer sentence."""
    if bundle.config.positions == "rotary":
        return 1 << 30
    if bundle.config.positions == "learned":
        return bundle.config.max_positions
    longest = bundle.max_length + bundle.decode.max_extra + 1
    return max(_POSITIONS, min(longest, _MAX_CELLS // bundle.config.d_model))


def int8_levels() -> int:
    """The largest integer of int8 weights: 127, or 63 where a larger one could make sums overflow on this machine."""
    return 127 if adds_int8_exactly() else 63


def convert(bundle: Bundle, folder: Path, weights: WeightFormat, levels: int = 127) -> None:
    """Write the converted bundle into an existing folder; `levels` is the largest integer of int8 weights."""
    if reason := refusal(bundle):
        raise UserError(f"{shown_name(bundle.folder)}: {reason}; use --engine torch, or export to another format")
    try:
        weights_read = with_heads_first(read_weights(bundle), bundle.config, bundle.alignment_heads)
        variables, aliases = _variables(bundle.config, weights_read, positions(bundle), bundle.alignment_heads)
    except _WrongTensor as error:
        raise UserError(f"{bundle.weights}: tensor {error}") from None
    if weights == "int8":
        variables = _to_int8(variables, levels)
    elif weights == "fp16":
        variables = {name: _to_fp16(value) for name, value in variables.items()}
    _write_binary(folder / "model.bin", variables, aliases)
    tokenizer = bundle.tokenizer
    source, target = vocabularies(tokenizer, bundle.config.vocab_size)
    for name, pieces in ({"shared": source} if source == target else {"source": source, "target": target}).items():
        _write_json(folder / f"{name}_vocabulary.json", pieces)
    settings = {
        "add_source_bos": False,
        "add_source_eos": True,
        "bos_token": target[tokenizer.bos_id],
        "decoder_start_token": target[tokenizer.bos_id],
        "eos_token": target[tokenizer.eos_id],
        "layer_norm_epsilon": bundle.config.norm_eps,
        "multi_query_attention": False,
        "unk_token": target[tokenizer.unk_id],
    }
    _write_json(folder / "config.json", settings)


def vocabularies(tokenizer: Tokenizer, vocab_size: int) -> tuple[list[str], list[str]]:
    """The pieces of all ids, of source and target; an id without a piece gets a unique name."""
    if tokenizer.vocabulary is not None:
        known = [
            {i: piece for piece, i in side.items()}
            for side in (tokenizer.vocabulary.source, tokenizer.vocabulary.target)
        ]
    elif tokenizer.controls is not None:
        known = [tokenizer.raw_pieces()]
    else:
        processors = [sentencepiece.SentencePieceProcessor(model_proto=model) for model in tokenizer.models]
        known = [{i: p.id_to_piece(i) for i in range(p.get_piece_size())} for p in processors]
    source, target = ([side.get(i, f"<no piece {i}>") for i in range(vocab_size)] for side in (known[0], known[-1]))
    return source, target


# --- reading ---


def read_weights(bundle: Bundle, prefix: str = "") -> dict[str, _WeightArray]:
    """`regard.bundle.load_weights` without torch; only the tensors whose names begin with `prefix`."""
    with readable(bundle.weights), safe_open(str(bundle.weights), framework="np") as file:
        names = [name for name in file.keys() if name.startswith(prefix)]  # noqa: SIM118 (no mapping)
        tensors = {name: file.get_tensor(name) for name in names}
    scales = {scale_name(name) for name, tensor in tensors.items() if tensor.dtype == np.int8}
    weights = {}
    with np.errstate(all="ignore"):  # what is not finite is refused below
        for name in tensors.keys() - scales:
            tensor = tensors[name]
            if tensor.dtype == np.int8:
                tensor = tensor.astype(np.float32) / tensors[scale_name(name)].astype(np.float32)[:, None]
            weights[name] = tensor.astype(np.float32, copy=False)
        check_finite(bundle.weights, ((name, _is_finite(weights[name])) for name in sorted(weights)))
    return weights


def _is_finite(tensor: _WeightArray) -> bool:
    """As `regard.bundle._is_finite`."""
    return bool(np.isfinite(tensor.sum())) or bool(np.isfinite(tensor).all())


def with_heads_first(
    weights: dict[str, _WeightArray], config: ModelConfig, alignment: AlignmentHeads
) -> dict[str, _WeightArray]:
    """The same model with the heads that align words as the first of their layer, since CTranslate2 can only return the mean over
    the first ones. The order of heads changes nothing but the order of a sum, and in int8 sums are exact."""
    order = alignment.head_order(config)
    assert order is not None  # checked when the bundle was read
    kv_order = list(dict.fromkeys(head * config.kv_heads // config.num_heads for head in order))
    changed = dict(weights)

    def reorder(name: str, heads: Sequence[int], axis: int = 0) -> None:
        name = f"decoder.layers.{alignment.layer}.cross_attention.{name}"
        rows = np.concatenate([np.arange(head * config.head_width, (head + 1) * config.head_width) for head in heads])
        if name in weights and weights[name].shape[axis:][:1] == rows.shape:  # else it is refused when it is used
            changed[name] = np.take(weights[name], rows, axis)

    for part in ("weight", "bias"):
        reorder(f"q.{part}", order)
        reorder(f"kv.{part}", [*kv_order, *(config.kv_heads + head for head in kv_order)])
    reorder("out.weight", order, axis=1)
    return changed


def sinusoids(length: int, d_model: int) -> _WeightArray:
    """`regard.nn.embedding.sinusoids` without torch."""
    exponents = np.arange(0, d_model, 2, dtype=np.float64) / d_model
    angles = np.arange(length, dtype=np.float64)[:, None] * 10_000.0**-exponents
    # sines and cosines (length, d_model / 2) -> interleaved (length, d_model)
    return np.stack((np.sin(angles), np.cos(angles)), axis=-1).reshape(length, d_model).astype(np.float32)


# --- naming ---


class _WrongTensor(Exception):
    """Names a tensor of the bundle and what is wrong with it."""


class _Variables(dict[str, _WeightArray]):
    """Arrays under CTranslate2's names, filled from the bundle's weights."""

    def __init__(self, config: ModelConfig, weights: Mapping[str, _WeightArray]) -> None:
        super().__init__()
        self.config, self.weights, self.used = config, weights, set[str]()

    def take(self, name: str, *shape: int) -> _WeightArray:
        """The bundle's tensor of this name, which must have this shape."""
        if name not in self.weights:
            raise _WrongTensor(f"{name} is missing")
        if self.weights[name].shape != shape:
            raise _WrongTensor(f"{name} must have shape {shape}, but has {self.weights[name].shape}")
        self.used.add(name)
        return self.weights[name]

    def number(self, name: str, value: float, kind: type[np.generic]) -> None:
        self[name] = np.asarray(value, dtype=kind)

    def linear(self, name: str, ours: str, d_out: int, d_in: int) -> None:
        self[f"{name}/weight"] = self.take(f"{ours}.weight", d_out, d_in)
        self[f"{name}/bias"] = self.take(f"{ours}.bias", d_out)

    def norm(self, name: str, ours: str) -> None:
        self[f"{name}/gamma"] = self.take(f"{ours}.weight", self.config.d_model)
        if self.config.norm == "layer":
            self[f"{name}/beta"] = self.take(f"{ours}.bias", self.config.d_model)

    def attention(self, name: str, projections: Mapping[str, int], residual: str, rotary: bool) -> None:
        """`projections` maps names to output widths; both formats stack queries, keys and values in the same order."""
        self.norm(f"{name}/layer_norm", f"{residual}.norm")
        for number, (ours, d_out) in enumerate(projections.items()):
            self.linear(f"{name}/linear_{number}", ours, d_out, self.config.d_model)
        if self.config.kv_heads != self.config.num_heads:
            self.number(f"{name}/num_heads_kv", self.config.kv_heads, np.int32)
        if rotary:
            self.number(f"{name}/rotary_dim", self.config.head_width, np.int32)
            self.number(f"{name}/rotary_interleave", 1, np.int8)  # rotates neighbouring pairs, as `rotate` does
            self.number(f"{name}/rotary_base", 10_000, np.float32)

    def feed_forward(self, name: str, ours: str, residual: str) -> None:
        self.norm(f"{name}/layer_norm", f"{residual}.norm")
        d_model, d_ff = self.config.d_model, self.config.d_ff
        if self.config.activation != "swiglu":
            self.linear(f"{name}/linear_0", f"{ours}.inner", d_ff, d_model)
        else:
            for part, shape in {"weight": (2 * d_ff, d_model), "bias": (2 * d_ff,)}.items():
                gate, value = np.split(self.take(f"{ours}.inner.{part}", *shape), 2)
                self[f"{name}/linear_0/{part}"], self[f"{name}/linear_0_noact/{part}"] = gate, value
        self.linear(f"{name}/linear_1", f"{ours}.outer", d_model, d_ff)

    def stack(self, name: str, layers: int, rows: int) -> None:
        """What encoder and decoder share."""
        config = self.config
        self.number(f"{name}/num_heads", config.num_heads, np.int16)
        self.number(f"{name}/pre_norm", _KNOWN["norm_position"][config.norm_position], np.int8)
        self.number(f"{name}/activation", _KNOWN["activation"][config.activation], np.int8)
        self.number(f"{name}/scale_embeddings", 1, np.int8)
        if config.positions == "learned":
            table = self.take(f"{name}.positions.weight", rows, config.d_model)
            self[f"{name}/position_encodings/encodings"] = table
        elif config.positions == "sinusoidal":
            self[f"{name}/position_encodings/encodings"] = sinusoids(rows, config.d_model)
        if config.norm_position == "pre":
            self.norm(f"{name}/layer_norm", f"{name}.final_norm")
        d_model, d_kv = config.d_model, 2 * config.kv_heads * config.head_width
        for number in range(layers):
            theirs, ours = f"{name}/layer_{number}", f"{name}.layers.{number}"
            projections = {f"{ours}.self_attention.qkv": d_model + d_kv, f"{ours}.self_attention.out": d_model}
            rotary = config.positions == "rotary"
            self.attention(f"{theirs}/self_attention", projections, f"{ours}.self_residual", rotary)
            if name == "decoder":
                widths = {"q": d_model, "kv": d_kv, "out": d_model}
                projections = {f"{ours}.cross_attention.{part}": width for part, width in widths.items()}
                self.attention(f"{theirs}/attention", projections, f"{ours}.cross_residual", False)
            self.feed_forward(f"{theirs}/ffn", f"{ours}.feed_forward", f"{ours}.feed_forward_residual")


def _variables(
    config: ModelConfig, weights: Mapping[str, _WeightArray], rows: int, alignment: AlignmentHeads
) -> tuple[dict[str, _WeightArray], dict[str, str]]:
    """CTranslate2's variables, and the names that are aliases of others."""
    variables = _Variables(config, weights)
    variables.stack("encoder", config.encoder_layers, rows)
    variables.number("encoder/multi_query_attention", 0, np.int8)
    variables.number("encoder/embeddings_merge", 0, np.int8)
    variables.stack("decoder", config.decoder_layers, rows)
    # The attention that it returns: the mean over the first heads of a layer.
    variables.number("decoder/alignment_layer", alignment.layer, np.int16)
    variables.number("decoder/alignment_heads", len(alignment.heads), np.int16)
    for flag in ("alibi", "alibi_use_positive_positions", "scale_alibi", "start_from_zero_embedding"):
        variables.number(f"decoder/{flag}", 0, np.int8)
    aliases = {}
    matrix = (config.vocab_size, config.d_model)
    if config.tie_embeddings:
        variables["decoder/embeddings/weight"] = variables.take("embedding.weight", *matrix)
        aliases["decoder/projection/weight"] = "decoder/embeddings/weight"
        aliases["encoder/embeddings_0/weight"] = "decoder/embeddings/weight"
    else:
        variables["encoder/embeddings_0/weight"] = variables.take("src_embedding.weight", *matrix)
        variables["decoder/embeddings/weight"] = variables.take("tgt_embedding.weight", *matrix)
        variables["decoder/projection/weight"] = variables.take("output.weight", *matrix)
    if config.output_bias:
        variables["decoder/projection/bias"] = variables.take("output_bias", config.vocab_size)
    if config.positions == "sinusoidal":
        del variables["encoder/position_encodings/encodings"]
        aliases["encoder/position_encodings/encodings"] = "decoder/position_encodings/encodings"
    if extra := set(weights) - variables.used:
        raise _WrongTensor(f"{min(extra)} does not belong to this model")
    return dict(variables), aliases


# --- storing ---


def _is_matrix(name: str, value: _WeightArray) -> bool:
    """Whether it is a matrix that CTranslate2 multiplies with, and no position table."""
    return value.ndim == 2 and name.endswith("/weight")


def _to_int8(variables: Mapping[str, _WeightArray], levels: int) -> dict[str, _WeightArray]:
    """Matrices as 8-bit integers with one scale per row, the rest unchanged."""
    small: dict[str, _WeightArray] = {}
    for name, value in variables.items():
        if not _is_matrix(name, value):
            small[name] = value
            continue
        largest = np.abs(value).max(axis=1)
        largest[largest == 0] = levels
        scale = np.float32(levels) / np.maximum(largest, np.float32(levels) / np.finfo(np.float32).max)
        small[name] = np.rint(value * scale[:, None]).astype(np.int8)
        small[f"{name}_scale"] = scale
    return small


def _to_fp16(value: _WeightArray) -> _WeightArray:
    return value.astype(np.float16) if value.ndim and value.dtype == np.float32 else value


def _write_binary(path: Path, variables: Mapping[str, _WeightArray], aliases: Mapping[str, str]) -> None:
    with path.open("wb") as file:

        def write(form: str, *values: int) -> None:
            file.write(struct.pack(f"<{form}", *values))

        def write_string(text: str) -> None:
            encoded = text.encode() + b"\0"
            write("H", len(encoded))
            file.write(encoded)

        write("I", _BINARY_VERSION)
        write_string(_SPEC)
        write("II", _REVISION, len(variables))
        for name, value in sorted(variables.items()):
            write_string(name)
            write(f"B{value.ndim}I", value.ndim, *value.shape)
            write("BI", _TYPES.index(value.dtype.name), value.nbytes)
            file.write(np.ascontiguousarray(value).tobytes())
        write("I", len(aliases))
        for name, stands_for in sorted(aliases.items()):
            write_string(name)
            write_string(stands_for)


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n", encoding="utf-8")
