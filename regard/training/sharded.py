"""Sharding for models that do not fit one GPU (`train.shard`): torch's FSDP2 splits weights, gradients and optimizer state over
the processes and gathers each layer's weights only while it computes.

    checkpoints/step-000123/  shards/*.safetensors  random.safetensors  state.json  manifest.json

Every process writes its shards with torch.distributed.checkpoint as safetensors files, whose headers say where each shard
belongs, so that any number of processes can read them. Nothing on disk is a pickle. (While planning, torch passes pickles
between the processes of the run; they come from no file.)

The rest is the plain path. Gradients are summed, not averaged: the loss is already divided by the tokens of the whole update.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from regard.files import atomic_folder, write_manifest
from regard.models.transformer import Transformer
from regard.parallel.ranks import EndedElsewhere, Ranks

FORMAT = 1
SHARDS = "shards"


def shard(model: Transformer, ranks: Ranks) -> None:
    """Shard a model over the processes in place, layer by layer, moving it to the device."""
    if ranks.size == 1:
        model.to(ranks.device)
        return
    # Importing these takes a second, and most runs do not need them.
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method

    mesh = init_device_mesh(ranks.device.type, (ranks.size,))
    for stack in model.stacks:
        for layer in stack.layers:
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    register_fsdp_forward_method(model, "hidden")
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)


def reshard(model: nn.Module) -> None:
    """Free the weights gathered by a forward pass without a backward pass; they would be stale in the next one."""
    getattr(model, "reshard", lambda: None)()


def local_part(tensor: Tensor) -> Tensor:
    """This process's shard of a tensor; all of a tensor that is not sharded."""
    part: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return part


def gathered(tensor: Tensor) -> Tensor:
    """The full tensor of a sharded one; a collective, so all processes must call it."""
    together: Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return together


# --- checkpoints ---


def run_tensors(model: nn.Module, optimizer: torch.optim.Optimizer, average: nn.Module | None) -> dict[str, Tensor]:
    """All tensors of a run by name: "model.X", "average.X" and "optimizer.X.exp_avg"."""
    tensors: dict[str, Tensor] = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    if average is not None:
        tensors |= {f"average.{name}": tensor for name, tensor in average.state_dict().items()}
    for name, parameter in model.named_parameters():
        tensors |= {f"optimizer.{name}.{key}": value for key, value in optimizer.state[parameter].items()}
    return tensors


def save_shards(path: Path, tensors: Mapping[str, Tensor], ranks: Ranks) -> None:
    """Write this process's shards into the folder `path`; all processes must call it."""
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
    from torch.distributed.checkpoint.state_dict_saver import save

    writer = HuggingFaceStorageWriter(str(path), save_distributed=True)
    try:
        with without_lone_process_warning():
            save(dict(tensors), storage_writer=writer, no_dist=ranks.size == 1)
    except CheckpointException as error:  # every process gets the errors of all; the first one reports
        if not ranks.is_first:
            raise EndedElsewhere from None
        raise next(iter(error.failures.values()))[0] from None


def save_sharded(target: Path, tensors: Mapping[str, Tensor], files: Any, ranks: Ranks) -> None:
    """Write a checkpoint atomically, all processes together; `files(folder)` writes the first one's other files."""
    with atomic_folder(target) if ranks.is_first else nullcontext() as temporary:
        folder = Path(ranks.broadcast(str(temporary)))
        save_shards(folder / SHARDS, tensors, ranks)
        if ranks.is_first:
            files(folder)
            write_manifest(folder, format=FORMAT)


def is_sharded(path: Path) -> bool:
    return (path / SHARDS).is_dir()


def load_sharded(
    path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, average: nn.Module | None, ranks: Ranks
) -> None:
    """Restore a checkpoint, whatever number of processes wrote it."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            # As Adam creates it at its first step.
            step_device = parameter.device if group.get("fused") or group.get("capturable") else "cpu"
            optimizer.state[parameter] = {
                "step": torch.zeros((), dtype=torch.float32, device=step_device),
                "exp_avg": torch.zeros_like(parameter),
                "exp_avg_sq": torch.zeros_like(parameter),
            }
    with torch.no_grad():
        _read(path, run_tensors(model, optimizer, average), alone=ranks.size == 1)


def read_shards(path: Path, part: str) -> dict[str, Tensor]:
    """The full tensors of "model" or "average", read by one process onto the CPU; empty if there are none."""
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata

    entries = HuggingFaceStorageReader(str(path / SHARDS)).read_metadata().state_dict_metadata
    tensors = {
        name: torch.empty(entry.size, dtype=entry.properties.dtype)
        for name, entry in entries.items()
        if name.startswith(f"{part}.") and isinstance(entry, TensorStorageMetadata)
    }
    if tensors:
        _read(path, tensors, alone=True)
    return {name.removeprefix(f"{part}."): tensor for name, tensor in tensors.items()}


def _read(path: Path, tensors: dict[str, Tensor], alone: bool) -> None:
    """Fill these tensors, sharded or not, from a checkpoint's shards."""
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
    from torch.distributed.checkpoint.state_dict_loader import load

    with without_lone_process_warning():
        load(tensors, storage_reader=HuggingFaceStorageReader(str(path / SHARDS)), no_dist=alone)


@contextmanager
def without_lone_process_warning() -> Iterator[None]:
    """Silence torch's warning that a single process reads or writes shards; that is intended here."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled, unavailable or uninitialized")
        yield
