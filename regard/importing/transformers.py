"""Imports models of Hugging Face's transformers as bundles: finds their family by config.json, converts settings, weights and
tokenizer, and compares the result with the original where transformers is installed.

    config.json  generation_config.json  tokenizer.json  tokenizer_config.json  model.safetensors

A setting that a bundle cannot express is refused by name; nothing is silently ignored.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.bounds import MAX_LENGTH, check_label
from regard.bundle import Bundle, save_bundle, task_of
from regard.config import ModelConfig
from regard.data.tokenizer import Tokenizer
from regard.errors import UserError, naming
from regard.escaping import shorten
from regard.families import FAMILIES
from regard.families.family import Family
from regard.families.table import Entry, from_theirs
from regard.files import check_new_folder, read_json, sha256
from regard.importing.marian import OFF, import_marian, model_name
from regard.importing.original import Difference, compare_models
from regard.importing.sentence_transformers import SentenceModel, is_cross_encoder, read_sentence_model
from regard.importing.tensors import read_safetensors, weight_files
from regard.importing.tokenizer import Shape, read_tokenizer
from regard.models.transformer import Transformer
from regard.recipe import DecodeRecipe, check_decode
from regard.version import __version__
from regard.weights import check_finite

_LONGEST = 512  # tokens of an input where a model has no limit and its tokenizer names none
# Search settings of generation_config.json that a bundle does not keep, and the value that turns each off.
_UNKEPT: dict[str, Any] = {**OFF, "temperature": 1.0, "top_k": 50, "top_p": 1.0}  # 50: transformers' own default


@dataclass(frozen=True)
class Imported:
    """A new bundle, and what was found."""

    bundle: Bundle
    family: str  # "GPT-2"
    architecture: str  # "GPT2LMHeadModel"
    difference: Difference | None = None  # from the original; None: not compared
    notes: Sequence[str] = field(default_factory=list)


@dataclass(frozen=True)
class Source:
    """A model as another program stores it, read but not converted."""

    folder: Path  # or file
    family: Family
    architecture: str
    settings: Mapping[str, Any]  # config.json
    search: Mapping[str, Any]  # generation_config.json
    files: Sequence[Path]  # of the weights
    origin: str = "Hugging Face's transformers"
    vectors: SentenceModel | None = None  # what the files of sentence-transformers say


def import_model(
    folder: Path,
    out: Path,
    *,
    source: str | None = None,
    target: str | None = None,
    allow_pickle: bool = False,
    compare: bool = True,
) -> Imported:
    """Convert a folder of transformers to a bundle. `source` and `target` are the languages of a translation model."""
    if not folder.is_dir():
        raise UserError(
            f"{folder}: must be a folder with a model of transformers (config.json, ...), but is not a folder"
        )
    if (folder / "manifest.json").is_file() and (folder / "tokenizer").is_dir():
        raise UserError(f"{folder}: is a bundle of Regard already; use it as it is: -m {folder}")
    if not (folder / "config.json").is_file():
        raise UserError(f"{folder}: must be a folder with a model of transformers, but has no config.json")
    if read_json(folder / "config.json").get("model_type", "marian") == "marian":
        bundle = import_marian(folder, out, source=source, target=target, allow_pickle=allow_pickle)
        return Imported(bundle, "Marian", "MarianMTModel")
    check_new_folder(out)
    found = _find(folder)
    config = _read_config(found)
    every = {**found.family.defaults, **_without_nulls(found.settings), **found.search}
    tokenizer, notes = read_tokenizer(folder, every, _shape(config), found.family.tokenizer, config.vocab_size)
    if found.vectors is not None:
        found.vectors.check(folder, tokenizer)
        notes = [*notes, *found.vectors.notes]
    weights, left_out = convert(found, config, read_safetensors(list(found.files)))
    return finish(found, config, weights, tokenizer, out, source, target, [*notes, *left_out], compare)


def _find(folder: Path) -> Source:
    """The model's family and architecture."""
    where = folder / "config.json"
    settings = read_json(where)
    kind = settings.get("model_type")
    family = FAMILIES.get(kind) if isinstance(kind, str) else None
    if family is None:
        known = ", ".join(["marian", *FAMILIES])
        raise UserError(
            f"{where}: model_type must be one of {known}, but is {shorten(kind)}; Regard does not know this family"
        )
    named = settings.get("architectures") or list(family.heads)[:1]
    architecture = named[0] if isinstance(named, list) and named else named
    if not isinstance(architecture, str) or architecture not in family.heads:
        known = ", ".join(family.heads)
        raise UserError(f"{where}: architectures must be one of {known}, but is {shorten(architecture)}")
    path = folder / "generation_config.json"
    search = _without_nulls(read_json(path)) if path.exists() else {}
    vectors = read_sentence_model(folder)
    if vectors is not None:
        settings |= vectors.settings
        # A model that was made from another may still name the other's head.
        architecture = next((name for name, kind in family.heads.items() if kind == "vector"), architecture)
    return Source(folder, family, architecture, settings, search, weight_files(folder), vectors=vectors)


def _without_nulls(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if value is not None}


def _read_config(found: Source) -> ModelConfig:
    with naming(found.folder / "config.json" if found.folder.is_dir() else found.folder):
        return found.family.config(found.settings, found.architecture)


def _shape(config: ModelConfig) -> Shape:
    if len(config.stacks) == 2:
        return "both"
    return "encoder" if "encoder" in config.stacks else "decoder"


# --- weights ---


def convert(found: Source, config: ModelConfig, tensors: dict[str, Tensor]) -> tuple[dict[str, Tensor], list[str]]:
    """Regard's weights, and notes on what was left out. Every tensor is used, known to be unused, or refused by name."""
    family, file = found.family, found.files[0]
    entries = [_stripped(entry, family.prefix) for entry in family.entries(config)]
    needed = {name for entry in entries for name in entry.theirs}
    given = _named(tensors, family, needed, file)
    if missing := needed - given.keys():
        raise UserError(f"{file}: tensor {family.prefix}{min(missing)} is missing")
    unused = sorted(name for name in given.keys() - needed if name.startswith(tuple(family.unused)) and family.unused)
    if extra := given.keys() - needed - set(unused):
        raise UserError(
            f"{file}: tensor {shorten(min(extra))[1:-1]} has no place in a bundle; this is not a plain {family.name} model"
        )
    try:
        weights = from_theirs(entries, given)
    except (IndexError, RuntimeError, ValueError) as error:
        reason = str(error).split("\n")[0]
        raise UserError(f"{file}: the tensors must fit the model's settings, but do not ({reason})") from None
    _check_shapes(weights, config, file)
    check_finite(file, ((name, bool(weight.isfinite().all())) for name, weight in weights.items()))
    parts = sorted({name.rsplit(".", 1)[0] for name in unused})
    return weights, [f"left out, since {found.architecture} does not use it: {', '.join(parts)}"] if parts else []


def _stripped(entry: Entry, prefix: str) -> Entry:
    """Some files have the prefix of the model's body, some do not: compared without it."""
    return replace(entry, theirs=tuple(name.removeprefix(prefix) for name in entry.theirs))


def _named(tensors: Mapping[str, Tensor], family: Family, needed: Iterable[str], file: Path) -> dict[str, Tensor]:
    """The tensors under the names of the table: without prefix, copies and constants, and with today's names for norms."""
    given: dict[str, Tensor] = {}
    wanted = set(needed)
    for name, tensor in tensors.items():
        if name.endswith(tuple(family.ignored)) and family.ignored:
            continue
        name = family.aliases.get(name, name).removeprefix(family.prefix)
        if name not in wanted:  # as BERT's first files have it
            name = name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")
        if name in given and not torch.equal(given[name], tensor):
            raise UserError(f"{file}: two tensors must be copies of each other, but differ: {shorten(name)[1:-1]}")
        given[name] = tensor
    # A tied matrix may be stored under its other name, too.
    if "lm_head.weight" in given and "lm_head.weight" not in wanted:
        _drop_tied_copy(given, wanted, file)
    return given


def _drop_tied_copy(given: dict[str, Tensor], wanted: set[str], file: Path) -> None:
    head = given.pop("lm_head.weight")
    copies = [
        name
        for name, tensor in given.items()
        if name in wanted and tensor.shape == head.shape and torch.equal(tensor, head)
    ]
    if not copies:
        raise UserError(
            f"{file}: lm_head.weight must equal the embedding, since the model's settings tie them, but does not"
        )


def _check_shapes(weights: Mapping[str, Tensor], config: ModelConfig, file: Path) -> None:
    with torch.device("meta"):
        expected = Transformer(config).state_dict()
    for name, tensor in expected.items():
        if name not in weights:
            raise UserError(f"{file}: nothing in it becomes {name}, which the model has")
        if weights[name].shape != tensor.shape:
            wanted, came = tuple(tensor.shape), tuple(weights[name].shape)
            raise UserError(
                f"{file}: the tensor for {name} must have shape {wanted} by the model's settings, but has {came}"
            )
    assert not weights.keys() - expected.keys(), "the family's table has names that the model does not have"


# --- the bundle ---


def finish(
    found: Source,
    config: ModelConfig,
    weights: Mapping[str, Tensor],
    tokenizer: Tokenizer,
    out: Path,
    source: str | None,
    target: str | None,
    notes: list[str],
    compare: bool,
) -> Imported:
    """Compare the converted model with the original, and write the bundle."""
    task = task_of(config)
    languages = (source or "source", target or "target") if task == "translate" else ("", "")
    if task != "translate" and (source or target):
        raise UserError(f"--source and --target are for models that translate, but this one is for the task {task}")
    if task == "translate":
        check_label("--source", languages[0])
        check_label("--target", languages[1])
    difference = None
    if compare:
        difference, why_not = compare_models(found.folder, found.architecture, config, weights, tokenizer)
        notes = [*notes, f"not compared with the original: {why_not}"] if difference is None else notes
    bundle = save_bundle(
        out,
        weights,
        config,
        tokenizer,
        "# Imported: there is no recipe.\n",
        source=languages[0],
        target=languages[1],
        decode=_decode(found, task),
        max_length=_max_length(found, config, tokenizer, task),
        facts={
            "regard": __version__,
            "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
            "parameters": sum(weight.numel() for weight in weights.values()),
            "imported": f"{model_name(found.folder)}, a {found.family.name} model of {found.origin}",
            "imported_weights": ", ".join(f"{file.name}, SHA-256 {sha256(file)}" for file in found.files),
            "family": found.family.model_type,
            "architecture": found.architecture,
        },
        task=task,
        prompts={} if found.vectors is None else found.vectors.prompts,
        takes_pairs=True if task == "classify" and is_cross_encoder(found.settings) else None,
    )
    if task == "translate" and not (source and target):
        notes = [*notes, "the languages are not known; --source CODE and --target CODE name them"]
    return Imported(bundle, found.family.name, found.architecture, difference, [*notes, *_unkept(found, task)])


def _decode(found: Source, task: str) -> DecodeRecipe:
    """The search of `generate` in transformers."""
    search = {**_without_nulls(found.settings), **found.search}
    if task != "translate":
        return DecodeRecipe(beam=1, alpha=0.0)
    beam, penalty = search.get("num_beams", 1), search.get("length_penalty", 1.0)
    if isinstance(penalty, bool) or not isinstance(penalty, (int, float)) or penalty < 0:
        raise UserError(f"{found.folder}: length_penalty must be 0 or more, but is {shorten(penalty)}")
    with naming(found.folder):
        return check_decode(DecodeRecipe(beam=beam, alpha=float(penalty)))


def _unkept(found: Source, task: str) -> list[str]:
    """Search settings that the bundle does not keep, for tasks that search."""
    if task not in ("translate", "generate"):
        return []
    named = [name for name, off in _UNKEPT.items() if found.search.get(name, off) != off]
    return [f"search settings that the bundle does not keep: {', '.join(named)}"] if named else []


def _max_length(found: Source, config: ModelConfig, tokenizer: Tokenizer, task: str) -> int:
    """The longest input in tokens."""
    given = found.settings.get("max_position_embeddings", found.settings.get("n_positions", _LONGEST))
    limits = [config.longest, given, MAX_LENGTH, None if found.vectors is None else found.vectors.max_length]
    longest = min(limit for limit in limits if isinstance(limit, int) and not isinstance(limit, bool) and limit > 0)
    if task == "translate":  # one position is for the end token
        longest -= 1
    return max(1, longest)
