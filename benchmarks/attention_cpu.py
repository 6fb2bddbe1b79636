"""Attention kernels on the CPU, forward and backward, for a training batch of short sentences.

python -m benchmarks.attention_cpu
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import Any, get_args

import torch

from benchmarks.common import machine, report, time_rounds
from regard.layout import SequenceLayout
from regard.nn.kernels import Kernel, attention, choose


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

            def run(kernel: Kernel, *tensors: torch.Tensor, layout: SequenceLayout = layout) -> None:
                q, k, v = tensors
                attention(q, k, v, layout, layout, False, kernel).float().sum().backward()

            # The other kernels need a GPU or fixed shapes.
            kernels = [name for name in get_args(Kernel) if name not in ("auto", "varlen", "dense", "triton")]
            seconds = time_rounds({name: partial(run, name, q, k, v) for name in kernels}, arguments.rounds, device)
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


if __name__ == "__main__":
    main()
