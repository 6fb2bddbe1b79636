"""The loss of the fast path and of the plain path, step by step, on the same data from the same weights.

    python -m benchmarks.loss_curves --figure
    python -m benchmarks.loss_curves --set train.batch_tokens=300 --steps 30 --figure /tmp/curves.png
    python -m benchmarks.loss_curves --redraw benchmarks/results/loss_curves.json --figure

Every contender gets the same pairs in the same order (that of the sampler for slots) and the recipe's learning rates,
dropout and label smoothing. Two contenders of the same path with different dropout seeds show how much difference is
normal. Without a GPU the fast path consists of its slots and working copy only.
"""

from __future__ import annotations

import argparse
import json
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.common import machine, print_facts, print_table, write_json
from benchmarks.loop_overhead import prepare_in
from benchmarks.train_throughput import free
from regard.config import ModelConfig
from regard.data.arrays import Int64Array
from regard.data.pair_packing import make_sampler
from regard.data.pair_slots import PairSlots, fit_slots
from regard.data.pairs import PairBatch, gather, make_batch
from regard.data.store import Store
from regard.data.tokenizer import Tokenizer
from regard.device import compute_dtype, pick_device
from regard.errors import RegardError
from regard.models.transformer import Transformer
from regard.progress import progress
from regard.recipe import Recipe, TrainRecipe, load_recipe
from regard.tasks.translate import loss
from regard.training.display import make_display
from regard.training.fast import FastPath, fast_path
from regard.training.folder import RunFolder
from regard.training.optimizer import learning_rate, make_optimizer, set_learning_rate, warmup_steps
from regard.training.update import PlainUpdate, SlotUpdate, UpdateOptions

RECIPE = Path(__file__).parents[1] / "recipes" / "tatoeba.toml"
FIGURE = Path(__file__).parents[1] / "docs" / "loss-curves.svg"
WINDOW = 20  # steps that a smoothed loss is the mean of
COMPARED = 400  # steps before the end whose smoothed losses are compared
FAST, PLAIN, FP32, ANOTHER = "fast path", "plain path", "plain path, fp32", "another dropout seed"

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Contender:
    name: str
    dtype: torch.dtype | None  # of matrix products; None: fp32
    path: FastPath | None  # None: the plain path
    dropout_seed: int


@dataclass(frozen=True)
class Data:
    """The pairs of every update, in parts, and how both paths get them."""

    store: Store
    slots: PairSlots
    updates: list[list[Int64Array]]
    marks: tuple[int, int]  # of the beginning and the end of a sentence

    def count(self, number: int) -> int:
        """Target tokens of an update, each sentence's </s> among them."""
        return sum(int(self.store["target"].lengths[part].sum()) + len(part) for part in self.updates[number])

    def batches(self, number: int) -> list[PairBatch]:
        return [make_batch(*gather(self.store, part), *self.marks) for part in self.updates[number]]

    def words(self, number: int) -> list[torch.Tensor]:
        count = self.count(number)
        return [self.slots.pack(*gather(self.store, part), *self.marks, count) for part in self.updates[number]]


def make_data(recipe: Recipe, store: Store, tokenizer: Tokenizer) -> Data:
    train, lengths = recipe.train, (store["source"].lengths, store["target"].lengths)
    tokens = -(-train.batch_tokens // train.accumulate)
    slots = fit_slots(*lengths, store.corpora, tokens, recipe.data.max_length + 1)
    sampler = make_sampler(*lengths, tokens, train.seed, store.corpora, slots)
    updates = [[next(sampler) for _ in range(train.accumulate)] for _ in range(train.steps)]
    return Data(store, slots, updates, (tokenizer.bos_id, tokenizer.eos_id))


def make_contenders(train: TrainRecipe, device: torch.device) -> list[Contender]:
    """On a device without bf16 all compute in fp32, and there is one contender less."""
    dtype = compute_dtype(train.precision, device)
    path = fast_path(train.fast, device, dtype) or FastPath()
    plain = FP32 if dtype is None else f"{PLAIN}, bf16"
    seed = train.seed + 1
    contenders = [
        Contender(FAST, dtype, path, seed),
        Contender(plain, dtype, None, seed),
        Contender(f"{plain}, {ANOTHER}", dtype, None, seed + 1),
        Contender(FP32, None, None, seed),
    ]
    return contenders if dtype is not None else contenders[:-1]


def train_curve(
    contender: Contender, train: TrainRecipe, config: ModelConfig, data: Data, device: torch.device
) -> list[float]:
    """The mean loss per token of every step."""
    torch.manual_seed(train.seed)
    model = Transformer(config).to(device).train()
    optimizer = make_optimizer(model, train)
    options = UpdateOptions(train.label_smoothing, train.clip, contender.dtype)
    if contender.path is None:
        apply: PlainUpdate | SlotUpdate = PlainUpdate(loss, model, optimizer, options)
    else:
        apply = SlotUpdate(loss, model, optimizer, options, data.slots, train.accumulate, contender.path, print)
    make_parts: Callable[[int], Sequence[Any]] = data.batches if contender.path is None else data.words
    torch.manual_seed(contender.dropout_seed)
    steps, warmup = train.steps, warmup_steps(train, train.steps)
    losses = torch.zeros(steps, device=device)  # stay there until the end: a captured graph writes over its result
    with progress(contender.name, steps, "steps") as done:
        for number in range(steps):
            step = number + 1
            rate = learning_rate(train, config.d_model, step, warmup, step / steps, timed=False)
            set_learning_rate(optimizer, rate)
            count = data.count(number)
            losses[number] = apply(make_parts(number), count).total / count
            done(1)
        return [round(loss, 6) for loss in losses.tolist()]


def smoothed(losses: Sequence[float]) -> NDArray[np.float64]:
    """Means of the last WINDOW losses (of all of them, if there are fewer); the first is that of step WINDOW.

    >>> smoothed([1.0] * 20 + [2.0] * 10).round(2).tolist()
    [1.0, 1.05, 1.1, 1.15, 1.2, 1.25, 1.3, 1.35, 1.4, 1.45, 1.5]
    """
    window = min(WINDOW, len(losses))
    return np.convolve(np.asarray(losses, dtype=np.float64), np.full(window, 1.0 / window), "valid")


def compare(curves: Mapping[str, Sequence[float]]) -> list[dict[str, Any]]:
    """How far smoothed losses are apart: the paths, two seeds of the plain one, and either from fp32."""
    plain = next((name for name in curves if name not in (FAST, FP32) and ANOTHER not in name), FP32)
    pairs = [(FAST, plain), (f"{plain}, {ANOTHER}", plain), (FAST, FP32), (plain, FP32)]
    rows = []
    for one, other in dict.fromkeys(pairs):
        if one == other or one not in curves or other not in curves:
            continue
        difference = (smoothed(curves[one]) - smoothed(curves[other]))[-COMPARED:]
        rows.append(
            {
                "kind": "difference",
                "of": one,
                "from": other,
                "steps": len(difference),
                "mean |difference|": float(np.abs(difference).mean()),
                "mean difference": float(difference.mean()),
                "largest |difference|": float(np.abs(difference).max()),
                "at the end": float(difference[-1]),
            }
        )
    return rows


def curves_of(rows: Sequence[Row]) -> dict[str, list[float]]:
    return {row["contender"]: row["losses"] for row in rows if row["kind"] == "curve" and "losses" in row}


def show(rows: Sequence[Row]) -> None:
    """The end of every curve, and the distances between them."""
    ends = []
    for row in rows:
        if row["kind"] == "curve":
            losses = row.get("losses")
            figures = (losses[0], smoothed(losses)[-1]) if losses else None
            shown = [f"{loss:.4f}" for loss in figures] if figures else ["failed", "failed"]
            seconds = row["seconds"]
            ends.append({"contender": row["contender"], "first loss": shown[0], "last": shown[1], "seconds": seconds})
    print()
    print_table(ends)
    apart = [row for row in rows if row["kind"] == "difference"]
    if apart:
        text = [{k: f"{v:.5f}" if isinstance(v, float) else v for k, v in row.items() if k != "kind"} for row in apart]
        print(f"\nlosses smoothed over {WINDOW} steps, up to the last {COMPARED} of them:")
        print_table(text)


# --- the figure ---

# Wide and pale below, narrow above, so that overlapping curves stay visible.
STYLES: tuple[tuple[str, dict[str, Any]], ...] = (
    (ANOTHER, {"color": "#009e73", "linewidth": 1.2, "linestyle": (0, (4, 1.5)), "zorder": 3}),
    (FAST, {"color": "#d55e00", "linewidth": 1.2, "zorder": 5}),
    (FP32, {"color": "#b8b8b8", "linewidth": 3.6, "zorder": 2}),
    (PLAIN, {"color": "#0072b2", "linewidth": 1.2, "zorder": 4}),
)


def style(name: str) -> dict[str, Any]:
    return next(style for part, style in STYLES if part in name)


def import_pyplot() -> Any:
    try:
        import matplotlib
    except ImportError:
        raise SystemExit(
            "--figure needs the package matplotlib, which is missing; install it with pip install matplotlib"
        ) from None
    matplotlib.use("Agg")
    matplotlib.rcParams.update({"svg.hashsalt": "regard", "font.size": 10})  # the same file from the same figures
    import matplotlib.pyplot as plt

    return plt


def draw(path: Path, rows: Sequence[Row], facts: Row) -> None:
    """All curves, and below them how far each is from the plain path in fp32."""
    plt = import_pyplot()
    curves = curves_of(rows)
    figure, (upper, lower) = plt.subplots(
        2, 1, sharex=True, figsize=(8.0, 6.8), height_ratios=(1.7, 1.0), layout="constrained"
    )
    for name, losses in curves.items():
        upper.plot(range(1, len(losses) + 1), losses, label=name, **style(name))
    upper.set_ylabel("loss a token, every step")
    upper.legend(frameon=False, loc="upper right")
    if FP32 in curves:
        baseline = smoothed(curves[FP32])
        for name, losses in curves.items():
            difference = smoothed(losses) - baseline
            steps = range(len(losses) - len(difference) + 1, len(losses) + 1)
            lower.plot(steps, difference, **style(name))
        # Symmetric, so that above and below can be compared, and no finer than what matters.
        lowest, highest = lower.get_ylim()
        reach = max(-lowest, highest, 0.01)
        lower.set_ylim(-reach, reach)
    lower.set_ylabel(f"difference to fp32,\nmean of {WINDOW} steps")
    lower.set_xlabel("step")
    for panel in (upper, lower):
        panel.grid(color="#e6e6e6", linewidth=0.6)
        panel.set_axisbelow(True)
        panel.margins(x=0.01)
        panel.spines[["top", "right"]].set_visible(False)
    figure.align_ylabels()
    figure.suptitle(
        f"Training loss on the fast path and on the plain path, {facts['preset']} model\n"
        f"{facts['parameters'] / 1e6:.1f} million parameters, {facts['target tokens a step']:,} target tokens a step, "
        f"{facts['device']}, {facts['date']}",
        fontsize=11,
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150, facecolor="white", metadata={"Date": None} if path.suffix == ".svg" else None)
    plt.close(figure)
    print(f"drawn to {path}")


# --- the run ---


def run(recipe: Recipe, out: Path | None, where: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    train = recipe.train
    device = pick_device(train.device)
    contenders = make_contenders(train, device)
    rows: list[dict[str, Any]] = []
    with TemporaryDirectory(ignore_cleanup_errors=True) as name:
        prepared = prepare_in(RunFolder(Path(name)), recipe, make_display())
        store, tokenizer = prepared.store, prepared.tokenizer
        data = make_data(recipe, store, tokenizer)
        config = recipe.model.config(tokenizer.vocab_size)
        assert contenders[0].path is not None
        taken = [part for part, is_taken in asdict(contenders[0].path).items() if is_taken]
        facts: dict[str, Any] = {
            **machine(device, ("triton",)),
            "recipe": where,
            "preset": recipe.model.preset,
            "parameters": Transformer(config).num_parameters(),
            "vocabulary": tokenizer.vocab_size,
            "dropout": str(config.dropout),
            "steps": train.steps,
            "target tokens a step": round(sum(map(data.count, range(train.steps))) / train.steps),
            "accumulate": train.accumulate,
            "fast path": " + ".join(["slots", *taken]),
            "fp32 products": torch.get_float32_matmul_precision(),
        }
        print_facts(facts)
        for contender in contenders:
            row: dict[str, Any] = {"kind": "curve", "contender": contender.name}
            begun = time.perf_counter()
            try:
                row["losses"] = train_curve(contender, train, config, data, device)
            except Exception as error:  # noqa: BLE001 - keep the others' curves
                traceback.print_exc()
                row["error"] = f"{type(error).__name__}: {error}"[:500]
            row["seconds"] = time.perf_counter() - begun
            rows.append(row)
            outcome = f"failed with {row['error']}" if "error" in row else f"last loss {row['losses'][-1]:.4f}"
            print(f"{contender.name}: {outcome}, {row['seconds']:.1f} s", flush=True)
            # Written each time, so that an interrupted run keeps its results.
            path = write_json("loss_curves", [*rows, *compare(curves_of(rows))], facts, out)
            free(device)
    print(f"written to {path}")
    return [*rows, *compare(curves_of(rows))], facts


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", type=Path, nargs="?", default=RECIPE, help="default: recipes/tatoeba.toml")
    parser.add_argument("--set", action="append", default=[], metavar="section.key=value", help="change the recipe")
    parser.add_argument("--steps", type=int, default=500, help="updates of each contender (default: 500)")
    parser.add_argument(
        "--figure", type=Path, nargs="?", const=FIGURE, help="draw the curves, .svg or .png (default: %(const)s)"
    )
    parser.add_argument("--redraw", type=Path, metavar="JSON", help="train nothing; draw the results of an earlier run")
    parser.add_argument("--out", type=Path, help="the JSON file (default: benchmarks/results/loss_curves.json)")
    parsed = parser.parse_args(arguments)
    if parsed.steps < 1:
        parser.error(f"--steps must be at least 1, but is {parsed.steps}")
    if parsed.figure is not None and parsed.figure.suffix not in (".svg", ".png"):
        parser.error(f"--figure must end in .svg or .png, but is {parsed.figure}")
    return parsed


def main() -> None:
    arguments = parse()
    if arguments.figure is not None:
        import_pyplot()  # a missing package must fail at the start, not at the end
    try:
        if arguments.redraw is not None:
            written = json.loads(arguments.redraw.read_text())
            rows, facts = written["rows"], written["facts"]
        else:
            recipe = load_recipe(arguments.recipe, arguments.set)
            recipe = replace(recipe, train=replace(recipe.train, steps=arguments.steps, epochs=0.0, minutes=0.0))
            rows, facts = run(recipe, arguments.out, " ".join([arguments.recipe.name, *arguments.set]))
        show(rows)
        if arguments.figure is not None:
            draw(arguments.figure, rows, facts)
    except RegardError as error:
        raise SystemExit(str(error)) from None


if __name__ == "__main__":
    main()
