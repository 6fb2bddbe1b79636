"""Table 1 of the paper, measured: time of one layer, forward and backward, over the length of the sequence, for self-attention,
recurrence and convolution; and the cost of one more token when text is generated.

Self-attention is measured twice: with the n x n weights written out, as the paper prints it, and with the fused kernel of today.
A batch holds the same number of tokens at every length, or one sequence alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.common import print_table
from benchmarks.paper_claims.bench import GIB, Bench, Row, Rows, rounded, time_calls
from benchmarks.paper_claims.convolutional import KERNEL

LENGTHS = (10, 32, 128, 512, 1024, 2048, 4096)
WIDTHS = (128, 256, 512, 1024)
GENERATED = (10, 128, 1024, 4096, 16_384, 65_536)
TOKENS = 16_384  # in a batch of many sequences
D_HEAD = 64
GENERATING = 32  # texts that are generated together
SECONDS = 0.05  # for one figure
MAX_GIB = 20  # for the written-out weights of attention
FORMULA, FUSED, LSTM, CONVOLUTION = "self-attention, formula", "self-attention, fused", "LSTM", "convolution"
FOLLOWING = {FORMULA: "1", FUSED: "1", LSTM: "n", CONVOLUTION: "1"}  # operations that must follow one another
COSTS = {FORMULA: "n^2 d", FUSED: "n^2 d", LSTM: "n d^2", CONVOLUTION: "k n d^2"}


class SelfAttention(nn.Module):
    """Multi-head self-attention without a mask: (texts, n, d) -> (texts, n, d)."""

    def __init__(self, width: int, fused: bool) -> None:
        super().__init__()
        self.heads, self.fused = max(1, width // D_HEAD), fused
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def split(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        # (texts, n, 3 d) -> three times (texts, heads, n, d_head)
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return q, k, v

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(x)
        if self.fused:
            heads = F.scaled_dot_product_attention(q, k, v)
        else:
            heads = (q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])).softmax(-1) @ v
        # (texts, heads, n, d_head) -> (texts, n, d)
        joined: Tensor = self.out(heads.transpose(1, 2).flatten(2))
        return joined


class Recurrence(nn.LSTM):
    def __init__(self, width: int) -> None:
        super().__init__(width, width, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        output: Tensor = super().forward(x)[0]
        return output


class Convolution(nn.Conv1d):
    def __init__(self, width: int) -> None:
        super().__init__(width, width, KERNEL, padding=KERNEL // 2)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.transpose(1, 2)).transpose(1, 2)


def make_layer(name: str, width: int, bench: Bench) -> nn.Module:
    """A layer in the number format that the device is fast in; an LSTM in fp32 if its library has no other."""
    builders: dict[str, Callable[[], nn.Module]] = {
        FORMULA: lambda: SelfAttention(width, fused=False),
        FUSED: lambda: SelfAttention(width, fused=True),
        LSTM: lambda: Recurrence(width),
        CONVOLUTION: lambda: Convolution(width),
    }
    torch.manual_seed(bench.seed)
    layer = builders[name]().to(bench.device, bench.number_format)
    if name == LSTM and bench.dtype is not None:
        try:
            _backward(layer, torch.zeros(1, 2, width, device=bench.device, dtype=bench.dtype))()
        except RuntimeError:
            return layer.float()
    return layer


def _backward(layer: nn.Module, x: Tensor) -> Callable[[], None]:
    """Forward and backward of one layer; gradients are thrown away."""
    x = x.requires_grad_()
    weights = list(layer.parameters())
    gradient = torch.ones_like(x)

    def run() -> None:
        torch.autograd.grad(layer(x), [x, *weights], gradient)

    return run


def time_layer(name: str, width: int, length: int, texts: int, bench: Bench) -> float | None:
    """Seconds, forward and backward; None: the weights would take more memory than MAX_GIB."""
    layer = make_layer(name, width, bench)
    if (
        name == FORMULA
        and 3 * texts * max(1, width // D_HEAD) * length**2 * bench.number_format.itemsize > MAX_GIB * GIB
    ):
        return None
    x = torch.randn(texts, length, width, device=bench.device, dtype=next(layer.parameters()).dtype)
    return time_calls(_backward(layer, x), bench.device, SECONDS / (10 if bench.smoke else 1), 1 if bench.smoke else 3)


@torch.no_grad()
def time_generation(name: str, width: int, length: int, bench: Bench) -> float:
    """Seconds for one more token after `length` of them: attention reads all their keys and values, an LSTM its state."""
    texts = 2 if bench.smoke else GENERATING
    layer = make_layer(name, width, bench).eval()
    dtype = next(layer.parameters()).dtype
    x = torch.randn(texts, 1, width, device=bench.device, dtype=dtype)
    if isinstance(layer, SelfAttention):
        shape = (texts, layer.heads, length, width // layer.heads)
        keys, values = (torch.randn(shape, device=bench.device, dtype=dtype) for _ in range(2))

        def attend() -> None:
            q, k, v = layer.split(x)
            keys[:, :, -1:], values[:, :, -1:] = k, v
            layer.out(F.scaled_dot_product_attention(q, keys, values).transpose(1, 2).flatten(2))

        return time_calls(attend, bench.device, SECONDS, 3)
    assert isinstance(layer, nn.LSTM)
    state = tuple(torch.zeros(1, texts, width, device=bench.device, dtype=dtype) for _ in range(2))
    return time_calls(lambda: nn.LSTM.forward(layer, x, (state[0], state[1])), bench.device, SECONDS, 3)


def measure(bench: Bench, rows: Rows) -> list[Row]:
    """Rows of kind "layer" (a batch of TOKENS, or one sequence), "generation" and "crossover"."""
    lengths, widths = (LENGTHS, WIDTHS) if not bench.smoke else ((4, 16), (16, 32))
    tokens, generated = (TOKENS, GENERATED) if not bench.smoke else (32, (4, 16))
    for width in widths:
        for length in lengths:
            for texts in dict.fromkeys((max(1, tokens // length), 1)):
                for name in FOLLOWING:
                    key = {"kind": "layer", "layer": name, "d": width, "n": length, "texts": texts}
                    rows.measured(key, _milliseconds, time_layer, name, width, length, texts, bench)
        print(f"layers of width {width}: done", flush=True)
    for width in widths:
        for length in generated:
            for name in (FUSED, LSTM):
                key = {"kind": "generation", "layer": name, "d": width, "n": length}
                rows.measured(key, _milliseconds, time_generation, name, width, length, bench)
    return [*rows.rows, *crossovers(rows.rows)]


def _milliseconds(measure: Callable[..., float | None], *arguments: Any) -> Row:
    seconds = measure(*arguments)
    return rounded({"ms": None if seconds is None else seconds * 1e3})


def crossovers(rows: Sequence[Row]) -> list[Row]:
    """From which length on recurrence is faster than attention, for each width, batch and way of computing attention."""
    found = []
    kinds = [("layer", FORMULA), ("layer", FUSED), ("generation", FUSED)]
    for kind, attention in kinds:
        chosen = [row for row in rows if row["kind"] == kind]
        for alone in (False, True) if kind == "layer" else (False,):
            for width in dict.fromkeys(row["d"] for row in chosen):
                mine = [
                    row
                    for row in chosen
                    if row["d"] == width and (kind == "generation" or (row["texts"] == 1) == alone)
                ]
                times = {
                    name: {row["n"]: row["ms"] for row in mine if row["layer"] == name} for name in (attention, LSTM)
                }
                # From the first length on at which recurrence is ahead and stays so; a single lucky figure does not count.
                ahead = [
                    n
                    for n in times[LSTM]
                    if all(
                        times[attention][m] is None or times[LSTM][m] < times[attention][m]
                        for m in times[LSTM]
                        if m >= n
                    )
                ]
                found.append(
                    {
                        "kind": "crossover",
                        "what": kind,
                        "attention": attention,
                        "texts": "one" if alone else "many",
                        "d": width,
                        "recurrence is faster from n": min(ahead, default=None),
                        "longest n": max(times[LSTM], default=None),
                    }
                )
    return found


def show(rows: Sequence[Row]) -> None:
    """Milliseconds over length for each layer and width."""
    for kind, title in (("layer", "one layer, forward and backward, ms"), ("generation", "one more token, ms")):
        chosen = [row for row in rows if row["kind"] == kind]
        lengths = list(dict.fromkeys(row["n"] for row in chosen))
        for alone in (False, True) if kind == "layer" else (False,):
            print(f"\n{title}" + (", one sequence" if alone else ""))
            table: dict[tuple[str, int], Row] = {}
            for row in chosen:
                if kind == "generation" or (row["texts"] == 1) == alone:
                    entry = table.setdefault(
                        (row["layer"], row["d"]), dict.fromkeys(("layer", "d", *map(str, lengths)))
                    )
                    entry |= {
                        "layer": row["layer"],
                        "d": row["d"],
                        str(row["n"]): "-" if row["ms"] is None else f"{row['ms']:.3g}",
                    }
            if table:
                print_table(list(table.values()))
    print("\nwhere recurrence wins")
    print_table([{k: v for k, v in row.items() if k != "kind"} for row in rows if row["kind"] == "crossover"])
