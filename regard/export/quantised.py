"""Exports smaller bundles: the same model with its matrices stored as 8-bit integers or 16-bit floats.

Each row of an int8 matrix is scaled by 127 / its largest magnitude and rounded half to even, as in CTranslate2, so that both
engines compute with the same numbers. Vectors are small and stay in fp32. `regard.bundle.load_weights` reads the result.
"""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import torch
from torch import Tensor

from regard.bundle import Bundle, load_bundle, load_weights, save_bundle
from regard.errors import UserError
from regard.export.verify import Samples, answers
from regard.generate.engines.torch_engine import TorchEngine
from regard.weights import Stored, scale_name

# Tables that are added, not multiplied; CTranslate2 keeps positions in fp32, too.
_ADDED = (".positions.weight", ".relative.weight", ".token_types.weight")


def write(bundle: Bundle, folder: Path, weights: str, samples: Samples) -> list[list[float]]:
    """Write the bundle into `folder` with its matrices in the format `weights`, and score the samples with the result."""
    stored = next((kind for kind in get_args(Stored) if kind == weights), None)
    if stored is None:
        raise UserError(f"--weights must be one of {', '.join(get_args(Stored))}, but is {weights!r}")
    tensors: dict[str, Tensor] = {}
    for name, weight in load_weights(bundle).items():
        tensors |= store(name, weight, stored)
    save_bundle(
        folder,
        tensors,
        bundle.config,
        bundle.tokenizer,
        bundle.recipe,
        source=bundle.source,
        target=bundle.target,
        decode=bundle.decode,
        max_length=bundle.max_length,
        facts=bundle.facts,
        stored=stored,
        alignment=bundle.alignment,
        task=bundle.task,
        prompts=bundle.prompts,
        directions=bundle.directions,
        takes_pairs=bundle.takes_pairs,
    )
    written = load_bundle(folder)
    if bundle.task != "translate":
        return answers(written, samples.src)
    return TorchEngine.from_bundle(written, "cpu").score(samples.src, samples.tgt)


def store(name: str, weight: Tensor, stored: Stored) -> dict[str, Tensor]:
    """The tensors that store a weight: itself, or its integers and their scales."""
    if weight.ndim < 2 or stored == "fp32" or name.endswith(_ADDED):
        return {name: weight}
    if stored == "fp16":
        return {name: weight.half()}
    integers, scales = quantise(weight)
    return {name: integers, scale_name(name): scales}


def quantise(weight: Tensor) -> tuple[Tensor, Tensor]:
    """(rows, columns) -> integers from -127 to 127 of the same shape, and the scale of each row, (rows,).

    >>> integers, scales = quantise(torch.tensor([[0.5, -1.0], [0.0, 0.0]]))
    >>> integers.tolist(), scales.tolist()
    ([[64, -127], [0, 0]], [127.0, 1.0])
    """
    largest = weight.abs().amax(dim=1)
    largest[largest == 0] = 127.0
    top = torch.tensor(127.0)  # a tensor, since torch rounds once more when it divides a Python number by a tensor
    # The maximum keeps the scale of a row that is nearly zero finite.
    scales = top / largest.maximum(top / torch.finfo(torch.float32).max)
    return (weight * scales[:, None]).round().to(torch.int8), scales
