"""Reads the tensors of a model of transformers: one safetensors file, or several with an index."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from regard.errors import UserError
from regard.escaping import shorten
from regard.files import path_inside, read_json

SINGLE, INDEX, PICKLED = "model.safetensors", "model.safetensors.index.json", "pytorch_model.bin"


def weight_files(folder: Path) -> list[Path]:
    """The files with the tensors; a UserError where there are none in safetensors."""
    if (folder / SINGLE).exists():
        return [folder / SINGLE]
    if (folder / INDEX).exists():
        places = read_json(folder / INDEX).get("weight_map")
        if not isinstance(places, dict) or not places or not all(isinstance(name, str) for name in places.values()):
            raise UserError(f"{folder / INDEX}: `weight_map` must give the file of each tensor, but does not")
        return [_existing(path_inside(folder, name)) for name in sorted(set(places.values()))]
    if (folder / PICKLED).exists():
        raise UserError(
            f"{folder / PICKLED}: is a pickle, which can contain code, and there is no {SINGLE}; download the model as "
            "safetensors, or write it with transformers: AutoModel.from_pretrained(DIR).save_pretrained(DIR)"
        )
    raise UserError(f"{folder / SINGLE}: is missing; download the model's weights, too")


def _existing(path: Path) -> Path:
    if not path.is_file():
        raise UserError(f"{path}: is missing, though {INDEX} lists it; download it, too")
    return path


def read_safetensors(files: list[Path]) -> dict[str, Tensor]:
    """The tensors of these files by name."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    tensors: dict[str, Tensor] = {}
    for file in files:
        try:
            found = load_file(str(file))
        except SafetensorError as error:
            raise UserError(f"{file}: is damaged ({error}); download it again") from None
        if twice := tensors.keys() & found.keys():
            raise UserError(f"{file}: tensor {shorten(min(twice))[1:-1]} is in another file, too")
        tensors |= found
    return tensors
