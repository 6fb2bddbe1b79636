"""Choosing an engine.

    torch               the model itself, on CPUs and GPUs; on CPUs a result is the same in any batch, to the last bit
    ctranslate2         faster on CPUs, and needs no torch; an extra (`regard[export]`); see `ctranslate2_engine.py`, for
                        language models `ctranslate2_text_engine.py`, for encoders `ctranslate2_encoder.py`. Computes in int8
                        with language models, and with bundles stored so
    ctranslate2-fp32    the same in fp32
    torch-int8          torch on CPUs with VNNI, for language models: linear layers in int8, everything else in fp32
    onnxruntime         on CPUs, the same extra: language models in 8 bits, fastest for few texts (`onnx_text_engine.py`); encoders
                        in fp32, also those that CTranslate2 does not run (`onnx_encoder.py`)
    auto                on a CPU: onnxruntime for language models, if the CPU has AVX-512 VNNI, for which it was measured; else
                        ctranslate2; for encoders that it does not run onnxruntime; each if it is installed and supports the model;
                        else torch. A server writes with torch-int8 on a CPU if it can (`joint_decoder.py` says why)

Chosen by name, ctranslate2 refuses by name what it cannot do: models with an unsupported setting, GPUs, ensembles, search
options beyond those of its engines, phrases that must appear; for translation also streaming. With `auto`, torch takes over for
these options, with a note on standard error; for phrases only if a plain search has missed one (`search/constrained.py`).
Sentences longer than its position table always go to torch.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from regard.bounds import MAX_BATCH, check_whole
from regard.builtin import shown_name
from regard.bundle import Bundle
from regard.cpu import has_wide_vnni
from regard.errors import UserError
from regard.generate.encoding import EncoderEngine
from regard.generate.engines import ctranslate2_specs, onnx_graph
from regard.generate.engines.ctranslate2_common import import_ctranslate2
from regard.generate.engines.ctranslate2_encoder import CTranslate2Encoder, encoder_refusal
from regard.generate.engines.ctranslate2_engine import CTranslate2Engine
from regard.generate.engines.ctranslate2_model import WeightFormat, refusal
from regard.generate.engines.ctranslate2_text_engine import CTranslate2TextEngine
from regard.generate.engines.onnx_builder import import_onnx
from regard.generate.engines.onnx_decoder import import_onnxruntime
from regard.generate.engines.onnx_encoder import OnnxEncoder
from regard.generate.engines.onnx_text_engine import OnnxTextEngine
from regard.generate.options import Engine, TextEngine

if TYPE_CHECKING:
    from regard.generate.engines.torch_engine import TorchEngine

EngineName = Literal["auto", "torch", "torch-int8", "ctranslate2", "ctranslate2-fp32", "onnxruntime"]
_GPU_FILES = ("/proc/driver/nvidia/version", "/dev/nvidia0", "/dev/dxg", "/dev/kfd")  # CUDA, WSL, ROCm


def make_engine(
    bundle: Bundle, engine: str = "auto", device: str = "auto", batch: int = 0, others: Sequence[Bundle] = ()
) -> Engine:
    """The engine of this name for the bundle's model; `others` join it in an ensemble of equal weights."""
    for other in others:
        if other.tokenizer.fingerprint != bundle.tokenizer.fingerprint:
            raise UserError(
                f"{shown_name(other.folder)}: the models of an ensemble must share a tokenizer, but this one differs from that of "
                f"{shown_name(bundle.folder)}"
            )
    _check(engine, batch)
    _refuse_engines(bundle, engine, {"torch-int8": "language models", "onnxruntime": "language models and encoders"})
    if engine.startswith("ctranslate2"):
        _check_cpu(engine, device)
        if others:
            raise UserError(f"engine {engine} cannot do ensembles; use --engine torch, or auto")
        weights: WeightFormat | None = "fp32" if engine == "ctranslate2-fp32" else None
        return CTranslate2Engine.from_bundle(bundle, batch, strict=True, weights=weights)
    if engine == "auto" and not others and _is_cpu(device) and _can_ctranslate2(bundle):
        return CTranslate2Engine.from_bundle(bundle, batch)
    from regard.generate.engines.torch_engine import TorchEngine

    return TorchEngine.from_bundle(bundle, device, batch, others)


def make_text_engine(bundle: Bundle, engine: str = "auto", device: str = "auto", batch: int = 0) -> TextEngine:
    """The engine of this name for a model that continues texts."""
    _check(engine, batch)
    if engine.startswith("ctranslate2"):
        _check_cpu(engine, device)
        if reason := text_refusal(bundle):
            raise UserError(f"{shown_name(bundle.folder)}: {reason}; use --engine torch")
        return CTranslate2TextEngine(
            bundle, "fp32" if engine == "ctranslate2-fp32" else "int8", batch=batch, strict=True
        )
    if engine == "torch-int8":
        return _int8_engine(bundle, device, batch)
    if engine == "onnxruntime":
        _check_cpu(engine, device)
        if reason := onnx_graph.refusal(bundle):
            raise UserError(f"{shown_name(bundle.folder)}: {reason}; use --engine torch")
        return OnnxTextEngine(bundle, batch=batch)
    if engine == "auto" and _is_cpu(device):
        if _can_onnxruntime(bundle):
            return OnnxTextEngine(bundle, batch=batch, make_other=lambda: _make_other(bundle, batch))
        return _make_other(bundle, batch)
    from regard.generate.engines.torch_engine import TorchEngine

    return TorchEngine.from_bundle(bundle, device, batch)


def make_encoder(bundle: Bundle, engine: str = "auto", device: str = "auto", batch: int = 0) -> EncoderEngine:
    """The engine of this name for a model without a decoder."""
    _check(engine, batch)
    _refuse_engines(bundle, engine, {"torch-int8": "language models"})
    if engine.startswith("ctranslate2"):
        _check_cpu(engine, device)
        if reason := encoder_refusal(bundle):
            raise UserError(f"{shown_name(bundle.folder)}: {reason}; use --engine onnxruntime or torch, or auto")
        return CTranslate2Encoder(bundle, "fp32" if engine == "ctranslate2-fp32" else None, batch)
    if engine == "auto" and _is_cpu(device) and _can_ctranslate2(bundle):
        return CTranslate2Encoder(bundle, batch=batch)
    if engine == "onnxruntime":
        _check_cpu(engine, device)
        return OnnxEncoder(bundle, batch)
    if engine == "auto" and _is_cpu(device) and _has_onnxruntime():
        return OnnxEncoder(bundle, batch)
    from regard.generate.engines.encoder_engine import TorchEncoder

    return TorchEncoder.from_bundle(bundle, device, batch)


def make_served_engine(bundle: Bundle, engine: str = "auto", device: str = "auto") -> TorchEngine:
    """The engine of this name for a language model that many clients write with at once."""
    _check(engine, 0)
    if engine.startswith("ctranslate2") or engine == "onnxruntime":
        raise UserError(
            f"{shown_name(bundle.folder)}: engine {engine} cannot write for several clients at once, since nobody can join a text "
            "that it has begun; use --engine torch-int8, or leave it out"
        )
    from regard.generate.engines.torch_engine import TorchEngine
    from regard.nn.int8 import int8_refusal

    if engine == "torch-int8":
        return _int8_engine(bundle, device)
    int8 = engine == "auto" and _is_cpu(device) and int8_refusal() is None
    return TorchEngine.from_bundle(bundle, device, int8=int8)


def _refuse_engines(bundle: Bundle, engine: str, others: Mapping[str, str]) -> None:
    """Refuse engines that are for other models, with what they are for."""
    if engine in others:
        raise UserError(
            f"{shown_name(bundle.folder)}: engine {engine} is for {others[engine]}; use ctranslate2, with a bundle in int8 if you "
            "want int8, or leave it out"
        )


def _int8_engine(bundle: Bundle, device: str, batch: int = 0) -> TorchEngine:
    from regard.generate.engines.torch_engine import TorchEngine
    from regard.nn.int8 import int8_refusal

    _check_cpu("torch-int8", device)
    if reason := int8_refusal():
        raise UserError(f"engine torch-int8 cannot be used: {reason}; use --engine torch")
    return TorchEngine.from_bundle(bundle, "cpu", batch, int8=True)


def _make_other(bundle: Bundle, batch: int) -> TextEngine:
    """On a CPU, the engine for what ONNX Runtime does not do."""
    if _can_ctranslate2(bundle):
        return CTranslate2TextEngine(bundle, batch=batch)
    from regard.generate.engines.torch_engine import TorchEngine

    return TorchEngine.from_bundle(bundle, "cpu", batch)


def text_refusal(bundle: Bundle) -> str | None:
    """Why CTranslate2 cannot continue texts with this model; None if it can."""
    if bundle.tokenizer.eos_id < 0 and not bundle.tokenizer.stop_ids:
        return "CTranslate2 needs a token that ends a text, and this model has none"
    return ctranslate2_specs.refusal(bundle)


def _check_cpu(engine: str, device: str) -> None:
    if device not in ("auto", "cpu"):
        raise UserError(f"device must be auto or cpu with engine {engine}, but is {device!r}; use --engine torch")


def _check(engine: str, batch: int) -> None:
    check_whole("batch", batch, 0, MAX_BATCH)
    if engine not in get_args(EngineName):
        raise UserError(f"engine must be one of {', '.join(get_args(EngineName))}, but is {engine!r}")


def _can_ctranslate2(bundle: Bundle) -> bool:
    try:
        import_ctranslate2()
    except UserError:
        return False
    refusals = {"translate": refusal, "generate": text_refusal}
    return refusals.get(bundle.task, encoder_refusal)(bundle) is None


def _can_onnxruntime(bundle: Bundle) -> bool:
    return has_wide_vnni() and onnx_graph.refusal(bundle) is None and _has_onnxruntime()


def _has_onnxruntime() -> bool:
    """Whether ONNX Runtime is installed, with what converts models for it."""
    try:
        import_onnxruntime()
        import_onnx()
    except UserError:
        return False
    return True


def _is_cpu(device: str) -> bool:
    """Whether torch would compute on a CPU. Importing torch takes two seconds, so it is asked only if there may be a GPU."""
    if device != "auto":
        return device == "cpu"
    if platform.system() != "Darwin" and not any(Path(path).exists() for path in _GPU_FILES):
        return True
    from regard.device import pick_device

    return pick_device("auto").type == "cpu"
