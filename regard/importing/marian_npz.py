"""Imports models in Marian's own format, an .npz file with its vocabulary beside it:

    model.npz  vocab.spm                                one SentencePiece model for both languages
    model.npz  vocab.yml  source.spm  target.spm        as OPUS-MT publishes them

They are written as a folder of Hugging Face's transformers, which `imported.py` reads. Settings that this format or a bundle
cannot hold are refused by name.
"""

from __future__ import annotations

import json
import shutil
import zipfile
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from sentencepiece import SentencePieceProcessor

from regard.bundle import Bundle, add_facts
from regard.data.sentencepieces import read_model
from regard.errors import UserError
from regard.escaping import shorten
from regard.files import check_new_folder, sha256
from regard.importing.marian import import_marian

Arrays = dict[str, npt.NDArray[Any]]
_SETTINGS = "special:model.yml"
# The one value of each setting that a bundle can hold. A missing setting has it.
_FIXED: dict[str, Any] = {
    "type": "transformer",
    "transformer-preprocess": "",
    "transformer-postprocess": "dan",
    "transformer-postprocess-emb": "d",
    "transformer-postprocess-top": "",
    "transformer-decoder-autoreg": "self-attention",
    "transformer-train-position-embeddings": False,
    "transformer-no-projection": False,
    "transformer-ffn-depth": 2,
    "transformer-depth-scaling": False,
    "tied-embeddings-all": True,
    "lemma-dim-emb": 0,
    "ulr": False,
}
_ACTIVATIONS = ("swish", "relu")  # Marian's gelu is another function than everybody's
_ATTENTION = {"q": "q_proj", "k": "k_proj", "v": "v_proj", "o": "out_proj"}
_BEAM, _LENGTH_PENALTY = 4, 1.0


def import_npz(path: Path, out: Path, *, source: str | None = None, target: str | None = None) -> Bundle:
    """Convert a Marian .npz file, or the one in a folder, to a bundle; `source` and `target` are its languages."""
    file = _find(path)
    check_new_folder(out)
    arrays, settings = _read(file)
    for name, value in _FIXED.items():
        if (came := settings.get(name, value)) not in (value, "" if value is None else value):
            reason = "; small Bergamot models have a recurrent decoder" if name == "transformer-decoder-autoreg" else ""
            raise UserError(
                f"{file}: {name} must be {value!r}, but is {shorten(came)}{reason}; a bundle cannot hold such a model"
            )
    pieces = _pieces(file.parent)
    with TemporaryDirectory(prefix="regard-") as temporary:
        folder = Path(temporary) / (file.stem if path.is_file() else path.resolve().name)
        folder.mkdir()
        _write_folder(folder, file, arrays, settings, pieces)
        import_marian(folder, out, source=source, target=target)
    weights = f"{file.name}, SHA-256 {sha256(file)}"
    return add_facts(out, {"imported": f"{file.name}, a Marian model", "imported_weights": weights})


def _find(path: Path) -> Path:
    if path.is_file():
        return path
    found = sorted(path.glob("*.npz"))
    if len(found) != 1:
        raise UserError(f"{path}: must be an .npz file of Marian, or a folder with one, but has {len(found)} of them")
    return found[0]


def _yaml(text: str, where: Path) -> dict[str, Any]:
    """A YAML mapping with all values as they are written: a piece such as `no` is no truth value."""
    try:
        import yaml
    except ImportError:
        raise UserError("reading Marian's files needs one more package; run: pip install pyyaml") from None
    try:
        value = yaml.load(text, getattr(yaml, "CBaseLoader", yaml.BaseLoader))
    except yaml.YAMLError as error:
        raise UserError(f"{where}: is not valid YAML ({str(error).splitlines()[0]})") from None
    if not isinstance(value, dict):
        raise UserError(f"{where}: must hold a YAML mapping")
    return value


def _read(file: Path) -> tuple[Arrays, dict[str, Any]]:
    """The arrays and the settings of a model. Nothing is unpickled."""
    try:
        with file.open("rb") as raw, np.load(raw, allow_pickle=False) as opened:
            arrays = {name: opened[name] for name in opened.files}
    except (OSError, ValueError, EOFError, AttributeError, zipfile.BadZipFile) as error:
        raise UserError(f"{file}: cannot be read as an .npz file ({str(error).splitlines()[0]})") from None
    if _SETTINGS not in arrays:
        raise UserError(f"{file}: must be a model of Marian, but has no {_SETTINGS}")
    text = arrays.pop(_SETTINGS).tobytes().rstrip(b"\0").decode("utf-8", "replace")
    settings = {name: _plain(value) for name, value in _yaml(text, file).items()}
    for name, array in arrays.items():
        if array.dtype.kind != "f":
            raise UserError(
                f"{file}: {name} must be floating-point, but is {array.dtype}; use the model before quantisation"
            )
    return arrays, settings


def _plain(value: Any) -> Any:
    """A setting as a truth value or a whole number where it reads as one."""
    if value in ("true", "false"):
        return value == "true"
    return int(value) if isinstance(value, str) and value.isascii() and value.isdigit() else value


def _pieces(folder: Path) -> dict[str, int]:
    """The vocabulary: piece -> id."""
    listed = [file for file in sorted(folder.glob("*vocab*.yml")) if file.is_file()]
    if len(listed) == 1:
        given = _yaml(listed[0].read_text(encoding="utf-8", errors="replace"), listed[0])
        pieces = {piece: int(i) for piece, i in given.items() if str(i).isdigit()}
        where = listed[0]
    else:
        where = _shared_model(folder)
        model = SentencePieceProcessor(model_proto=read_model(where))
        pieces = {model.id_to_piece(i): i for i in range(model.get_piece_size())}
    if sorted(pieces.values()) != list(range(len(pieces))) or not {"</s>", "<unk>"} <= pieces.keys():
        raise UserError(f"{where}: must number its pieces from 0, with </s> and <unk> among them, but does not")
    return pieces


def _shared_model(folder: Path) -> Path:
    found = sorted(folder.glob("*vocab*.spm"))
    if len(found) != 1:
        raise UserError(
            f"{folder}: must have one vocabulary, vocab.spm, or vocab.yml with source.spm and target.spm, but has "
            f"{len(found)} of the first and not one of the second"
        )
    return found[0]


def _write_folder(
    folder: Path, file: Path, arrays: Arrays, settings: Mapping[str, Any], pieces: dict[str, int]
) -> None:
    """The model as a folder of transformers."""
    from safetensors.torch import save_file

    pad = len(pieces)  # Marian starts a translation from a zero vector: the embedding of a piece that it does not have
    config = _config(file, arrays, settings, pad, pieces["</s>"])
    tensors = {name: torch.from_numpy(array) for name, array in _tensors(file, arrays, config).items()}
    save_file(tensors, str(folder / "model.safetensors"))
    search = {
        **{name: config[name] for name in ("decoder_start_token_id", "pad_token_id", "eos_token_id")},
        "num_beams": _BEAM,
        "length_penalty": _LENGTH_PENALTY,
        "bad_words_ids": [[pad]],
    }
    for name, content in (("config", config), ("generation_config", search), ("vocab", {**pieces, "<pad>": pad})):
        (folder / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
    for side in ("source.spm", "target.spm"):
        own = file.parent / side
        shutil.copyfile(own if own.is_file() else _shared_model(file.parent), folder / side)


def _config(file: Path, arrays: Arrays, settings: Mapping[str, Any], pad: int, end: int) -> dict[str, Any]:
    embedding = arrays.get("Wemb")
    if embedding is None or embedding.ndim != 2 or len(embedding) != pad:
        came = "is missing" if embedding is None else f"has shape {embedding.shape}"
        raise UserError(f"{file}: Wemb must have a row for each of {pad:,} pieces of the vocabulary, but {came}")
    activation = settings.get("transformer-ffn-activation", "swish")
    if activation not in _ACTIVATIONS:
        raise UserError(
            f"{file}: transformer-ffn-activation must be one of {', '.join(_ACTIVATIONS)}, but is {shorten(activation)}"
        )
    inner = arrays.get("encoder_l1_ffn_W1", np.zeros((0, 0)))
    heads = settings.get("transformer-heads")
    return {
        "model_type": "marian",
        "vocab_size": pad + 1,
        "d_model": embedding.shape[1],
        "activation_function": activation,
        "scale_embedding": True,
        "max_position_embeddings": 512,
        "share_encoder_decoder_embeddings": True,
        "tie_word_embeddings": True,
        "decoder_start_token_id": pad,
        "pad_token_id": pad,
        "eos_token_id": end,
        **{f"{stack}_layers": settings.get(f"{stack[:3]}-depth") for stack in ("encoder", "decoder")},
        **{f"{stack}_attention_heads": heads for stack in ("encoder", "decoder")},
        **{f"{stack}_ffn_dim": inner.shape[-1] for stack in ("encoder", "decoder")},
    }


def _tensors(file: Path, arrays: Arrays, config: Mapping[str, Any]) -> Arrays:
    """Marian's arrays under the names of transformers; one that has no place there is refused."""
    left = dict(arrays)

    def take(name: str) -> npt.NDArray[Any]:
        if name not in left:
            raise UserError(f"{file}: array {name} is missing")
        return np.ascontiguousarray(left.pop(name), dtype=np.float32)

    embedding, bias = take("Wemb"), take("decoder_ff_logit_out_b")
    found = {
        "model.shared.weight": np.pad(embedding, ((0, 1), (0, 0))),
        "final_logits_bias": np.pad(bias.reshape(1, -1), ((0, 0), (0, 1))),
    }

    def linear(theirs: str, ours: str, letter: str) -> None:
        found[f"{ours}.weight"] = np.ascontiguousarray(take(f"{theirs}_W{letter}").T)
        found[f"{ours}.bias"] = take(f"{theirs}_b{letter}").reshape(-1)

    def norm(theirs: str, ours: str) -> None:
        found[f"{ours}.weight"] = take(f"{theirs}_ln_scale").reshape(-1)
        found[f"{ours}.bias"] = take(f"{theirs}_ln_bias").reshape(-1)

    for stack in ("encoder", "decoder"):
        if not isinstance(config[f"{stack}_layers"], int):
            raise UserError(f"{file}: {stack[:3]}-depth must be a whole number, but is missing or something else")
        for number in range(config[f"{stack}_layers"]):
            theirs, ours = f"{stack}_l{number + 1}", f"model.{stack}.layers.{number}"
            attentions = {"self": "self_attn"} | ({"context": "encoder_attn"} if stack == "decoder" else {})
            for kind, name in attentions.items():
                for letter, projection in _ATTENTION.items():
                    linear(f"{theirs}_{kind}", f"{ours}.{name}.{projection}", letter)
                norm(f"{theirs}_{kind}_Wo", f"{ours}.{name}_layer_norm")
            linear(f"{theirs}_ffn", f"{ours}.fc1", "1")
            linear(f"{theirs}_ffn", f"{ours}.fc2", "2")
            norm(f"{theirs}_ffn_ffn", f"{ours}.final_layer_norm")
    if extra := sorted(set(left) - {"Wpos", "decoder_c_tt"} - {name for name in left if name.startswith("special:")}):
        raise UserError(f"{file}: array {extra[0]} has no place in a bundle; this is not a plain Transformer of Marian")
    return found
