"""How fast a run would train on this machine, from updates on made-up text, whatever else the machine is doing.

By the clock, other programs slow down training far more than by their share, since its threads wait for each other many times
in an update: with seven other programs on two cores, two threads trained 160 to 370 target tokens per second in place of about
5,500. The CPU time of one thread hardly changed (3,490 to 3,770 tokens per second of it). So a CPU is measured in both ways, and
the larger figure counts: by the clock, which is right on a machine without other work, and by one thread's CPU time.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import torch

from regard.config import ModelConfig
from regard.device import compute_dtype, pick_device
from regard.models.transformer import Transformer
from regard.parallel.processes import process_info
from regard.parallel.ranks import own_device
from regard.recipe import Recipe, TrainRecipe
from regard.tasks import TASKS
from regard.training.check import pick_fast_path
from regard.training.optimizer import make_optimizer, set_learning_rate
from regard.training.update import WARM_UPDATES, PlainUpdate, SlotUpdate, UpdateOptions, UpdateResult

SAMPLE_SECONDS = 1.0  # of each of the two measurements
_BUSY = 0.6  # of the undisturbed speed; below it, other programs are mentioned
# N threads do the work of N ** 0.6: of two, measured 1.5 times one (5,496 and 3,650 target tokens per second, `tiny`, bf16).
_SCALING = 0.6


@dataclass(frozen=True)
class Speed:
    """Tokens per second of a run on this machine, or None where that was not measured."""

    rate: float | None
    note: str  # how it was measured, or why it was not


class Rate(NamedTuple):
    """Tokens per second: those that the task counts."""

    undisturbed: float  # without other programs
    now: float  # by the clock


def own_process_device(name: str) -> torch.device:
    """The device that this process trains on, alone or as one of several."""
    place = process_info()
    return pick_device(name) if place.size == 1 else own_device(name, place.local_rank)


def measure_speed(recipe: Recipe) -> Speed:
    """Train on made-up text for about two seconds, as a resolved recipe says; with several processes, the speed of this one
    times their number."""
    train, size = recipe.train, process_info().size
    if train.shard and size > 1:
        return Speed(None, "a sharded model needs all of its processes")
    config, device = recipe.model.config(recipe.tokenizer.vocab_size), own_process_device(train.device)
    try:
        length = TASKS[recipe.task].typical_length(recipe)
        dtype = compute_dtype(train.precision, device)
        rate = measure_rate(config, device, dtype, train, size, length, recipe.task)
    except torch.OutOfMemoryError:
        return Speed(None, f"an update does not fit the memory; raise train.accumulate ({train.accumulate})")
    note = "measured" if size == 1 else f"{size} times the measured speed of one process, without gradient exchange"
    if rate.now < _BUSY * rate.undisturbed:
        note += f"; other programs slow it down to {size * rate.now:,.0f} now"
    return Speed(size * rate.undisturbed, note)


def measure_rate(
    config: ModelConfig,
    device: torch.device,
    dtype: torch.dtype | None,
    train: TrainRecipe,
    size: int,
    length: int,
    task: str,
) -> Rate:
    """The speed of training on made-up sequences of `length` tokens. Of `size` processes, measures one alone on its share of an
    update."""
    update, tokens, num_warm = _made_up_update(config, device, dtype, train, size, length, task)
    now = tokens / _best_time(update, num_warm, time.perf_counter)
    if device.type != "cpu":
        return Rate(now, now)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        alone = tokens / _best_time(update, 1, time.process_time)
    finally:
        torch.set_num_threads(threads)
    return Rate(max(now, alone * threads**_SCALING), now)


def _best_time(update: Callable[[], UpdateResult], num_warm: int, clock: Callable[[], float]) -> float:
    """Seconds of the fastest update in about SAMPLE_SECONDS, after `num_warm` others."""
    for _ in range(num_warm):  # these also compile and capture
        float(update().total)  # waits for the device
    best, until = float("inf"), time.perf_counter() + SAMPLE_SECONDS
    while best == float("inf") or time.perf_counter() < until:
        started = clock()
        float(update().total)
        best = min(best, max(clock() - started, 1e-9))
    return best


def _made_up_update(
    config: ModelConfig,
    device: torch.device,
    dtype: torch.dtype | None,
    train: TrainRecipe,
    size: int,
    length: int,
    task: str,
) -> tuple[Callable[[], UpdateResult], int, int]:
    """An update of sequences of `length` tokens, its tokens, and how many updates it takes to warm up."""
    model = Transformer(config).to(device).train()
    optimizer = make_optimizer(model, train)
    set_learning_rate(optimizer, 1e-4)
    options = UpdateOptions(train.label_smoothing, train.clip, dtype, train.rdrop)
    # On a CPU a small batch runs at the same speed per token.
    batch_tokens = min(train.batch_tokens, 2_000) if device.type == "cpu" else train.batch_tokens
    num_parts = -(-train.accumulate // size)
    part_tokens = max(length, -(-batch_tokens // (num_parts * size)))
    tokens = num_parts * (part_tokens // length) * length
    path = pick_fast_path(train, config, device, size)
    loss = TASKS[task].anchored_loss(copy.deepcopy(model), 0) if train.anchor else TASKS[task].loss
    part, slots, count = TASKS[task].made_up_batch(config, part_tokens, length, path is not None)
    parts, count = [part] * num_parts, num_parts * count
    if path is None or slots is None:
        return partial(PlainUpdate(loss, model, optimizer, options), parts, count), tokens, 1
    path = replace(path, compile=False)  # it gains a few percent and takes most of the wait
    fast = SlotUpdate(loss, model, optimizer, options, slots, num_parts, path)
    return partial(fast, parts, count), tokens, WARM_UPDATES + 1
