"""Which engine translates.

    torch          the model itself, on CPUs and GPUs; a sentence's translation is the same in any batch, to the last bit on CPUs
    ctranslate2    faster on CPUs and without torch; an extra (`regard[export]`); see `ctranslate2_engine.py`
    auto           ctranslate2 on CPUs where it is installed and knows the model, else torch

What CTranslate2 cannot do is refused by name where it was asked for by name: a model with a switch that it does not know, a GPU,
several models together, options of the search beyond a beam with prefixes (`SearchOptions.beyond_beam`), phrases that must appear,
streaming. With `auto` these options are left to torch with a word on standard error; of phrases only what is missing after it has
searched itself (`constrained.py`). Left to torch are also, in any case, sentences longer than its table of positions.
"""

from __future__ import annotations

import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, get_args

from regard.bundle import Bundle
from regard.errors import UserError
from regard.generate.engines.ctranslate2_engine import CTranslate2Engine, import_ctranslate2
from regard.generate.engines.ctranslate2_model import refusal
from regard.generate.options import Engine

EngineName = Literal["auto", "torch", "ctranslate2"]
_SIGNS_OF_A_GPU = ("/proc/driver/nvidia/version", "/dev/nvidia0", "/dev/dxg", "/dev/kfd")  # CUDA, under Windows, ROCm


def make_engine(
    bundle: Bundle, engine: str = "auto", device: str = "auto", batch: int = 0, others: Sequence[Bundle] = ()
) -> Engine:
    """The engine of this name with the bundle's model in it; `others` are asked with it, each as much as the first."""
    for other in others:
        if other.tokenizer.fingerprint != bundle.tokenizer.fingerprint:
            raise UserError(
                f"{other.folder}: models that translate together must have one vocabulary, but its tokenizer is another than that "
                f"of {bundle.folder}"
            )
    if engine not in get_args(EngineName):
        raise UserError(f"engine must be one of {', '.join(get_args(EngineName))}, but is {engine!r}")
    if engine == "ctranslate2":
        if device not in ("auto", "cpu"):
            raise UserError(
                f"engine ctranslate2 computes on CPUs, so device must be auto or cpu, but is {device!r}; use --engine torch"
            )
        if others:
            raise UserError("engine ctranslate2 cannot do several models together; use --engine torch, or auto")
        return CTranslate2Engine.from_bundle(bundle, batch, alone=True)
    if engine == "auto" and not others and _is_cpu(device) and _can_ctranslate2(bundle):
        return CTranslate2Engine.from_bundle(bundle, batch)
    from regard.generate.engines.torch_engine import TorchEngine

    return TorchEngine.from_bundle(bundle, device, batch, others)


def _can_ctranslate2(bundle: Bundle) -> bool:
    try:
        import_ctranslate2()
    except UserError:
        return False
    return refusal(bundle) is None


def _is_cpu(device: str) -> bool:
    """Whether torch would compute on a CPU. It takes two seconds to ask torch, so it is asked only where there may be a GPU."""
    if device != "auto":
        return device == "cpu"
    if platform.system() != "Darwin" and not any(Path(sign).exists() for sign in _SIGNS_OF_A_GPU):
        return True
    from regard.device import pick_device

    return pick_device("auto").type == "cpu"
