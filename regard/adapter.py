"""Adapters: what LoRA changed, as a small folder apart from its model, in the layout of the package peft.

    adapter_config.json  adapter_model.safetensors  regard.json (which model it belongs to)

Weights have the names of the family that the base model belongs to, so that peft and transformers read the folder beside that
model, and Regard reads theirs; where no family fits, they have Regard's own. To use an adapter, its changes are added to the
weights of the base: the result is a bundle like any other, on every engine.
"""

from __future__ import annotations

import atexit
import json
import math
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from regard.bundle import Bundle, load_bundle, load_weights, save_bundle
from regard.errors import NoRoom, UserError
from regard.escaping import shorten
from regard.export.to_family import find_family
from regard.families.table import Entry, from_theirs, to_theirs
from regard.files import MANIFEST, atomic_folder, cache_folder, read_json, sha256
from regard.generate.engines.model_cache import ensure, locked
from regard.version import __version__
from regard.weights import check_finite, readable

CONFIG, WEIGHTS, OWN = "adapter_config.json", "adapter_model.safetensors", "regard.json"
_PREFIX, _A, _B = "base_model.model.", ".lora_A.weight", ".lora_B.weight"
_MAX_ALPHA = 1e9
_TASKS = {"generate": "CAUSAL_LM", "translate": "SEQ_2_SEQ_LM"}
# Fields of peft that change what an adapter computes, and the values with which it computes what is done here.
_PLAIN: dict[str, tuple[Any, ...]] = {
    "peft_type": ("LORA",),
    "bias": ("none", None),
    "use_dora": (False, None),
    "modules_to_save": (None, []),
    "lora_bias": (False, None),
    "trainable_token_indices": (None,),
    "init_lora_weights": (True, False, None, "gaussian", "orthogonal", "eva"),  # others change the base as well
    "layer_replication": (None, []),
    "target_parameters": (None, []),
    "alora_invocation_tokens": (None, []),
    "use_qalora": (False, None),
    "arrow_config": (None,),
}


# --- writing ---


def write_adapter(
    folder: Path, base: Bundle, weights: Mapping[str, Tensor], rank: int, stacked: Mapping[str, int]
) -> float:
    """Write the change from the base to `weights`, as factors of this rank; `stacked` has the changed parameters, and how many
    matrices each consists of. Returns the largest share of a change that the rank leaves out: an average of several steps has
    changes of a higher rank than each."""
    before = load_weights(base)
    changes = {name: weights[name].float().cpu() - before[name] for name in stacked}
    table, family = _table(base)
    tensors: dict[str, Tensor] = {}
    ranks: dict[str, int] = {}
    lost = 0.0
    for entry in table:
        if entry.ours not in changes:
            continue
        for name, change in to_theirs([entry], changes).items():
            module = name.removesuffix(".weight")
            ranks[module] = rank * (stacked[entry.ours] // len(entry.theirs))
            a, b, share = factors(change.t() if entry.transposed else change, ranks[module])
            # A matrix may be smaller than the rank; its scale is divided by the whole rank all the same.
            missing = ranks[module] - len(a)
            tensors[f"{_PREFIX}{module}{_A}"] = torch.nn.functional.pad(a, (0, 0, 0, missing))
            tensors[f"{_PREFIX}{module}{_B}"] = torch.nn.functional.pad(b, (0, missing))
            lost = max(lost, share)
    is_transposed = any(entry.transposed for entry in table)
    with atomic_folder(folder) as temporary:
        save_file(tensors, str(temporary / WEIGHTS), metadata={"format": "pt"})
        name = base.facts.get("imported") or _name(base.folder, "model")
        _write_json(temporary / CONFIG, _config(ranks, rank, str(name), is_transposed, base.task))
        own = {
            "format": 1,
            "regard": __version__,
            "base": _name(base.folder, "model"),
            "base_sha256": sha256(base.weights),
        }
        _write_json(temporary / OWN, {**own, "names": family or "regard"})
    return lost


def factors(change: Tensor, rank: int) -> tuple[Tensor, Tensor, float]:
    """(d_out, d_in) -> a (rank, d_in) and b (d_out, rank), whose product b @ a is the nearest to the change, and the share of it,
    by Frobenius norm, that is left out."""
    u, s, vh = torch.linalg.svd(change, full_matrices=False)
    rank = min(rank, len(s))
    root = s[:rank].sqrt()
    lost = float(s[rank:].norm() / s.norm()) if s.any() else 0.0
    return (root[:, None] * vh[:rank]).contiguous(), (u[:, :rank] * root).contiguous(), lost


def _table(base: Bundle) -> tuple[list[Entry], str | None]:
    """The table of weight names, and the family; Regard's own names where no family has this model's settings."""
    try:
        family, _ = find_family(base)
    except UserError:
        names = load_weights(base)
        return [Entry(name, (name,)) for name in names], None
    return list(family.entries(base.config)), family.model_type


def _config(ranks: Mapping[str, int], rank: int, name: str, is_transposed: bool, task: str) -> dict[str, Any]:
    """adapter_config.json. The factors hold the whole change, so alpha is the rank, of matrices with another rank, too."""
    patterns = {_ending(module): own for module, own in ranks.items() if own != rank}
    return {
        "peft_type": "LORA",
        "task_type": _TASKS.get(task),
        "base_model_name_or_path": name,
        "r": rank,
        "lora_alpha": rank,
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": is_transposed,
        "target_modules": sorted({_ending(module) for module in ranks}),
        "rank_pattern": patterns,
        "alpha_pattern": patterns,
        "modules_to_save": None,
        "inference_mode": True,
    }


def _ending(module: str) -> str:
    """A module's name after the number of its layer.

    >>> _ending("model.layers.3.self_attn.q_proj")
    'self_attn.q_proj'
    """
    return re.sub(r"^.*\.\d+\.", "", module)


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


# --- using ---


@dataclass(frozen=True)
class Adapter:
    """An opened adapter."""

    folder: Path
    config: dict[str, Any]
    own: dict[str, Any]  # what Regard wrote; empty for one of another program

    @property
    def key(self) -> str:
        """By which a cache knows its content."""
        return "".join(sha256(self.folder / name)[:16] for name in (CONFIG, WEIGHTS))


def open_adapter(path: Path) -> Adapter:
    """An adapter's folder, or that of the run that made it."""
    if not path.is_dir():
        found = "is a file" if path.exists() else "does not exist"
        raise UserError(
            f"{path}: must be the folder of an adapter, but {found}; name the folder of a run with train.lora"
        )
    folder = next((each for each in (path, path / "adapter") if (each / CONFIG).is_file()), None)
    if folder is None:
        raise UserError(
            f"{path}: must be the folder of an adapter, but has no {CONFIG}; name the folder of a run with train.lora"
        )
    if not (folder / WEIGHTS).is_file():
        raise UserError(f"{folder / WEIGHTS}: there is no such file; an adapter has its weights there, not in a pickle")
    config = read_json(folder / CONFIG)
    for name, plain in _PLAIN.items():
        if config.get(name, plain[0]) not in plain:
            raise UserError(f"{folder / CONFIG}: {name} must be {plain[0]!r}, but is {shorten(config[name])}")
    return Adapter(folder, config, read_json(folder / OWN) if (folder / OWN).is_file() else {})


def adapted(base: Path, adapter: Path) -> Path:
    """The bundle of a base with an adapter, merged into the cache on first use. Where nothing can be kept (a full disk, a read-only
    home folder), it lies in a temporary folder until this process ends."""
    bundle, opened = load_bundle(base), open_adapter(adapter)
    key = f"{sha256(base / MANIFEST)[:32]}-{opened.key}"
    name = f"{_name(base, 'model')}+{_name(opened.folder, 'adapter')}"  # servers name a model by its folder
    check_base(opened, bundle)

    def merged_in(root: Path) -> Path:
        with locked(root / key):
            ensure(root / key / name, load_bundle, lambda folder: merge(bundle, opened, folder))
        return root / key / name

    try:
        return merged_in(cache_folder() / "adapted")
    except (OSError, NoRoom):
        return merged_in(_temporary_folder())


@cache
def _temporary_folder() -> Path:
    """A folder that lasts as long as the process."""
    folder = Path(mkdtemp(prefix="regard-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _name(folder: Path, usual: str) -> str:
    """The name of a folder; that of the run, if it has the name that runs give it."""
    folder = folder.resolve()
    return folder.parent.name if folder.name == usual else folder.name


def merge(base: Bundle, adapter: Adapter, folder: Path) -> Bundle:
    """Write the base with the changes of an adapter as a bundle."""
    check_base(adapter, base)
    return save_bundle(
        folder,
        adapted_weights(base, adapter),
        base.config,
        base.tokenizer,
        base.recipe,
        source=base.source,
        target=base.target,
        decode=base.decode,
        max_length=base.max_length,
        facts={**base.facts, "adapter": _name(adapter.folder, "adapter"), "init": _name(base.folder, "model")},
        alignment=base.alignment,
        directions=base.directions,
        task=base.task,
        prompts=base.prompts,
        takes_pairs=base.takes_pairs,
    )


def check_base(adapter: Adapter, base: Bundle) -> None:
    """Refuse an adapter that was made for another model. One of another program does not say for which, but for a name."""
    wanted = adapter.own.get("base_sha256")
    if wanted is not None and wanted != sha256(base.weights):
        raise UserError(
            f"{adapter.folder}: must be an adapter of {base.folder}, but was made for a model with other weights, "
            f"{shorten(adapter.own.get('base'))}; name that one with -m"
        )


@torch.no_grad()
def adapted_weights(base: Bundle, adapter: Adapter) -> dict[str, Tensor]:
    """The weights of the base, with the changes added."""
    table, _ = _table(base)
    if adapter.own.get("names") == "regard":
        table = [Entry(name, (name,)) for name in load_weights(base)]
    theirs = to_theirs(table, load_weights(base))
    transposed = {name for entry in table if entry.transposed for name in entry.theirs}
    for module, change in _changes(adapter):
        name = f"{module}.weight"
        if name not in theirs:
            raise UserError(f"{adapter.folder / WEIGHTS}: changes {shorten(module)}, which this model does not have")
        change = change.t() if name in transposed else change
        if change.shape != theirs[name].shape:
            shapes = f"{tuple(theirs[name].shape)}, but is {tuple(change.shape)}"
            raise UserError(f"{adapter.folder / WEIGHTS}: the change of {shorten(module)} must have the shape {shapes}")
        theirs[name] += change
    weights = from_theirs(table, theirs)
    check_finite(adapter.folder / WEIGHTS, ((name, bool(each.isfinite().all())) for name, each in weights.items()))
    return weights


def _changes(adapter: Adapter) -> Iterator[tuple[str, Tensor]]:
    """The modules that an adapter changes, and by what: (d_out, d_in)."""
    path = adapter.folder / WEIGHTS
    with readable(path):
        tensors = load_file(str(path))
    modules = [name.removesuffix(_A) for name in tensors if name.endswith(_A)]
    if not modules or {f"{module}{part}" for module in modules for part in (_A, _B)} != tensors.keys():
        known = {f"{module}{part}" for module in modules for part in (_A, _B)}
        odd = min(tensors.keys() ^ known, default="no tensors")
        raise UserError(f"{path}: must hold pairs of NAME{_A} and NAME{_B}, but has {shorten(odd)}")
    for module in modules:
        a, b = tensors[f"{module}{_A}"].float(), tensors[f"{module}{_B}"].float()
        if a.ndim != 2 or b.ndim != 2 or b.shape[1] != a.shape[0] or not len(a):
            raise UserError(f"{path}: the factors of {shorten(module)} must be thin matrices that fit, but do not")
        name = module.removeprefix(_PREFIX)
        yield name, (b @ a).mul_(_scale(adapter, name, a.shape[0]))


def _scale(adapter: Adapter, module: str, rank: int) -> float:
    """What the product of the factors is multiplied by."""
    alpha: Any = adapter.config.get("lora_alpha", 8)  # peft's default
    patterns: Any = adapter.config.get("alpha_pattern") or {}
    where = adapter.folder / CONFIG
    if not isinstance(patterns, dict) or not all(re.fullmatch(r"[\w.]+", pattern) for pattern in patterns):
        raise UserError(f"{where}: alpha_pattern must map names of modules to numbers, but is {shorten(patterns)}")
    alpha = next((own for end, own in patterns.items() if f".{module}".endswith(f".{end}")), alpha)
    if isinstance(alpha, bool) or not isinstance(alpha, (int, float)) or not abs(alpha) <= _MAX_ALPHA:
        raise UserError(f"{where}: lora_alpha must be a number of at most 1e9, but is {shorten(alpha)}")
    return alpha / (math.sqrt(rank) if adapter.config.get("use_rslora") else rank)
