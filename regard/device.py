"""The device to compute on, and the precision to compute in."""

from __future__ import annotations

import torch

from regard.cpu import cpu_flags
from regard.errors import UserError


def pick_device(name: str = "auto") -> torch.device:
    """The device of this name; "auto" prefers CUDA, then Apple's MPS, then the CPU."""
    if name == "auto":
        if torch.cuda.is_available():
            return with_index(torch.device("cuda"))
        return torch.device("mps") if torch.backends.mps.is_available() else torch.device("cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UserError(f"device must be auto, cpu, cuda, cuda:N or mps, but is {name!r}") from None
    if device.type not in ("cpu", "cuda", "mps"):
        raise UserError(f"device must be auto, cpu, cuda, cuda:N or mps, but is {name!r}")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UserError(f"device is {name}, but torch finds no CUDA device; use auto or cpu")
    if device.type == "cuda" and device.index is not None and device.index >= torch.cuda.device_count():
        last = torch.cuda.device_count() - 1
        raise UserError(f"device must be between cuda:0 and cuda:{last}, the devices that torch finds, but is {name}")
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise UserError("device is mps, but torch finds no Apple GPU; use auto or cpu")
    return with_index(device)


def with_index(device: torch.device) -> torch.device:
    """The device with its index: "cuda" becomes "cuda:N", the current one."""
    if str(device) == "cuda":
        return torch.device("cuda", torch.cuda.current_device())
    return device


def has_bf16(device: torch.device) -> bool:
    """Whether this device multiplies matrices faster in bf16 than in fp32."""
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device)[0] >= 8
    # A CPU without these instructions emulates bf16, at a quarter of the speed of fp32.
    return device.type == "cpu" and bool({"avx512_bf16", "amx_bf16", "bf16"} & cpu_flags())


def compute_dtype(precision: str, device: torch.device) -> torch.dtype | None:
    """The type of training's matrix products: bf16 where the hardware is fast at it or `precision` asks for it; None: fp32."""
    if precision == "fp32" or (precision == "auto" and not has_bf16(device)):
        return None
    return torch.bfloat16


def describe(device: torch.device) -> str:
    """The device's name for people."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    if device.type == "mps":
        return "Apple GPU (MPS)"
    threads = torch.get_num_threads()
    return f"CPU, {threads} thread{'s' * (threads > 1)}"
