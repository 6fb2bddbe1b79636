"""The overhead of `regard train` over the bare step: data, learning rate, sums, logging and moving average; everything
except validation and checkpoints.

    python -m benchmarks.loop_overhead recipes/wmt-8min.toml
    python -m benchmarks.loop_overhead recipes/tatoeba.toml --set model.preset=tiny --steps 20

The recipe's data is prepared and its trainer run as in training, in a temporary run folder. The time is taken between two
log records, for which the trainer waits for the device: the first after the warm-up and the last. Then the trainer's update
is called on updates that are ready in memory (page-locked on CUDA), waiting for the device once at each end. Only real
target tokens count.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.common import machine, print_facts, print_table, synchronize, write_json
from regard.data.feed import Feed, PreparedUpdate
from regard.data.pairs import PairBatch
from regard.device import pick_device
from regard.errors import RegardError
from regard.parallel.ranks import Ranks
from regard.recipe import Recipe, load_recipe
from regard.training.display import Display, make_display
from regard.training.folder import RunFolder, claim_folder
from regard.training.loop import Trainer
from regard.training.open_run import OpenRun
from regard.training.optimizer import WARMUP
from regard.training.prepare import PreparedData, find_corpora
from regard.training.run import prepare_data
from regard.training.setup import make_trainer
from regard.training.update import SlotUpdate

WARM_STEPS = 50  # then compiling and capturing are over; also the steps between two log records
KEPT = 32  # updates that the bare step cycles through
TABLE = ("what", "target tokens/s", "step ms", "waits for data, ms a step", "steps", "seconds")


class WatchedFeed:
    """The trainer's feed, counting the target tokens taken from it and the seconds spent waiting for it."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self.tokens = 0
        self.waited = 0.0

    def __next__(self) -> PreparedUpdate:
        begun = time.perf_counter()
        update = next(self._feed)
        self.waited += time.perf_counter() - begun
        self.tokens += update.count
        return update

    def __getattr__(self, name: str) -> Any:
        return getattr(self._feed, name)


@dataclass(frozen=True)
class Mark:
    """The state of the run when a record was logged."""

    step: int
    time: float
    tokens: int
    waited: float


class Marks:
    """A log of the trainer that takes the time."""

    def __init__(self, feed: WatchedFeed) -> None:
        self._feed = feed
        self.seen: list[Mark] = []

    def write(self, record: Mapping[str, Any]) -> None:
        if record["kind"] == "train":
            feed = self._feed
            self.seen.append(Mark(record["step"], time.perf_counter(), feed.tokens, feed.waited))

    def close(self) -> None:
        pass


def prepare_in(folder: RunFolder, recipe: Recipe, display: Display) -> PreparedData:
    """Tokenizer, store and validation pairs in an empty folder."""
    claim_folder(folder, recipe)
    return prepare_data(recipe, OpenRun(find_corpora(recipe)), folder, display)


def measured_recipe(recipe: Recipe, steps: int) -> Recipe:
    """The recipe with this many steps and no validation; the learning rate rises slowly so that a short run does not diverge."""
    total = WARM_STEPS + steps
    train = replace(
        recipe.train,
        steps=total,
        epochs=0.0,
        minutes=0.0,
        warmup=recipe.train.warmup or WARMUP,
        patience=0,
        validate_every=total + 1,
        save_every=total + 1,
        log_every=WARM_STEPS,
    )
    return replace(recipe, train=train)


def time_loop(trainer: Trainer) -> dict[str, Any]:
    """Run the trainer to its end; what it did between the first and the last record of its log."""
    feed = WatchedFeed(trainer.feed)
    trainer.feed = feed  # type: ignore[assignment]
    marks = Marks(feed)
    trainer.logs.append(marks)
    if not trainer.run():
        raise KeyboardInterrupt
    first, last = marks.seen[0], marks.seen[-1]
    assert first.step == WARM_STEPS
    steps = last.step - first.step
    row = speed("regard train", steps, last.tokens - first.tokens, last.time - first.time)
    row["waits for data, ms a step"] = 1e3 * (last.waited - first.waited) / steps
    # Shows whether the machine slowed down or the feed planned an epoch.
    spans = itertools.pairwise(marks.seen)
    row["target tokens/s by record"] = [round((b.tokens - a.tokens) / (b.time - a.time)) for a, b in spans]
    return row


def time_bare(
    trainer: Trainer, kept: Sequence[PreparedUpdate], steps: int, what: str, then: Callable[[], None] | None = None
) -> dict[str, Any]:
    """The trainer's update, repeated with nothing around it but `then`."""

    def step(update: PreparedUpdate) -> None:
        trainer.apply(fresh(update.parts), update.count)
        if then is not None:
            then()

    for update in kept:  # warm up
        step(update)
    synchronize(trainer.device)
    begun = time.perf_counter()
    for number in range(steps):
        step(kept[number % len(kept)])
    synchronize(trainer.device)
    seconds = time.perf_counter() - begun
    return speed(what, steps, sum(kept[number % len(kept)].count for number in range(steps)), seconds)


def fresh(parts: Sequence[Any]) -> Sequence[Any]:
    """Batches without their layouts' caches, which a real run computes for every update."""
    if not isinstance(parts[0], PairBatch):
        return parts
    return [replace(p, src_layout=replace(p.src_layout), tgt_layout=replace(p.tgt_layout)) for p in parts]


def speed(what: str, steps: int, tokens: int, seconds: float) -> dict[str, Any]:
    return {
        "what": what,
        "target tokens/s": round(tokens / seconds),
        "step ms": 1e3 * seconds / steps,
        "steps": steps,
        "target tokens": tokens,
        "seconds": seconds,
    }


def measure(trainer: Trainer, steps: int) -> list[dict[str, Any]]:
    """The loop, the bare step, and where the recipe has a moving average the bare step with that."""
    rows = [time_loop(trainer)]
    kept = [next(trainer.feed) for _ in range(KEPT)]
    trainer.feed.close()  # its thread would compete with the bare step
    rows.append(time_bare(trainer, kept, steps, "bare step"))
    if (average := trainer.average) is not None:
        step = trainer.state.step
        what = "bare step and moving average"
        rows.append(time_bare(trainer, kept, steps, what, lambda: average.update(trainer.model, step)))
    for row in rows:
        row["regard train / this"] = rows[0]["target tokens/s"] / row["target tokens/s"]
    return rows


def trainer_facts(recipe: Recipe, trainer: Trainer) -> dict[str, Any]:
    """What was trained, and how."""
    apply, train = trainer.apply, recipe.train
    parts = [name for name, taken in asdict(apply.path).items() if taken] if isinstance(apply, SlotUpdate) else None
    return {
        "preset": recipe.model.preset,
        "parameters": trainer.model.num_parameters(),
        "vocabulary": trainer.tokenizer.vocab_size,
        "precision": "fp32" if trainer.autocast is None else "bf16",
        "path": "plain" if parts is None else " + ".join(["slots", *parts]),
        "pairs": len(trainer.store),
        "batch_tokens": train.batch_tokens,
        "accumulate": train.accumulate,
        "moving average": str(train.ema or "none"),
        "steps before": WARM_STEPS,
        "steps between log records": train.log_every,
    }


def run(recipe: Recipe, steps: int, out: Path | None, where: str) -> None:
    recipe = measured_recipe(recipe, steps)
    device = pick_device(recipe.train.device)  # before anything is prepared
    with ExitStack() as stack:
        name = stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))
        folder = RunFolder(Path(name))
        display = make_display()
        stack.callback(display.close)
        data = prepare_in(folder, recipe, display)
        trainer = make_trainer(recipe, data, OpenRun(), folder, display, time.perf_counter(), Ranks(device=device))
        stack.callback(trainer.feed.close)
        for log in trainer.logs:
            stack.callback(log.close)
        rows = measure(trainer, steps)
        facts = {**machine(device, ("triton",)), "recipe": where, **trainer_facts(recipe, trainer)}
    facts["target tokens a step"] = round(rows[0]["target tokens"] / rows[0]["steps"])
    by_record = rows[0]["target tokens/s by record"]
    facts["slowest, median, fastest record"] = [min(by_record), round(statistics.median(by_record)), max(by_record)]
    print_facts(facts)
    print_table([{column: row.get(column) for column in TABLE} for row in rows])
    for row in rows[1:]:
        print(f"regard train runs at {row['regard train / this']:.2%} of the speed of: {row['what']}")
    print(f"written to {write_json('loop_overhead', rows, facts, out)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", type=Path, help="a recipe file; its training length is ignored")
    parser.add_argument("--set", action="append", default=[], metavar="section.key=value", help="change the recipe")
    parser.add_argument("--steps", type=int, default=1000, help="steps to time (default: 1,000)")
    parser.add_argument("--out", type=Path, help="the JSON file (default: benchmarks/results/loop_overhead.json)")
    arguments = parser.parse_args()
    if arguments.steps < 1:
        parser.error(f"--steps must be at least 1, but is {arguments.steps}")
    try:
        recipe = load_recipe(arguments.recipe, arguments.set)
        run(recipe, arguments.steps, arguments.out, " ".join([str(arguments.recipe), *arguments.set]))
    except RegardError as error:
        raise SystemExit(str(error)) from None


if __name__ == "__main__":
    main()
