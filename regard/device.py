"""Which device to compute on, and in what precision."""

from __future__ import annotations

import platform
from pathlib import Path

import torch

from regard.errors import UserError


def pick_device(name: str = "auto") -> torch.device:
    """ "auto" takes CUDA, then Apple's MPS, then the CPU; a name is taken at its word if it is there."""
    if name == "auto":
        if torch.cuda.is_available():
            return numbered(torch.device("cuda"))
        return torch.device("mps") if torch.backends.mps.is_available() else torch.device("cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UserError(f"device must be auto, cpu, cuda, cuda:N or mps, but is {name!r}") from None
    if device.type not in ("cpu", "cuda", "mps"):
        raise UserError(f"device must be auto, cpu, cuda, cuda:N or mps, but is {name!r}")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UserError(f"device {name} was asked for, but this torch sees no CUDA device; use auto or cpu")
    if device.type == "cuda" and device.index is not None and device.index >= torch.cuda.device_count():
        raise UserError(
            f"device {name} was asked for, but there are {torch.cuda.device_count()} CUDA devices, from cuda:0"
        )
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise UserError("device mps was asked for, but this torch sees no Apple GPU; use auto or cpu")
    return numbered(device)


def numbered(device: torch.device) -> torch.device:
    """The same device with its number, where it is one of several: "cuda" is the current one."""
    if str(device) == "cuda":
        return torch.device("cuda", torch.cuda.current_device())
    return device


def has_bf16(device: torch.device) -> bool:
    """Whether matrix products in bf16 are faster than in fp32 on this device."""
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device)[0] >= 8
    # Without these instructions a CPU emulates bf16, at a quarter of the speed of fp32.
    return device.type == "cpu" and bool({"avx512_bf16", "amx_bf16", "bf16"} & _cpu_flags())


def _cpu_flags() -> set[str]:
    """The CPU's instruction sets as Linux lists them; empty elsewhere."""
    if platform.system() != "Linux":
        return set()
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return set()
    return {flag for line in lines if line.lower().startswith(("flags", "features")) for flag in line.split()}


def compute_dtype(precision: str, device: torch.device) -> torch.dtype | None:
    """What matrix products of training run in: bf16 where the hardware has it, unless asked otherwise; None: fp32."""
    if precision == "fp32" or (precision == "auto" and not has_bf16(device)):
        return None
    return torch.bfloat16


def describe(device: torch.device) -> str:
    """The device in words."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    if device.type == "mps":
        return "Apple GPU (MPS)"
    threads = torch.get_num_threads()
    return f"CPU, {threads} thread{'s' * (threads > 1)}"
