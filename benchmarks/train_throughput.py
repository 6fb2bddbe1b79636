"""Training speed compared: torch.nn.Transformer, Hugging Face Marian (eager and compiled) and Regard, in one run.

    python -m benchmarks.train_throughput
    python -m benchmarks.train_throughput --preset tiny --tokens 500 --batches 2 --rounds 1 --contenders marian,regard

All get the same sentences, in batches of similar lengths as any toolkit makes them (benchmarks/lengths.py), and train the
same model in the same way (benchmarks/contenders.py). Only real target tokens count. A pass is one update on every batch;
the clock is read, and the device waited for, only at its ends. Compiler caches start empty, so the time to the first update
is that of a fresh machine, unless TORCHINDUCTOR_CACHE_DIR is set.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import math
import os
import statistics
import tempfile
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from benchmarks.common import machine, matmul_rate, print_facts, print_table, synchronize, write_json
from benchmarks.contenders import CONTENDERS, Contender, make_updates
from benchmarks.lengths import CORPUS, Batch, make_batches, padding
from regard.config import ModelConfig
from regard.device import compute_dtype, pick_device
from regard.models.presets import PRESETS

MAX_WARMUP = 6  # passes; a contender that still compiles after this many is timed as it is
TABLE = (
    "contender",
    "target tokens/s",
    "step ms",
    "% of matmul ceiling",
    "peak GiB",
    "first step s",
    "Regard is faster by",
)


def model_flops(config: ModelConfig, batch: Batch) -> float:
    """FLOPs that the matrices of the model cost in one update: 6 for each of their numbers and each token it meets, 2
    forward and 4 backward.

    A layer has four square matrices in an attention and two of d_model * d_ff in its feed-forward network. The encoder's
    meet the source tokens. The decoder's meet the target tokens, but for the key and value matrices of its cross-attention,
    which meet the source tokens. The output matrix meets the target tokens. Left out: attention's own products, embeddings
    and everything element-wise. Padding is no work here, so that what a contender spends on it lowers its share.
    """
    square, feed_forward = config.d_model**2, 2 * config.d_model * config.d_ff
    encoder = config.encoder_layers * (4 * square + feed_forward) * batch.src_tokens
    decoder = config.decoder_layers * (6 * square + feed_forward) * batch.tgt_tokens
    cross = config.decoder_layers * 2 * square * batch.src_tokens
    output = config.vocab_size * config.d_model * batch.tgt_tokens
    return 6.0 * (encoder + decoder + cross + output)


def compiled_graphs() -> int:
    """How many graphs torch.compile has made so far, so that a warm-up knows when it is over."""
    from torch._dynamo.utils import counters

    return int(counters["stats"]["unique_graphs"])


def wake(device: torch.device, dtype: torch.dtype | None, contenders: Sequence[Contender]) -> None:
    """Import and load what a process needs for its first update, so that the first contender does not pay for it."""
    for module in ("torch._inductor.compile_fx", *(contender.module for contender in contenders)):
        with suppress(ImportError):  # without it a contender fails later, and alone
            importlib.import_module(module)
    network = torch.nn.Linear(64, 64).to(device)
    rows = torch.randn(64, 64, device=device)
    make_updates(network, lambda _: network(rows).float().square().mean(), device, dtype)(0)
    synchronize(device)


def free(device: torch.device) -> None:
    """Free what the last contender held, compiled code included."""
    torch._dynamo.reset()
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def measure(
    contender: Contender,
    config: ModelConfig,
    batches: Sequence[Batch],
    device: torch.device,
    dtype: torch.dtype | None,
    rounds: int,
) -> dict[str, Any]:
    """Build a contender, warm it up until compilation has finished, and time `rounds` passes."""
    torch.manual_seed(1)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        held = torch.cuda.memory_allocated(device)
    before = compiled_graphs()
    begun = time.perf_counter()
    update = contender.build(config, batches, device, dtype)
    first_loss = float(update(0))
    first = time.perf_counter() - begun

    def one_pass() -> float:
        synchronize(device)
        begun = time.perf_counter()
        for number in range(len(batches)):
            update(number)
        synchronize(device)
        return time.perf_counter() - begun

    enough = 1 if compiled_graphs() == before else 2
    graphs = before
    warmup: list[float] = []
    while len(warmup) < enough or (compiled_graphs() != graphs and len(warmup) < MAX_WARMUP):
        graphs = compiled_graphs()
        warmup.append(one_pass())
    settled = compiled_graphs()
    seconds = [one_pass() for _ in range(rounds)]
    result = {
        "first step s": first,
        "first loss": first_loss,
        "last loss": float(update(0)),
        "warm-up passes, s": warmup,
        "passes, s": seconds,
        "graphs compiled": settled - before,
        "graphs compiled while timed": compiled_graphs() - settled,
    }
    if device.type == "cuda":
        result["peak GiB"] = torch.cuda.max_memory_allocated(device) / 2**30
        result["peak GiB with the allocator's reserve"] = torch.cuda.max_memory_reserved(device) / 2**30
        result["GiB held before"] = held / 2**30
    return result


def rates(
    measured: dict[str, Any], config: ModelConfig, batches: Sequence[Batch], ceiling: float
) -> dict[str, float | int]:
    """Speeds from the median pass."""
    seconds = statistics.median(measured["passes, s"])
    flops = sum(model_flops(config, batch) for batch in batches)
    return {
        "target tokens/s": round(sum(batch.tgt_tokens for batch in batches) / seconds),
        "step ms": 1e3 * seconds / len(batches),
        "% of matmul ceiling": 100 * flops / seconds / ceiling,
    }


def compare(rows: Sequence[dict[str, Any]]) -> None:
    """Fill in how many times as fast Regard is as each of the others, preset by preset."""
    done = [row for row in rows if "error" not in row]
    ours = {row["preset"]: row["target tokens/s"] for row in done if row["short name"] == "regard"}
    for row in done:
        if row["short name"] != "regard" and row["preset"] in ours:
            row["Regard is faster by"] = ours[row["preset"]] / row["target tokens/s"]


def show(rows: Sequence[dict[str, Any]]) -> None:
    """The table of one preset; columns without any value are left out."""
    columns = [column for column in TABLE if any(column in row for row in rows)]
    print_table([{column: row.get(column, "failed" if "error" in row else None) for column in columns} for row in rows])


def run(arguments: argparse.Namespace, device: torch.device) -> None:
    dtype = compute_dtype(arguments.precision, device)
    contenders = {name: CONTENDERS[name] for name in arguments.contenders}
    batches = make_batches(arguments.tokens, arguments.batches, arguments.corpus)
    wake(device, dtype, list(contenders.values()))
    ceiling = matmul_rate(device, dtype)
    facts = {
        **machine(device, ("transformers", "triton")),
        "cuda": torch.version.cuda or "none",
        "precision": "fp32" if dtype is None else "bf16",
        "vocabulary": arguments.vocab,
        "sentence pairs": arguments.corpus,
        "batches": len(batches),
        "target tokens a batch": round(statistics.mean(batch.tgt_tokens for batch in batches)),
        "source tokens a batch": round(statistics.mean(batch.src_tokens for batch in batches)),
        "sentences a batch": round(statistics.mean(len(batch.tgt) for batch in batches)),
        "target padding %": 100 * padding(batches, "tgt"),
        "source padding %": 100 * padding(batches, "src"),
        "matmul ceiling TFLOP/s": ceiling / 1e12,
    }
    print_facts(facts)
    rows: list[dict[str, Any]] = []
    for preset in arguments.preset:
        config = ModelConfig(arguments.vocab, **PRESETS[preset])
        for short, contender in contenders.items():
            row: dict[str, Any] = {"preset": preset, "short name": short, "contender": contender.name}
            try:
                measured = measure(contender, config, batches, device, dtype, arguments.rounds)
                row |= rates(measured, config, batches, ceiling) | measured
                outcome = f"{row['target tokens/s']:,} target tokens/s, first step after {row['first step s']:.1f} s"
                if not math.isfinite(row["last loss"]):
                    outcome += "; BUT ITS LOSS IS NOT FINITE"
            except Exception as error:  # noqa: BLE001 - keep the others' figures
                traceback.print_exc()
                outcome = row["error"] = f"failed with {type(error).__name__}: {error}"[:500]
            print(f"{preset}, {contender.name}: {outcome}", flush=True)
            rows.append(row)
            free(device)
            compare(rows)
            # Written each time, so that an interrupted run keeps its results.
            path = write_json("train_throughput", rows, facts, arguments.out)
    for preset in arguments.preset:
        print(f"\n{preset}: {', '.join(f'{key} {value}' for key, value in PRESETS[preset].items())}")
        show([row for row in rows if row["preset"] == preset])
    print(f"\nwritten to {path}")


def parse(arguments: Sequence[str] | None = None) -> tuple[argparse.Namespace, torch.device]:
    """The command line, with defaults that suit the device."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", help="one or more, comma-separated (default: base,big on CUDA, else tiny)")
    parser.add_argument("--vocab", type=int, help="default: 37,000 on CUDA, else 8,000")
    parser.add_argument("--tokens", type=int, help="target tokens in an update (default: 25,000 on CUDA, else 2,000)")
    parser.add_argument("--batches", type=int, help="updates in a pass (default: 8 on CUDA, else 3)")
    parser.add_argument(
        "--corpus", type=int, default=CORPUS, help="sentence pairs that batches are cut from, by length"
    )
    parser.add_argument("--rounds", type=int, default=5, help="passes that are timed")
    parser.add_argument("--contenders", help=f"some of {','.join(CONTENDERS)}")
    parser.add_argument("--compiled", action="store_true", help="compiled peers on the CPU too")
    parser.add_argument("--precision", choices=("auto", "fp32", "bf16"), default="auto")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, help="the JSON file (default: benchmarks/results/train_throughput.json)")
    parsed = parser.parse_args(arguments)
    device = pick_device(parsed.device)
    on_cuda = device.type == "cuda"
    parsed.preset = (parsed.preset or ("base,big" if on_cuda else "tiny")).split(",")
    parsed.vocab = parsed.vocab or (37_000 if on_cuda else 8_000)
    parsed.tokens = parsed.tokens or (25_000 if on_cuda else 2_000)
    parsed.batches = parsed.batches or (8 if on_cuda else 3)
    everybody = [name for name, it in CONTENDERS.items() if on_cuda or parsed.compiled or not it.optional]
    parsed.contenders = parsed.contenders.split(",") if parsed.contenders else everybody
    for option, known in (("preset", PRESETS), ("contenders", CONTENDERS)):
        if unknown := [name for name in getattr(parsed, option) if name not in known]:
            parser.error(f"--{option} knows {', '.join(known)}, but not {', '.join(unknown)}")
    return parsed, device


def main() -> None:
    arguments, device = parse()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        if "TORCHINDUCTOR_CACHE_DIR" not in os.environ:
            os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
            os.environ["TRITON_CACHE_DIR"] = str(Path(folder) / "triton")
        run(arguments, device)


if __name__ == "__main__":
    main()
