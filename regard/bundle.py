"""A bundle: a finished model as a folder that can be shared.

    model.safetensors  config.json  tokenizer/  recipe.toml  card.md  manifest.json (SHA-256 of every file)

A bundle is complete: nothing outside the folder is needed to use it. Reading one imports no torch; engines read the weights.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from regard.builtin import DEFAULT, builtin_models
from regard.card import make_card
from regard.config import ModelConfig
from regard.data.tokenizer import Tokenizer
from regard.errors import UserError
from regard.files import MANIFEST, atomic_folder, check_manifest, read_json, sha256, write_manifest
from regard.recipe import DecodeRecipe

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

Stored = Literal["fp32", "fp16", "int8"]


class BundleGone(UserError):
    """The files of an opened bundle were removed or replaced."""


FORMAT = 2  # the highest readable format; all earlier ones stay readable
# Bundles are written in the lowest format that can hold them: 2 for compressed weights, else 1.
FORMAT_OF: dict[Stored, int] = {"fp32": 1, "fp16": 2, "int8": 2}
WEIGHTS = "model.safetensors"
_LATER_SWITCHES = ("output_bias",)  # omitted when off, since older versions refuse unknown fields


@dataclass(frozen=True)
class Bundle:
    """A model's settings and facts, without its weights."""

    folder: Path
    config: ModelConfig
    source: str
    target: str
    decode: DecodeRecipe
    max_length: int  # longest training sentence in tokens; longer lines are split
    facts: dict[str, Any]  # training data, scores, versions; shown by the card and `regard info`
    stored: Stored = "fp32"  # data type in the weights file; they load as fp32
    manifest: str = field(default="", compare=False, repr=False)  # SHA-256 of manifest.json when the bundle was read

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """Loaded when first used."""
        return Tokenizer.load(self.folder / "tokenizer")

    @property
    def weights(self) -> Path:
        return self.folder / WEIGHTS


def save_bundle(
    folder: Path,
    weights: Mapping[str, Tensor],
    config: ModelConfig,
    tokenizer: Tokenizer,
    recipe_toml: str,
    *,
    source: str,
    target: str,
    decode: DecodeRecipe,
    max_length: int,
    facts: Mapping[str, Any],
    stored: Stored = "fp32",
) -> Bundle:
    """Write a bundle atomically, replacing one in the same folder. `weights` are already in the form that `stored` names."""
    from safetensors.torch import save_file

    decode = dataclasses.replace(decode, guard=bool(decode.guard))
    with atomic_folder(folder) as temporary:
        contiguous = {name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()}
        save_file(contiguous, str(temporary / WEIGHTS))
        switches = dataclasses.asdict(config)
        settings = {
            "format": FORMAT_OF[stored],
            "model": {k: v for k, v in switches.items() if v or k not in _LATER_SWITCHES},
            "source": source,
            "target": target,
            "decode": dataclasses.asdict(decode),
            "max_length": max_length,
            "facts": dict(facts),
        }
        if stored != "fp32":
            settings["weights"] = stored
        text = json.dumps(settings, indent=2, ensure_ascii=False) + "\n"
        (temporary / "config.json").write_text(text, encoding="utf-8")
        (temporary / "tokenizer").mkdir()
        tokenizer.save(temporary / "tokenizer")
        (temporary / "recipe.toml").write_text(recipe_toml, encoding="utf-8")
        bundle = Bundle(temporary, config, source, target, decode, max_length, dict(facts), stored)
        (temporary / "card.md").write_text(make_card(bundle), encoding="utf-8")
        write_manifest(temporary, format=FORMAT_OF[stored])
    return dataclasses.replace(bundle, folder=folder)


def load_bundle(folder: Path) -> Bundle:
    """Read and check a bundle."""
    settings = read_json(folder / "config.json")
    number = settings.get("format")
    if not isinstance(number, int) or number < 1:
        raise UserError(f"{folder / 'config.json'}: format must be a positive integer, but is {number!r}")
    if number > FORMAT:
        raise UserError(
            f"{folder}: bundle format must be at most {FORMAT} for this version of Regard, but is {number}; upgrade Regard"
        )
    check_manifest(folder)
    stored = settings.get("weights", "fp32")
    if stored not in get_args(Stored):
        raise UserError(
            f"{folder / 'config.json'}: weights must be one of {', '.join(get_args(Stored))}, but is {stored!r}"
        )
    known = {f.name for f in dataclasses.fields(ModelConfig)}
    try:
        model = {key: value for key, value in settings["model"].items() if key in known}
        if unknown := set(settings["model"]) - known:
            raise UserError(f"{folder / 'config.json'}: model.{min(unknown)} is not known to this Regard")
        return Bundle(
            folder=folder,
            config=ModelConfig(**model),
            source=settings["source"],
            target=settings["target"],
            decode=DecodeRecipe(**{"guard": False, **settings["decode"]}),  # missing in early bundles
            max_length=settings["max_length"],
            facts=settings.get("facts", {}),
            stored=stored,
            manifest=sha256(folder / MANIFEST),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"{folder / 'config.json'}: must hold the settings of a bundle, but does not ({error})"
        ) from None


def load_weights(bundle: Bundle) -> dict[str, Tensor]:
    """The weights as fp32, however they are stored."""
    from safetensors.torch import load_file

    _check_unchanged(bundle)
    tensors = load_file(str(bundle.weights))
    if bundle.stored == "fp32":
        return tensors
    weights = {}
    for name in [name for name, tensor in tensors.items() if not tensor.is_floating_point()]:
        scale = tensors.pop(scale_name(name), None)
        if scale is None:
            raise UserError(f"{bundle.weights}: tensor {scale_name(name)} is missing")
        weights[name] = tensors.pop(name).float().div_(scale[:, None])
    return weights | {name: tensor.float() for name, tensor in tensors.items()}


def _check_unchanged(bundle: Bundle) -> None:
    """Refuse a bundle that was replaced since it was opened: its weights may be read much later, by a server for instance."""
    manifest = bundle.folder / MANIFEST
    is_there = manifest.is_file() and bundle.weights.is_file()
    if not is_there or (bundle.manifest and sha256(manifest) != bundle.manifest):
        raise BundleGone(f"{bundle.folder}: was removed or replaced after it was opened; load it again")


def scale_name(name: str) -> str:
    """The tensor with the factors by which the rows of an int8 matrix were multiplied before rounding."""
    return f"{name}_scale"


def find_bundle(model: str | Path | None) -> Path:
    """The bundle folder that `-m` names: a bundle, the model in a run folder, or a built-in model."""
    models = builtin_models()
    if model is None:
        if DEFAULT not in models:
            raise UserError(
                "-m must name a bundle or a run folder, since this copy of Regard has no built-in models; or train a model: "
                "regard train corpus.en corpus.de"
            )
        return models[DEFAULT]
    folder = Path(model)
    if (folder / "config.json").is_file():
        return folder
    if (folder / "model" / "config.json").is_file():
        return folder / "model"
    if (folder / "checkpoints").is_dir():
        raise UserError(
            f"{folder}: the run is unfinished and has no model yet; resume it with `regard train ... --out {folder} --resume`, "
            f"or make a model from its checkpoints: regard average {folder} -o MODEL"
        )
    if not folder.exists():
        if str(model) in models:
            return models[str(model)]
        known = f", or a built-in model ({', '.join(models)})" if models else ""
        raise UserError(f"{folder}: there is no such model; name a bundle or a run folder{known}")
    raise UserError(f"{folder}: must be a bundle or a run folder, but has no config.json")


def add_facts(folder: Path, facts: Mapping[str, Any]) -> Bundle:
    """Add facts to a bundle and its card, such as scores measured later."""
    bundle = load_bundle(folder)
    settings = read_json(folder / "config.json")
    settings["facts"] = {**bundle.facts, **facts}
    with atomic_folder(folder) as temporary:
        shutil.copytree(folder, temporary, dirs_exist_ok=True)
        text = json.dumps(settings, indent=2, ensure_ascii=False) + "\n"
        (temporary / "config.json").write_text(text, encoding="utf-8")
        card = make_card(dataclasses.replace(bundle, facts=settings["facts"]))
        (temporary / "card.md").write_text(card, encoding="utf-8")
        write_manifest(temporary, format=FORMAT_OF[bundle.stored])
    return load_bundle(folder)
