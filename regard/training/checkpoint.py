"""Checkpoints: everything a run needs to resume as if it had never stopped. Tensors are in safetensors, the rest in JSON.

checkpoints/step-000123/  model.safetensors  optimizer.safetensors  random.safetensors  state.json  manifest.json
                          average.safetensors (with a moving average)

Checkpoints of a sharded model have shards instead (`sharded.py`).
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from regard.errors import UserError
from regard.files import (
    atomic_folder,
    check_manifest,
    read_json,
    sweep_temporaries,
    write_manifest,
    writing,
)
from regard.parallel.ranks import Ranks
from regard.training.sharded import is_sharded, load_sharded, read_shards, run_tensors, save_sharded

FORMAT = 1
# Of a parameter: Adam's, Muon's and LoRA's.
_OPTIMIZER_STATES = ({"step", "exp_avg", "exp_avg_sq"}, {"momentum_buffer"}, {"lora_a", "lora_b"})
_WEIGHTS = "model.safetensors"
_NAME = re.compile(r"step-(\d+)$")


def save_checkpoint(
    folder: Path,
    step: int,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    average: nn.Module | None,
    state: Mapping[str, Any],
    random: Mapping[str, Tensor],
    ranks: Ranks,
) -> Path:
    """Write a checkpoint atomically; `state` holds counters, scores and the sampler's position as JSON values."""
    target = folder / f"step-{step:06d}"

    def save(name: str, tensors: Mapping[str, Tensor], temporary: Path) -> None:
        with writing(temporary / name, sum(tensor.nbytes for tensor in tensors.values())):
            save_file({key: each.detach().cpu().contiguous() for key, each in tensors.items()}, str(temporary / name))

    def write_rest(temporary: Path) -> None:
        save("random.safetensors", random, temporary)
        text = json.dumps({"format": FORMAT, "step": step, **state}, indent=2) + "\n"
        (temporary / "state.json").write_text(text, encoding="utf-8")

    if ranks.shards:
        save_sharded(target, run_tensors(model, optimizer, average), write_rest, ranks)
        return target
    if not ranks.is_first:
        return target
    with atomic_folder(target) as temporary:
        save("model.safetensors", model.state_dict(), temporary)
        save("optimizer.safetensors", _optimizer_tensors(optimizer), temporary)
        if average is not None:
            save("average.safetensors", average.state_dict(), temporary)
        write_rest(temporary)
        write_manifest(temporary, format=FORMAT)
    return target


def save_start(folder: Path, weights: Mapping[str, Tensor]) -> None:
    """Keep the weights that a fine-tuning run starts from: they become its model if no step is better."""
    with atomic_folder(folder) as temporary:
        with writing(temporary / _WEIGHTS, sum(tensor.nbytes for tensor in weights.values())):
            tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()}
            save_file(tensors, str(temporary / _WEIGHTS))
        write_manifest(temporary, format=FORMAT)


def load_start(folder: Path) -> dict[str, Tensor]:
    """The weights that `save_start` kept. Raises UserError if they are missing or damaged."""
    check_manifest(folder, [_WEIGHTS])
    return _read(folder / _WEIGHTS)


def load_checkpoint(
    path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, average: nn.Module | None, ranks: Ranks
) -> dict[str, Any]:
    """Restore weights, optimizer and random state; returns the JSON state. The number of processes may have changed: a process
    without a saved random state keeps its own."""
    state = read_state(path)
    if ranks.shards:
        load_sharded(path, model, optimizer, average, ranks)
    else:
        _load_weights(model, path / "model.safetensors")
        if average is not None:
            _load_weights(average, path / "average.safetensors")
        _load_optimizer(optimizer, path / "optimizer.safetensors")
    random = path / "random.safetensors"
    try:
        _set_random_state(_read(random), ranks)
    except (KeyError, RuntimeError, TypeError):
        raise _unusable(random, "does not hold random states") from None
    return state


def read_state(path: Path) -> dict[str, Any]:
    """The JSON state of a checkpoint: "format", "run", "sampler" and, since there are fingerprints, "data"."""
    state = read_json(path / "state.json")
    run, sampler = state.get("run"), state.get("sampler")
    is_whole = isinstance(run, dict) and isinstance(sampler, dict) and isinstance(sampler.get("fingerprint"), dict)
    places = [sampler.get(name) for name in ("epoch", "position")] if isinstance(sampler, dict) else []
    if not is_whole or not all(isinstance(place, int) and place >= 0 for place in places):
        raise _unusable(path / "state.json", "does not hold the state of a run")
    return state


def check_files(path: Path) -> None:
    """Refuse a checkpoint if a file is missing, damaged, or not in the manifest."""
    weights = () if is_sharded(path) else ("model.safetensors", "optimizer.safetensors")
    check_manifest(path, [*weights, "random.safetensors", "state.json"])


def _unusable(path: Path, fault: str) -> UserError:
    return UserError(f"{path}: {fault}; delete {path.parent} to resume from the checkpoint before it")


def _read(path: Path) -> dict[str, Tensor]:
    try:
        tensors = load_file(str(path))
    except FileNotFoundError:
        raise
    except (OSError, SafetensorError) as error:
        raise _unusable(path, f"cannot be read ({str(error).splitlines()[0]})") from None
    for name, tensor in tensors.items():
        if not tensor.isfinite().all():
            raise _unusable(path, f"{name} must hold finite numbers, but does not")
    return tensors


def _load_weights(model: nn.Module, path: Path) -> None:
    try:
        model.load_state_dict(_read(path))
    except RuntimeError as error:  # its second line names the first parameter that differs
        fault = " ".join(str(error).split("\n")[1:2]).strip()
        raise _unusable(path, f"does not hold the weights of this model ({fault})") from None


def list_checkpoints(folder: Path) -> list[Path]:
    """Completely written checkpoints of a run, oldest first."""
    found = [(int(match[1]), path) for path in folder.glob("step-*") if (match := _NAME.match(path.name))]
    return [path for _, path in sorted(found)]


def scheduled_checkpoints(folder: Path) -> list[Path]:
    """Checkpoints saved at the run's intervals, oldest first; these are averaged. Those of a best validation or a Ctrl-C are not,
    or the average would depend on where a run was stopped."""
    return [path for path in list_checkpoints(folder) if _is_scheduled(path)]


def _is_scheduled(path: Path) -> bool:
    try:
        return bool(read_json(path / "state.json").get("scheduled"))
    except UserError:  # damaged, or just being removed by a running process
        return False


def newest_intact(folder: Path) -> tuple[Path | None, list[str]]:
    """The newest intact checkpoint, and why each newer one was skipped.

    Damaged ones are renamed, so that they are never averaged.
    """
    sweep_temporaries(folder)
    damaged: list[str] = []
    for path in reversed(list_checkpoints(folder)):
        try:
            check_files(path)
            return path, damaged
        except UserError as error:
            aside = path.with_name(f"damaged-{path.name}")
            shutil.rmtree(aside, ignore_errors=True)
            path.rename(aside)
            damaged.append(f"{error} (now {aside.name})")
    return None, damaged


def prune(folder: Path, keep: int, always: Sequence[Path]) -> None:
    """Remove all but the newest `keep` scheduled checkpoints, the newest two of any kind, and those in `always`."""
    stay = {path.name for path in (*scheduled_checkpoints(folder)[-keep:], *list_checkpoints(folder)[-2:], *always)}
    for path in list_checkpoints(folder):
        if path.name not in stay:  # rename first, so that nobody finds part of it
            old = path.with_name(f".{path.name}.{os.getpid()}.old")
            path.rename(old)
            shutil.rmtree(old)


def average_weights(paths: Sequence[Path]) -> dict[str, Tensor]:
    """The mean of the weights of several checkpoints, summed in float64."""
    total: dict[str, Tensor] = {}
    for path in paths:
        for name, tensor in _model_tensors(path).items():
            total[name] = total[name] + tensor.double() if name in total else tensor.double()
    return {name: (tensor / len(paths)).float() for name, tensor in total.items()}


def checkpoint_weights(path: Path) -> dict[str, Tensor]:
    """The moving average in a checkpoint, or its weights where it has none."""
    if is_sharded(path):
        return read_shards(path, "average") or read_shards(path, "model")
    averaged = path / "average.safetensors"
    return _read(averaged if averaged.exists() else path / "model.safetensors")


def _model_tensors(path: Path) -> dict[str, Tensor]:
    return read_shards(path, "model") if is_sharded(path) else _read(path / "model.safetensors")


def _optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimizer's state as flat tensors, "parameter number.name"."""
    return {
        f"{number}.{name}": value if isinstance(value, Tensor) else torch.tensor(value)
        for number, entry in optimizer.state_dict()["state"].items()
        for name, value in entry.items()
    }


def _load_optimizer(optimizer: torch.optim.Optimizer, path: Path) -> None:
    state: dict[int, dict[str, Tensor]] = {}
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for key, tensor in _read(path).items():
        number, _, name = key.partition(".")
        fits = number.isdecimal() and int(number) < len(parameters)
        # LoRA's factors are there from the start, and have shapes of their own.
        like = optimizer.state[parameters[int(number)]].get(name, parameters[int(number)]) if fits else None
        if like is None or (tensor.ndim and tensor.shape != like.shape):
            raise _unusable(path, f"does not hold the state of this optimizer ({key})")
        state.setdefault(int(number), {})[name] = tensor
    for index, entry in state.items():
        if set(entry) not in _OPTIMIZER_STATES:
            raise _unusable(path, f"does not hold the state of this optimizer ({index}: {', '.join(sorted(entry))})")
    current = optimizer.state_dict()
    optimizer.load_state_dict({"state": state, "param_groups": current["param_groups"]})


def random_states(ranks: Ranks) -> dict[str, Tensor]:
    """The random states of all processes, for the first one to save: "cpu", "cuda.0" and "mps" are its own, "rank1.cpu" and
    "rank1.cuda" those of the second, and so on."""
    if ranks.size == 1:
        return _own_random_state()
    states = {}
    for kind in ("cpu", "cuda") if ranks.device.type == "cuda" else ("cpu",):
        own = torch.get_rng_state() if kind == "cpu" else torch.cuda.get_rng_state(ranks.device)
        for rank, state in enumerate(ranks.gather(own)):
            name = kind if kind == "cpu" or rank else f"cuda.{ranks.device.index}"
            states[f"rank{rank}.{name}" if rank else name] = state
    return states


def _own_random_state() -> dict[str, Tensor]:
    state = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        state.update({f"cuda.{n}": s for n, s in enumerate(torch.cuda.get_rng_state_all())})
    if torch.backends.mps.is_available():
        state["mps"] = torch.mps.get_rng_state()
    return state


def _set_random_state(state: Mapping[str, Tensor], ranks: Ranks) -> None:
    if not ranks.is_first:
        if f"rank{ranks.rank}.cpu" in state:
            torch.set_rng_state(state[f"rank{ranks.rank}.cpu"])
        if f"rank{ranks.rank}.cuda" in state and ranks.device.type == "cuda":
            torch.cuda.set_rng_state(state[f"rank{ranks.rank}.cuda"], ranks.device)
        return
    torch.set_rng_state(state["cpu"])
    if torch.cuda.is_available():
        for number in range(torch.cuda.device_count()) if ranks.size == 1 else [ranks.device.index or 0]:
            if f"cuda.{number}" in state:
                torch.cuda.set_rng_state(state[f"cuda.{number}"], number)
    if "mps" in state and torch.backends.mps.is_available():
        torch.mps.set_rng_state(state["mps"])
