"""Attention on the CPU, forward and backward: kernels for a training batch of short sentences, and tiles for texts of an encoder.

python -m benchmarks.attention_cpu

The tiles are those of `plan_tiles`, which all have the length of the longest text, and of `plan_by_length`.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch

from benchmarks.common import machine, report, time_rounds
from regard.data.batch import plan_by_length, plan_tiles
from regard.layout import SequenceLayout
from regard.nn.kernels import Kernel, attention, choose


def tiles(rounds: int) -> list[dict[str, Any]]:
    """Texts of MiniLM's size in bf16: short ones, the same with two long ones among them, and long ones."""
    draw = np.random.default_rng(0)
    kinds = {
        "short": draw.integers(8, 30, 60),
        "short and two long": np.concatenate([draw.integers(8, 40, 120), [256, 200]]),
        "long": draw.integers(60, 257, 20),
    }
    rows = []
    for kind, lengths in kinds.items():
        plans = {"plan_tiles": plan_tiles(lengths - 1), "plan_by_length": plan_by_length(lengths)}
        rounds_of = {}
        for name, (order, sizes) in plans.items():
            layout = SequenceLayout.from_lengths(lengths[order].tolist(), tile_sizes=sizes)
            q, k, v = (
                torch.randn(layout.num_tokens, 12, 32, dtype=torch.bfloat16, requires_grad=True) for _ in range(3)
            )
            rounds_of[name] = partial(step, layout, "auto", q, k, v)
        seconds = time_rounds(rounds_of, rounds, torch.device("cpu"))
        rows.append({"texts": kind, **{f"{name} ms": 1e3 * value for name, value in seconds.items()}})
    return rows


def step(layout: SequenceLayout, kernel: Kernel, *tensors: torch.Tensor) -> None:
    q, k, v = tensors
    attention(q, k, v, layout, layout, False, kernel).float().sum().backward()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    device = torch.device("cpu")
    rows: list[dict[str, Any]] = []
    for dtype in (torch.float32, torch.bfloat16):
        for length in (10, 30, 100):
            layout = SequenceLayout.from_lengths([length - 1 + n % 3 for n in range(2000 // length)])
            q, k, v = (torch.randn(layout.num_tokens, 4, 64, dtype=dtype, requires_grad=True) for _ in range(3))

            # The other kernels need a GPU or fixed shapes.
            kernels = [name for name in get_args(Kernel) if name not in ("auto", "varlen", "dense", "triton")]
            seconds = time_rounds(
                {name: partial(step, layout, name, q, k, v) for name in kernels}, arguments.rounds, device
            )
            chosen = choose(device, dtype, layout)
            rows.append(
                {
                    "dtype": str(dtype).removeprefix("torch."),
                    "tokens a sentence": length,
                    **{f"{name} ms": 1e3 * value for name, value in seconds.items()},
                    "chosen": chosen,
                }
            )
    report("attention_cpu", rows, machine(device), arguments.out)
    out: Path | None = arguments.out
    report("attention_cpu_tiles", tiles(arguments.rounds), machine(device), out and out.with_stem(f"{out.stem}_tiles"))


if __name__ == "__main__":
    main()
