"""Compiles every Triton kernel for GPUs that need not be there, down to machine code, and runs none: a program of its own.

    python -m tests.nn.compile_kernels

The interpreter runs what Triton's compiler refuses (a variable that changes its type in a loop, say), so that passing through
it is not enough. Prints as JSON which kernels were compiled for which architecture.
"""

from __future__ import annotations

import json
import warnings
from collections import defaultdict
from typing import Any

import torch
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.runtime import driver, jit

from regard.generate.engines.slot_search import SlotState
from regard.generate.options import SearchOptions
from regard.layout import SlotLayout, tile_groups
from regard.models.loss import backward_linear_cross_entropy
from regard.nn.attention import set_kernel
from regard.nn.block import set_fused
from regard.nn.kernels import triton_beam, triton_decode, triton_projection, triton_rotary
from tests.build import SWITCHES, build, tiny_config

ARCHITECTURES = (80, 90)  # A100, H100
compiled: dict[str, set[int]] = defaultdict(set)


class Absent:
    """What Triton asks a GPU, answered for one that is not there."""

    def __init__(self, architecture: int) -> None:
        self.architecture = architecture

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self.architecture, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


def compile_instead(
    self: Any, *arguments: Any, grid: Any, warmup: bool, run: Any = jit.JITFunction.run, **options: Any
) -> Any:
    kernel = run(self, *arguments, grid=grid, warmup=True, **options)
    assert kernel.asm["cubin"], self.__name__
    compiled[self.__name__].add(driver.active.architecture)
    return kernel


def layout(lengths: list[int]) -> SlotLayout:
    ids = torch.repeat_interleave(torch.arange(len(lengths), dtype=torch.int32), torch.tensor(lengths))
    starts = torch.tensor([0, *lengths]).cumsum(0).int()
    return SlotLayout(torch.zeros_like(ids), ids, starts[tile_groups(lengths, lengths)], max(lengths))


def train(switch: str, dtype: torch.dtype) -> None:
    """A loss and its gradients, with every kernel of training."""
    model = build(tiny_config(**SWITCHES[switch])).to(dtype).train()
    set_kernel(model, "triton")
    set_fused(model, residual=True, feed_forward=True)
    places = layout([5, 70, 2])
    ids = torch.ones(places.num_tokens, dtype=torch.int32)
    hidden = model.hidden(ids, places, ids, places)
    triton_projection.join_op(*(torch.zeros(3, width, dtype=dtype) for width in (768, 256, 256)))
    backward_linear_cross_entropy(hidden, model.output_weight, ids, 0.1, torch.tensor(0.01))


def decode(beam: int, dtype: torch.dtype) -> None:
    """A step of decoding, with every kernel of it."""

    def empty(*shape: int, kind: torch.dtype = dtype) -> Tensor:
        return torch.zeros(shape, dtype=kind)

    rows = 2 * beam
    q, k, v = empty(rows, 12, 16).split((8, 2, 2), dim=1)
    keys, lengths = empty(rows, 32, 2, 16), empty(2, kind=torch.int64)
    triton_decode.extend_attention(q, k, v, keys, keys, lengths, empty(rows, 32, kind=torch.int32), beam, 0.125)
    triton_decode.decode_attention(q, keys, keys, lengths, None, beam, 0.125)
    triton_decode.put(empty(3, 4, 16), keys, keys, *(empty(3, kind=torch.int64) for _ in range(2)))
    for halves in (False, True):
        triton_rotary.rotate_(empty(rows, 12, 16), 10, lengths, empty(6, kind=torch.float32), halves)
    options, state = SearchOptions(beam=beam), SlotState.empty(2, beam, 32, torch.device("cpu"))
    for vocab_size in (1000, 37_000):
        triton_beam.advance(
            empty(rows, vocab_size), empty(vocab_size, kind=torch.uint8), **vars(state),
            width=2 * beam, alpha=options.alpha, eos_id=2, nbest=1,
        )  # fmt: skip


def main() -> None:
    warnings.simplefilter("ignore")
    jit.JITFunction.run = compile_instead
    for architecture in ARCHITECTURES:
        driver.set_active(Absent(architecture))
        for switch, dtype in (("paper", torch.bfloat16), ("modern", torch.float16), ("gelu", torch.bfloat16)):
            train(switch, dtype)
        for beam in (1, 4, 5):
            decode(beam, torch.float16)
    print(json.dumps({name: sorted(architectures) for name, architectures in compiled.items()}))


if __name__ == "__main__":
    main()
