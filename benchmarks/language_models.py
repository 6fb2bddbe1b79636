"""Training speed of language models compared: GPT-2 of 124M parameters on full rows of 1,024 tokens, and BERT base on sentences of
real lengths, by Regard, Hugging Face transformers (eager and compiled) and a plain compiled model in torch, in one run.

    python -m benchmarks.language_models
    python -m benchmarks.language_models --only gpt2 --peers none --seconds 5
    python -m benchmarks.language_models --size tiny --seconds 0 --log-every 1 --batches 1     # a moment on a CPU

Regard is timed inside the loop of `regard train`, with everything but validation and checkpoints: its feed cuts and masks the text,
and its log takes the time, for which it waits for the device. Its rows of GPT-2 are one sequence each, as those of the peers
(data.across_documents); `regard-apart` is its default, where documents in a row do not see each other. The peers get batches
that are ready on the device: rows, or sentences of similar lengths padded to the longest (benchmarks/language_contenders.py).
Weights and ids are random. Only real tokens count.
"""

from __future__ import annotations

import argparse
import math
import tempfile
import time
import traceback
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.common import machine, matmul_rate, print_facts, print_table, synchronize, write_json
from benchmarks.language_contenders import (
    OFFERED,
    PEERS,
    Shape,
    make_shape,
    make_store,
    make_tokenizer,
    masked_grids,
    model_flops,
    peer_updates,
    text_grids,
)
from benchmarks.train_throughput import compiled_graphs, free
from regard.data.feed import PreparedUpdate
from regard.device import compute_dtype, pick_device
from regard.nn.attention import Attention
from regard.parallel.ranks import Ranks
from regard.recipe import DataRecipe, ModelRecipe, Recipe, TrainRecipe
from regard.training.display import Display
from regard.training.folder import RunFolder
from regard.training.loop import Trainer
from regard.training.open_run import OpenRun
from regard.training.prepare import PreparedData
from regard.training.setup import make_trainer
from regard.training.update import SlotUpdate

STEPS = 1_000_000  # of a run that is stopped earlier
BATCHES = 8  # that peers cycle through
STORED = 64  # updates of text that an epoch of Regard has
MAX_WARMUP = 6  # passes of a peer; one that still compiles after this many is timed as it is
OURS = {"regard": "Regard", "regard-apart": "Regard, documents apart"}
TABLE = (
    "model",
    "contender",
    "tokens/s",
    "step ms",
    "% of matmul ceiling",
    "peak GiB",
    "first step s",
    "Regard is faster by",
)


# --- Regard ---


class TimedFeed:
    """A trainer's feed that counts the tokens taken from it."""

    def __init__(self, feed: Any) -> None:
        self._feed = feed
        self.tokens = 0

    def __next__(self) -> PreparedUpdate:
        update: PreparedUpdate = next(self._feed)
        self.tokens += update.tokens
        return update

    def __getattr__(self, name: str) -> Any:
        return getattr(self._feed, name)


class Clock:
    """A log of the trainer, for whose records the device is waited for: takes the time, and stops the run after so many seconds."""

    def __init__(self, trainer: Trainer, feed: TimedFeed, seconds: float) -> None:
        self._trainer, self._feed, self._seconds = trainer, feed, seconds
        self.marks: list[tuple[int, float, int]] = []  # step, time, tokens so far
        self.losses: list[float] = []

    def write(self, record: Mapping[str, Any]) -> None:
        if record["kind"] != "train" or not self._trainer.apply.is_warmed_up:
            return
        self.marks.append((record["step"], time.perf_counter(), self._feed.tokens))
        self.losses.append(record["loss"])
        if len(self.marks) > 1 and self.marks[-1][1] - self.marks[0][1] >= self._seconds:
            self._trainer.stops = True
            self._trainer.saved_step = self._trainer.state.step  # no checkpoint is wanted

    def close(self) -> None:
        pass


def recipe_of(shape: Shape, across: bool, arguments: argparse.Namespace) -> Recipe:
    """What `regard train` would be given."""
    fields = {key: value for key, value in shape.config.to_dict().items() if key != "vocab_size"}
    never = STEPS + 1
    return Recipe(
        DataRecipe("", "", (), 0, max_length=shape.length, across_documents=across),
        model=ModelRecipe("base", fields),
        train=TrainRecipe(
            steps=STEPS, batch_tokens=shape.tokens, optimizer="adamw", schedule="linear", lr=1e-4, warmup=100, beta2=0.999,
            eps=1e-8, weight_decay=0.01, label_smoothing=0.0, precision=arguments.precision, device=arguments.device,
            validate_every=never, save_every=never, log_every=arguments.log_every,
        ),
        task="generate" if shape.family == "gpt2" else "fill",
    )  # fmt: skip


def time_ours(name: str, shape: Shape, device: torch.device, arguments: argparse.Namespace) -> dict[str, Any]:
    """Run the training loop for some seconds after its updates have warmed up."""
    recipe = recipe_of(shape, name == "regard", arguments)
    store, tokenizer = make_store(shape, STORED), make_tokenizer(shape)
    with ExitStack() as stack:
        folder = RunFolder(Path(stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))))
        begun = time.perf_counter()
        trainer = make_trainer(
            recipe, PreparedData(tokenizer, store, None, []), OpenRun(), folder, Display(), begun, Ranks(device=device)
        )
        stack.callback(trainer.feed.close)
        for log in trainer.logs:
            stack.callback(log.close)
        feed = TimedFeed(trainer.feed)
        trainer.feed = feed  # type: ignore[assignment]
        clock = Clock(trainer, feed, arguments.seconds)
        trainer.logs.append(clock)
        trainer.run()
        apply = trainer.apply
        parts = [part for part, taken in asdict(apply.path).items() if taken] if isinstance(apply, SlotUpdate) else []
        kernels = sorted({module.kernel for module in _working(trainer).modules() if isinstance(module, Attention)})
    (first_step, start, before), (last_step, end, after) = clock.marks[0], clock.marks[-1]
    return {
        "tokens": after - before,
        "steps": last_step - first_step,
        "seconds": end - start,
        "first step s": trainer.state.prepared,
        "last loss": clock.losses[-1],
        "path": " + ".join(["slots", *parts]) if isinstance(apply, SlotUpdate) else "plain",
        "attention": ", ".join(kernels),
        "parameters": trainer.model.num_parameters(),
    }


def _working(trainer: Trainer) -> torch.nn.Module:
    """The model that computes."""
    apply = trainer.apply
    return apply.copy.model if isinstance(apply, SlotUpdate) and apply.copy is not None else trainer.model


# --- peers ---


def time_peer(
    name: str, shape: Shape, device: torch.device, dtype: torch.dtype | None, arguments: argparse.Namespace
) -> dict[str, Any]:
    """Warm a peer up until compilation has finished, and repeat passes over its batches for some seconds."""
    if shape.family == "gpt2":
        grids = text_grids(shape, arguments.batches, device)
        tokens = sum(ids.numel() for ids, _ in grids)
    else:
        grids, tokens = masked_grids(shape, arguments.batches, device)
    begun = time.perf_counter()
    update = peer_updates(name, shape, grids, device, dtype)
    float(update(0))
    first = time.perf_counter() - begun

    def one_pass() -> float:
        begun = time.perf_counter()
        for number in range(len(grids)):
            loss = update(number)
        losses.append(float(loss))  # waits for the device
        return time.perf_counter() - begun

    losses: list[float] = []
    for _ in range(MAX_WARMUP):
        graphs = compiled_graphs()
        one_pass()
        if compiled_graphs() == graphs:
            break
    seconds = [one_pass()]
    while sum(seconds) < arguments.seconds:
        seconds.append(one_pass())
    return {
        "tokens": tokens * len(seconds),
        "steps": len(grids) * len(seconds),
        "seconds": sum(seconds),
        "first step s": first,
        "last loss": losses[-1],
    }


# --- the run ---


def measure(
    name: str, shape: Shape, device: torch.device, dtype: torch.dtype | None, arguments: argparse.Namespace
) -> dict[str, Any]:
    """One contender's row."""
    torch.manual_seed(1)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    is_ours = name in OURS
    row = time_ours(name, shape, device, arguments) if is_ours else time_peer(name, shape, device, dtype, arguments)
    synchronize(device)
    if device.type == "cuda":
        row["peak GiB"] = torch.cuda.max_memory_allocated(device) / 2**30
    return row


def rates(row: Mapping[str, Any], shape: Shape, ceiling: float) -> dict[str, Any]:
    """Tokens a second, and what they are of the ceiling."""
    lengths = (
        np.diff(make_store(shape, 8)["text"].offsets) + 2.0 if shape.family == "bert" else np.array([shape.length])
    )
    labels = TrainRecipe.mask if shape.family == "bert" else 1.0
    flops = model_flops(shape.config, float((lengths**2).sum() / lengths.sum()), labels)
    speed = row["tokens"] / row["seconds"]
    return {
        "tokens/s": round(speed),
        "step ms": 1e3 * row["seconds"] / row["steps"],
        "% of matmul ceiling": 100 * speed * flops / ceiling,
    }


def compare(rows: Sequence[dict[str, Any]]) -> None:
    """Fill in how many times as fast Regard is as each of the others, model by model."""
    done = [row for row in rows if "error" not in row]
    ours = {row["model"]: row["tokens/s"] for row in done if row["short name"] == "regard"}
    for row in done:
        if row["short name"] not in OURS and row["model"] in ours:
            row["Regard is faster by"] = ours[row["model"]] / row["tokens/s"]


def run(arguments: argparse.Namespace, device: torch.device) -> None:
    dtype = compute_dtype(arguments.precision, device)
    ceiling = matmul_rate(device, dtype)
    facts = {
        **machine(device, ("transformers", "triton")),
        "cuda": torch.version.cuda or "none",
        "cudnn": torch.backends.cudnn.version() or "none",
        "precision": "fp32" if dtype is None else "bf16",
        "size": arguments.size,
        "seconds": arguments.seconds,
        "matmul ceiling TFLOP/s": ceiling / 1e12,
    }
    print_facts(facts)
    rows: list[dict[str, Any]] = []
    for model in arguments.only:
        shape = make_shape(model, arguments.size == "tiny", arguments.tokens)
        # Ours first: a budget of time that ends early still has it.
        ours = [name for name in arguments.ours if name == "regard" or model == "gpt2"]
        for name in [*ours, *(peer for peer in OFFERED[model] if peer in arguments.peers)]:
            title = OURS[name] if name in OURS else PEERS[name][0]
            row: dict[str, Any] = {"model": model, "short name": name, "contender": title}
            try:
                row |= measure(name, shape, device, dtype, arguments)
                row |= rates(row, shape, ceiling)
                outcome = f"{row['tokens/s']:,} tokens/s, first step after {row['first step s']:.1f} s"
                if not math.isfinite(row["last loss"]):
                    outcome += "; BUT ITS LOSS IS NOT FINITE"
            except Exception as error:  # noqa: BLE001 - keep the others' figures
                traceback.print_exc()
                outcome = row["error"] = f"failed with {type(error).__name__}: {error}"[:500]
            print(f"{model}, {title}: {outcome}", flush=True)
            rows.append(row)
            free(device)
            compare(rows)
            # Written each time, so that an interrupted run keeps its results.
            path = write_json("language_models", rows, facts, arguments.out)
    print()
    columns = [column for column in TABLE if any(column in row for row in rows)]
    print_table([{column: row.get(column, "failed" if "error" in row else None) for column in columns} for row in rows])
    print(f"\nwritten to {path}")


def parse(arguments: Sequence[str] | None = None) -> tuple[argparse.Namespace, torch.device]:
    """The command line, with defaults that suit the device."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="gpt2,bert", help="some of gpt2,bert")
    parser.add_argument("--ours", default=",".join(OURS), help=f"some of {','.join(OURS)}, or none")
    parser.add_argument(
        "--peers",
        help=f"some of {','.join(PEERS)}, or none (default on CUDA: hf,hf-compiled,torch-compiled; else hf,torch)",
    )
    parser.add_argument("--size", choices=("base", "tiny"), help="default: base on CUDA, else tiny")
    parser.add_argument(
        "--tokens", type=int, default=0, help="in an update (default: 65,536 for GPT-2, 32,768 for BERT)"
    )
    parser.add_argument("--seconds", type=float, default=10.0, help="time of each measurement, after its warm-up")
    parser.add_argument("--log-every", type=int, default=40, help="steps of Regard between two readings of the clock")
    parser.add_argument("--batches", type=int, default=BATCHES, help="batches that peers cycle through")
    parser.add_argument("--precision", choices=("auto", "fp32", "bf16"), default="auto")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, help="the JSON file (default: benchmarks/results/language_models.json)")
    parsed = parser.parse_args(arguments)
    device = pick_device(parsed.device)
    parsed.size = parsed.size or ("base" if device.type == "cuda" else "tiny")
    everybody = ["hf", "hf-compiled", "torch-compiled"] if device.type == "cuda" else ["hf", "torch"]
    parsed.peers = everybody if parsed.peers is None else parsed.peers.split(",")
    parsed.only, parsed.ours = parsed.only.split(","), parsed.ours.split(",")
    for option, known in (("only", OFFERED), ("peers", PEERS), ("ours", OURS)):
        chosen = [] if getattr(parsed, option) == ["none"] else getattr(parsed, option)
        setattr(parsed, option, chosen)
        if unknown := [name for name in chosen if name not in known]:
            parser.error(f"--{option} knows {', '.join(known)}, but not {', '.join(unknown)}")
    if parsed.log_every < 1 or parsed.batches < 1:
        parser.error("--log-every and --batches must be at least 1")
    return parsed, device


def main(arguments: Sequence[str] | None = None) -> None:
    run(*parse(arguments))


if __name__ == "__main__":
    main()
