"""Imports LLaMA models in llama.cpp's format, GGUF: weights of any type that the package gguf can turn into floats, and the
tokenizer that the file holds.

llama.cpp stores the rows of queries and keys in another order than transformers; it is undone here, so that the family's own table
serves both formats.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.bounds import check_flag, check_number, check_whole
from regard.data.chat_template import ChatTemplate
from regard.data.huggingface import Controls
from regard.data.tokenizer import Tokenizer
from regard.errors import RegardError, UserError, naming
from regard.escaping import shorten
from regard.families.llama import LLAMA
from regard.files import check_new_folder, check_regular
from regard.importing.sentencepiece_json import added_token, bpe_json
from regard.importing.transformers import Imported, Source, convert, finish

_ARCHITECTURE = "llama"
_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
# llama.cpp's kinds of tokens.
_UNKNOWN, _CONTROL, _ADDED, _BYTE = 2, 3, 4, 6
_LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
# How text is cut before byte-level BPE, by tokenizer.ggml.pre.
_CUTS: dict[str, dict[str, Any]] = {
    "gpt-2": _BYTES,
    "smollm": {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, _BYTES]},
    "llama-bpe": {
        "type": "Sequence",
        "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": _LLAMA3}, "behavior": "Isolated", "invert": False},
            {**_BYTES, "use_regex": False},
        ],
    },
}


def import_gguf(file: Path, out: Path, *, compare: bool = True) -> Imported:
    """Convert a GGUF file to a bundle."""
    if not file.exists():
        raise UserError(f"{file}: must be a GGUF file, but there is no such file")
    check_regular(file, "it is read more than once")
    check_new_folder(out)
    with _readable(file) as gguf:
        reader = gguf.GGUFReader(str(file))
        fields = {name: found.contents() for name, found in reader.fields.items()}
        is_tied = all(stored.name != "output.weight" for stored in reader.tensors)
    with naming(file):
        settings = {**_settings(fields), "tie_word_embeddings": is_tied}
        tokenizer = _tokenizer(fields, settings["vocab_size"])
        config = LLAMA.config(settings, "LlamaForCausalLM")
    with _readable(file) as gguf:
        tensors = _tensors(file, reader, gguf, settings)
    search = {"eos_token_id": fields.get("tokenizer.ggml.eos_token_id")}
    found = Source(file, LLAMA, "LlamaForCausalLM", settings, search, [file], "llama.cpp (GGUF)")
    weights, notes = convert(found, config, tensors)
    return finish(found, config, weights, tokenizer, out, None, None, notes, compare)


@contextmanager
def _readable(file: Path) -> Iterator[Any]:
    """The package gguf, around reading a file of unknown origin."""
    try:
        import gguf
    except ModuleNotFoundError:
        raise UserError(
            "reading GGUF files needs the package gguf, which is not installed; pip install 'regard[gguf]'"
        ) from None
    try:
        yield gguf
    except RegardError:
        raise
    except NotImplementedError as error:
        raise UserError(f"{file}: has weights of a type that the package gguf cannot read ({error})") from None
    except (AssertionError, AttributeError, IndexError, KeyError, OverflowError, TypeError, ValueError) as error:
        reason = str(error).split("\n")[0]
        raise UserError(
            f"{file}: must be a GGUF file, but cannot be read as one ({reason}); download it again"
        ) from None


# --- settings ---


def _settings(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The file's settings under the names of transformers."""
    if (kind := fields.get("general.architecture")) != _ARCHITECTURE:
        raise UserError(
            f"general.architecture must be {_ARCHITECTURE!r}, but is {shorten(kind)}; Regard reads LLaMA models"
        )
    given = {name.removeprefix("llama."): value for name, value in fields.items() if name.startswith("llama.")}

    def whole(name: str, default: int | None = None) -> int:
        value = given.get(name, default)
        check_whole(f"llama.{name}", value, 0)
        return int(value)  # type: ignore[arg-type]

    if whole("expert_count", 0):
        raise UserError("llama.expert_count must be 0, but the model has experts; a bundle cannot hold it")
    heads = whole("attention.head_count")
    width = whole("attention.key_length", whole("embedding_length") // max(1, heads))
    if (value_width := whole("attention.value_length", width)) != width:
        raise UserError(f"llama.attention.value_length must be key_length ({width}), but is {value_width}")
    if (rotated := whole("rope.dimension_count", width)) != width:
        raise UserError(f"llama.rope.dimension_count must be the width of a head ({width}), but is {rotated}")
    pieces = fields.get("tokenizer.ggml.tokens")
    base, eps = given.get("rope.freq_base", 10_000.0), given.get("attention.layer_norm_rms_epsilon", 1e-5)
    check_number("llama.rope.freq_base", base)
    check_number("llama.attention.layer_norm_rms_epsilon", eps)
    kind = given.get("rope.scaling.type", "none")
    return {
        "model_type": "llama",
        "vocab_size": whole("vocab_size", len(pieces) if isinstance(pieces, list) else None),
        "hidden_size": whole("embedding_length"),
        "intermediate_size": whole("feed_forward_length"),
        "num_hidden_layers": whole("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": whole("attention.head_count_kv", heads),
        "head_dim": width,
        "max_position_embeddings": whole("context_length"),
        "rms_norm_eps": eps,
        "sliding_window": given.get("attention.sliding_window"),
        "rope_parameters": {
            "rope_theta": base,
            "rope_type": "default" if kind == "none" else kind,
            "factor": given.get("rope.scaling.factor"),
        },
    }


# --- weights ---


def _tensors(file: Path, reader: Any, gguf: Any, settings: Mapping[str, Any]) -> dict[str, Tensor]:
    """The tensors in float32 under the names of transformers."""
    tensors: dict[str, Tensor] = {}
    for stored in reader.tensors:
        if stored.name == "rope_freqs.weight":
            raise UserError(f"{file}: has rope_freqs.weight, a scaling of rotary positions that a bundle cannot hold")
        values = torch.from_numpy(gguf.quants.dequantize(stored.data, stored.tensor_type).copy()).float()
        if stored.name.endswith(("attn_q.weight", "attn_k.weight")):
            name = "num_attention_heads" if "attn_q" in stored.name else "num_key_value_heads"
            values = _unpermuted(values, settings[name])
        tensors[_their_name(stored.name)] = values
    return tensors


def _their_name(name: str) -> str:
    """blk.3.attn_q.weight -> model.layers.3.self_attn.q_proj.weight; an unknown name as it is."""
    parts = name.split(".")
    if parts[0] == "blk" and len(parts) == 4 and parts[2] in _NAMES:
        return f"model.layers.{parts[1]}.{_NAMES[parts[2]]}.{parts[3]}"
    return f"{_TOP[parts[0]]}.{parts[1]}" if len(parts) == 2 and parts[0] in _TOP else name


def _unpermuted(weight: Tensor, heads: int) -> Tensor:
    """Undo llama.cpp's order of a head's rows: pairs (i, i + d/2) lie beside each other there."""
    rows, columns = weight.shape
    # (heads, d/2, 2, columns) -> (heads, 2, d/2, columns) -> (rows, columns)
    return weight.reshape(heads, rows // heads // 2, 2, columns).transpose(1, 2).reshape(rows, columns)


# --- tokenizer ---


def _tokenizer(fields: Mapping[str, Any], vocab_size: int) -> Tokenizer:
    given = {
        name.removeprefix("tokenizer.ggml."): value
        for name, value in fields.items()
        if name.startswith("tokenizer.ggml.")
    }
    pieces, kinds = given.get("tokens"), given.get("token_type")
    if not isinstance(pieces, list) or not all(isinstance(piece, str) for piece in pieces):
        raise UserError("tokenizer.ggml.tokens must be a list of pieces, but is missing or something else")
    kinds = kinds if isinstance(kinds, list) and len(kinds) == len(pieces) else [1] * len(pieces)
    makers = {"gpt2": _byte_model, "llama": _sentencepiece_model}
    if (kind := given.get("model")) not in makers:
        raise UserError(f"tokenizer.ggml.model must be one of {', '.join(makers)}, but is {shorten(kind)}")
    added = [
        added_token(i, piece, own in (_CONTROL, _UNKNOWN))
        for i, (piece, own) in enumerate(zip(pieces, kinds, strict=True))
        if own in (_UNKNOWN, _CONTROL, _ADDED)
    ]
    content = {"version": "1.0", "added_tokens": added, **makers[kind](given, pieces, kinds)}
    controls = _controls(given, kinds, vocab_size)
    named = (("bos", controls.start), ("eos", controls.end), ("unk", controls.unk), ("pad", controls.pad))
    tokens = {f"{name}_token": pieces[i] for name, i in named if 0 <= i < len(pieces)}
    chat = ChatTemplate.of(fields.get("tokenizer.chat_template"), tokens)
    return Tokenizer([json.dumps(content).encode()], controls=controls, chat=chat)


def _controls(given: Mapping[str, Any], kinds: Sequence[int], vocab_size: int) -> Controls:
    def token(name: str) -> int:
        value = given.get(f"{name}_token_id", -1)
        check_whole(f"tokenizer.ggml.{name}_token_id", value)
        return int(value) if 0 <= value < vocab_size else -1

    flags = {}
    for name, default in (("add_bos_token", given.get("model") == "llama"), ("add_eos_token", False)):
        flags[name] = given.get(name, default)
        check_flag(f"tokenizer.ggml.{name}", flags[name])
    start, end, unk = token("bos"), token("eos"), token("unknown")
    if unk < 0 and _UNKNOWN in kinds:
        unk = list(kinds).index(_UNKNOWN)
    ends = [i for i in (end, token("eot")) if i >= 0]
    opening = (start,) if flags["add_bos_token"] and start >= 0 else ()
    closing = (end,) if flags["add_eos_token"] and end >= 0 else ()
    return Controls(
        vocab_size,
        unk=unk,
        start=start,
        end=end,
        pad=token("padding"),
        opening=opening,
        between=(*closing, *opening),
        closing=closing,
        stops=tuple(dict.fromkeys(ends)),
    )


def _byte_model(given: Mapping[str, Any], pieces: Sequence[str], kinds: Sequence[int]) -> dict[str, Any]:
    """Byte-level BPE."""
    cut, merges = given.get("pre", "gpt-2"), given.get("merges")
    if cut not in _CUTS:
        raise UserError(f"tokenizer.ggml.pre must be one of {', '.join(_CUTS)}, but is {shorten(cut)}")
    if not isinstance(merges, list) or not all(isinstance(merge, str) for merge in merges):
        raise UserError("tokenizer.ggml.merges must be a list of merges, but is missing or something else")
    model = {"type": "BPE", "vocab": {piece: i for i, piece in enumerate(pieces)}, "merges": merges, "fuse_unk": False}
    model["ignore_merges"] = cut == "llama-bpe"
    return {"pre_tokenizer": _CUTS[cut], "decoder": _BYTES, "model": model}


def _sentencepiece_model(given: Mapping[str, Any], pieces: Sequence[str], kinds: Sequence[int]) -> dict[str, Any]:
    """Sentencepiece's BPE with bytes: the score of a piece says when it is merged."""
    scores = given.get("scores")
    if not isinstance(scores, list) or len(scores) != len(pieces):
        raise UserError("tokenizer.ggml.scores must give a score for each piece, but is missing or something else")
    not_text = {i for i, kind in enumerate(kinds) if kind in (_UNKNOWN, _CONTROL, _BYTE)}
    unknown = list(kinds).index(_UNKNOWN) if _UNKNOWN in kinds else -1
    return bpe_json(pieces, scores, not_text, unknown, prefix=given.get("add_space_prefix", True) is True)
