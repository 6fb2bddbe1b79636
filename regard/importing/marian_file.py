"""Reads the tensors of a Marian model from its file, and brings the embeddings into Regard's form."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.errors import UserError
from regard.families.marian import OUTPUT, SHARED, SRC_EMBEDDING, TGT_EMBEDDING
from regard.nn.embedding import sinusoids

_SAFE, _PICKLED = "model.safetensors", "pytorch_model.bin"


def read_tensors(folder: Path, allow_pickle: bool) -> tuple[dict[str, Tensor], Path]:
    """The tensors by name, and the file they come from."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    path = folder / _SAFE
    if path.exists():
        try:
            return load_file(str(path)), path
        except SafetensorError as error:
            raise UserError(f"{path}: is damaged ({error}); download it again") from None
    path = folder / _PICKLED
    if not path.exists():
        raise UserError(f"{folder / _SAFE}: is missing, and so is {_PICKLED}; download the model's weights, too")
    if not allow_pickle:
        raise UserError(
            f"{path}: is a pickle, which can contain code, and there is no {_SAFE}; if you trust its origin, "
            "add --allow-pickle (only tensors are read from it), or download the model as safetensors"
        )
    # The only pickle that Regard reads, and only on request: torch's weights-only reader runs no code from it.
    try:
        tensors = torch.load(path, map_location="cpu", weights_only=True)  # noqa: TID251
    except Exception as error:  # noqa: BLE001 - it raises many types for damaged files and for anything but tensors
        reason = str(error).strip().split("\n")[0]
        raise UserError(
            f"{path}: cannot be read as tensors alone ({reason}); download the model as safetensors"
        ) from None
    if not isinstance(tensors, dict) or not all(isinstance(tensor, Tensor) for tensor in tensors.values()):
        raise UserError(f"{path}: must hold a model's tensors by name, but holds something else")
    return {name: tensor.detach() for name, tensor in tensors.items()}, path


def take_embeddings(
    tensors: dict[str, Tensor], settings: Mapping[str, Any], vocab_size: int, file: Path
) -> dict[str, Tensor]:
    """Take the embeddings out of `tensors`: the one matrix that source, target and output share, or all three.

    If source and target have different vocabularies, the smaller matrix is padded. If the model does not scale embeddings, they
    are divided here by Regard's scale.
    """
    names = (SHARED, SRC_EMBEDDING, TGT_EMBEDDING, OUTPUT)
    embeddings = {name: tensors.pop(name).float() for name in names if name in tensors}
    rows = max((len(embedding) for embedding in embeddings.values()), default=vocab_size)
    if rows != vocab_size:  # before anything is padded
        raise UserError(f"{file}: the embeddings must have {vocab_size:,} rows by config.json, but have {rows:,}")
    shared, tied = settings["share_encoder_decoder_embeddings"], settings["tie_word_embeddings"]
    if shared and tied and embeddings:
        # A file keeps only one of the names of a shared tensor, and which one depends on the writer.
        embeddings = dict.fromkeys(names, next(iter(embeddings.values())))
        if settings["scale_embedding"]:
            return {SHARED: embeddings[SHARED]}
    if shared and SHARED in embeddings:
        embeddings = {SRC_EMBEDDING: embeddings[SHARED], TGT_EMBEDDING: embeddings[SHARED], **embeddings}
    if tied and TGT_EMBEDDING in embeddings:
        embeddings[OUTPUT] = embeddings[TGT_EMBEDDING]
    scale = 1.0 if settings["scale_embedding"] else math.sqrt(settings["d_model"])
    result = {}
    for name, divisor in ((SRC_EMBEDDING, scale), (TGT_EMBEDDING, scale), (OUTPUT, 1.0)):
        if name not in embeddings:
            raise UserError(f"{file}: tensor {name} is missing")
        result[name] = F.pad(embeddings[name], (0, 0, 0, vocab_size - embeddings[name].shape[0])) / divisor
    return result


def take_positions(tensors: dict[str, Tensor], d_model: int, file: Path) -> None:
    """Drop the sinusoids that older files contain; refuse any other position table, which a bundle cannot hold."""
    for name in ("model.encoder.embed_positions.weight", "model.decoder.embed_positions.weight"):
        if name not in tensors:
            continue
        table = tensors.pop(name).float()
        ours = sinusoids(table.shape[0] if table.shape[1:] == (d_model,) else 0, d_model)
        expected = torch.cat((ours[:, 0::2], ours[:, 1::2]), dim=1)
        if table.shape != expected.shape or float((table - expected).abs().max()) > 1e-3:
            raise UserError(f"{file}: tensor {name} must be the paper's sinusoids, but is not")
